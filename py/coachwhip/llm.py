"""Offline generation from Python, in the manner of vLLM's `LLM`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from .check_request import check_text
from .compiled import progress_to_stderr
from .config import options_from
from .engine import Engine
from .errors import EngineError, RequestError
from .metrics import Metrics
from .outputs import RequestOutput
from .sampling.params import SamplingParams

if TYPE_CHECKING:
    from .chat_template import ChatTemplate, Message

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
        model: Folder of a checkpoint, or a hub id such as org/name, which is downloaded; None is
            the small model that ships with the package.
        on_progress: Gets lines while a graph compiles, and an empty one at the end; None prints
            them to stderr.
        on_warning: Gets warnings about the checkpoint; None logs them.
        before_load: Called with the LLM when its configuration and tokenizer are known, before
            weights load and graphs compile; `check` can be called there.
        **options: Every other field of `EngineOptions`; None is unset. `config` names a TOML or
            YAML file. What is not given here comes from `COACHWHIP_...` variables, that file, or
            the defaults.

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
        before_load: Callable[[LLM], None] | None = None,
        **options,
    ) -> None:
        self._count = 0

        def known(engine: Engine) -> None:
            self.engine = engine
            if before_load is not None:
                before_load(self)

        self.engine = Engine(
            options_from({"model": model, **options}),
            on_progress or progress_to_stderr,
            on_warning or _log.warning,
            known,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Generates for every prompt and returns the outputs in the prompts' order.

        Args:
            prompts: One prompt or a list of them.
            sampling_params: One for all, or one for each prompt; defaults when None.
            priority: One for all, or one for each prompt; lower runs first. None is 0.

        Raises:
            RequestError: A prompt or parameter cannot be served; nothing was generated.
            EngineError: A step failed.
        """
        single = isinstance(prompts, (str, dict)) or (
            isinstance(prompts, Sequence)
            and len(prompts) > 0
            and all(isinstance(p, int) for p in prompts)
        )
        if not single and not isinstance(prompts, Iterable):
            raise RequestError("prompts", prompts, "give a prompt, or a list of them")
        listed = [prompts] if single else list(prompts)
        if isinstance(priority, Sequence) and not isinstance(priority, (str, bytes)):
            priorities = list(priority)
        else:
            priorities = [0 if priority is None else priority] * len(listed)
        if len(priorities) != len(listed):
            raise RequestError(
                "priority",
                f"{len(priorities)} entries",
                f"there are {len(listed)} prompts; give one for all or one for each",
            )
        extras = [
            {"priority": rank, "cache_salt": p.get("cache_salt") if isinstance(p, dict) else None}
            for p, rank in zip(listed, priorities, strict=True)
        ]
        return self._finish([self.tokenize(p) for p in listed], sampling_params, extras)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or each of a list, in their order.

            llm.chat([{"role": "user", "content": "How is the state of the Union?"}])

        Args:
            messages: A list of messages, or a list of such lists.
            sampling_params: One for all, or one for each conversation; defaults when None.
            add_generation_prompt: End each conversation with what begins an answer.
            tools: JSON schemas of functions that the model may call.
            chat_template_kwargs: Further variables of the model's template.

        Raises:
            RequestError: The model has no chat template, its template refuses the messages, or a
                conversation or parameter cannot be served; nothing was generated.
            EngineError: A step failed.
        """
        several = (
            isinstance(messages, Sequence)
            and len(messages) > 0
            and all(isinstance(m, Sequence) and not isinstance(m, (str, bytes)) for m in messages)
        )
        tokenized = [
            self.tokenize_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in (messages if several else [messages])
        ]
        return self._finish(tokenized, sampling_params)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, or None where it has none."""
        from .chat_template import ChatTemplate  # jinja2 is for those who chat

        return ChatTemplate.beside(self.engine.model.path)

    def tokenize_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> tuple[str, list[int]]:
        """Returns a conversation's text and token ids; arguments are those of `chat`.

        Raises:
            RequestError: The model has no chat template or tokenizer, or the template refuses.
        """
        from .conversation import conversation_tokens

        return conversation_tokens(
            self.chat_template,
            self.engine.tokenizer,
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=chat_template_kwargs,
        )

    def _finish(self, tokenized, sampling_params, extras=None) -> list[RequestOutput]:
        """Generates for (text, token ids) of each prompt and returns the outputs in order."""
        outputs = self._add(tokenized, sampling_params, extras)
        try:
            while not all(output.finished for output in outputs):
                self.engine.step()
        finally:
            for output in outputs:
                self.engine.abort(output.request_id)
        for output in outputs:
            if output.error:
                raise EngineError(f"request {output.request_id}: {output.error}")
        return outputs

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yields the growing output of one prompt after each token; the same object each time.

        Several streams may run at a time, and beside `generate`.

        Raises:
            RequestError: The prompt or a parameter cannot be served.
            EngineError: A step failed.
        """
        salt = prompt.get("cache_salt") if isinstance(prompt, dict) else None
        (output,) = self._add([self.tokenize(prompt)], sampling_params, [{"cache_salt": salt}])
        try:
            seen, finished = 0, False
            while not finished:
                while len(output.outputs[0].token_ids) == seen and not output.finished:
                    self.engine.step()
                if output.error:
                    raise EngineError(f"request {output.request_id}: {output.error}")
                # It may end while the caller holds it, in another's step: yield that end too.
                seen, finished = len(output.outputs[0].token_ids), output.finished
                yield output
        finally:
            self.engine.abort(output.request_id)

    def check(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> None:
        """Raises RequestError unless a prompt can be served."""
        self.engine.check_request(self.tokenize(prompt)[1], sampling_params)

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
            check_text("prompt", prompt)
            return prompt, self.engine.tokenizer.encode(prompt)
        if isinstance(prompt, (bytes, str)) or not isinstance(prompt, Sequence):
            raise RequestError("prompt", prompt, "give text, or a list of token ids")
        return None, list(prompt)

    def _add(self, tokenized, sampling_params, extras=None) -> list[RequestOutput]:
        """Queues all prompts or, if one cannot be served, none; returns their outputs.

        `extras` are further arguments of `Engine.add_request` for each prompt.
        """
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(tokenized)
        if not isinstance(sampling_params, Sequence) or len(sampling_params) != len(tokenized):
            raise RequestError(
                "sampling_params",
                f"{len(sampling_params)} entries"
                if isinstance(sampling_params, Sequence)
                else repr(sampling_params),
                f"there are {len(tokenized)} prompts; give one for all or one for each",
            )
        for (_, ids), params in zip(tokenized, sampling_params, strict=True):
            self.engine.check_request(ids, params)
        added: list[RequestOutput] = []
        try:
            extras = extras or [{}] * len(tokenized)
            for (text, ids), params, more in zip(tokenized, sampling_params, extras, strict=True):
                request_id = str(self._count)
                self._count += 1
                added.append(self.engine.add_request(request_id, ids, params, text, **more))
        except BaseException:
            for output in added:
                self.engine.abort(output.request_id)
            raise
        return added
