"""Options of the engine: where they come from, and what they become for a model and a machine.

`options_from` merges command line or Python, environment and a file into `EngineOptions`; `resolve`
turns those into an `EngineConfig` in which nothing is left open, or raises a `ConfigError` before
any weight is read. Nothing here imports MAX or torch.
"""

from .decisions import Decision
from .engine_config import EngineConfig
from .machine import Gpu, Machine, memory_bytes, this_machine
from .memory_room import CACHE_SHARE, Room
from .options import EngineOptions
from .resolve import Resolution, examine, resolve
from .row_bytes import DTYPE_BYTES, page_bytes, slot_parts, weight_bytes
from .sources import options_from
from .speculation import Speculation

__all__ = [
    "CACHE_SHARE",
    "DTYPE_BYTES",
    "Decision",
    "EngineConfig",
    "EngineOptions",
    "Gpu",
    "Machine",
    "Resolution",
    "Room",
    "Speculation",
    "examine",
    "memory_bytes",
    "options_from",
    "page_bytes",
    "resolve",
    "slot_parts",
    "this_machine",
    "weight_bytes",
]
