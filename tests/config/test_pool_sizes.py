"""How memory is shared out between slots and pages."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.config import EngineOptions, Gpu, Machine, examine, resolve
from coachwhip.config.decisions import DecisionLog
from coachwhip.config.memory_room import Room
from coachwhip.config.pool_sizes import Needs, resolve_pools
from coachwhip.config.row_bytes import RowBytes, SlotParts
from coachwhip.errors import ConfigError
from tests.config.models import CPU, GPU, KINDS, SPECS

MTP = {"spec_method": "mtp", "spec_tokens": 3}


def config_of(kind: str, machine: Machine = CPU, dtype: str = "float32", **options):
    return resolve(KINDS[kind], dtype, EngineOptions(**options), machine)


def refused(kind: str, machine: Machine = CPU, dtype: str = "float32", **options) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        config_of(kind, machine, dtype, **options)
    assert "\n" not in str(error.value)
    return error.value


def bytes_of(kind: str, config) -> tuple[int, int]:
    """Returns the bytes of all slots, and of all pages."""
    options = EngineOptions(
        dtype=config.dtype,
        mamba_ssm_cache_dtype=config.mamba_ssm_cache_dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        kv_cache_page_size=config.kv_cache_page_size,
        **(MTP if config.runs_head else {}),
    )
    rows = examine(KINDS[kind], "float32", options, CPU).row_bytes
    return config.num_state_slots * rows.slot.total, config.num_kv_pages * rows.page


def test_with_enough_memory_all_get_what_helps_them():
    config = config_of("hybrid", max_num_seqs=5, max_model_len=1000)
    assert config.mamba_block_size == 64
    assert config.num_state_slots == 5 * (1 + 1000 // 64)
    assert config.num_kv_pages == 2 * 5 * 63
    config = config_of("hybrid", max_num_seqs=5, max_model_len=1000, enable_prefix_caching=False)
    assert (config.num_state_slots, config.num_kv_pages) == (5, 5 * 63)
    config = config_of("hybrid with a draft head", max_num_seqs=5, max_model_len=1000, **MTP)
    assert config.num_state_slots == 5 * (4 + 1000 // 64)
    assert config_of("pure Mamba2", max_num_seqs=5).num_kv_pages == 0
    assert config_of("attention only", max_num_seqs=5).num_state_slots == 0


def test_by_default_each_takes_at_most_a_quarter_of_what_weights_leave():
    weights = examine(KINDS["hybrid"], "float32", EngineOptions(), CPU).row_bytes.weights
    machine = Machine((64 << 20) + weights, 1)
    config = config_of("hybrid", machine, max_num_seqs=64)
    slots, pages = bytes_of("hybrid", config)
    for size in (slots, pages):
        assert (15 << 20) < size <= 16 << 20
    error = refused("hybrid", machine, max_num_seqs=4096)
    assert (error.code, error.field) == ("memory", "max_num_seqs")
    most = int(str(error).partition("give max_num_seqs = ")[2].partition(",")[0])
    assert config_of("hybrid", machine, max_num_seqs=most).num_state_slots == most
    assert refused("hybrid", machine, max_num_seqs=most + 1).code == "memory"
    error = refused("hybrid", Machine((1 << 20) + weights, 1))
    assert error.field == "max_model_len"
    length = int(str(error).partition("give max_model_len = ")[2].partition(",")[0])
    tiny = {"max_num_seqs": 1, "kv_cache_page_size": 8}
    assert config_of(
        "hybrid", Machine((1 << 20) + weights, 1), max_model_len=length, **tiny
    ).num_kv_pages


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("amount", ["24MiB", 0.001, "0.1%", 24 << 20])
def test_cache_memory_is_for_slots_and_pages_together(kind, amount):
    size = 24 << 20 if amount in ("24MiB", 24 << 20) else int(0.001 * CPU.memory_bytes)
    config = config_of(kind, cache_memory=amount, max_num_seqs=16)
    slots, pages = bytes_of(kind, config)
    assert slots + pages <= size
    assert slots + pages > 0.98 * size or config == config_of(kind, max_num_seqs=16)


def test_too_little_cache_memory_is_refused_with_what_would_do():
    error = refused("hybrid", cache_memory="5MiB", max_num_seqs=64)
    assert error.field == "cache_memory"
    enough = str(error).partition("; give ")[2].partition(",")[0]
    config = config_of("hybrid", cache_memory=enough, max_num_seqs=64)
    assert config.num_state_slots >= 64 and config.num_kv_pages >= 128
    assert refused("hybrid", cache_memory="100GiB").code == "cache_memory"


def test_given_numbers_are_taken_out_of_cache_memory():
    given = {"num_state_slots": 100, "cache_memory": "32MiB"}
    config = config_of("hybrid", **given)
    slots, pages = bytes_of("hybrid", config)
    assert config.num_state_slots == 100 and slots + pages <= 32 << 20
    assert refused("hybrid", num_kv_pages=10**6, cache_memory="32MiB").field == "num_kv_pages"
    error = refused("hybrid", num_state_slots=300, num_kv_pages=2000, cache_memory="32MiB")
    assert error.field == "num_state_slots" and "beside num_kv_pages = 2000" in str(error)


def test_given_numbers_have_to_fit_the_machine_and_the_model():
    assert config_of("hybrid", num_state_slots=3, num_kv_pages=128).num_state_slots == 3
    assert refused("hybrid", num_state_slots=10**9).code == "memory"
    assert refused("hybrid", num_kv_pages=10**9).code == "memory"
    assert refused("hybrid", num_kv_pages=127).code == "too_few_pages"
    assert refused("pure Mamba2", num_kv_pages=1000).code == "no_attention"
    assert refused("attention only", num_state_slots=8).code == "no_mamba"


def test_slots_against_sequences_and_drafts():
    (line,) = config_of("hybrid", num_state_slots=3, max_num_seqs=8).warnings
    assert "at most 3 requests run at a time" in line
    (line,) = config_of("hybrid with a draft head", num_state_slots=20, **MTP).warnings
    assert "3 drafts at a time" in line and "give num_state_slots = 32" in line
    assert config_of("hybrid with a draft head", num_state_slots=32, **MTP).warnings == ()


def test_on_a_gpu_weights_slots_and_pages_take_nine_tenths():
    options = EngineOptions(max_num_seqs=64, max_model_len=32768)
    found = examine(SPECS["Nemotron-3-Nano-30B-A3B"], "bfloat16", options, GPU)
    rows, config = found.row_bytes, found.config
    pools = config.num_state_slots * rows.slot.total + config.num_kv_pages * rows.page
    assert config.device == "gpu"
    assert 0.89 * GPU.gpu.memory_bytes < rows.weights + pools <= 0.9 * GPU.gpu.memory_bytes
    small = Machine(64 << 30, 16, Gpu("L4", 24 * 10**9))
    (error,) = examine(SPECS["Nemotron-3-Nano-30B-A3B"], "bfloat16", options, small).conflicts
    assert (error.code, error.field) == ("weights", "model")
    on_cpu = EngineOptions(device="cpu", max_num_seqs=2, max_model_len=32768)
    large = replace(small, memory_bytes=128 << 30)
    config = resolve(SPECS["Nemotron-3-Nano-30B-A3B"], "bfloat16", on_cpu, large)
    assert config.device == "cpu" and not config.warnings


def test_weights_have_to_fit_the_machine():
    options = EngineOptions(device="cpu", max_num_seqs=2, max_model_len=32768)
    machine = Machine(64 << 30, 16)
    spec = SPECS["Nemotron-3-Super-120B-A12B"]
    (error,) = examine(spec, "bfloat16", options, machine).conflicts
    assert (error.code, error.field) == ("weights", "model")
    assert "they take 230 GiB of the 64.0 GiB of this machine; use a smaller model" in str(error)
    (error,) = examine(spec, "bfloat16", replace(options, cache_memory=1 << 30), machine).conflicts
    assert (error.code, error.field) == ("weights", "model")
    nano = SPECS["Nemotron-3-Nano-30B-A3B"]  # 58.8 GiB of weights
    (line,) = resolve(nano, "bfloat16", replace(options, num_state_slots=100), machine).warnings
    assert "weights take 58.8 GiB" in line and "give cache_memory = " in line


def test_a_gpu_whose_memory_is_not_known_needs_a_number():
    unknown = Machine(64 << 30, 16, Gpu("a new one", None))
    assert refused("hybrid", unknown).code == "gpu_memory"
    assert refused("hybrid", unknown, cache_memory=0.5).code == "gpu_memory"
    config = config_of("hybrid", unknown, cache_memory="64MiB")
    assert config.device == "gpu" and sum(bytes_of("hybrid", config)) <= 64 << 20


SIZES = st.integers(1, 1 << 34)


@settings(max_examples=500, deadline=None)
@given(
    seqs=st.integers(1, 300),
    live=st.integers(1, 33),
    length=st.integers(2, 1 << 20),
    page_size=st.integers(1, 64).map(lambda n: 8 * n),
    block=st.integers(4, 4096),
    cached=st.booleans(),
    slot=st.one_of(st.just(0), st.integers(1, 1 << 30)),
    page=st.one_of(st.just(0), st.integers(1, 1 << 24)),
    total=SIZES,
    share=st.sampled_from([1, 2]),
    slots=st.one_of(st.none(), st.integers(1, 5000)),
    pages=st.one_of(st.none(), st.integers(1, 500_000)),
)
def test_memory_is_never_exceeded_and_the_least_is_always_there(
    seqs, live, length, page_size, block, cached, slot, page, total, share, slots, pages
):
    needs = Needs(seqs, live, length, page_size, block, cached)
    room = Room(total, total // share, "so much", total if share == 1 else 4 * total, share == 1)
    options = EngineOptions(num_state_slots=slots, num_kv_pages=pages)
    rows = RowBytes(SlotParts(ssm=slot), page, 0)
    one = -(-length // page_size)
    try:
        num_slots, num_pages = resolve_pools(needs, rows, options, room, DecisionLog())
    except ConfigError as error:
        assert error.code in ("memory", "too_few_pages", "no_mamba", "no_attention")
        if slots is None and pages is None:
            # Nothing is refused that would fit.
            least = (seqs * live * slot, one * page)
            assert sum(least) > total or max(least) > total // share
        return
    assert num_slots == (slots or num_slots) and num_pages == (pages or num_pages)
    assert num_slots >= seqs * live or slots or not slot
    assert num_pages >= one or not page
    limit = room.total if room.counts_given or (slots is None and pages is None) else room.most
    assert num_slots * slot + num_pages * page <= limit + (0 if room.counts_given else room.total)
    if slots is None and slot:
        assert num_slots * slot <= room.each
        assert num_slots <= seqs * (live + (length // block if cached else 0))
    if pages is None and page:
        assert num_pages * page <= room.each
