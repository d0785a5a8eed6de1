"""What translation knows of the model that is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from ..chat_template import ChatTemplate
from ..check_request import check_request
from ..checkpoint.model_description import ModelDescription
from ..config import EngineConfig
from ..conversation import conversation_tokens
from ..errors import RequestError
from ..sampling.guidance import Guidance
from ..sampling.params import SamplingParams
from ..tokenizer import Tokenizer
from ..version import __version__
from .api_error import context_length_exceeded, model_not_found
from .bodies import ChatBody
from .reasoning import OPEN
from .token_text import TokenText


@dataclass(frozen=True)
class Frontend:
    """A model without its weights: enough to check and translate requests, in any process.

    Args:
        model: The checkpoint's description.
        config: What the engine runs with.
        served_names: Names that a body may give as `model`; the first is the one in responses.
        any_model: Take every name for this model.
    """

    model: ModelDescription
    config: EngineConfig
    served_names: tuple[str, ...]
    any_model: bool = False

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, None where it has none."""
        return Tokenizer.beside(self.model.path)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, None where it has none."""
        return ChatTemplate.beside(self.model.path)

    @cached_property
    def reasons(self) -> bool:
        """Whether the model's chats know reasoning, apart from answers."""
        return self.chat_template is not None and self.chat_template.mentions(OPEN)

    def token_of(self, mark: str) -> int | None:
        """Returns the id of the added token that a mark is; None where it is written in several."""
        return None if self.tokenizer is None else self.tokenizer.added_token(mark)

    @cached_property
    def guidance(self) -> Guidance:
        """Compiles grammars, only to check them: the engine has its own."""
        spec = self.model.spec
        return Guidance(self.tokenizer, spec.vocab_size, self.model.eos_token_ids)

    @cached_property
    def token_text(self) -> TokenText:
        """The text of single tokens."""
        return TokenText(self.tokenizer)

    @cached_property
    def system_fingerprint(self) -> str:
        """Names what decides about texts beside the body: model, dtypes and version."""
        config = self.config
        parts = (
            __version__,
            repr(self.model.spec),
            config.dtype,
            config.mamba_ssm_cache_dtype,
            config.kv_cache_dtype,
        )
        return f"fp_{sha256(repr(parts).encode()).hexdigest()[:12]}"

    def served_name(self, name: str | None) -> str:
        """Returns the name to respond with.

        Raises:
            ApiError: The body names a model that is not served.
        """
        if name is not None and name in self.served_names:
            return name
        if name is None or self.any_model:
            return self.served_names[0]
        raise model_not_found(name, self.served_names)

    def sampling_defaults(self) -> dict[str, float | int]:
        """Returns what a body leaves open, by name.

        The checkpoint's `generation_config.json` decides as far as it goes: `do_sample: false` is
        temperature 0. Where it says nothing, temperature is 1, as OpenAI has it.
        """
        given = self.model.generation_defaults
        if given.get("do_sample") is False:
            return {"temperature": 0.0}
        names = [name for name in ("top_p", "top_k") if name in given]
        return {"temperature": given.get("temperature", 1.0), **{n: given[n] for n in names}}

    def prompt_tokens(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a prompt, with what the tokenizer puts around a text or not.

        Raises:
            RequestError: The model has no tokenizer.
            ApiError: The text is longer than any prompt that can be served.
        """
        if self.tokenizer is None:
            raise RequestError("prompt", text, "the model has no tokenizer.json; give token ids")
        self._refuse_endless(text, "prompt")
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def chat_tokens(self, body: ChatBody) -> tuple[str, list[int]]:
        """Returns the text and the token ids of a conversation.

        Raises:
            RequestError: The model has no chat template or tokenizer, or the template refuses.
            ApiError: The text is longer than any prompt that can be served.
        """
        tools = body.callable_tools
        return conversation_tokens(
            self.chat_template,
            self.tokenizer,
            [message.for_template() for message in body.messages],
            add_generation_prompt=body.add_generation_prompt is not False,
            tools=[tool.for_template() for tool in tools] if tools else None,
            variables=body.template_variables,
            check_length=lambda text: self._refuse_endless(text, "messages"),
        )

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """Returns the text of a prompt that came as token ids."""
        return "" if self.tokenizer is None else self.tokenizer.decode(list(token_ids))

    def check(self, token_ids: Sequence[int], params: SamplingParams | None, field: str) -> None:
        """Checks what the engine would; `field` is the one that holds the prompt.

        Raises:
            RequestError: A parameter, or a token of the prompt, cannot be served.
            ApiError: The prompt is too long.
        """
        limit = self.config.max_model_len
        if len(token_ids) >= limit:
            raise context_length_exceeded(len(token_ids), limit, field)
        check_request(
            token_ids,
            params,
            self.model.spec,
            self.config,
            self.guidance,
            has_tokenizer=bool(self.tokenizer),
        )

    def _refuse_endless(self, text: str, field: str) -> None:
        """Refuses a text too long for any tokens before time is spent on finding them."""
        at_least = len(text) // self._longest_token
        if at_least >= self.config.max_model_len:
            raise context_length_exceeded(at_least, self.config.max_model_len, field, at_least=True)

    @cached_property
    def _longest_token(self) -> int:
        """Most characters that one token stands for."""
        return max(1, *map(len, self.tokenizer.vocabulary()))
