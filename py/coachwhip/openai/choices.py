"""One text of a response, whole or chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..outputs import RequestOutput
from .api_error import ApiError
from .assistant_text import AssistantText
from .token_logprobs import ChatLogprobs, CompletionLogprobs
from .token_text import TokenText

FINISHED = ("stop", "length")
"""Reasons that a text ends for, of those that a response may give."""


class CompletionChoice:
    """A text of `/v1/completions`.

    Args:
        index: Its place in the response.
        token_text: Text of single tokens.
        num_logprobs: Most likely tokens that are wanted at each; None: no log probabilities.
        echo: Text that comes before the generated one; empty without `echo`.
    """

    def __init__(
        self, index: int, token_text: TokenText, num_logprobs: int | None, echo: str
    ) -> None:
        self._index, self._echo = index, echo
        self._logprobs = None
        if num_logprobs is not None:
            self._logprobs = CompletionLogprobs(token_text, num_logprobs)

    def opening(self) -> dict | None:
        """Returns the choice of a stream's first chunk, before any token; None: there is none.

        An echoed prompt with log probabilities is no opening: it waits for them, see `prompt`.
        """
        return self.chunk(self._echo, [], None) if self._echo and not self._logprobs else None

    def prompt(self, output: RequestOutput) -> dict:
        """Returns the choice of a stream's first chunk with an echoed prompt and its logprobs."""
        return self.chunk(self._echo, output.prompt_token_ids, output.prompt_logprobs)

    def chunk(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, float]] | None,
        finish_reason: str | None = None,
    ) -> dict:
        """Returns the choice of a chunk.

        Args:
            text: Text since the chunk before.
            token_ids: Tokens since the chunk before.
            logprobs: Of these tokens; None where the body wants none.
            finish_reason: Why the text ends with this chunk, None while it goes on.
        """
        return {
            "index": self._index,
            "text": text,
            "logprobs": self._logprobs and self._logprobs.take(token_ids, logprobs),
            "finish_reason": finish_reason,
        }

    def whole(self, output: RequestOutput) -> dict:
        """Returns the choice of a response that is not streamed."""
        completion = output.outputs[0]
        token_ids, logprobs = completion.token_ids, completion.logprobs
        if output.prompt_logprobs is not None:
            token_ids = [*output.prompt_token_ids, *token_ids]
            logprobs = [*output.prompt_logprobs, *logprobs]
        return self.chunk(
            self._echo + completion.text, token_ids, logprobs, completion.finish_reason
        )


class ChatChoice:
    """A text of `/v1/chat/completions`.

    Args:
        index: Its place in the response.
        token_text: Text of single tokens.
        num_logprobs: Most likely tokens that are wanted at each; None: no log probabilities.
        text: Parts reasoning, content and tool calls.
    """

    def __init__(
        self, index: int, token_text: TokenText, num_logprobs: int | None, text: AssistantText
    ) -> None:
        self._index, self._text = index, text
        self._logprobs = None
        if num_logprobs is not None:
            self._logprobs = ChatLogprobs(token_text, num_logprobs)

    def opening(self) -> dict:
        """Returns the choice of a stream's first chunk, which has the role."""
        return self._choice("delta", {"role": "assistant", "content": ""}, None, None)

    def chunk(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, float]] | None,
        finish_reason: str | None = None,
    ) -> dict:
        """Returns the choice of a chunk; arguments are those of `CompletionChoice.chunk`.

        The delta may have `reasoning_content` and `tool_calls` beside `content`, or nothing while
        it is open what a piece of text is. The last chunk, the one with a `finish_reason`, gives
        what was held back.
        """
        found = self._logprobs and self._logprobs.take(token_ids, logprobs)
        delta = self._text.feed(text, last=finish_reason is not None)
        return self._choice("delta", delta, found, self._text.finish_reason(finish_reason))

    def whole(self, output: RequestOutput) -> dict:
        """Returns the choice of a response that is not streamed."""
        completion = output.outputs[0]
        found = self._logprobs and self._logprobs.take(completion.token_ids, completion.logprobs)
        message = self._text.message(completion.text)
        reason = self._text.finish_reason(completion.finish_reason)
        return self._choice("message", message, found, reason)

    def _choice(self, kind: str, content: dict, logprobs: dict | None, reason: str | None) -> dict:
        return {
            "index": self._index,
            kind: content,
            "logprobs": logprobs,
            "finish_reason": reason,
        }


def check_finished(output: RequestOutput) -> None:
    """Raises ApiError for a text that did not come to its end."""
    reason = output.outputs[0].finish_reason
    if reason not in FINISHED:
        what = output.error or f"the request ended with {reason}"
        raise ApiError(500, f"the text was not finished: {what}", code="generation_failed")
