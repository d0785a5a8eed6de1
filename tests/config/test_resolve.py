"""Single rules of the resolution, and that every one leaves a decision."""

from dataclasses import fields, replace

import pytest

from coachwhip.config import EngineConfig, EngineOptions, Machine, examine, resolve
from coachwhip.errors import ConfigError
from tests.config.models import CPU, GPU, KINDS, SPECS

HYBRID = KINDS["hybrid"]


def config_of(spec=HYBRID, machine: Machine = CPU, **options):
    return resolve(spec, "float32", EngineOptions(**options), machine)


def refused(spec=HYBRID, machine: Machine = CPU, **options) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        config_of(spec, machine, **options)
    return error.value


def test_every_resolved_value_has_one_decision_with_a_reason():
    decided = {"dtype", "device", "cache_memory", "speculative_config"}
    decided |= {f.name for f in fields(EngineConfig)}
    decided -= {"check_finite", "audit_state", "speculation", "warnings", "decisions"}
    for kind in KINDS.values():
        for options in (
            {},
            {"enable_prefix_caching": False},
            {"max_num_seqs": 3, "max_num_batched_tokens": 4096, "max_model_len": 100},
        ):
            config = config_of(kind, **options)
            assert {d.field for d in config.decisions} == decided
            assert len(config.decisions) == len(decided)
            assert all(d.code and d.reason for d in config.decisions)
            values = {d.field: d.value for d in config.decisions}
            for name in values.keys() & {f.name for f in fields(EngineConfig)}:
                assert values[name] == getattr(config, name), name


def test_the_same_arguments_give_the_same_result():
    options = EngineOptions(spec_method="ngram", spec_tokens=2)
    assert resolve(HYBRID, "float32", options, CPU) == resolve(HYBRID, "float32", options, CPU)


@pytest.mark.parametrize(
    "stored, asked, want",
    [
        ("float32", "auto", "float32"),
        ("bfloat16", "auto", "bfloat16"),
        ("float16", "auto", "float32"),
        ("float16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_types(stored, asked, want):
    config = resolve(HYBRID, stored, EngineOptions(dtype=asked), CPU)
    assert (config.dtype, config.kv_cache_dtype) == (want, want)
    assert config.mamba_ssm_cache_dtype == "float32"
    given = EngineOptions(dtype=asked, mamba_ssm_cache_dtype="float16", kv_cache_dtype="bfloat16")
    config = resolve(HYBRID, stored, given, CPU)
    assert (config.mamba_ssm_cache_dtype, config.kv_cache_dtype) == ("float16", "bfloat16")
    assert config.warnings == ()


def test_types_that_nothing_has_are_warnings():
    (line,) = config_of(KINDS["pure Mamba2"], kv_cache_dtype="bfloat16").warnings
    assert "kv_cache_dtype = bfloat16 has no effect" in line
    (line,) = config_of(KINDS["pure Mamba2"], kv_cache_page_size=32).warnings
    assert "kv_cache_page_size = 32 has no effect" in line
    (line,) = config_of(KINDS["attention only"], mamba_ssm_cache_dtype="float16").warnings
    assert "mamba_ssm_cache_dtype = float16 has no effect" in line


def test_the_device():
    assert config_of().device == config_of(device="cpu", machine=GPU).device == "cpu"
    assert config_of(machine=GPU).device == config_of(device="gpu", machine=GPU).device == "gpu"
    assert refused(device="gpu").code == "no_gpu"


def test_the_length():
    assert config_of().max_model_len == 2048
    assert config_of(max_model_len=100).max_model_len == 100
    assert refused(max_model_len=2049).code == "model_length"
    free = replace(HYBRID, max_position_embeddings=None)
    assert config_of(free).max_model_len == 8192
    assert config_of(free, max_model_len=9000).max_model_len == 9000


@pytest.mark.parametrize(
    "length, block",
    [(2048, 64), (130, 64), (129, 32), (66, 32), (34, 16), (18, 8), (10, 4), (3, 4), (2, 4)],
)
def test_the_default_grid_follows_the_length(length, block):
    assert config_of(max_model_len=length).mamba_block_size == block


def test_a_grid_that_is_never_reached_is_a_warning_with_the_largest_that_is():
    (line,) = config_of(max_model_len=100, mamba_block_size=99).warnings
    assert "give at most 98" in line
    assert config_of(max_model_len=100, mamba_block_size=98).warnings == ()
    (line,) = config_of(max_model_len=5, mamba_block_size=4).warnings
    assert "leave it out" in line
    for options in ({"enable_prefix_caching": False}, {"mamba_cache_mode": "none"}):
        (line,) = config_of(mamba_block_size=8, **options).warnings
        assert "mamba_block_size = 8 has no effect" in line
    assert config_of(mamba_block_size=1000, max_num_batched_tokens=7).warnings == ()
    assert config_of(mamba_block_size=77).mamba_block_size == 77


def test_whole_prompts_need_a_step_for_the_longest():
    whole = {"enable_chunked_prefill": False}
    assert config_of(**whole).max_num_batched_tokens == 2048 + 8
    assert config_of(max_model_len=100, **whole).max_num_batched_tokens == 512
    assert config_of(max_num_batched_tokens=2048, **whole).max_num_batched_tokens == 2048
    error = refused(max_num_batched_tokens=2047, **whole)
    assert (error.code, error.field) == ("whole_prompts", "max_num_batched_tokens")
    assert "max_model_len = 2048" in str(error) and "max_model_len = 2047" in str(error)
    assert config_of(max_num_batched_tokens=2047, max_model_len=2047, **whole)
    error = refused(mamba_cache_mode="align", **whole)
    assert "mamba_cache_mode" in str(error) and "enable_chunked_prefill" in str(error)


def test_drafts_against_the_head_the_length_and_the_step():
    head = KINDS["hybrid with a draft head"]
    assert config_of(head, spec_method="mtp", spec_tokens=32).most_drafts == 32
    assert refused(head, spec_method="mtp", spec_tokens=33).code == "speculation"
    assert refused(spec_method="mtp", spec_tokens=1).code == "speculation"
    assert refused(head, spec_tokens=3, max_model_len=4).code == "speculation"
    (line,) = config_of(head, spec_tokens=3, max_num_batched_tokens=2).warnings
    assert "give max_num_batched_tokens = 4" in line


def test_the_audit_is_for_float32():
    assert config_of(audit_state=True).audit_slots == 1
    assert refused(audit_state=True, kv_cache_dtype="bfloat16").code == "audit_dtype"
    assert refused(dtype="bfloat16", audit_state=True).code == "audit_dtype"


def test_all_conflicts_are_found_at_once():
    options = EngineOptions(
        device="gpu",
        max_model_len=10**6,
        mamba_cache_mode="align",
        enable_chunked_prefill=False,
        spec_method="mtp",
        spec_tokens=3,
        num_state_slots=10**9,
        audit_state=True,
        dtype="bfloat16",
    )
    found = examine(HYBRID, "float32", options, CPU)
    assert [c.code for c in found.conflicts] == [
        "no_gpu",
        "model_length",
        "align_without_chunks",
        "speculation",
        "audit_dtype",
        "memory",
    ]
    assert found.config is None and found.decisions
    with pytest.raises(ConfigError) as error:
        resolve(HYBRID, "float32", options, CPU)
    assert error.value.code == "no_gpu"


def test_published_models_resolve_on_a_large_machine():
    machine = Machine(2 << 40, 128)
    for spec in SPECS.values():
        config = resolve(spec, "bfloat16", EngineOptions(max_model_len=1024), machine)
        assert config.warnings == ()
