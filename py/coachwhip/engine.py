"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

from .audit import StateAudit
from .cache.pool import Pool
from .cache.prefix_cache import PrefixCache
from .check_request import check_request
from .checkpoint import read_model
from .config import EngineOptions, resolve, this_machine
from .errors import ConfigError, RequestError
from .gpu import visible_gpu
from .hub import refuse_revision, resolve_model
from .live_request import LiveRequest
from .locate import small_model_dir
from .metrics import Metrics, StepCounts, collect
from .outputs import CompletionOutput, RequestOutput
from .runner import Runner, StepOutput
from .sampling.edits import LogitEdits
from .sampling.guidance import Guidance
from .sampling.params import SamplingParams
from .sampling.sampler import SampledRow, Sampler
from .schedule.plan import StepPlan
from .schedule.request import Request
from .schedule.scheduler import Scheduler
from .speculate.build import DraftModelSource, make_drafter
from .speculate.counts import DraftCounts
from .speculate.speculator import Speculator
from .stopping import StopChecker
from .tokenizer import IncrementalText, Tokenizer


class Engine:
    """Generates for many requests at a time.

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
        model = read_model(model_folder(options))
        for line in model.warnings if on_warning else ():
            on_warning(line)
        self.model = model
        self.options = options
        self.machine = this_machine(visible_gpu())
        self.config = resolve(model.spec, model.dtype, options, self.machine)
        for line in self.config.warnings if on_warning else ():
            on_warning(line)
        self.tokenizer = Tokenizer.beside(model.path)
        self.guidance = Guidance(self.tokenizer, model.spec.vocab_size, model.eos_token_ids)
        self._draft_source = self._find_draft_model()
        self._on_progress, self._on_warning = on_progress, on_warning
        if before_load is not None:
            before_load(self)
        self.runner = Runner(model.path, model.spec, self.config, on_progress, on_warning)
        self._loaded: dict[str, object] = {}
        self._start()

    def with_options(self, **changes) -> Engine:
        """Returns an engine over the same weights and pools with other options, and nothing cached.

        The two share their memory: of all engines made this way only one may have requests, and
        what the others had cached is no longer theirs. Speculation by the model's own head needs an
        engine that was made with it.

        Raises:
            ConfigError: An option cannot run, or is one that weights, graph or pools depend on.
        """
        other = copy(self)
        other.options = replace(self.options, **changes)
        old, fixed = self.runner.config, ("dtype", "device", "kv_cache_page_size")
        other.config = new = resolve(self.model.spec, self.model.dtype, other.options, self.machine)
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
        if new.runs_head and not old.runs_head:
            raise ConfigError(
                "fixed",
                "speculative_config.method",
                "mtp",
                "another method: the engine was made without room for the head's keys and values",
                "make a new engine",
            )
        other._draft_source = other._find_draft_model()
        other._start()
        return other

    def _find_draft_model(self) -> DraftModelSource | None:
        wanted = self.config.speculation
        if wanted is None or wanted.method != "draft_model":
            return None
        return DraftModelSource(wanted.model, self.options, self.model, self.machine)

    def _start(self) -> None:
        """Makes the scheduler and what it counts, empty."""
        config = self.config
        slots, pages = config.num_state_slots, config.num_kv_pages
        cache = PrefixCache(
            Pool("state slots", slots) if slots else None,
            Pool("pages", pages) if pages else None,
            config.kv_cache_page_size,
            config.mamba_cache_mode,
            config.mamba_block_size,
            config.runs_head,
        )
        self.scheduler = Scheduler(
            cache,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.scheduling_policy,
            config.enable_chunked_prefill,
        )
        if config.copies_pages:
            self.runner.load_page_copy(self._on_progress)
        if config.audit_state:
            audit = StateAudit(self.runner, config)
            self.scheduler.ownership.on_publish = audit.published
            self.scheduler.on_restore = audit.restored
        drafter = make_drafter(
            config,
            self.options,
            self.runner,
            self.scheduler,
            self._draft_source,
            self._loaded,
            self._on_progress,
            self._on_warning,
        )
        self.speculator: Speculator | None = None
        if drafter is not None:
            speculation = config.speculation
            self.speculator = Speculator(
                drafter, speculation.num_speculative_tokens, speculation.adaptive
            )
            self.scheduler.on_preempt = self.speculator.forget
        self._live: dict[str, LiveRequest] = {}
        self._counts = StepCounts()
        self._seeds = random.Random(self.options.seed)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._live)

    def check_request(
        self, prompt_token_ids: list[int], params: SamplingParams | None = None
    ) -> None:
        """Raises RequestError unless the prompt can be served with these parameters."""
        check_request(
            prompt_token_ids,
            params,
            self.model.spec,
            self.config,
            self.guidance,
            has_tokenizer=self.tokenizer is not None,
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
        sampler = self._sampler(params, ids)
        self.scheduler.add(request)
        completion = CompletionOutput(0, "", [], logprobs=None if params.logprobs is None else [])
        live = self._live[request_id] = LiveRequest(
            request,
            RequestOutput(request_id, prompt, ids, [completion], finished=False),
            sampler,
            StopChecker(
                params, self.model.eos_token_ids, request.max_tokens, lambda: sampler.ended
            ),
            None if self.tokenizer is None else IncrementalText(self.tokenizer, ids),
            params.logprobs,
            params.most_drafts,
        )
        return live.output

    def _sampler(self, params: SamplingParams, prompt_token_ids: list[int]) -> Sampler:
        words: Sequence[tuple[int, ...]] = ()
        if params.bad_words:
            words = self.tokenizer.encode_words(params.bad_words)
        ends = [*params.stop_token_ids, *(() if params.ignore_eos else self.model.eos_token_ids)]
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        ends = [token for token in ends if token < self.model.spec.vocab_size]
        guide = None
        if params.grammar is not None:
            guide = self.guidance.guide(
                params.grammar,
                ignore_eos=params.ignore_eos,
                stop_token_ids=params.stop_token_ids,
            )
        return Sampler(params, seed, LogitEdits(params, prompt_token_ids, words, ends), guide)

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
            out = self.runner.execute(plan, self._sampled_rows(plan))
        except BaseException as error:
            self.scheduler.drop()
            self._fail(plan, error)
            raise
        at_accept = clock()
        accepted, outputs = self._accept(plan, out)
        at_draft = clock()
        self.scheduler.fold(plan, accepted)
        finished = frozenset(
            o.request_id for o in outputs if o.finished and o.request_id in self._live
        )
        try:
            self._draft(plan, out, accepted, finished)
        except BaseException as error:
            self._fail(plan, error)
            self.scheduler.settle(set())
            raise
        at_commit = clock()
        try:
            self.scheduler.settle(finished)
        finally:
            for request_id in finished:
                self._counts.prompt_tokens += len(self._live[request_id].request.prompt_token_ids)
                self._finish(request_id)
            self._counts.steps += 1
            self._counts.generation_tokens += sum(map(len, accepted.values()))
            seconds = self._counts.seconds
            seconds.plan += at_execute - at_plan
            seconds.tensors += out.tensors_s
            seconds.execute += at_accept - at_execute - out.tensors_s
            seconds.accept += at_draft - at_accept
            seconds.draft += at_commit - at_draft
            seconds.commit += clock() - at_commit
        if self.speculator is not None:
            self.speculator.took(plan, clock() - at_plan)
        return outputs

    def abort(self, request_id: str) -> None:
        """Ends a request at once and frees what it owns; unknown ids are fine."""
        self._end(request_id, "abort")

    def _end(self, request_id: str, reason: str, error: str | None = None) -> None:
        live = self._live.get(request_id)
        if live is not None:
            live.end(reason, error)
            self._finish(request_id)
            self.scheduler.remove(request_id)

    def _finish(self, request_id: str) -> None:
        """Drops what the engine keeps about a request that has ended."""
        del self._live[request_id]
        if self.speculator is not None:
            self.speculator.ended(request_id)

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        """Ends the requests of a step that failed: their state is lost."""
        for sequence in plan.sequences:
            self._end(sequence.request_id, "error", f"the step failed: {error}")

    def preempt(self, request_id: str) -> None:
        """Sends a running request back to the queue; it goes on later, with the same output.

        Raises:
            ValueError: It does not run.
        """
        self.scheduler.preempt(request_id)

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes; requests that run go on, and publish nothing any more."""
        self.scheduler.reset_cache()
        if self.speculator is not None:
            self.speculator.reset_cache()

    def metrics(self) -> Metrics:
        """Returns what the engine counted so far, and its gauges."""
        speculator = self.speculator
        return collect(
            self.model.spec,
            self.config,
            self.scheduler,
            self._counts,
            DraftCounts() if speculator is None else speculator.counts,
            None if speculator is None else speculator.control,
        )

    def _sampled_rows(self, plan: StepPlan) -> list[SampledRow | None]:
        """Returns how the token after each output row of a plan is chosen."""
        rows: list[SampledRow | None] = []
        for sequence in plan.sequences:
            live, count = self._live[sequence.request_id], sequence.num_outputs
            if live.sampler.plain:
                rows += [None] * count
                continue
            position = live.request.num_tokens
            rows += [live.sampler.row(position + i, sequence.drafts[:i]) for i in range(count)]
        return rows

    def _accept(
        self, plan: StepPlan, out: StepOutput
    ) -> tuple[dict[str, list[int]], list[RequestOutput]]:
        """Decides which tokens each request keeps, and extends its output by them."""
        accepted, outputs, end = {}, [], 0
        for sequence in plan.sequences:
            begin, end = end, end + sequence.num_outputs
            live = self._live.get(sequence.request_id)
            if begin == end or live is None or not self.scheduler.is_in_flight(live.request):
                continue  # no token yet, or aborted while the step ran
            rows = slice(begin, end)
            kept = live.accept(
                sequence.drafts, out.tokens[rows].tolist(), out.logits[rows], out.finite[rows]
            )
            live.output.num_cached_tokens = live.request.num_cached_tokens
            outputs.append(live.output)
            if live.output.error is not None:
                # Taken out before the commit, so that nothing of this step is published.
                self._finish(sequence.request_id)
                self.scheduler.remove(sequence.request_id, spoiled=True)
            else:
                accepted[sequence.request_id] = kept
        return accepted, outputs

    def _draft(
        self,
        plan: StepPlan,
        out: StepOutput,
        accepted: dict[str, list[int]],
        finished: frozenset[str],
    ) -> None:
        """Counts the drafts of a folded step, and has new ones proposed."""
        if self.speculator is None:
            return
        for request_id, (drafts, right) in self.speculator.verified(plan, accepted).items():
            output = self._live[request_id].output
            output.num_drafted_tokens += drafts
            output.num_accepted_tokens += right
        lives = [
            live
            for sequence in plan.sequences
            if (live := self._live.get(sequence.request_id)) is not None
            and self.scheduler.is_in_flight(live.request)
        ]
        self.speculator.propose(
            plan,
            out,
            {live.request.request_id: live.request for live in lives},
            finished,
            {live.request.request_id: live.sampler for live in lives},
            {live.request.request_id: live.most_drafts for live in lives},
        )


def model_folder(options: EngineOptions) -> Path:
    """Returns the folder of the options' checkpoint, downloaded if it is a hub id."""
    if options.model is None:
        refuse_revision(None, options.revision)
        return small_model_dir()
    return resolve_model(options.model, options.revision)
