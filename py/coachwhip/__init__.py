"""coachwhip: inference for Mamba2 and hybrid Mamba2-attention language models on Modular MAX.

    from coachwhip import LLM, SamplingParams

Names are imported on first use, so that `import coachwhip` and the command line's `--help` stay
fast. Telemetry of MAX is turned off first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import telemetry
from .version import __version__

if TYPE_CHECKING:
    from .engine import Engine
    from .errors import CheckpointError, CoachwhipError, ConfigError, EngineError, RequestError
    from .llm import LLM
    from .outputs import CompletionOutput, RequestOutput
    from .sampling.grammar import Grammar
    from .sampling.params import SamplingParams

_HOMES = {
    "LLM": "llm",
    "Engine": "engine",
    "SamplingParams": "sampling.params",
    "Grammar": "sampling.grammar",
    "RequestOutput": "outputs",
    "CompletionOutput": "outputs",
    "CoachwhipError": "errors",
    "ConfigError": "errors",
    "CheckpointError": "errors",
    "RequestError": "errors",
    "EngineError": "errors",
}

__all__ = [
    "LLM",
    "CheckpointError",
    "CoachwhipError",
    "CompletionOutput",
    "ConfigError",
    "Engine",
    "EngineError",
    "Grammar",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "telemetry",
]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
