"""The tables of docs/configuration.md, made from what `resolve` itself uses.

`python -m tests.config.document` writes them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from coachwhip.config.caching_rules import CACHING_RULES, LAYERS, SWITCH
from coachwhip.config.machine import GB, GPUS
from coachwhip.config.option_info import ALIASES, OPTIONS, OptionInfo
from coachwhip.config.options import CACHE_MODES
from coachwhip.config.step_loops import AUTO, OVERLAPPED, SIMPLE

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def options_table() -> str:
    """Returns one row for each option."""
    return _table(
        ("option", "values", "default", "meaning"),
        [
            (
                "<br>".join(f"`{name}`" for name in _names(option)),
                _values(option),
                _default(option),
                option.help,
            )
            for option in OPTIONS.values()
        ],
    )


def caching_table() -> str:
    """Returns the decision table of prefix caching."""
    words = {"mamba": "with Mamba", "attention": "attention only"}
    rows = []
    for rule in CACHING_RULES:
        result = f"**{rule.result}**" if rule.result else "error"
        why = rule.reason if rule.result else f"must be {rule.reason}; {rule.fix}"
        rows.append(
            (
                _either(rule.prefix_caching, SWITCH),
                _either(rule.mode, CACHE_MODES),
                _either(rule.chunked, SWITCH),
                _either([words[n] for n in rule.layers], list(words.values())),
                result + (", with a warning" if rule.warns else ""),
                f"`{rule.code}`: {why}",
            )
        )
    assert set(words) == set(LAYERS)
    names = ("enable_prefix_caching", "mamba_cache_mode", "enable_chunked_prefill")
    return _table((*(f"`{n}`" for n in names), "layers", "mode", "why"), rows)


def loops_table() -> str:
    """Returns the step loops and what they lack."""
    return _table(
        ("`step_loop`", "does not support"),
        [
            (
                loop.name + (" (auto)" if loop is AUTO else ""),
                "; ".join(f"{feature}: {why}" for feature, why in loop.lacks.items()) or "-",
            )
            for loop in (SIMPLE, OVERLAPPED)
        ],
    )


def gpus_table() -> str:
    """Returns the GPUs that `--gpu` knows."""
    return _table(("GPU", "GB"), [(name, str(size // GB)) for name, size in GPUS.items()])


TABLES = {
    "options": options_table,
    "caching": caching_table,
    "loops": loops_table,
    "gpus": gpus_table,
}


def with_tables(text: str) -> str:
    """Returns the document with each table between its two comments as it is now."""
    for name, table in TABLES.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        assert len(pattern.findall(text)) == 1, f"one table {name}"
        new = f"{begin}\n{table()}\n{end}"
        text = pattern.sub(lambda _, new=new: new, text)
    return text


def _names(option: OptionInfo) -> list[str]:
    return [option.name, *(alias for alias, name in ALIASES.items() if name == option.name)]


def _values(option: OptionInfo) -> str:
    if option.kind == "choice":
        return ", ".join(option.choices)
    return {"json": "an object", "object": "an object"}.get(option.kind, option.allowed)


def _default(option: OptionInfo) -> str:
    if option.optional:
        return "auto" if option.kind == "switch" else "unset"
    return str(option.default).lower()


def _either(values, everything) -> str:
    return "any" if list(values) == list(everything) else ", ".join(values)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    assert not any("|" in cell for line in lines for cell in line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text("utf-8")), "utf-8")
