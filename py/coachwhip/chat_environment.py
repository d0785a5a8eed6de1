"""The jinja2 sandbox in which chat templates run, with what transformers offers them."""

from __future__ import annotations

import json
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def compile_template(text: str) -> jinja2.Template:
    """Compiles a chat template.

    Raises:
        jinja2.TemplateSyntaxError: It is no template.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(text)


class _Generation(Extension):
    """`{% generation %}`, which marks a model's own words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the base class's spelling

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Dict:
    """`dict(...)` without the class, whose attributes lead to Python's internals."""

    def __call__(self, *args, **kwargs) -> dict:
        return dict(*args, **kwargs)

    def fromkeys(self, *args) -> dict:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` that keeps no attribute whose name begins with an underscore."""

    def __init__(*args, **kwargs) -> None:  # so that a template may name an attribute `self`
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: object) -> None:
        _Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """JSON without jinja2's escapes for HTML, letters of every script as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
