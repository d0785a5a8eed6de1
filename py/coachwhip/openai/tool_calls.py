"""Reads the tool calls in a text, as the text comes.

The format is that of Nemotron 3 and of Qwen3-Coder; line breaks inside it may be left out:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .argument_types import STRING, ArgumentTypes, quoted, to_json
from .reasoning import beginning
from .tools import Tool

CALL, END_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}>")
_LONGEST_NAME, _LONGEST_KEY = 65, 256
_BLANK = " \t\r\n"


@dataclass(frozen=True)
class Content:
    """More of the text outside of calls."""

    text: str


@dataclass(frozen=True)
class CallBegins:
    """A call to a function; `index` counts the calls of the text from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """More of the arguments of a call: pieces of the text of one JSON object."""

    index: int
    text: str


Event = Content | CallBegins | Arguments


class ToolCallParser:
    """Reads one text, in chunks of any size.

    Arguments become JSON by the types of the tool's schema; those that are strings come as they are
    written, others when they are complete. What is no call stays text, with its marks: nothing is
    lost but blanks next to calls. A call that turns into something else ends there, and what
    follows is text. One that the text breaks off in keeps its arguments unfinished: no JSON, so
    that nobody takes half a command for a whole one.

    Args:
        tools: Functions that may be called, for the types of their arguments; a call to another
            one is a call too.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._types: Mapping[str, ArgumentTypes] = {
            tool.function.name: ArgumentTypes(tool.function.parameters) for tool in tools
        }
        self._text = ""
        self._events: list[Event] = []
        self._state: Callable[[], bool] = self._content
        self.count = 0
        """Calls that were begun."""
        self._blank = ""
        """Blanks that are dropped if a call follows."""
        self._after_call = False
        self._arguments = 0
        self._of = ArgumentTypes(None)
        self._key, self._value, self._streams = "", "", False

    def feed(self, text: str) -> list[Event]:
        """Returns what a chunk adds."""
        self._text += text
        while self._state():
            pass
        return self._taken()

    def finish(self) -> list[Event]:
        """Returns what was still held back."""
        text, self._text = self._text, ""
        if self._state == self._call:
            self._say(self._blank + CALL + text)
        elif self._state == self._content:
            if not self._after_call or text.strip(_BLANK):
                self._say(self._blank + text)
        elif self._state == self._parameter_value:
            self._value += text
            text = self._value if self._streams else quoted(self._value)[:-1]
            self._argue(quoted(text)[1:-1] if self._streams else text)
        elif self._state != self._end and text.strip(_BLANK):
            self._argue(quoted(text)[1:-1])
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _say(self, text: str) -> None:
        self._blank = ""
        if text:
            self._after_call = False
            self._events.append(Content(text))

    def _argue(self, text: str) -> None:
        if text:
            self._events.append(Arguments(self.count - 1, text))

    # Each state takes what it can from the front of `_text`; it returns whether the next one may
    # go on, or False where it needs more.

    def _content(self) -> bool:
        before, mark, after = self._text.partition(CALL)
        keep = 0 if mark else beginning(before, CALL)
        text = before[: len(before) - keep]
        bare = text.rstrip(_BLANK)
        if bare:
            lead = bare
            if self._after_call:
                lead = bare.lstrip(_BLANK)
            self._say(("" if self._after_call else self._blank) + lead)
            self._blank = text[len(bare) :]
        else:
            self._blank += text
        self._text = after if mark else before[len(before) - keep :]
        if mark:
            self._state = self._call
        return bool(mark)

    def _call(self) -> bool:
        """Between `<tool_call>` and the function's name."""
        bare = self._text.lstrip(_BLANK)
        if len(bare) < len(FUNCTION) and FUNCTION.startswith(bare):
            return False
        name = bare[len(FUNCTION) :]
        if bare.startswith(FUNCTION):
            if found := _NAME.match(name):
                self._begin(found[0][:-1], name[found.end() :])
                return True
            if len(name) < _LONGEST_NAME and (not name or _NAME.match(name + ">")):
                return False
        # Not a call after all: the mark is text, and what follows it is read as such.
        self._say(self._blank + CALL)
        self._state = self._content
        return True

    def _begin(self, name: str, rest: str) -> None:
        self._events.append(CallBegins(self.count, name))
        self.count += 1
        self._blank, self._arguments = "", 0
        self._of = self._types.get(name, ArgumentTypes(None))
        self._text, self._state = rest, self._parameter

    def _parameter(self) -> bool:
        """Between parameters."""
        bare = self._text.lstrip(_BLANK)
        marks = (PARAMETER, END_FUNCTION, END_CALL)
        if bare.startswith(PARAMETER):
            key, end, rest = bare[len(PARAMETER) :].partition(">")
            if end and 0 < len(key) <= _LONGEST_KEY and "\n" not in key:
                self._begin_value(key, rest)
                return True
            if not end and len(key) <= _LONGEST_KEY and "\n" not in key:
                return False
        elif bare.startswith(END_FUNCTION):
            self._close(bare[len(END_FUNCTION) :], self._end)
            return True
        elif any(mark.startswith(bare) for mark in marks):
            return False
        self._close(self._text, self._end)
        return True

    def _begin_value(self, key: str, rest: str) -> None:
        types = self._of.of(key)
        self._streams = types == STRING
        self._argue(("{" if not self._arguments else ", ") + quoted(key) + ": ")
        self._argue('"' if self._streams else "")
        self._arguments += 1
        self._key, self._value = key, ""
        self._text, self._state = rest, self._value_begins

    def _value_begins(self) -> bool:
        """Drops the line break before a value."""
        if not self._text:
            return False
        self._text = self._text.removeprefix("\n")
        self._state = self._parameter_value
        return True

    def _parameter_value(self) -> bool:
        before, mark, after = self._text.partition(END_PARAMETER)
        if mark:
            self._take_value(before.removesuffix("\n"))
            types = self._of.of(self._key)
            self._argue('"' if self._streams else to_json(self._value, types))
            self._text, self._state = after, self._parameter
            return True
        # The line break may be the one before the mark.
        keep = beginning(before, END_PARAMETER)
        known = before[: len(before) - keep].removesuffix("\n")
        self._take_value(known)
        self._text = before[len(known) :]
        return False

    def _take_value(self, text: str) -> None:
        if self._streams:
            self._argue(quoted(text)[1:-1])
        else:
            self._value += text

    def _close(self, rest: str, state: Callable[[], bool]) -> None:
        self._argue("}" if self._arguments else "{}")
        self._after_call = True
        self._text, self._state = rest, state

    def _end(self) -> bool:
        """After the function's end."""
        bare = self._text.lstrip(_BLANK)
        if len(bare) < len(END_CALL) and END_CALL.startswith(bare):
            return False
        if bare.startswith(END_CALL):
            self._text = bare[len(END_CALL) :]
        self._state = self._content
        return True
