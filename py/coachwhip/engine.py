"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path

from .audit import StateAudit
from .cache.pool import Pool
from .cache.prefix_cache import PrefixCache
from .check_request import check_request, check_text
from .checkpoint import read_model
from .config import EngineOptions, Resolution, examine, this_machine
from .errors import ConfigError, RequestError, shown
from .gpu import visible_gpu
from .hub import refuse_revision, resolve_model
from .live_request import LiveRequest
from .locate import small_model_dir
from .metrics import Metrics, StepCounts, collect
from .outputs import CompletionOutput, RequestOutput
from .overlapped_loop import OverlappedLoop
from .runner import Runner
from .sampling.edits import LogitEdits
from .sampling.guidance import Guidance
from .sampling.params import SamplingParams
from .sampling.sampler import Sampler
from .schedule.request import Request
from .schedule.scheduler import Scheduler
from .speculate.build import DraftModelSource, make_drafter
from .speculate.counts import DraftCounts
from .speculate.speculator import Speculator
from .step_loop import StepLoop
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
        found = examine(model.spec, model.dtype, options, self.machine)
        self.config = found.without_conflicts()
        for line in self.config.warnings if on_warning else ():
            on_warning(line)
        self.tokenizer = Tokenizer.beside(model.path)
        self.guidance = Guidance(self.tokenizer, model.spec.vocab_size, model.eos_token_ids)
        self._draft_source = self._find_draft_model(found)
        self._on_progress, self._on_warning = on_progress, on_warning
        if before_load is not None:
            before_load(self)
        self.runner = Runner(model.path, model.spec, self.config, on_progress, on_warning)
        self._loaded: dict[str, object] = {}
        self._worker = ThreadPoolExecutor(1, "coachwhip-step")  # starts with its first step
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
        for name in ("model", "revision"):
            if getattr(other.options, name) != getattr(self.options, name):
                raise ConfigError(
                    "fixed",
                    name,
                    getattr(other.options, name),
                    shown(getattr(self.options, name)),
                    "make a new engine",
                )
        old, fixed = self.runner.config, ("dtype", "device", "kv_cache_page_size")
        found = examine(self.model.spec, self.model.dtype, other.options, self.machine)
        other.config = new = found.without_conflicts()
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
        other._draft_source = other._find_draft_model(found)
        other._start()
        return other

    def _find_draft_model(self, found: Resolution) -> DraftModelSource | None:
        wanted = self.config.speculation
        if wanted is None or wanted.method != "draft_model":
            return None
        return DraftModelSource(wanted.model, self.options, self.model, found, self.machine)

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
        parts = self.runner, self.scheduler, self.speculator, self._live, self._counts
        overlaps = config.step_loop == "overlapped"
        self._loop = OverlappedLoop(self._worker, *parts) if overlaps else StepLoop(*parts)
        self._seeds = random.Random(self.options.seed)

    @property
    def has_unfinished(self) -> bool:
        """Whether there is a request that has not ended, or an output that no step returned yet."""
        return bool(self._live) or self._loop.has_outputs

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
        if cache_salt is not None:
            if not isinstance(cache_salt, str) or not cache_salt:
                raise RequestError(
                    "cache_salt", cache_salt, "give a non-empty string, or leave it out"
                )
            check_text("cache_salt", cache_salt)
        ids = [int(t) for t in prompt_token_ids]
        room = self.config.max_model_len - len(ids)
        request = Request(
            request_id,
            ids,
            room if params.max_tokens is None else min(params.max_tokens, room),
            priority=priority,
            cache_salt=cache_salt,
            num_scored=None if params.prompt_logprobs is None else 0,
        )
        sampler = self._sampler(params, ids)
        if request.num_rows:
            self.scheduler.add(request)
        completion = CompletionOutput(0, "", [], logprobs=None if params.logprobs is None else [])
        live = self._live[request_id] = LiveRequest(
            request,
            RequestOutput(
                request_id,
                prompt,
                ids,
                [completion],
                finished=False,
                prompt_logprobs=None if params.prompt_logprobs is None else [None],
            ),
            sampler,
            StopChecker(
                params, self.model.eos_token_ids, request.max_tokens, lambda: sampler.ended
            ),
            None if self.tokenizer is None else IncrementalText(self.tokenizer, ids),
            params.logprobs,
            params.prompt_logprobs,
            params.most_drafts,
        )
        if not request.num_rows:
            self._loop.end_at_once(request_id)
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
        With the overlapped loop, the next step is under way when this returns.

        Raises:
            EngineError: The step failed as a whole. The requests it ran are ended with finish
                reason "error", since their state is lost; those that wait stay queued.
        """
        return self._loop.step()

    def abort(self, request_id: str) -> None:
        """Ends a request at once and frees what it owns; unknown ids are fine."""
        self._loop.end(request_id, "abort")

    def preempt(self, request_id: str) -> None:
        """Sends a running request back to the queue; it goes on later, with the same output.

        A step that is under way is waited for; a request that ends with it stays ended.

        Raises:
            ValueError: It does not run.
            EngineError: The step that was waited for failed.
        """
        runs = request_id in self.scheduler.running
        self._loop.land()
        if not runs or request_id in self._live:
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


def model_folder(options: EngineOptions) -> Path:
    """Returns the folder of the options' checkpoint, downloaded if it is a hub id."""
    if options.model is None:
        refuse_revision(None, options.revision)
        return small_model_dir()
    return resolve_model(options.model, options.revision)
