"""What a configuration has to fit: a machine's memory, and that of its GPU."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .quantity import memory_amount, shown_bytes

GB = 10**9
GPUS: dict[str, int] = {
    "B200": 192 * GB,
    "GH200": 96 * GB,
    "H200": 141 * GB,
    "H100": 80 * GB,
    "A100 80GB": 80 * GB,
    "A100 40GB": 40 * GB,
    "L40S": 48 * GB,
    "L4": 24 * GB,
    "A10": 24 * GB,
    "RTX 5090": 32 * GB,
    "RTX 4090": 24 * GB,
    "RTX 3090": 24 * GB,
}
"""Memory of GPUs in bytes, as their maker states it; drivers show a little more."""

_DRIVER = Path("/proc/driver/nvidia/gpus")
_CGROUPS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_FIELD = "gpu"
_LEAST = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """A GPU; `memory_bytes` is None where it is not known."""

    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class Machine:
    """Memory in bytes, CPU cores, and the GPU that an engine would use."""

    memory_bytes: int
    cores: int
    gpu: Gpu | None = None


def this_machine(gpu: Gpu | None) -> Machine:
    """Returns the machine that this process runs on.

    Args:
        gpu: Its GPU, which whoever can see it must name.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(memory_bytes(), cores or 1, gpu)


def memory_bytes() -> int:
    """Returns the memory that this process may use: the machine's, or its container's if less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(limit for file in _CGROUPS if (limit := _limit(file)))])


def named_gpu(text: str) -> Gpu:
    """Returns the GPU of a name (`H100`, `rtx 4090`), or one with so much memory (`80GB`).

    Raises:
        ConfigError: It is neither, or the name fits several.
    """
    amount = memory_amount(text)
    # Without the bound, 4090 would be a number of bytes.
    if isinstance(amount, int) and amount >= _LEAST:
        return Gpu(f"a GPU with {shown_bytes(amount)}", amount)
    wanted = _parts(text)
    found = [name for name in GPUS if wanted and (wanted <= _parts(name) or _parts(name) <= wanted)]
    exact = [name for name in found if wanted == _parts(name)]
    if len(exact or found) == 1:
        (name,) = exact or found
        return Gpu(name, GPUS[name])
    close = found or difflib.get_close_matches(text.upper(), GPUS, n=3) or list(GPUS)
    raise ConfigError(
        "gpu", _FIELD, text, "a known GPU or its memory, such as 80GB", f"give {' or '.join(close)}"
    )


def driver_gpu(folder: Path = _DRIVER) -> Gpu | None:
    """Returns the first GPU that NVIDIA's driver lists on this machine, without opening it.

    Args:
        folder: Where the driver describes its GPUs.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    for file in sorted(folder.glob("*/information")):
        found = re.search(r"^Model:\s*(.+?)\s*$", file.read_text(errors="replace"), re.MULTILINE)
        if found is not None:
            return Gpu(found[1], _model_memory(found[1]))
    return None


def _model_memory(model: str) -> int | None:
    """Returns the memory of the longest known name within a model's name; None without one."""
    parts = _parts(model)
    known = [name for name in GPUS if _parts(name) <= parts]
    if not known or "laptop" in parts:
        return None
    return GPUS[max(known, key=lambda name: len(_parts(name)))]


def _parts(text: str) -> set[str]:
    """Returns the words and numbers of a name: `RTX4090` and `rtx-4090` have the same."""
    return set(re.findall(r"[a-z]+|\d+", text.lower())) - {"nvidia", "geforce", "tesla"}


def _limit(file: Path) -> int:
    """Returns the limit in a control group's file; 0 for none."""
    try:
        text = file.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
