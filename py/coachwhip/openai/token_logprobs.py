"""Log probabilities in the forms of the two URLs."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence

from .token_text import TokenText

LEAST = -9999.0
"""What OpenAI gives for tokens that are next to impossible; JSON has no infinity."""

Found = Mapping[int, float]
"""Token id -> natural log probability, the most likely first."""


class CompletionLogprobs:
    """`logprobs` of `/v1/completions`, of a whole text or of one chunk after the other.

    Args:
        token_text: Text of the tokens.
        count: Most likely tokens that are wanted at each.
    """

    def __init__(self, token_text: TokenText, count: int) -> None:
        self._token_text, self._count, self._offset = token_text, count, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token_ids: Sequence[int], logprobs: Iterable[Found | None]) -> dict:
        """Returns the object for the next tokens.

        Args:
            token_ids: The tokens.
            logprobs: For each token itself and the most likely ones; None where nothing is known,
                as of the first token of a prompt.
        """
        tokens, offsets, own, tops = [], [], [], []
        for token, found in zip(token_ids, logprobs, strict=True):
            tokens.append(self._token_text.shown(token))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._token_text.in_text(token)))
            own.append(None if found is None else max(found[token], LEAST))
            tops.append(None if found is None else self._top(found))
        return {
            "tokens": tokens,
            "token_logprobs": own,
            "top_logprobs": tops if self._count else None,
            "text_offset": offsets,
        }

    def _top(self, found: Found) -> dict[str, float]:
        top: dict[str, float] = {}
        for token in list(found)[: self._count]:
            top.setdefault(self._token_text.shown(token), max(found[token], LEAST))
        return top


class ChatLogprobs:
    """`logprobs` of `/v1/chat/completions`; arguments are those of `CompletionLogprobs`."""

    def __init__(self, token_text: TokenText, count: int) -> None:
        self._token_text, self._count = token_text, count

    def take(self, token_ids: Sequence[int], logprobs: Iterable[Found]) -> dict:
        """Returns the object for the next tokens."""
        content = []
        for token, found in zip(token_ids, logprobs, strict=True):
            likely = list(found)[: self._count]
            content.append(
                {
                    **self._entry(token, found),
                    "top_logprobs": [self._entry(one, found) for one in likely],
                }
            )
        return {"content": content, "refusal": None}

    def _entry(self, token: int, found: Found) -> dict:
        return {
            "token": self._token_text.shown(token),
            "logprob": max(found[token], LEAST),
            "bytes": list(self._token_text.raw(token)),
        }
