"""Turns a conversation into the text that a chat model was trained on.

The template lies beside the model: `chat_template.jinja`, or `chat_template` in
`tokenizer_config.json` (one template, or a list of named ones). It is code from the model's maker,
so it runs in jinja2's sandbox, sees plain data only, and can neither read files nor reach Python's
internals. Blocks are trimmed, and filters and globals are those that transformers offers, so the
same template gives the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .chat_environment import compile_template
from .checkpoint.json_file import read_json_object
from .errors import CheckpointError, RequestError

_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, object]
"""`{"role": "user", "content": "text"}`, with whatever other keys the template reads."""


class ChatTemplate:
    """The chat templates of one model.

    Args:
        templates: Template text by name; `default` and, where a model has it, `tool_use`.
        special_tokens: Values of `bos_token`, `eos_token` and so on, for the template to use.
        source: The file, named in errors.
    """

    def __init__(
        self, templates: dict[str, str], special_tokens: dict[str, str], source: Path | str = ""
    ) -> None:
        self._templates, self._special_tokens = templates, special_tokens
        self._source = str(source)
        self._compiled: dict = {}

    @classmethod
    def beside(cls, folder: Path) -> ChatTemplate | None:
        """Returns the templates of a checkpoint folder, or None where it has none.

        Raises:
            CheckpointError: A file cannot be read or does not hold what it should.
        """
        config_path, file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        config = read_json_object(config_path) if config_path.is_file() else {}
        if file.is_file():
            templates, source = {"default": _read(file)}, file
        else:
            templates, source = _templates(config.get("chat_template"), config_path), config_path
        if not templates:
            return None
        return cls(templates, _special_tokens(config, folder), source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Returns the text of a conversation; special tokens are part of it.

        Args:
            messages: The conversation, oldest first.
            add_generation_prompt: End with what begins an answer.
            tools: JSON schemas of functions that the model may call.
            variables: Further variables of the template, such as `enable_thinking`.

        Raises:
            RequestError: A message is malformed, or the template refuses it or fails.
        """
        plain = [_message(m, f"messages[{i}]") for i, m in enumerate(checked_messages(messages))]
        values = {
            **self._special_tokens,
            **_plain(dict(variables or {}), "chat_template_kwargs"),
            "messages": plain,
            "tools": None if tools is None else _plain(list(tools), "tools"),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        template = self._template("tool_use" if tools is not None else "default")
        try:
            return template.render(values)
        except Exception as error:  # a template is a program: any kind of error
            raise RequestError(
                "messages",
                f"{len(plain)} messages",
                f"the model's chat template does not take them: {_reason(error)}",
            ) from error

    def mentions(self, text: str) -> bool:
        """Whether a text stands in one of the templates."""
        return any(text in template for template in self._templates.values())

    def _template(self, name: str):
        if name not in self._templates:
            name = "default"
        if name not in self._compiled:
            if name not in self._templates:
                raise RequestError(
                    "chat_template",
                    sorted(self._templates),
                    f"{self._source} has no template named default",
                )
            try:
                self._compiled[name] = compile_template(self._templates[name])
            except Exception as error:
                line = f"line {error.lineno}: " if hasattr(error, "lineno") else ""
                raise RequestError(
                    "chat_template",
                    self._source,
                    f"it cannot be compiled: {line}{_reason(error)}",
                ) from error
        return self._compiled[name]


def checked_messages(messages: object) -> Sequence[Message]:
    """Returns a conversation whose messages are all dicts with a role.

    Raises:
        RequestError: It is empty, no list, or a message is malformed; the message says which.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError("messages", messages, 'give a list of {"role": ..., "content": ...}')
    if not messages:
        raise RequestError("messages", [], "it is empty; give at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{i}]", message, "a message is a dict with role, content")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise RequestError(f"messages[{i}].role", role, "give user, assistant, system or tool")
        if not isinstance(message.get("content"), (str, list, tuple, type(None))):
            raise RequestError(
                f"messages[{i}].content", message["content"], "give a text, or a list of parts"
            )
    return messages


def _message(message: Message, where: str) -> dict:
    """Returns a message as transformers hands it on: plain data, no None, one name of reasoning."""
    kept = {key: value for key, value in _plain(dict(message), where).items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _plain(value: object, where: str):
    """Copies JSON-like data; anything with methods of its own stays out of the template's reach."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_key(k, where): _plain(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise RequestError(where, value, "give text, numbers, true, false, null, lists or dicts")


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise RequestError(where, key, "keys are text")
    return str.__str__(key)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(path, f"cannot be read: {error}", "restore the file") from None


def _templates(value: object, path: Path) -> dict[str, str]:
    """Returns templates by name from the two forms that `chat_template` has in JSON."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        found = {entry["name"]: entry["template"] for entry in value}
    except (TypeError, KeyError):
        found = {None: None}
    if not all(isinstance(part, str) for pair in found.items() for part in pair):
        raise CheckpointError(
            path, "chat_template is neither a text nor a list of {name, template}", "correct it"
        )
    return found


def _special_tokens(config: dict, folder: Path) -> dict[str, str]:
    """Returns `bos_token` and its like, from the older file where the newer has none."""
    older_path = folder / "special_tokens_map.json"
    older = read_json_object(older_path) if older_path.is_file() else {}
    found = {}
    for name in (f"{token}_token" for token in _TOKENS):
        value = config.get(name) or older.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deep"
    kind = "" if type(error).__module__.startswith("jinja2") else f"{type(error).__name__}: "
    return kind + (str(error) or type(error).__name__)
