"""What the engine keeps about an unfinished request beside what the scheduler does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .logprobs import top_logprobs
from .outputs import RequestOutput
from .sampling.sampler import Sampler
from .schedule.request import Request
from .stopping import StopChecker
from .tokenizer import IncrementalText

NOT_FINITE = (
    "logits are not finite; the weights hold NaN or infinity, or the model overflows in this dtype "
    "(try float32)"
)


@dataclass
class LiveRequest:
    """A request's output, and how its tokens are chosen, accepted and turned into text."""

    request: Request
    output: RequestOutput
    sampler: Sampler
    stop: StopChecker
    text: IncrementalText | None
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    most_drafts: int | None
    """Most drafts that the request wants; None is the engine's number."""
    added_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    first_token_s: float | None = None
    _unread: list[int] = field(default_factory=list)
    """Kept tokens whose text is not in the output yet."""
    _unscored: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """Kept tokens, each with its row's logits, whose log probabilities are not in the output yet.
    """
    _unscored_prompt: list[np.ndarray] = field(default_factory=list)
    """[rows, vocab] f32, logits of the prompt rows whose log probabilities are not in the output
    yet."""

    def score_prompt(self, logits: np.ndarray) -> None:
        """Takes the logits [rows, vocab] f32 of the next prompt rows, for `emit`."""
        self._unscored_prompt.append(logits)

    def accept(
        self,
        drafts: Sequence[int],
        tokens: Sequence[int],
        logits: np.ndarray,
        finite: Sequence[bool],
    ) -> list[int]:
        """Keeps tokens one by one, up to the first that no draft foresaw or that ends the text.

        What the next step does not depend on is left to `emit`: log probabilities, and the text of
        a request without stop strings.

        Args:
            drafts: What the rows after the first were given.
            tokens: Chosen after each row, one more than drafts.
            logits: [1 + drafts, vocab] f32 of the rows.
            finite: Whether each row's logits are all finite; a row that is not ends the request
                with an error.

        Returns:
            The kept tokens.
        """
        kept: list[int] = []
        for row, token in enumerate(tokens):
            if not finite[row]:
                self.end("error", NOT_FINITE)
                break
            refusal = self.sampler.refusal(token)
            if refusal is not None:
                self.end("error", refusal)
                break
            if self.num_logprobs is not None:
                self._unscored.append((token, logits[row]))
            self._keep(token)
            kept.append(token)
            if self.output.finished or row == len(drafts) or drafts[row] != token:
                break
        if self.first_token_s is None and kept:
            self.first_token_s = time.monotonic()
        return kept

    def emit(self) -> None:
        """Completes the output: the text and the log probabilities of all kept tokens."""
        completion = self.output.outputs[0]
        if self._unread and self.text is not None:
            for token in self._unread:
                self.text.append(token)
            if completion.finish_reason in ("stop", "length"):
                self.text.finish()
            completion.text = self.text.text
        self._unread.clear()
        for token, logits in self._unscored:
            completion.logprobs.append(top_logprobs(logits, token, self.num_logprobs))
        self._unscored.clear()
        for rows in self._unscored_prompt:
            found = self.output.prompt_logprobs
            for logits in rows:
                token = self.output.prompt_token_ids[len(found)]
                found.append(top_logprobs(logits, token, self.num_prompt_logprobs))
        self._unscored_prompt.clear()

    def end(self, reason: str, error: str | None = None) -> None:
        """Completes the output and marks it as finished."""
        self.emit()
        self.output.outputs[0].finish_reason = reason
        self.output.error = error
        self._finish()

    def _finish(self) -> None:
        """Notes that the request has ended, and when."""
        self.output.finished = True
        now = time.monotonic()
        started = self.started_s or now
        first = self.first_token_s or now
        self.output.metrics = {
            "queued": started - self.added_s,
            "time_to_first_token": first - self.added_s,
            "decode": now - first,
            "total": now - self.added_s,
        }

    def _keep(self, token: int) -> None:
        completion = self.output.outputs[0]
        completion.token_ids.append(token)
        self.sampler.append(token)
        count = len(completion.token_ids)
        ended = self.stop.after_token(token, count)
        if self.stop.reads_text and self.text is not None:
            self.text.append(token)
            if ended is not None:
                self.text.finish()
            completion.text, stopped_by = self.stop.cut(self.text.text, count)
            if stopped_by is not None:
                ended = ("stop", stopped_by)
        else:
            self._unread.append(token)
        if ended is not None:
            completion.finish_reason, completion.stop_reason = ended
            self._finish()
