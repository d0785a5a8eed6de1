"""One text of a response, whole or chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..outputs import CompletionOutput, RequestOutput
from .api_error import ApiError
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
            self._logprobs = CompletionLogprobs(token_text, num_logprobs, len(echo))

    def opening(self) -> dict | None:
        """Returns the choice of a stream's first chunk, before any token; None: there is none."""
        return self.chunk(self._echo, [], []) if self._echo else None

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

    def whole(self, output: CompletionOutput) -> dict:
        """Returns the choice of a response that is not streamed."""
        return self.chunk(
            self._echo + output.text, output.token_ids, output.logprobs, output.finish_reason
        )


class ChatChoice:
    """A text of `/v1/chat/completions`; arguments are those of `CompletionChoice`."""

    def __init__(self, index: int, token_text: TokenText, num_logprobs: int | None) -> None:
        self._index = index
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
        """Returns the choice of a chunk; arguments are those of `CompletionChoice.chunk`."""
        found = self._logprobs and self._logprobs.take(token_ids, logprobs)
        return self._choice("delta", {"content": text} if text else {}, found, finish_reason)

    def whole(self, output: CompletionOutput) -> dict:
        """Returns the choice of a response that is not streamed."""
        found = self._logprobs and self._logprobs.take(output.token_ids, output.logprobs)
        message = {"role": "assistant", "content": output.text, "refusal": None}
        return self._choice("message", message, found, output.finish_reason)

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
