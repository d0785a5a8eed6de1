"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from max.driver import accelerator_count

from .audit import StateAudit
from .cache.pool import Pool
from .cache.prefix_cache import PrefixCache
from .checkpoint import read_model
from .config import EngineOptions, resolve
from .errors import ConfigError, RequestError
from .hub import refuse_revision, resolve_model
from .locate import small_model_dir
from .logprobs import top_logprobs
from .metrics import Metrics, StepCounts, collect
from .outputs import CompletionOutput, RequestOutput
from .runner import Runner, StepOutput
from .sampling.params import SamplingParams
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
        self.options = options
        self._gpu_present = accelerator_count() > 0
        self.config = resolve(model.spec, model.dtype, options, gpu_present=self._gpu_present)
        for line in self.config.warnings if on_warning else ():
            on_warning(line)
        self.tokenizer = Tokenizer.beside(model.path)
        if before_load is not None:
            before_load(self)
        self.runner = Runner(model.path, model.spec, self.config, on_progress, on_warning)
        self._start(on_progress)

    def with_options(self, **changes) -> Engine:
        """Returns an engine over the same weights and pools with other options, and nothing cached.

        The two share their memory: of all engines made this way only one may have requests, and
        what the others had cached is no longer theirs.

        Raises:
            ConfigError: An option cannot run, or is one that weights, graph or pools depend on.
        """
        other = copy(self)
        other.options = replace(self.options, **changes)
        old, fixed = self.runner.config, ("dtype", "device", "kv_cache_page_size")
        other.config = new = resolve(
            self.model.spec, self.model.dtype, other.options, gpu_present=self._gpu_present
        )
        for name in (*fixed, "mamba_ssm_cache_dtype", "kv_cache_dtype", "audit_state"):
            if getattr(new, name) != getattr(old, name):
                raise ConfigError(
                    "fixed", name, getattr(new, name), str(getattr(old, name)), "make a new engine"
                )
        for name in ("num_state_slots", "num_kv_pages", "max_model_len"):
            if getattr(new, name) > getattr(old, name):
                raise ConfigError(
                    "fixed",
                    name,
                    getattr(new, name),
                    f"at most {getattr(old, name)}, as the engine was made with",
                    "make a new engine",
                )
        other._start()
        return other

    def _start(self, on_progress: Callable[[str], None] | None = None) -> None:
        """Makes the scheduler and what it counts, empty."""
        config = self.config
        slots, pages = config.num_state_slots, config.num_kv_pages
        cache = PrefixCache(
            Pool("state slots", slots) if slots else None,
            Pool("pages", pages) if pages else None,
            config.kv_cache_page_size,
            config.mamba_cache_mode,
            config.mamba_block_size,
        )
        self.scheduler = Scheduler(
            cache, config.max_num_seqs, config.max_num_batched_tokens, config.scheduling_policy
        )
        if config.copies_pages:
            self.runner.load_page_copy(on_progress)
        if config.audit_state:
            audit = StateAudit(self.runner, config)
            self.scheduler.ownership.on_publish = audit.published
            self.scheduler.on_restore = audit.restored
        self._live: dict[str, _Live] = {}
        self._counts = StepCounts()
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
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        """Queues a request and returns its output, which grows with the steps.

        Args:
            request_id: Unique among the unfinished requests.
            prompt_token_ids: The prompt.
            params: What to generate; defaults when None.
            prompt: The prompt's text, only kept for the output.
            priority: Lower runs first; needs `scheduling_policy` priority.
            cache_salt: Only requests with the same salt share cached prefixes.

        Raises:
            RequestError: The prompt or a parameter cannot be served; nothing is queued.
        """
        params = SamplingParams() if params is None else params
        if request_id in self._live:
            raise RequestError("request_id", request_id, "it names an unfinished request")
        self.check_request(prompt_token_ids, params)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise RequestError("priority", priority, "give a whole number; lower runs first")
        if priority and self.config.scheduling_policy != "priority":
            raise RequestError(
                "priority",
                priority,
                f"scheduling_policy is {self.config.scheduling_policy}, which ignores it; start "
                "with scheduling_policy = priority",
            )
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise RequestError("cache_salt", cache_salt, "give a non-empty string, or leave it out")
        ids = [int(t) for t in prompt_token_ids]
        room = self.config.max_model_len - len(ids)
        request = Request(
            request_id,
            ids,
            min(params.max_tokens or room, room),
            priority=priority,
            cache_salt=cache_salt,
        )
        self.scheduler.add(request)
        completion = CompletionOutput(0, "", [], logprobs=None if params.logprobs is None else [])
        self._live[request_id] = _Live(
            request,
            RequestOutput(request_id, prompt, ids, [completion], finished=False),
            StopChecker(params, self.model.eos_token_ids, request.max_tokens),
            None if self.tokenizer is None else IncrementalText(self.tokenizer, ids),
            params.logprobs,
            time.monotonic(),
        )
        return self._live[request_id].output

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the outputs that grew or ended with it.

        A request whose logits are not finite ends with finish reason "error"; the others go on.

        Raises:
            EngineError: The step failed as a whole. The requests it ran are ended with finish
                reason "error", since their state is lost; those that wait stay queued.
        """
        clock = time.perf_counter
        at_plan = clock()
        plan = self.scheduler.plan()
        if not plan.sequences:
            return []
        at_execute = clock()
        now = time.monotonic()
        for sequence in plan.sequences:
            live = self._live[sequence.request_id]
            live.started_s = live.started_s or now
        try:
            out = self.runner.execute(plan)
        except BaseException:
            self.scheduler.drop()
            for sequence in plan.sequences:
                self._end(sequence.request_id, "error")
            raise
        at_accept = clock()
        accepted, outputs = self._accept(out)
        finished = {o.request_id for o in outputs if o.finished and o.request_id in self._live}
        at_commit = clock()
        self.scheduler.commit(plan, accepted, finished)
        for request_id in finished:
            live = self._live.pop(request_id)
            self._counts.prompt_tokens += len(live.output.prompt_token_ids)
        self._counts.steps += 1
        self._counts.generation_tokens += sum(map(len, accepted.values()))
        seconds = self._counts.seconds
        seconds.plan += at_execute - at_plan
        seconds.tensors += out.tensors_s
        seconds.execute += at_accept - at_execute - out.tensors_s
        seconds.accept += at_commit - at_accept
        seconds.commit += clock() - at_commit
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

    def preempt(self, request_id: str) -> None:
        """Sends a running request back to the queue; it goes on later, with the same output.

        Raises:
            ValueError: It does not run.
        """
        self.scheduler.preempt(request_id)

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes; requests that run go on, and publish nothing any more."""
        self.scheduler.reset_cache()

    def metrics(self) -> Metrics:
        """Returns what the engine counted so far, and its gauges."""
        return collect(self.model.spec, self.config, self.scheduler, self._counts)

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
        pools = [
            (pool, wanted)
            for pool, wanted in (
                (self.scheduler.cache.slots, 1),
                (self.scheduler.cache.pages, needed),
            )
            if pool is not None
        ]
        if any(pool.available < wanted for pool, wanted in pools):
            raise RequestError("draft", count, "running requests hold all slots or pages")
        if self._mtp is None:
            self._mtp = MtpHead(self.runner, self._on_progress)
        taken = {pool: [pool.take() for _ in range(wanted)] for pool, wanted in pools}
        try:
            slot = taken.get(self.scheduler.cache.slots, [-1])[0]
            pages = taken.get(self.scheduler.cache.pages, [])
            return draft(self._mtp, self.runner, prompt_token_ids, count, slot, pages)
        finally:
            for pool, homes in taken.items():
                for home in homes:
                    pool.release(home)

    def _accept(self, out: StepOutput) -> tuple[dict[str, list[int]], list[RequestOutput]]:
        """Decides which tokens each request keeps, and extends its output by them."""
        accepted, outputs = {}, []
        now = time.monotonic()
        for row, request_id in enumerate(out.request_ids):
            live = self._live.get(request_id)
            if live is None or not self.scheduler.is_in_flight(live.request):
                continue  # aborted while the step ran
            if not out.finite[row]:
                live.output.error = (
                    "logits are not finite; the weights hold NaN or infinity, or the model "
                    "overflows in this dtype (try float32)"
                )
                # Taken out before the commit, so that nothing of this step is published.
                self._end(request_id, "error")
                outputs.append(live.output)
                continue
            token = int(out.tokens[row])
            accepted[request_id] = [token]
            live.output.num_cached_tokens = live.request.num_cached_tokens
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
