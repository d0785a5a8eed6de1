"""Which loop runs the steps, and what each loop cannot do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .decisions import DecisionLog


@dataclass(frozen=True)
class StepLoopKind:
    """A loop and its limits.

    Attributes:
        name: As in `step_loop`.
        lacks: Feature -> why the loop cannot do it. A configuration that uses one of them runs in
            the simple loop.
    """

    name: str
    lacks: dict[str, str]


SIMPLE = StepLoopKind("simple", {})
OVERLAPPED = StepLoopKind("overlapped", {})
"""Completes the outputs of step n while step n + 1 runs."""
AUTO = SIMPLE
"""What `auto` is."""
FEATURES = (
    "prefix caching",
    "chunked prefill",
    "priorities",
    "speculation",
    "audit_state",
)
"""All that a loop may lack."""


def resolve_loop(wanted: str, features: Collection[str], log: DecisionLog) -> str:
    """Returns the loop that runs: the one asked for, or the simple one where that lacks a feature.

    Args:
        wanted: `auto`, or the name of a loop.
        features: Those of `FEATURES` that the configuration uses.
        log: Gets the decision.
    """
    loop = AUTO if wanted == "auto" else OVERLAPPED if wanted == OVERLAPPED.name else SIMPLE
    lacking = [f"{f} ({loop.lacks[f]})" for f in FEATURES if f in features and f in loop.lacks]
    reason = f"auto is {loop.name}" if wanted == "auto" else "as asked for"
    if not lacking:
        log.add("loop", "step_loop", loop.name, reason)
        return loop.name
    lacks = f"the {loop.name} one lacks {', '.join(lacking)}"
    if wanted == "auto":
        log.add("loop_auto", "step_loop", SIMPLE.name, lacks)
    else:
        line = f"step_loop is {wanted}, but the simple one runs: {lacks}"
        log.warn("loop_falls_back", "step_loop", SIMPLE.name, line)
    return SIMPLE.name
