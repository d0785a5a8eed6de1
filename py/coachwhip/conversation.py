"""From a conversation to the token ids of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .chat_template import ChatTemplate, Message, checked_messages
from .check_request import check_text
from .errors import RequestError
from .tokenizer import Tokenizer


def conversation_tokens(
    template: ChatTemplate | None,
    tokenizer: Tokenizer | None,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
    check_length: Callable[[str], None] | None = None,
) -> tuple[str, list[int]]:
    """Returns a conversation's text and token ids.

    Args:
        template: The model's chat template.
        tokenizer: The model's tokenizer.
        messages: The conversation, oldest first.
        add_generation_prompt: End with what begins an answer.
        tools: JSON schemas of functions that the model may call.
        variables: Further variables of the template.
        check_length: Called with the text before it is tokenized.

    Raises:
        RequestError: The model has no chat template or tokenizer, the template refuses, or the text
            has no UTF-8 form.
    """
    checked_messages(messages)
    if tokenizer is None:
        raise RequestError(
            "messages",
            f"{len(messages)} messages",
            "the model has no tokenizer.json; give a prompt as token ids",
        )
    if template is None:
        raise RequestError(
            "messages",
            f"{len(messages)} messages",
            "the model has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); give a prompt",
        )
    text = template.render(
        messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
    )
    check_text("messages", text)
    if check_length is not None:
        check_length(text)
    return text, tokenizer.encode(text, add_special_tokens=False)
