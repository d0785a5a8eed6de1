"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from max.driver import accelerator_count

from .cache.free_pool import FreePool
from .checkpoint import read_model
from .config import EngineOptions, resolve
from .errors import RequestError
from .hub import refuse_revision, resolve_model
from .locate import small_model_dir
from .logprobs import top_logprobs
from .outputs import CompletionOutput, RequestOutput
from .runner import Runner, StepOutput
from .sampling_params import SamplingParams
from .schedule.request import Request
from .schedule.scheduler import Scheduler
from .speculate.mtp import MtpHead, draft
from .stopping import StopChecker
from .tokenizer import IncrementalText, Tokenizer


@dataclass
class _Live:
    """What the engine keeps about an unfinished request beside what the scheduler does."""

    request: Request
    output: RequestOutput
    stop: StopChecker
    text: IncrementalText | None
    num_logprobs: int | None
    added_s: float
    started_s: float | None = None
    first_token_s: float | None = None


class Engine:
    """Generates greedily for many requests at a time.

        engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=8))
        while engine.has_unfinished:
            for output in engine.step():
                ...

    Args:
        options: What the user set; see `EngineOptions`.
        on_progress: Gets lines while a graph compiles.
        on_warning: Gets warnings about the checkpoint, one line each.
        before_load: Called with the engine when its configuration and tokenizer are known, before
            weights load and graphs compile: prompts can be checked there.

    Raises:
        ConfigError: An option or the checkpoint's configuration cannot run; before weights load.
        CheckpointError: The checkpoint's files are missing, broken or do not fit its configuration.
    """

    def __init__(
        self,
        options: EngineOptions,
        on_progress: Callable[[str], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
        before_load: Callable[[Engine], None] | None = None,
    ) -> None:
        model = read_model(_folder(options))
        for line in model.warnings if on_warning else ():
            on_warning(line)
        self.model = model
        self.config = resolve(model.spec, model.dtype, options, gpu_present=accelerator_count() > 0)
        self.tokenizer = Tokenizer.beside(model.path)
        if before_load is not None:
            before_load(self)
        self.runner = Runner(model.path, model.spec, self.config, on_progress, on_warning)
        slots, pages = self.config.num_state_slots, self.config.num_kv_pages
        self.scheduler = Scheduler(
            FreePool("state slots", slots) if slots else None,
            FreePool("pages", pages) if pages else None,
            self.config.kv_cache_page_size,
            self.config.max_num_seqs,
            self.config.max_num_batched_tokens,
        )
        self._live: dict[str, _Live] = {}
        self._mtp: MtpHead | None = None  # loaded by the first draft
        self._on_progress = on_progress

    @property
    def has_unfinished(self) -> bool:
        return bool(self._live)

    def check_request(
        self, prompt_token_ids: list[int], params: SamplingParams | None = None
    ) -> None:
        """Raises RequestError unless the prompt can be served with these parameters."""
        limit, vocab = self.config.max_model_len, self.model.spec.vocab_size
        if params is not None and not isinstance(params, SamplingParams):
            raise RequestError("sampling_params", repr(params), "give a SamplingParams")
        if params is not None and params.stop and self.tokenizer is None:
            raise RequestError("stop", list(params.stop), "the model has no tokenizer.json")
        if not prompt_token_ids:
            raise RequestError("prompt", prompt_token_ids, "it is empty; give at least one token")
        for i, token in enumerate(prompt_token_ids):
            if not isinstance(token, (int, np.integer)) or isinstance(token, bool):
                raise RequestError(f"prompt_token_ids[{i}]", token, "token ids are whole numbers")
            if not 0 <= token < vocab:
                raise RequestError(
                    f"prompt_token_ids[{i}]", int(token), f"the vocabulary has ids 0 to {vocab - 1}"
                )
        if len(prompt_token_ids) >= limit:
            raise RequestError(
                "prompt",
                f"{len(prompt_token_ids)} tokens",
                f"max_model_len is {limit}, so a prompt may have {limit - 1}; shorten it"
                + (
                    " or raise max_model_len"
                    if limit < (self.model.spec.max_position_embeddings or limit + 1)
                    else ""
                ),
            )

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams | None = None,
        prompt: str | None = None,
    ) -> RequestOutput:
        """Queues a request and returns its output, which grows with the steps.

        Args:
            request_id: Unique among the unfinished requests.
            prompt_token_ids: The prompt.
            params: What to generate; defaults when None.
            prompt: The prompt's text, only kept for the output.

        Raises:
            RequestError: The prompt or a parameter cannot be served; nothing is queued.
        """
        params = SamplingParams() if params is None else params
        if request_id in self._live:
            raise RequestError("request_id", request_id, "it names an unfinished request")
        self.check_request(prompt_token_ids, params)
        ids = [int(t) for t in prompt_token_ids]
        room = self.config.max_model_len - len(ids)
        request = Request(request_id, ids, min(params.max_tokens or room, room))
        completion = CompletionOutput(0, "", [], logprobs=None if params.logprobs is None else [])
        self._live[request_id] = _Live(
            request,
            RequestOutput(request_id, prompt, ids, [completion], finished=False),
            StopChecker(params, self.model.eos_token_ids, request.max_tokens),
            None if self.tokenizer is None else IncrementalText(self.tokenizer, ids),
            params.logprobs,
            time.monotonic(),
        )
        self.scheduler.add(request)
        return self._live[request_id].output

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the outputs that grew or ended with it.

        A request whose logits are not finite ends with finish reason "error"; the others go on.

        Raises:
            EngineError: The step failed as a whole. The requests it ran are ended with finish
                reason "error", since their state is lost; those that wait stay queued.
        """
        plan = self.scheduler.plan()
        if not plan.sequences:
            return []
        now = time.monotonic()
        for sequence in plan.sequences:
            live = self._live[sequence.request_id]
            live.started_s = live.started_s or now
        try:
            out = self.runner.execute(plan)
        except Exception:
            for sequence in plan.sequences:
                self._end(sequence.request_id, "error")
            raise
        accepted, outputs = self._accept(out)
        finished = {o.request_id for o in outputs if o.finished}
        self.scheduler.commit(plan, accepted, finished)
        for request_id in finished:
            del self._live[request_id]
        return outputs

    def abort(self, request_id: str) -> None:
        """Ends a request at once and frees what it owns; unknown ids are fine."""
        self._end(request_id, "abort")

    def _end(self, request_id: str, reason: str) -> None:
        live = self._live.pop(request_id, None)
        if live is not None:
            live.output.outputs[0].finish_reason = reason
            live.output.finished = True
            self.scheduler.remove(request_id)

    def draft(self, prompt_token_ids: list[int], count: int) -> tuple[int, list[int]]:
        """Returns a prompt's greedy next token, and the MTP head's drafts of those after it.

        Args:
            prompt_token_ids: The prompt.
            count: Number of drafts, at least 1.

        Raises:
            RequestError: The prompt cannot be served, the model has no MTP head, drafts would pass
                the model's length, or other requests hold all slots or pages.
        """
        self.check_request(prompt_token_ids)
        if not self.model.spec.mtp_layers:
            raise RequestError("draft", count, "the model has no multi-token-prediction head")
        room = self.config.max_model_len - len(prompt_token_ids)
        if not 1 <= count <= room:
            raise RequestError("draft", count, f"give 1 to {room} drafts for this prompt")
        needed = -(-(len(prompt_token_ids) + count) // self.config.kv_cache_page_size)
        slots, pages = self.scheduler.slots, self.scheduler.pages
        if (slots is not None and not slots.free) or (pages is not None and pages.free < needed):
            raise RequestError("draft", count, "running requests hold all slots or pages")
        if self._mtp is None:
            self._mtp = MtpHead(self.runner, self._on_progress)
        slot = [] if slots is None else slots.take(1)
        page = [] if pages is None else pages.take(needed)
        try:
            return draft(self._mtp, self.runner, prompt_token_ids, count, (*slot, -1)[0], page)
        finally:
            if slots is not None:
                slots.give_back(slot)
            if pages is not None:
                pages.give_back(page)

    def _accept(self, out: StepOutput) -> tuple[dict[str, list[int]], list[RequestOutput]]:
        """Decides which tokens each request keeps, and extends its output by them."""
        accepted, outputs = {}, []
        now = time.monotonic()
        for row, request_id in enumerate(out.request_ids):
            live = self._live.get(request_id)
            if live is None:
                continue
            if not out.finite[row]:
                live.output.outputs[0].finish_reason = "error"
                live.output.error = (
                    "logits are not finite; the weights hold NaN or infinity, or the model "
                    "overflows in this dtype (try float32)"
                )
                live.output.finished = True
                outputs.append(live.output)
                continue
            token = int(out.tokens[row])
            accepted[request_id] = [token]
            if live.first_token_s is None:
                live.first_token_s = now
            self._extend(live, token, out.logits[row])
            if live.output.finished:
                live.output.metrics = _metrics(live, now)
            outputs.append(live.output)
        return accepted, outputs

    def _extend(self, live: _Live, token: int, logits: np.ndarray) -> None:
        completion = live.output.outputs[0]
        completion.token_ids.append(token)
        if completion.logprobs is not None:
            completion.logprobs.append(top_logprobs(logits, token, live.num_logprobs))
        ended = live.stop.after_token(token, len(completion.token_ids))
        if live.text is not None:
            live.text.append(token)
            if ended is not None:
                live.text.finish()
            text, stopped_by = live.stop.cut(live.text.text)
            completion.text = text
            if stopped_by is not None:
                ended = ("stop", stopped_by)
        if ended is not None:
            completion.finish_reason, completion.stop_reason = ended
            live.output.finished = True


def _folder(options: EngineOptions) -> Path:
    if options.model is None:
        refuse_revision(None, options.revision)
        return small_model_dir()
    return resolve_model(options.model, options.revision)


def _metrics(live: _Live, now: float) -> dict[str, float]:
    """Seconds in the queue, from arrival to the first token, from there to the end, and in all."""
    first = live.first_token_s
    return {
        "queued": live.started_s - live.added_s,
        "time_to_first_token": first - live.added_s,
        "decode": now - first,
        "total": now - live.added_s,
    }
