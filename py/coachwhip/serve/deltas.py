"""What is new of an output since it was last sent."""

from __future__ import annotations

from collections.abc import Sequence

from ..outputs import RequestOutput
from .messages import Update


class OutputDeltas:
    """Cuts the growing output of one request into updates.

    Text that may be the beginning of a stop string is held back: when the string is complete, it
    leaves the text.

    Args:
        output: The output, which the engine extends.
        stops: The request's stop strings.
    """

    def __init__(self, output: RequestOutput, stops: Sequence[str]) -> None:
        self.output, self._stops = output, tuple(stops)
        self._characters = self._tokens = self._logprobs = self._prompt_logprobs = 0

    def take(self) -> Update:
        """Returns what is new, and counts it as sent."""
        output, completion = self.output, self.output.outputs[0]
        end = len(completion.text)
        if not output.finished:
            end = max(self._characters, end - held_back(completion.text, self._stops))
        update = Update(
            output.request_id,
            completion.text[self._characters : end],
            completion.token_ids[self._tokens :],
            None if completion.logprobs is None else completion.logprobs[self._logprobs :],
            None
            if output.prompt_logprobs is None
            else output.prompt_logprobs[self._prompt_logprobs :],
            num_cached_tokens=output.num_cached_tokens,
            num_drafted_tokens=output.num_drafted_tokens,
            num_accepted_tokens=output.num_accepted_tokens,
        )
        if output.finished:
            update.finish_reason = completion.finish_reason
            update.stop_reason = completion.stop_reason
            update.metrics = output.metrics
            update.error = output.error
        self._characters, self._tokens = end, len(completion.token_ids)
        self._logprobs = len(completion.logprobs or ())
        self._prompt_logprobs = len(output.prompt_logprobs or ())
        return update


def held_back(text: str, stops: Sequence[str]) -> int:
    """Returns how many characters at the end of a text may be the beginning of a stop string."""
    most = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), most, -1):
            if text.endswith(stop[:length]):
                most = length
                break
    return most
