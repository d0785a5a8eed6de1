"""Compiles every op with a GPU kernel for a GPU that is not there, and saves the result.

Run as `python -m tests.kernels.compile_for_gpu FILE`: a process has either virtual devices or real
ones, so this is a program of its own.
"""

import os
import sys

from max.driver import (
    Accelerator,
    set_virtual_device_api,
    set_virtual_device_count,
    set_virtual_device_target_arch,
)
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph

from coachwhip.locate import kernels_dir
from tests.kernels.op_graphs import (
    BF16,
    F16,
    F32,
    AttentionConfig,
    Config,
    ConvConfig,
    CopyConfig,
    ExpertsConfig,
    LoadConfig,
    NormConfig,
    RouteConfig,
    SampleConfig,
    ScanConfig,
    StoreConfig,
)

CONFIGS: list[Config] = [
    ConvConfig(F32, d_conv=4, channels=272, x_offset=32),
    ConvConfig(BF16, d_conv=3, channels=48, activation="none"),
    ScanConfig(F32, F32, nheads=4, ngroups=2, headdim=64, dstate=128, dt_limit=(0.01, 0.5)),
    ScanConfig(BF16, F32, nheads=3, ngroups=1, headdim=80, dstate=16),
    ScanConfig(BF16, F16, nheads=2, ngroups=1, headdim=128, dstate=256),  # the largest head
    ScanConfig(BF16, BF16, nheads=8, ngroups=8, headdim=256, dstate=64),
    NormConfig(F32, groups=3, group_size=80, z_offset=7),
    NormConfig(BF16, groups=8, group_size=512),
    AttentionConfig(F32, F32, head_dim=80),
    AttentionConfig(F32, BF16, head_dim=16),
    AttentionConfig(BF16, BF16, head_dim=128),
    RouteConfig(experts=64, count=6, groups=8, kept_groups=3),
    ExpertsConfig(F32, experts=10, count=3, inner=72, width=128),
    ExpertsConfig(BF16, experts=16, count=6, inner=1856, width=2688),
    CopyConfig(F32),
    CopyConfig(F16),
    CopyConfig(BF16),
    *(LoadConfig(dtype) for dtype in (F32, F16, BF16)),
    *(StoreConfig(dtype) for dtype in (F32, F16, BF16)),
    SampleConfig(),
]


def main(path: str) -> None:
    """Compiles one graph with every op for sm_90a and writes it as a MEF file."""
    set_virtual_device_api("cuda")
    set_virtual_device_target_arch("sm_90a")
    set_virtual_device_count(1)  # last, and before the process has its first device
    session = InferenceSession(devices=[Accelerator()])

    types = [config.types(DeviceRef.GPU()) for config in CONFIGS]
    with Graph(
        "every_op",
        input_types=[t for group in types for t in group],
        custom_extensions=[kernels_dir()],
    ) as graph:
        inputs = iter(graph.inputs)
        built = [
            config.build([next(inputs) for _ in group])
            for config, group in zip(CONFIGS, types, strict=True)
        ]
        graph.output(*(y for y in built if y is not None))
    session.compile(graph).export_mef(path)


if __name__ == "__main__":
    main(sys.argv[1])
    # MAX's threads for a device that is not there now and then abort a process that ends in order.
    os._exit(0)
