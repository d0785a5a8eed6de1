"""Parts what a model thinks from what it answers, as the text comes."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"
"""What reasoning stands between; a chat template that lets a model think ends with the first."""


def opens_reasoning(prompt: str) -> bool:
    """Whether the text after a prompt begins inside the model's reasoning."""
    return prompt.rstrip("\r\n").endswith(OPEN)


def beginning(text: str, mark: str) -> int:
    """Returns how many characters at the end of a text may be the beginning of a mark."""
    return next(n for n in range(min(len(text), len(mark) - 1), -1, -1) if text.endswith(mark[:n]))


class ReasoningSplitter:
    """Splits one text, in chunks of any size.

    Reasoning ends at the first `</think>`; all after it is the answer. Line breaks next to the
    marks belong to the format and are left out, and so are the marks; nothing else is. A text whose
    reasoning never ends has no answer.

    Args:
        opened: Whether the prompt opened the reasoning; else it must be the first of the text.
    """

    def __init__(self, opened: bool) -> None:
        self._opened = opened
        self._state = self._reason if opened else self._begin
        self._fresh = True
        """Nothing but line breaks came since the mark."""
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Returns what a chunk adds to the reasoning and to the answer."""
        self._held += text
        return self._state()

    def finish(self) -> tuple[str, str]:
        """Returns what was still held back."""
        held, self._held = self._held, ""
        if self._state == self._reason:
            return held.rstrip("\r\n") if self._fresh else held, ""
        return "", held

    @property
    def reasons(self) -> bool:
        """Whether the text has reasoning, if only an empty one."""
        return self._opened

    def _begin(self) -> tuple[str, str]:
        bare = self._held.lstrip()
        if bare.startswith(OPEN):
            self._held, self._opened = bare[len(OPEN) :], True
            self._state = self._reason
            return self._state()
        if OPEN.startswith(bare):
            return "", ""
        self._state, self._fresh = self._answer, False
        return self._state()

    def _reason(self) -> tuple[str, str]:
        if self._fresh:
            self._held = self._held.lstrip("\r\n")
        before, mark, after = self._held.partition(CLOSE)
        if mark:
            self._held, self._fresh = after, True
            self._state = self._answer
            return before.rstrip("\r\n"), self._state()[1]
        # Line breaks may be those before the mark, and the end its beginning.
        bare = before[: len(before) - beginning(before, CLOSE)]
        known = bare.rstrip("\r\n")
        self._held = before[len(known) :]
        self._fresh = self._fresh and not known
        return known, ""

    def _answer(self) -> tuple[str, str]:
        text, self._held = self._held, ""
        if self._fresh:
            text = text.lstrip("\r\n")
            self._fresh = not text
        return "", text
