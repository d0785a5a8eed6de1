"""All cases of the engine benchmark by name."""

from __future__ import annotations

from collections.abc import Callable

from bench.engine import caching, loops, speculation
from bench.engine.measured import Measured, Sizes
from coachwhip.engine import Engine

Case = Callable[[Engine, Sizes], Measured | None]
"""Measures an engine; None where the model has nothing to measure."""

CACHING: dict[str, Case] = {
    "prefix": caching.shared_prefix,
    "conversation": caching.conversation,
    "batch": caching.shared_batch,
    "host": caching.host_share,
    "overlapped": loops.overlapped,
}
SPECULATION: dict[str, Case] = {
    "verify": speculation.verify_step,
    "speculate": speculation.accepted,
    "rejected": speculation.rejected,
    "switched": speculation.switched_off,
    "mtp": speculation.own_head,
    "ngram": speculation.repeated_text,
}
CASES = CACHING | SPECULATION
