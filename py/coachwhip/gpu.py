"""The GPU that MAX sees."""

from __future__ import annotations

from max.driver import Accelerator, accelerator_count

from .config import Gpu
from .config.machine import driver_gpu


def visible_gpu() -> Gpu | None:
    """Returns the GPU that an engine runs on, None without one.

    Its name is the driver's, its memory what MAX sees of it.
    """
    if not accelerator_count():
        return None
    device, listed = Accelerator(), driver_gpu()
    memory = int(device.stats.get("total_memory", 0)) or (listed and listed.memory_bytes)
    return Gpu(listed.name if listed is not None else device.label, memory or None)
