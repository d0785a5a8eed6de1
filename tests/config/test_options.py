"""One option at a time: its type, its range, and the line that refuses all else."""

from dataclasses import replace
from pathlib import Path

import pytest

from coachwhip.config import EngineOptions
from coachwhip.config.option_info import ALIASES, OPTIONS
from coachwhip.config.quantity import memory_amount, shown_bytes
from coachwhip.errors import ConfigError


@pytest.mark.parametrize(
    "name, value, part",
    [
        ("model", 5, "text"),
        ("dtype", "float31", "did you mean float32?"),
        ("dtype", ["float32"], "auto or float32 or bfloat16"),
        ("device", "tpu", "auto or cpu or gpu"),
        ("max_model_len", 1, "from 2; give 2 or more"),
        ("max_num_seqs", 0, "from 1; give 1 or more"),
        ("max_num_seqs", "8", "a whole number"),
        ("max_num_seqs", 8.0, "a whole number"),
        ("max_num_seqs", True, "a whole number"),
        ("max_num_seqs", None, "a whole number"),
        ("max_num_seqs", 2**31, "at most 2147483647; give 2147483647 or less"),
        ("max_num_seqs", 10**40, "give 2147483647 or less"),
        ("enable_prefix_caching", 1, "true, false or auto"),
        ("enable_chunked_prefill", "auto", "true, false or auto"),
        ("audit_state", None, "true or false"),
        ("kv_cache_page_size", 12, "a multiple of 8; give 16"),
        ("kv_cache_page_size", -3, "a multiple of 8; give 8"),
        ("kv_cache_page_size", 0, "give 8"),
        ("mamba_block_size", 3, "from 4; give 4 or more"),
        ("mamba_cache_mode", "alll", "did you mean all?"),
        ("cache_memory", "8G", "8GiB"),
        ("cache_memory", -1, "8GiB"),
        ("cache_memory", float("nan"), "8GiB"),
        ("scheduling_policy", "lifo", "fcfs or priority"),
        ("step_loop", "async", "simple"),
        ("seed", 1.5, "a whole number"),
    ],
)
def test_a_wrong_value_is_one_line_with_name_value_and_fix(name, value, part):
    with pytest.raises(ConfigError) as error:
        EngineOptions(**{name: value})
    assert error.value.field == name
    assert part in str(error.value) and "\n" not in str(error.value)
    if value is not None:
        assert str(error.value).startswith(f"{name} is ")


def test_unknown_names_are_refused_with_the_nearest_known_one():
    for name, nearest in (
        ("max_num_seq", "max_num_seqs"),
        ("mamba_cache_modes", "mamba_cache_mode"),
        ("enable_prefix_cache", "enable_prefix_caching"),
    ):
        with pytest.raises(ConfigError, match=rf"^{name} is 1.*did you mean {nearest}\?") as error:
            EngineOptions(**{name: 1})
        assert error.value.code == "unknown_option"
    with pytest.raises(ConfigError, match="known are model, revision"):
        EngineOptions(zzz=1)


def test_options_can_be_changed_and_compared():
    options = EngineOptions("folder", max_num_seqs=3)
    assert options == EngineOptions(model="folder", max_num_seqs=3)
    assert replace(options, max_num_seqs=4).max_num_seqs == 4
    assert replace(options, max_num_seqs=8) == EngineOptions("folder")
    assert EngineOptions(Path("a") / "b").model == "a/b"
    for changes in ({"max_num_seqs": 0}, {"max_seqs": 4}):
        with pytest.raises(ConfigError):
            replace(options, **changes)
    with pytest.raises(AttributeError):
        options.max_num_seqs = 5


def test_an_origin_counts_as_long_as_the_value_does():
    options = EngineOptions(max_num_seqs=3)
    assert [options.origin(n) for n in ("max_num_seqs", "dtype")] == ["given", "default"]
    assert options.is_given("max_num_seqs") and not options.is_given("dtype")


def test_every_option_has_a_kind_a_default_in_its_range_and_help():
    for option in OPTIONS.values():
        assert option.help.endswith("."), option.name
        assert option.allowed
        assert option.default is not None or option.optional
        if option.kind == "choice":
            assert option.default in option.choices
    kinds = {name: option.kind for name, option in OPTIONS.items()}
    assert {n for n, k in kinds.items() if k == "object"} == {"drafter"}
    assert kinds["cache_memory"] == "memory" and kinds["model"] == "text"
    assert not ALIASES.keys() & OPTIONS.keys() and set(ALIASES.values()) <= OPTIONS.keys()


@pytest.mark.parametrize(
    "value, amount",
    [
        ("8GiB", 8 << 30),
        ("8 gib", 8 << 30),
        ("1.5GB", 1_500_000_000),
        ("512MiB", 512 << 20),
        ("2e9", 2_000_000_000),
        ("0.5", 0.5),
        (".25", 0.25),
        ("40%", 0.4),
        ("100%", 1.0),
        (1, 1.0),
        (1.0, 1.0),
        (0.3, 0.3),
        (4096, 4096),
        (4096.0, 4096),
        ("4096", 4096),
        ("8G", None),
        ("8", 8),
        ("1.5", None),
        ("0", None),
        ("0B", None),
        ("-1GiB", None),
        ("200%", None),
        ("99999999TiB", None),
        ("GiB", None),
        ("", None),
        ("nan", None),
        (float("inf"), None),
        (10**30, None),
        (0, None),
        (True, None),
        (None, None),
        ([1], None),
    ],
)
def test_amounts_of_memory(value, amount):
    found = memory_amount(value)
    assert found == amount and type(found) is type(amount)


def test_bytes_are_shown_with_three_digits():
    sizes = (0, 1, 1023, 1024, 10 << 10, 999 << 20, 46 << 20, 1536 << 20, 5 << 40)
    assert [shown_bytes(n) for n in sizes] == [
        "0 B",
        "1 B",
        "1023 B",
        "1.00 KiB",
        "10.0 KiB",
        "999 MiB",
        "46.0 MiB",
        "1.50 GiB",
        "5.00 TiB",
    ]
