"""The bytes that a plan counts are those of the pools and weights that an engine makes."""

from math import prod

import pytest
from max.dtype import DType

from coachwhip.config import page_bytes, slot_parts, weight_bytes
from coachwhip_graphs.step import CacheSpec, page_pools, slot_pools
from coachwhip_graphs.weights import graph_weights, mtp_weights
from tests.checkpoint.published_configs import PUBLISHED
from tests.config.models import KINDS, SPECS

MIB = 1 << 20
MODELS = {**SPECS, **KINDS}


def row_bytes(pool) -> int:
    return prod(pool.row_shape) * pool.dtype.size_in_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_slots_and_pages_are_as_large_as_the_pools_rows(name, dtype):
    spec = MODELS[name]
    for ssm in ("float32", "float16", "bfloat16"):
        for kv in ("float32", "bfloat16"):
            for page_size in (8, 16, 24, 128):
                for head in {False, bool(spec.mtp_layers)}:
                    cache = CacheSpec(DType[ssm], DType[kv], page_size, head)
                    pools = {p.name: row_bytes(p) for p in slot_pools(spec, DType[dtype], cache)}
                    parts = slot_parts(spec, dtype, ssm, head)
                    assert parts.conv == pools.get("conv", 0)
                    assert parts.ssm == pools.get("ssm", 0)
                    assert parts.carry == pools.get("carry", 0)
                    assert parts.total == sum(pools.values())
                    pages = sum(map(row_bytes, page_pools(spec, cache)))
                    assert page_bytes(spec, page_size, kv, head) == pages


def ceil_to(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_graphs(name, dtype):
    spec = MODELS[name]
    weights = graph_weights(spec, DType[dtype]) | mtp_weights(spec, DType[dtype])
    sizes = {n: prod(w.shape) * w.dtype.size_in_bytes for n, w in weights.items()}
    assert weight_bytes(spec, dtype, "gpu") == sum(sizes.values()) > 0
    on_cpu = 0
    for weight_name, w in weights.items():
        looked_up = weight_name == "embeddings.weight"
        multiplied = len(w.shape) > 1 and "conv1d" not in weight_name
        if looked_up or not multiplied:
            on_cpu += sizes[weight_name]
        if multiplied and (spec.tie_embeddings or not looked_up):
            *stack, n, k = w.shape
            rows = ceil_to(k * w.dtype.size_in_bytes, 4)
            on_cpu += prod(stack) * ceil_to(n, 64) * rows
    assert weight_bytes(spec, dtype, "cpu") == on_cpu


@pytest.mark.parametrize(
    "name, ssm_mib, conv_mib, token_bytes",
    [
        ("Nemotron-3-Nano-30B-A3B", 46, 0.8, 6144),
        ("Nemotron-3.5-Lightning-30B-A3B", 46, 0.8, 6144),
        ("Nemotron-3-Super-120B-A12B", 160, 2.3, 8192),
        ("Nemotron-3-Ultra-550B-A55B", 384, 5.1, 12288),
        ("Nano-9B-v2", 135, None, 16384),
        ("Nemotron-H-8B", 96, None, 16384),
        ("Nemotron-3-Nano-4B", 78.8, None, None),
    ],
)
def test_bytes_of_a_sequence_of_published_models(name, ssm_mib, conv_mib, token_bytes):
    """In bfloat16 with float32 states, as published."""
    assert name in PUBLISHED
    parts = slot_parts(SPECS[name], "bfloat16", "float32", False)
    assert round(parts.ssm / MIB, 1) == ssm_mib
    if conv_mib is not None:
        assert round(parts.conv / MIB, 1) == conv_mib
    if token_bytes is not None:
        assert page_bytes(SPECS[name], 16, "bfloat16", False) == 16 * token_bytes
