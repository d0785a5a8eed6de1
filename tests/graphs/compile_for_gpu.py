"""Compiles the step graph of a tiny model for sm_90a with a virtual device.

Run in a process of its own: a process has either virtual devices or real ones. It prints
one JSON line.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from max.driver import (
    Accelerator,
    set_virtual_device_api,
    set_virtual_device_count,
    set_virtual_device_target_arch,
)

set_virtual_device_api("cuda")
set_virtual_device_target_arch("sm_90a")
set_virtual_device_count(1)  # last, and before the first device is created

from max.dtype import DType  # noqa: E402
from max.engine import InferenceSession  # noqa: E402
from max.graph import DeviceRef  # noqa: E402

from coachwhip.checkpoint import read_model  # noqa: E402
from coachwhip.locate import kernels_dir  # noqa: E402
from coachwhip_graphs.model import step_graph  # noqa: E402
from coachwhip_graphs.step import CacheSpec  # noqa: E402

EM_CUDA = 190


def elf_machines(data: bytes) -> list[int]:
    """Returns the machine number of every ELF image inside `data`."""
    found, at = [], data.find(b"\x7fELF")
    while at >= 0:
        found.append(int.from_bytes(data[at + 18 : at + 20], "little"))
        at = data.find(b"\x7fELF", at + 4)
    return found


def main(folder: str, dtype: str) -> None:
    spec = read_model(folder).spec
    # The carry rows of a draft head are part of the step graph. The draft graph itself has no op
    # that the step graph lacks, and takes minutes more, so it is compiled by hand.
    cache = CacheSpec(DType.float32, DType[dtype], 128, head=True)
    graph = step_graph(spec, DType[dtype], cache, DeviceRef.GPU(), kernels_dir())
    compiled = InferenceSession(devices=[Accelerator()]).compile(graph)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "step.mef"
        compiled.export_mef(str(path))
        data = path.read_bytes()
    print(
        json.dumps({"cuda_images": elf_machines(data).count(EM_CUDA), "sm_90a": b"sm_90a" in data}),
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    # MAX's threads for a device that is not there now and then abort a process that ends in order.
    os._exit(0)
