"""Whatever options are given: a configuration with values of the right types, or one error."""

from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields

from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.config import EngineConfig, EngineOptions, Gpu, Machine, options_from, resolve
from coachwhip.config.option_info import ALIASES, OPTIONS
from coachwhip.config.speculation import METHODS, Speculation
from coachwhip.errors import ConfigError
from tests.config.models import KINDS

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
NUMBERS = st.one_of(st.integers(-2, 40), st.integers(1, 4096), st.sampled_from([2**31 - 1, 2**31]))
AMOUNTS = st.one_of(
    st.floats(0, 1.5),
    st.integers(0, 1 << 40),
    st.sampled_from(["8GiB", "1GB", "200MiB", "40%", "0.5", "8G", "lots"]),
)
DRAFTS = st.fixed_dictionaries(
    {},
    optional={
        "method": st.one_of(st.sampled_from(METHODS), JUNK),
        "num_speculative_tokens": st.one_of(st.integers(0, 34), JUNK),
        "model": st.one_of(st.just("org/name"), JUNK),
        "prompt_lookup_max": st.one_of(st.integers(0, 9), JUNK),
        "prompt_lookup_min": st.one_of(st.integers(0, 9), JUNK),
        "adaptive": st.one_of(st.booleans(), JUNK),
        "metod": st.just("mtp"),
    },
)


class Silent:
    def propose(self, request_id, token_ids, k):
        return []


def values_of(option) -> st.SearchStrategy:
    """Mostly values that the option may have, sometimes others."""
    likely = {
        "choice": st.sampled_from(option.choices or ("",)),
        "whole": NUMBERS,
        "switch": st.booleans(),
        "text": st.sampled_from(["org/name", *METHODS]),
        "memory": AMOUNTS,
        "json": DRAFTS,
        "object": st.sampled_from([Silent(), object()]),
    }[option.kind]
    return st.one_of(likely, likely, likely, JUNK)


OPTION_SETS = st.fixed_dictionaries(
    {}, optional={name: values_of(option) for name, option in OPTIONS.items()}
)
FEW_OPTIONS = st.lists(
    st.sampled_from(list(OPTIONS)).flatmap(lambda n: st.tuples(st.just(n), values_of(OPTIONS[n]))),
    max_size=5,
).map(dict)
MACHINES = st.builds(
    Machine,
    memory_bytes=st.integers(1 << 20, 1 << 42),
    cores=st.integers(1, 256),
    gpu=st.one_of(
        st.none(), st.builds(Gpu, st.just("one"), st.one_of(st.none(), st.integers(1, 1 << 40)))
    ),
)
TYPES = {"str": str, "int": int, "bool": bool, "tuple[str, ...]": tuple}


def check(config: EngineConfig) -> None:
    """Raises AssertionError unless every value is of its type, and in its range."""
    for field in fields(EngineConfig):
        value = getattr(config, field.name)
        if field.name == "speculation":
            assert value is None or type(value) is Speculation
        elif field.name != "decisions":
            assert type(value) is TYPES[field.type], field.name
            assert field.default is not NO_DEFAULT or value is not None
    assert config.device in ("cpu", "gpu") and config.step_loop in ("simple", "overlapped")
    assert config.mamba_cache_mode in ("none", "align", "all")
    assert config.num_state_slots >= 0 and config.num_kv_pages >= 0
    assert config.max_model_len >= 2 and config.mamba_block_size >= 4
    assert config.enable_chunked_prefill or config.max_num_batched_tokens >= config.max_model_len
    assert all("\n" not in line for line in config.warnings)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    values=st.one_of(OPTION_SETS, FEW_OPTIONS, FEW_OPTIONS, FEW_OPTIONS),
    machine=MACHINES,
)
def test_options_resolve_or_are_refused_in_one_line(kind, dtype, values, machine):
    try:
        config = resolve(KINDS[kind], dtype, EngineOptions(**values), machine)
    except ConfigError as error:
        assert error.code and error.field and error.allowed and error.hint
        assert "\n" not in str(error)
        return
    check(config)


VARIABLES = st.sampled_from([*OPTIONS, *ALIASES, "config", "max_num_seq", "port"])
TEXTS = st.one_of(
    st.sampled_from(["auto", "none", "all", "align", "on", "off", "1", "8", "64", "0", "-1"]),
    st.sampled_from(["mtp", "ngram", "cpu", "float32", "8GiB", "0.5", "{}", "null", "[1]"]),
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12),
)


@settings(max_examples=300, deadline=None)
@given(variables=st.dictionaries(VARIABLES, TEXTS, max_size=4), kind=st.sampled_from(list(KINDS)))
def test_any_environment_is_read_or_refused_in_one_line(variables, kind):
    environ = {f"COACHWHIP_{name.upper()}": text for name, text in variables.items()}
    try:
        config = resolve(KINDS[kind], "float32", options_from({}, environ), Machine(1 << 34, 2))
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    check(config)


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists(
        st.one_of(
            st.tuples(VARIABLES, TEXTS).map(lambda p: f"{p[0]}: {p[1]}"),
            st.tuples(VARIABLES, TEXTS).map(lambda p: f"{p[0]} = {p[1]}"),
            st.text(st.characters(blacklist_categories=["Cs"]), max_size=12),
        ),
        max_size=4,
    ),
    suffix=st.sampled_from([".toml", ".yaml"]),
)
def test_any_file_is_read_or_refused_in_one_line(tmp_path_factory, lines, suffix):
    file = tmp_path_factory.mktemp("file") / f"options{suffix}"
    file.write_bytes("\n".join(lines).encode())
    try:
        config = resolve(
            KINDS["hybrid"], "float32", options_from({"config": file}, {}), Machine(1 << 34, 2)
        )
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    check(config)
