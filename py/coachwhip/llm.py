"""Offline generation from Python, in the manner of vLLM's `LLM`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from .compiled import progress_to_stderr
from .config import options_from
from .engine import Engine
from .errors import RequestError
from .metrics import Metrics
from .outputs import RequestOutput
from .sampling_params import SamplingParams

_log = logging.getLogger(__name__)

Prompt = str | dict | Sequence[int]
"""A text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`, and optionally
`cache_salt`: only prompts with the same salt share cached prefixes."""


class LLM:
    """A loaded model that generates for lists of prompts.

        llm = LLM(model="path/to/checkpoint", max_num_seqs=16)
        prompts = ["text", {"prompt_token_ids": [1, 2, 3]}]
        outs = llm.generate(prompts, SamplingParams(max_tokens=64))
        outs[0].outputs[0].text

    Args:
        model: Folder of a checkpoint; None is the small model that ships with the package.
        on_progress: Gets lines while a graph compiles; None prints them to stderr.
        on_warning: Gets warnings about the checkpoint; None logs them.
        **options: Every other field of `EngineOptions`.

    Raises:
        ConfigError: An option is unknown or cannot run, or the model is not supported.
        CheckpointError: The checkpoint's files are missing, broken or do not fit.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        on_progress: Callable[[str], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
        **options,
    ) -> None:
        self.engine = Engine(
            options_from({"model": model, **options}),
            on_progress or progress_to_stderr,
            on_warning or _log.warning,
        )
        self._count = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Generates for every prompt and returns the outputs in the prompts' order.

        Args:
            prompts: One prompt or a list of them.
            sampling_params: One for all, or one for each prompt; defaults when None.
            priority: One for all, or one for each prompt; lower runs first.

        Raises:
            RequestError: A prompt or parameter cannot be served; nothing was generated.
            EngineError: A step failed.
        """
        order = self._add(prompts, sampling_params, priority)
        done = {}
        try:
            for output in self._run():
                if output.finished:
                    done[output.request_id] = output
        finally:
            for request_id in order:
                self.engine.abort(request_id)
        return [done[request_id] for request_id in order]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yields the growing output of one prompt after each token; the same object each time.

        Raises:
            RequestError: The prompt or a parameter cannot be served.
            EngineError: A step failed.
        """
        (request_id,) = self._add([prompt], sampling_params)
        try:
            yield from self._run()
        finally:
            self.engine.abort(request_id)

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes."""
        self.engine.reset_prefix_cache()

    def metrics(self) -> Metrics:
        """Returns what the engine counted so far, and its gauges."""
        return self.engine.metrics()

    def tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Returns a prompt's text (None for token ids) and its token ids.

        Raises:
            RequestError: It is neither text nor token ids, or the model has no tokenizer.
        """
        if isinstance(prompt, dict):
            content = prompt.keys() - {"cache_salt"}
            if content not in ({"prompt"}, {"prompt_token_ids"}):
                raise RequestError(
                    "prompt",
                    sorted(prompt),
                    'a dict has "prompt" or "prompt_token_ids", and maybe "cache_salt"',
                )
            prompt = prompt[content.pop()]
        if isinstance(prompt, str):
            if self.engine.tokenizer is None:
                raise RequestError(
                    "prompt", prompt, "the model has no tokenizer.json; give prompt_token_ids"
                )
            return prompt, self.engine.tokenizer.encode(prompt)
        if isinstance(prompt, (bytes, str)) or not isinstance(prompt, Sequence):
            raise RequestError("prompt", prompt, "give text, or a list of token ids")
        return None, list(prompt)

    def _add(self, prompts, sampling_params, priority=0) -> list[str]:
        single = isinstance(prompts, (str, dict)) or (
            isinstance(prompts, Sequence)
            and len(prompts) > 0
            and all(isinstance(p, int) for p in prompts)
        )
        prompts = [prompts] if single else list(prompts)
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise RequestError(
                "sampling_params",
                f"{len(sampling_params)} entries",
                f"there are {len(prompts)} prompts; give one for all or one for each",
            )
        priorities = [priority] * len(prompts) if isinstance(priority, int) else list(priority)
        if len(priorities) != len(prompts):
            raise RequestError(
                "priority",
                f"{len(priorities)} entries",
                f"there are {len(prompts)} prompts; give one for all or one for each",
            )
        tokenized = [self.tokenize(p) for p in prompts]
        salts = [p.get("cache_salt") if isinstance(p, dict) else None for p in prompts]
        for _, ids in tokenized:
            self.engine.check_request(ids)
        added: list[str] = []
        try:
            for (text, ids), params, rank, salt in zip(
                tokenized, sampling_params, priorities, salts, strict=True
            ):
                request_id = str(self._count)
                self._count += 1
                self.engine.add_request(
                    request_id, ids, params, text, priority=rank, cache_salt=salt
                )
                added.append(request_id)
        except RequestError:
            for request_id in added:
                self.engine.abort(request_id)
            raise
        return added

    def _run(self) -> Iterator[RequestOutput]:
        while self.engine.has_unfinished:
            yield from self.engine.step()
