"""What an op refuses when it is put into a graph: ranks, types and sizes, each named."""

import re
from dataclasses import replace

import pytest
from max.dtype import DType
from max.graph import BufferType, DeviceRef, Graph, KernelLibrary, TensorType, Type

from coachwhip.locate import kernels_dir
from coachwhip_graphs import limits, ops
from coachwhip_graphs.matrix import Matrix
from tests.kernels.op_graphs import (
    BF16,
    F16,
    F32,
    I32,
    AttentionConfig,
    Config,
    ConvConfig,
    CopyConfig,
    ExpertsConfig,
    LinearConfig,
    LoadConfig,
    NormConfig,
    RouteConfig,
    SampleConfig,
    ScanConfig,
    StoreConfig,
)

CPU = DeviceRef.CPU()
CONV = ConvConfig(F32, d_conv=4, channels=32)
SCAN = ScanConfig(F32, F32, nheads=4, ngroups=2, headdim=16, dstate=32)
NORM = NormConfig(F32, groups=2, group_size=32)
LINEAR = LinearConfig(F32, F32)
EXPERTS = ExpertsConfig(F32, experts=10, count=3, inner=72, width=128)
ATTENTION = AttentionConfig(F32, F32, head_dim=16)
ROUTE = RouteConfig(experts=8, count=2, groups=2)
COPY = CopyConfig(F32)
LOAD = LoadConfig(F32)
STORE = StoreConfig(F32)
SAMPLE = SampleConfig()
EVERY_OP = (CONV, SCAN, NORM, LINEAR, ATTENTION, ROUTE, COPY, LOAD, STORE, SAMPLE)

OPERANDS = {
    "conv1d": "pool x weight bias seq_start read_slot write_slot",
    "ssm_scan": "pool xbc dt a d dt_bias seq_start read_slot write_slot",
    "gated_rms_norm": "y z weight",
    "linear": "x w",
    "moe_route": "logits bias",
    "attention": "pages q k v seq_start kv_length block_table",
    "copy_rows": "pool source destination",
    "load_rows": "pool index",
    "store_rows": "pool values index",
    "sample": "logits real whole edit_start edit_token edit_count edit_bias mask_row masks",
}


def op_of(config: Config) -> str:
    return config.name.split("-")[0]


def build(config: Config, types: list[Type]) -> None:
    """Puts the op into a graph with these inputs. Wrong operands never reach the kernels."""
    with Graph("one_op", input_types=types, kernel_library=KernelLibrary()) as graph:
        config.build(graph.inputs)


def changed(t: Type, dtype: DType | None = None, more: int = 0) -> Type:
    """Returns a buffer or tensor type with another dtype, or with another dimension in front."""
    kind = BufferType if isinstance(t, BufferType) else TensorType
    return kind(dtype or t.dtype, [3] * more + list(t.shape), t.device)


EVERY_OPERAND = [
    pytest.param(config, place, name, id=f"{op_of(config)}-{name}")
    for config in EVERY_OP
    for place, name in enumerate(OPERANDS[op_of(config)].split())
]


@pytest.mark.parametrize(("config", "place", "name"), EVERY_OPERAND)
def test_wrong_rank_is_refused(config: Config, place: int, name: str) -> None:
    types = config.types(CPU)
    rank = len(types[place].shape)
    types[place] = changed(types[place], more=1)
    message = rf"^coachwhip\.{op_of(config)}: {name} has rank {rank + 1} .*, expected {rank}$"
    with pytest.raises(ValueError, match=message):
        build(config, types)


@pytest.mark.parametrize(("config", "place", "name"), EVERY_OPERAND)
def test_wrong_dtype_is_refused(config: Config, place: int, name: str) -> None:
    types = config.types(CPU)
    types[place] = changed(types[place], dtype=DType.float64)
    message = rf"^coachwhip\.{op_of(config)}: {name} is float64, expected \w+( or \w+)*$"
    with pytest.raises(ValueError, match=message):
        build(config, types)


@pytest.mark.parametrize(
    ("config", "place", "message"),
    [
        (CONV, 0, "pool is bfloat16, but x is float32"),
        (SCAN, 2, "dt is bfloat16, but xbc is float32"),
        (NORM, 1, "z is bfloat16, but y is float32"),
        (LINEAR, 1, "w is bfloat16, but x is float32"),
        (ATTENTION, 2, "k is bfloat16, but q is float32"),
        (ATTENTION, 3, "v is bfloat16, but q is float32"),
        (STORE, 1, "values is bfloat16, but pool is float32"),
    ],
    ids=lambda v: op_of(v) if not isinstance(v, int | str) else None,
)
def test_mixed_dtypes_are_refused(config: Config, place: int, message: str) -> None:
    types = config.types(CPU)
    types[place] = changed(types[place], dtype=BF16)
    with pytest.raises(ValueError, match=rf"^coachwhip\.{op_of(config)}: {message}$"):
        build(config, types)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(CONV, d_conv=1), r"weight\.shape\[0\] \(d_conv\) is 1, expected 2 to 4"),
        (replace(CONV, d_conv=5), r"weight\.shape\[0\] \(d_conv\) is 5, expected 2 to 4"),
        (replace(CONV, channels=40), r"\(channels\) is 40, not a multiple of 16"),
        (replace(CONV, activation="gelu"), "activation is 'gelu', expected 'silu' or 'none'"),
        (replace(SCAN, headdim=24), "headdim is 24, expected a multiple of 16 up to 256"),
        (replace(SCAN, headdim=272), "headdim is 272, expected a multiple of 16 up to 256"),
        (replace(SCAN, dstate=8), "dstate is 8, expected a multiple of 16 up to 256"),
        (replace(SCAN, dstate=272), "dstate is 272, expected a multiple of 16 up to 256"),
        (replace(SCAN, headdim=144, dstate=256), r"headdim \* dstate is 36864, at most 32768"),
        (replace(SCAN, nheads=5), r"xbc has 208 columns, expected 5 \* 16 \+ 2 \* ngroups \* 32"),
        (replace(NORM, group_size=24), "48 columns in 2 groups: a group must be a multiple of 16"),
        (replace(ROUTE, experts=1025), r"logits has 1025 columns \(experts\), at most 1024"),
        (replace(ROUTE, experts=195, groups=65), "groups is 65, at most 64"),
        (replace(ROUTE, groups=3), "3 groups of 8 experts, 1 of them kept; groups must divide"),
        (replace(ROUTE, kept_groups=3), "2 groups of 8 experts, 3 of them kept"),
        (replace(ROUTE, count=5), "5 experts per token, but 4 to choose from"),
        (replace(ATTENTION, head_dim=24), "head_dim is 24, expected a multiple of 16"),
    ],
    ids=lambda v: op_of(v) if not isinstance(v, str) else v[:30],
)
def test_wrong_size_is_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^coachwhip\.{op_of(config)}: .*{message}"):
        build(config, config.types(CPU))


def test_limits_are_those_that_the_kernels_reserve_space_for() -> None:
    found = {
        name: int(number)
        for kernel in ("ssm_scan", "moe_route", "sample_threshold")
        for name, number in re.findall(
            r"^comptime (MAX_\w+) = (\d+)$", (kernels_dir() / f"{kernel}.mojo").read_text(), re.M
        )
    }
    assert found == {
        "MAX_HEADDIM": limits.HEADDIM_LIMIT,
        "MAX_HEAD_VALUES": limits.HEAD_VALUES_LIMIT,
        "MAX_GROUPS": limits.GROUPS_LIMIT,
        "MAX_EXPERTS": limits.EXPERTS_LIMIT,
        "MAX_VOCAB": limits.VOCAB_LIMIT,
    }


def test_widths_that_disagree_are_refused() -> None:
    types = [TensorType(F32, ["tokens", 32], CPU), TensorType(F32, [1, 48, 64], CPU)]
    with Graph("one_op", input_types=types, kernel_library=KernelLibrary()) as graph:
        x, w = (v.tensor for v in graph.inputs)
        with pytest.raises(
            ValueError, match=r"^coachwhip\.linear: x has 32 columns, but w has 48$"
        ):
            ops.linear(x, Matrix(w, (8, 48)))


def test_experts_that_disagree_are_refused() -> None:
    shape = (10, 72, 128)
    message = r"^coachwhip\.moe_experts: up is \[10, 72, 128\], but down is \[10, 72, 128\]$"
    with Graph("one_op", input_types=EXPERTS.types(CPU), kernel_library=KernelLibrary()) as graph:
        *rows, up, down = (v.tensor for v in graph.inputs)
        with pytest.raises(ValueError, match=message):
            ops.moe_experts(*rows, Matrix(up, shape), Matrix(down, shape))


@pytest.mark.parametrize(("place", "name", "columns"), [(1, "real", 6), (2, "whole", 4)])
def test_settings_have_their_columns(place: int, name: str, columns: int) -> None:
    types = SAMPLE.types(CPU)
    types[place] = TensorType(types[place].dtype, ["rows", 5], CPU)
    message = rf"^coachwhip\.sample: {name} has 5 columns, expected {columns}$"
    with pytest.raises(ValueError, match=message):
        build(SAMPLE, types)


@pytest.mark.parametrize("vocab", [0, limits.VOCAB_LIMIT + 1])
def test_vocabulary_is_limited(vocab: int) -> None:
    types = SAMPLE.types(CPU)
    types[0] = TensorType(F32, ["rows", vocab], CPU)
    message = rf"^coachwhip\.sample: logits has {vocab} columns \(vocab\), expected 1 to 524288$"
    with pytest.raises(ValueError, match=message):
        build(SAMPLE, types)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_slots_are_int32(dtype: DType) -> None:
    """A float index names the tensor too."""
    types = COPY.types(CPU)
    types[1] = changed(types[1], dtype=dtype)
    with pytest.raises(ValueError, match=f"source is {dtype.name}, expected {I32.name}"):
        build(COPY, types)
