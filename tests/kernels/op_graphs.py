"""Graphs of one op each, in the sizes and types that the tests use.

Sizes that an op takes from its operands at run time stay symbolic; the names differ where an op
itself, and not MAX, must find that two of them disagree.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import (
    BufferType,
    DeviceRef,
    Graph,
    KernelLibrary,
    Module,
    TensorType,
    TensorValue,
    Type,
    Value,
)

from coachwhip_graphs import ops
from coachwhip_graphs.matrix import Matrix
from coachwhip_graphs.panels import panels_shape
from coachwhip_graphs.pool_rows import load_rows, store_rows
from coachwhip_graphs.sample import sample

F32, F16, BF16, I32 = DType.float32, DType.float16, DType.bfloat16, DType.int32


@dataclass(frozen=True)
class ConvConfig:
    """A graph of `conv1d`; the pool has any number of layers."""

    rows: DType
    d_conv: int
    channels: int
    activation: str = "silu"
    x_offset: int = 0
    layer: int = 1

    @property
    def name(self) -> str:
        return f"conv1d-{self.rows.name}-{self.d_conv}-{self.channels}"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            BufferType(self.rows, ["slots", "layers", self.d_conv - 1, self.channels], device),
            TensorType(self.rows, ["tokens", "columns"], device),
            TensorType(F32, [self.d_conv, self.channels], device),
            TensorType(F32, [self.channels], device),
            TensorType(I32, ["starts"], device),
            TensorType(I32, ["batch"], device),
            TensorType(I32, ["written"], device),
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        return ops.conv1d(
            inputs[0].buffer,
            *(v.tensor for v in inputs[1:]),
            layer=self.layer,
            x_offset=self.x_offset,
            activation=self.activation,
        )


@dataclass(frozen=True)
class ScanConfig:
    """A graph of `ssm_scan`; the pool has any number of layers."""

    rows: DType
    state: DType
    nheads: int
    ngroups: int
    headdim: int
    dstate: int
    dt_offset: int = 0
    dt_limit: tuple[float, float] = (0.0, math.inf)
    layer: int = 1

    @property
    def name(self) -> str:
        return (
            f"ssm_scan-{self.rows.name}-{self.state.name}-"
            f"{self.nheads}by{self.ngroups}-{self.headdim}x{self.dstate}"
        )

    @property
    def width(self) -> int:
        """Columns of xbc."""
        return self.nheads * self.headdim + 2 * self.ngroups * self.dstate

    @property
    def state_values(self) -> int:
        """Values of one slot and layer."""
        return self.nheads * self.headdim * self.dstate

    def types(self, device: DeviceRef) -> list[Type]:
        pool = ["slots", "layers", self.nheads, self.headdim * self.dstate]
        return [
            BufferType(self.state, pool, device),
            TensorType(self.rows, ["tokens", self.width], device),
            TensorType(self.rows, ["dt_rows", "dt_columns"], device),
            TensorType(F32, [self.nheads], device),
            TensorType(F32, [self.nheads], device),
            TensorType(F32, [self.nheads], device),
            TensorType(I32, ["starts"], device),
            TensorType(I32, ["batch"], device),
            TensorType(I32, ["written"], device),
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        return ops.ssm_scan(
            inputs[0].buffer,
            *(v.tensor for v in inputs[1:]),
            layer=self.layer,
            headdim=self.headdim,
            dstate=self.dstate,
            dt_offset=self.dt_offset,
            dt_limit=self.dt_limit,
        )


@dataclass(frozen=True)
class NormConfig:
    """A graph of `gated_rms_norm`."""

    rows: DType
    groups: int
    group_size: int
    z_offset: int = 0
    eps: float = 1e-5

    @property
    def name(self) -> str:
        return f"gated_rms_norm-{self.rows.name}-{self.groups}x{self.group_size}"

    @property
    def width(self) -> int:
        return self.groups * self.group_size

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            TensorType(self.rows, ["tokens", self.width], device),
            TensorType(self.rows, ["z_rows", "z_columns"], device),
            TensorType(F32, [self.width], device),
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        return ops.gated_rms_norm(
            *(v.tensor for v in inputs), groups=self.groups, eps=self.eps, z_offset=self.z_offset
        )


def _weight(dtype: DType, shape: tuple[int | str, ...], device: DeviceRef) -> TensorType:
    """Returns the type of a matrix of any or of one shape: on a CPU that of its panels."""
    if device == DeviceRef.CPU():
        known = all(isinstance(size, int) for size in shape)
        shape = panels_shape(shape, dtype.size_in_bytes) if known else ("panels", "words", "lanes")
    return TensorType(dtype, shape, device)


@dataclass(frozen=True)
class LinearConfig:
    """A graph of `linear` for a weight of any shape."""

    rows: DType
    out: DType

    @property
    def name(self) -> str:
        return f"linear-{self.rows.name}-{self.out.name}"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            TensorType(self.rows, ["tokens", "k"], device),
            _weight(self.rows, ("n", "k"), device),
            TensorType(I32, ["n"], device),  # panels alone do not tell how many rows they hold
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        x, w, of_n = (v.tensor for v in inputs)
        return ops.linear(x, Matrix(w, (*of_n.shape, x.shape[1])), out_dtype=self.out)


@dataclass(frozen=True)
class AttentionConfig:
    """A graph of `attention` for any page size, number of heads and of K/V heads."""

    rows: DType
    cache: DType
    head_dim: int
    layer: int = 1

    @property
    def name(self) -> str:
        return f"attention-{self.rows.name}-{self.cache.name}-{self.head_dim}"

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def types(self, device: DeviceRef) -> list[Type]:
        pages = ["pages", "layers", 2, "kv_heads", "page_size", self.head_dim]
        return [
            BufferType(self.cache, pages, device),
            TensorType(self.rows, ["tokens", "q_columns"], device),
            TensorType(self.rows, ["k_rows", "k_columns"], device),
            TensorType(self.rows, ["v_rows", "v_columns"], device),
            TensorType(I32, ["starts"], device),
            TensorType(I32, ["batch"], device),
            TensorType(I32, ["table_rows", "table_columns"], device),
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        return ops.attention(
            inputs[0].buffer, *(v.tensor for v in inputs[1:]), layer=self.layer, scale=self.scale
        )


@dataclass(frozen=True)
class RouteConfig:
    """A graph of `moe_route`; returns the experts, or the weights as asked."""

    experts: int
    count: int
    groups: int = 1
    kept_groups: int = 1
    normalize: bool = True
    scale: float = 1.0
    weights: bool = True

    @property
    def name(self) -> str:
        what = "weights" if self.weights else "experts"
        return f"moe_route-{self.experts}-{self.count}-{self.kept_groups}of{self.groups}-{what}"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            TensorType(F32, ["tokens", self.experts], device),
            TensorType(F32, [self.experts], device),
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        chosen, weights = ops.moe_route(
            *(v.tensor for v in inputs),
            count=self.count,
            groups=self.groups,
            kept_groups=self.kept_groups,
            normalize=self.normalize,
            scale=self.scale,
        )
        return weights if self.weights else chosen


@dataclass(frozen=True)
class ExpertsConfig:
    """A graph of `moe_experts`."""

    rows: DType
    experts: int
    count: int
    inner: int
    width: int

    @property
    def name(self) -> str:
        return f"moe_experts-{self.rows.name}-{self.count}of{self.experts}-{self.inner}"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            TensorType(self.rows, ["tokens", self.width], device),
            TensorType(I32, ["tokens", self.count], device),
            TensorType(F32, ["tokens", self.count], device),
            *(_weight(self.rows, shape, device) for shape in self.shapes),
        ]

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Shapes of up and down."""
        return [(self.experts, self.inner, self.width), (self.experts, self.width, self.inner)]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        *rows, up, down = (v.tensor for v in inputs)
        weights = (Matrix(w, s) for w, s in zip((up, down), self.shapes, strict=True))
        return ops.moe_experts(*rows, *weights)


@dataclass(frozen=True)
class CopyConfig:
    """A graph of `copy_rows` for a pool of any size."""

    pool: DType

    @property
    def name(self) -> str:
        return f"copy_rows-{self.pool.name}"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            BufferType(self.pool, ["rows", "row_values"], device),
            TensorType(I32, ["copies"], device),
            TensorType(I32, ["destinations"], device),
        ]

    def build(self, inputs: Sequence[Value]) -> None:
        ops.copy_rows(inputs[0].buffer, *(v.tensor for v in inputs[1:]))


@dataclass(frozen=True)
class LoadConfig:
    """A graph of `load_rows` for a pool of any size."""

    pool: DType

    @property
    def name(self) -> str:
        return f"load_rows-{self.pool.name}"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            BufferType(self.pool, ["rows", "width"], device),
            TensorType(I32, ["loads"], device),
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        return load_rows(inputs[0].buffer, inputs[1].tensor)


@dataclass(frozen=True)
class StoreConfig:
    """A graph of `store_rows` for a pool of any size."""

    pool: DType

    @property
    def name(self) -> str:
        return f"store_rows-{self.pool.name}"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            BufferType(self.pool, ["rows", "width"], device),
            TensorType(self.pool, ["stores", "values"], device),
            TensorType(I32, ["indices"], device),
        ]

    def build(self, inputs: Sequence[Value]) -> None:
        store_rows(inputs[0].buffer, *(v.tensor for v in inputs[1:]))


@dataclass(frozen=True)
class SampleConfig:
    """A graph of `sample` for a vocabulary of any size."""

    name: str = "sample"

    def types(self, device: DeviceRef) -> list[Type]:
        return [
            TensorType(F32, ["rows", "vocab"], device),
            TensorType(F32, ["real_rows", 6], device),
            TensorType(I32, ["whole_rows", 4], device),
            TensorType(I32, ["starts"], device),
            TensorType(I32, ["edits"], device),
            TensorType(I32, ["counts"], device),
            TensorType(F32, ["biases"], device),
            TensorType(I32, ["mask_rows"], device),
            TensorType(I32, ["masks", "mask_words"], device),
        ]

    def build(self, inputs: Sequence[Value]) -> TensorValue:
        return sample(*(v.tensor for v in inputs))


Config = (
    ConvConfig
    | ScanConfig
    | NormConfig
    | LinearConfig
    | AttentionConfig
    | RouteConfig
    | ExpertsConfig
    | CopyConfig
    | LoadConfig
    | StoreConfig
    | SampleConfig
)


CONV = [
    ConvConfig(F32, d_conv=2, channels=16),
    ConvConfig(F32, d_conv=3, channels=48, activation="none", x_offset=5),
    ConvConfig(F32, d_conv=4, channels=272, x_offset=32),  # one channel block and a bit
    ConvConfig(F32, d_conv=4, channels=1024, layer=0),  # enough work for threads
    ConvConfig(BF16, d_conv=2, channels=32, activation="none", x_offset=3),
    ConvConfig(BF16, d_conv=3, channels=16, x_offset=16),
    ConvConfig(BF16, d_conv=4, channels=528),
]

SCAN = [
    ScanConfig(F32, F32, nheads=4, ngroups=4, headdim=16, dstate=16),
    ScanConfig(F32, F32, nheads=4, ngroups=2, headdim=64, dstate=128, dt_offset=3),
    ScanConfig(F32, F32, nheads=3, ngroups=1, headdim=80, dstate=32, dt_limit=(0.01, 0.5)),
    ScanConfig(F32, F32, nheads=1, ngroups=1, headdim=128, dstate=256),  # the largest head
    ScanConfig(F32, F16, nheads=8, ngroups=2, headdim=16, dstate=64),
    ScanConfig(F32, BF16, nheads=7, ngroups=1, headdim=16, dstate=256, layer=0),
    ScanConfig(BF16, F32, nheads=5, ngroups=1, headdim=64, dstate=64, dt_offset=320),
    ScanConfig(BF16, BF16, nheads=12, ngroups=2, headdim=80, dstate=16, dt_limit=(0.0, 0.3)),
    ScanConfig(BF16, F16, nheads=8, ngroups=1, headdim=64, dstate=256),
]

NORM = [
    NormConfig(F32, groups=1, group_size=16),
    NormConfig(F32, groups=3, group_size=80, z_offset=7),
    NormConfig(F32, groups=8, group_size=512, eps=1e-3),
    NormConfig(BF16, groups=2, group_size=48, z_offset=1),
    NormConfig(BF16, groups=1, group_size=1040, z_offset=16),
]

LINEAR = [LinearConfig(F32, F32), LinearConfig(BF16, BF16), LinearConfig(BF16, F32)]

ATTENTION = [
    AttentionConfig(F32, F32, head_dim=16),
    AttentionConfig(F32, F32, head_dim=64, layer=0),
    AttentionConfig(F32, F32, head_dim=80),
    AttentionConfig(F32, F32, head_dim=128),
    AttentionConfig(F32, BF16, head_dim=32),
    AttentionConfig(BF16, F32, head_dim=64),
    AttentionConfig(BF16, BF16, head_dim=80),
    AttentionConfig(BF16, BF16, head_dim=128),
]

_ROUTES = [
    RouteConfig(experts=10, count=3, scale=2.5),
    RouteConfig(experts=8, count=2, groups=2, kept_groups=1),
    RouteConfig(experts=64, count=6, groups=8, kept_groups=3, normalize=False, scale=1.5),
    RouteConfig(experts=512, count=22, scale=5.0),
    RouteConfig(experts=1024, count=8, groups=64, kept_groups=16, normalize=False),  # the most
]
ROUTE = [replace(c, weights=w) for c in _ROUTES for w in (False, True)]

EXPERTS = [
    ExpertsConfig(F32, experts=10, count=3, inner=72, width=128),
    ExpertsConfig(F32, experts=3, count=1, inner=25, width=40),
    ExpertsConfig(F32, experts=16, count=4, inner=320, width=200),  # enough work for threads
    ExpertsConfig(BF16, experts=10, count=3, inner=72, width=48),
]

COPY = [CopyConfig(F32), CopyConfig(F16), CopyConfig(BF16)]

LOAD = [LoadConfig(F32), LoadConfig(F16), LoadConfig(BF16)]

STORE = [StoreConfig(F32), StoreConfig(F16), StoreConfig(BF16)]

SAMPLE = SampleConfig()


def compiled(
    session: InferenceSession, kernels: Path, configs: Iterable[Config]
) -> dict[str, Model]:
    """Compiles one graph per configuration, all at once: what a compile costs is its start.

    Args:
        session: A session on a CPU.
        kernels: The `mojo_kernels` folder.
        configs: What to compile.

    Returns:
        The models, by the configurations' names.
    """
    device = DeviceRef.CPU()
    module = Module()
    library = KernelLibrary()
    library.load_paths([kernels])
    for config in configs:
        with Graph(
            config.name, input_types=config.types(device), kernel_library=library, module=module
        ) as graph:
            y = config.build(graph.inputs)
            graph.output(*([] if y is None else [y]))
    return session.init_all(session.compile(module, custom_extensions=[kernels]))
