"""The decision table of prefix caching: what every combination of its options becomes.

`resolve` looks combinations up here, and `docs/configuration.md` shows the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

SWITCH = ("auto", "on", "off")
LAYERS = ("mamba", "attention")
"""Models with Mamba layers, hybrid or not; and those with attention layers and none of Mamba."""


@dataclass(frozen=True)
class CachingRule:
    """One row: the combinations it is about, and what they become.

    Attributes:
        code: Stable identifier, of the decision or the error.
        layers: Models.
        prefix_caching: Values of `enable_prefix_caching`.
        mode: Values of `mamba_cache_mode`.
        chunked: Values of `enable_chunked_prefill`.
        result: The cache mode; None where the combination is refused.
        reason: Why; for a refusal, what would be allowed.
        fix: For a refusal, what to do.
        warns: The mode that was asked for has no effect.
    """

    code: str
    layers: tuple[str, ...]
    prefix_caching: tuple[str, ...]
    mode: tuple[str, ...]
    chunked: tuple[str, ...]
    result: str | None
    reason: str
    fix: str = ""
    warns: bool = False

    def fits(self, layers: str, prefix_caching: str, mode: str, chunked: str) -> bool:
        """Says whether a combination is one of this row's."""
        return (
            layers in self.layers
            and prefix_caching in self.prefix_caching
            and mode in self.mode
            and chunked in self.chunked
        )


_WANTED = ("auto", "on")
_MAMBA, _ATTENTION = ("mamba",), ("attention",)

CACHING_RULES = (
    CachingRule(
        "caching_off",
        LAYERS,
        ("off",),
        ("auto", "none"),
        SWITCH,
        "none",
        "enable_prefix_caching is off",
    ),
    CachingRule(
        "mode_without_caching",
        LAYERS,
        ("off",),
        ("align", "all"),
        SWITCH,
        None,
        "none or auto while enable_prefix_caching is false",
        "drop one of the two",
    ),
    CachingRule(
        "mode_none",
        LAYERS,
        ("auto",),
        ("none",),
        SWITCH,
        "none",
        "mamba_cache_mode is none, so there is nothing to restore",
    ),
    CachingRule(
        "caching_without_states",
        _MAMBA,
        ("on",),
        ("none",),
        SWITCH,
        None,
        "auto, align or all while enable_prefix_caching is true, since pages cannot be reused "
        "without the states that belong to them",
        "drop one of the two",
    ),
    CachingRule(
        "mode_auto",
        _MAMBA,
        _WANTED,
        ("auto",),
        SWITCH,
        "all",
        "auto is all: a repeated prompt hits at every grid point, with and without speculation",
    ),
    CachingRule(
        "mode_all",
        _MAMBA,
        _WANTED,
        ("all",),
        SWITCH,
        "all",
        "as asked for; prompts may be cut or not",
    ),
    CachingRule(
        "mode_align",
        _MAMBA,
        _WANTED,
        ("align",),
        ("auto", "on"),
        "align",
        "as asked for; prompt chunks end on the grid",
    ),
    CachingRule(
        "align_without_chunks",
        _MAMBA,
        _WANTED,
        ("align",),
        ("off",),
        None,
        "auto, none or all while enable_chunked_prefill is false, since align keeps the states at "
        "the ends of prompt chunks",
        "drop --no-enable-chunked-prefill (enable_chunked_prefill), or give mamba_cache_mode = all",
    ),
    CachingRule(
        "pages_only",
        _ATTENTION,
        _WANTED,
        ("auto",),
        SWITCH,
        "all",
        "the model has no Mamba layers, so full pages are enough",
    ),
    CachingRule(
        "no_states",
        _ATTENTION,
        _WANTED,
        ("align", "all"),
        SWITCH,
        "all",
        "the model has no Mamba layers, so every full page is kept",
        warns=True,
    ),
    CachingRule(
        "no_states",
        _ATTENTION,
        ("on",),
        ("none",),
        SWITCH,
        "all",
        "the model has no Mamba layers, so every full page is kept",
        warns=True,
    ),
)
"""Every combination is in exactly one row."""


def caching_rule(layers: str, prefix_caching: str, mode: str, chunked: str) -> CachingRule:
    """Returns the row of a combination.

    Args:
        layers: One of `LAYERS`.
        prefix_caching: `auto`, `on` or `off`.
        mode: As in `mamba_cache_mode`.
        chunked: `auto`, `on` or `off`.
    """
    (rule,) = (r for r in CACHING_RULES if r.fits(layers, prefix_caching, mode, chunked))
    return rule


def switch(value: bool | None) -> str:
    """Returns how a switch is spelled in the table."""
    return "auto" if value is None else "on" if value else "off"
