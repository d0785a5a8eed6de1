"""Where options come from: command line or Python, environment, file, default."""

from pathlib import Path

import pytest

from coachwhip.config import EngineOptions, options_from, resolve
from coachwhip.config.environment import OTHER_VARIABLES
from coachwhip.config.option_info import OPTIONS
from coachwhip.errors import ConfigError
from tests.config.models import CPU, KINDS


@pytest.fixture
def file(tmp_path):
    """Returns a function: text, suffix -> the path of a file with it."""

    def written(text: str, suffix: str = ".toml") -> str:
        path = tmp_path / f"serve{suffix}"
        path.write_text(text, "utf-8")
        return str(path)

    return written


def refused(values=(), environ=()) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        options_from(dict(values), dict(environ))
    assert "\n" not in str(error.value)
    return error.value


def test_the_first_place_that_has_an_option_wins(file):
    config = file("max_num_seqs = 2\nmax_model_len = 64\nkv_cache_page_size = 32\n")
    environ = {"COACHWHIP_MAX_NUM_SEQS": "3", "COACHWHIP_MAX_MODEL_LEN": "128"}
    options = options_from({"config": config, "max_num_seqs": 4, "dtype": None}, environ)
    assert options == EngineOptions(max_num_seqs=4, max_model_len=128, kv_cache_page_size=32)
    assert [options.origin(n) for n in ("max_num_seqs", "max_model_len", "dtype")] == [
        "given",
        "COACHWHIP_MAX_MODEL_LEN",
        "default",
    ]
    assert options.origin("kv_cache_page_size") == f"{config}, line 3"


def test_none_is_unset_and_differs_from_the_mode_none():
    environ = {"COACHWHIP_MAMBA_CACHE_MODE": "none"}
    assert options_from({"mamba_cache_mode": None}, environ).mamba_cache_mode == "none"
    assert options_from({"mamba_cache_mode": "auto"}, environ).mamba_cache_mode == "auto"
    assert options_from({"mamba_cache_mode": "none"}, {}).mamba_cache_mode == "none"
    assert options_from({}, {}).mamba_cache_mode == "auto"


def test_the_environment_can_give_every_option():
    for option in OPTIONS.values():
        text, value = {
            "choice": (option.choices[-1:] * 2) or None,
            "whole": ("64", 64),
            "switch": ("off", False),
            "text": ("org/name", "org/name"),
            "memory": ("50%", 0.5),
            "json": ('{"method": "ngram"}', {"method": "ngram"}),
            "object": None,
        }[option.kind] or ("x", None)
        variable = f"COACHWHIP_{option.name.upper()}"
        if option.kind == "object":
            assert refused(environ={variable: text}).code == "unknown_option"
            continue
        options = options_from({}, {variable: text})
        assert getattr(options, option.name) == value
        assert options.origin(option.name) == variable


@pytest.mark.parametrize(
    "text, value",
    [("1", True), ("TRUE", True), ("yes", True), ("on", True), ("0", False), ("no", False)],
)
def test_a_switch_in_the_environment(text, value):
    found = options_from({}, {"COACHWHIP_ENABLE_PREFIX_CACHING": text})
    assert found.enable_prefix_caching is value
    assert options_from({}, {"COACHWHIP_ENABLE_PREFIX_CACHING": "auto"}) == EngineOptions()
    assert refused(environ={"COACHWHIP_AUDIT_STATE": "auto"}).allowed == "true or false"


def test_the_environment_names_what_is_wrong_in_it():
    error = refused(environ={"COACHWHIP_MAX_NUM_SEQS": "many"})
    assert str(error).startswith('COACHWHIP_MAX_NUM_SEQS: max_num_seqs is "many", but must be a ')
    error = refused(environ={"COACHWHIP_MAX_NUM_SEQ": "4"})
    assert error.field == "COACHWHIP_MAX_NUM_SEQ"
    assert "did you mean COACHWHIP_MAX_NUM_SEQS?" in str(error)
    error = refused(environ={"COACHWHIP_MAX_NUM_SEQS": "4", "COACHWHIP_MAX_BATCH_SIZE": "5"})
    assert error.code == "twice"
    error = refused(environ={"COACHWHIP_SPECULATIVE_CONFIG": "{"})
    assert "must be a JSON object" in str(error)


def test_variables_of_others_are_let_alone():
    environ = {f"COACHWHIP_{name}": "x" for name in OTHER_VARIABLES} | {
        "COACHWHIP_MAX_NUM_SEQS": "",
        "COACHWHIP_SERVICE_HOST": "10.0.0.1",
        "COACHWHIP_SERVICE_PORT": "80",
        "COACHWHIP_SERVICE_PORT_HTTP": "80",
        "COACHWHIP_PORT": "tcp://10.0.0.1:80",
        "COACHWHIP_PORT_80_TCP": "tcp://10.0.0.1:80",
        "COACHWHIP_PORT_80_TCP_PROTO": "tcp",
        "COACHWHIP_API_PORT_80_TCP_ADDR": "10.0.0.1",
        "OTHER_MAX_NUM_SEQS": "3",
    }
    assert options_from({}, environ) == EngineOptions()
    assert refused(environ={"COACHWHIP_PORT_A": "80"}).code == "unknown_option"


def test_the_variables_that_are_no_options_are_those_that_are_read():
    from coachwhip.compiled import CACHE_ENV
    from coachwhip.locate import KERNELS_ENV

    assert {CACHE_ENV, KERNELS_ENV} <= {f"COACHWHIP_{name}" for name in OTHER_VARIABLES}


def test_maxs_spellings_are_taken_everywhere(file):
    want = EngineOptions(max_num_seqs=3, max_model_len=99)
    assert options_from({"max_batch_size": 3, "max_length": 99}, {}) == want
    environ = {"COACHWHIP_MAX_BATCH_SIZE": "3", "COACHWHIP_MAX_LENGTH": "99"}
    assert options_from({}, environ) == want
    config = file("max-batch-size: 3\nmax_length: 99\n", ".yaml")
    assert options_from({"config": config}, {}) == want
    assert refused({"max_batch_size": 3, "max_num_seqs": 4}).code == "twice"
    assert options_from({"max_batch_size": 3, "max_num_seqs": 3, "max_length": 99}, {}) == want


FILES = {
    ".toml": """
    mamba-cache-mode = "align"
    enable_prefix_caching = true
    enable_chunked_prefill = "auto"
    cache_memory = 0.25
    [speculative_config]
    method = "ngram"
    num_speculative_tokens = 4
    """,
    ".yaml": """
    mamba-cache-mode: align
    enable_prefix_caching: on
    enable_chunked_prefill: auto
    max_model_len: null
    cache_memory: 25%
    speculative_config: {method: ngram, num_speculative_tokens: 4}
    """,
}


@pytest.mark.parametrize("suffix", FILES)
def test_a_file_gives_options(file, suffix):
    import textwrap

    config = file(textwrap.dedent(FILES[suffix]), suffix)
    want = EngineOptions(
        mamba_cache_mode="align",
        enable_prefix_caching=True,
        cache_memory=0.25,
        speculative_config={"method": "ngram", "num_speculative_tokens": 4},
    )
    for options in (
        options_from({"config": config}, {}),
        options_from({"config": Path(config)}, {}),
        options_from({}, {"COACHWHIP_CONFIG": config}),
    ):
        assert options == want
    assert options_from({}, {"COACHWHIP_CONFIG": file("", suffix)}) == EngineOptions()


@pytest.mark.parametrize(
    "text, suffix, part",
    [
        ("max_num_seqs = \n", ".toml", "TOML: "),
        ("max_num_seqs: [1\n", ".yml", "YAML: "),
        ("- 1\n", ".yaml", "a mapping of options"),
        ("&a [*a]\n", ".yaml", "a mapping of options"),
        ("a: !!python/object:os.system {}\n", ".yaml", "YAML: "),
        ("", ".json", ".toml, .yaml or .yml"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(file, text, suffix, part):
    config = file(text, suffix)
    error = refused({"config": config})
    assert (error.code, error.field, error.got) == ("config_file", "config", config)
    assert part in str(error)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    assert "No such file" in str(refused({"config": str(tmp_path / "none.toml")}))
    (tmp_path / "folder.yaml").mkdir()
    assert "directory" in str(refused({"config": str(tmp_path / "folder.yaml")}))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert "can be read" in str(refused({"config": str(tmp_path / "bytes.toml")}))
    assert refused({"config": 5}).field == "config"


@pytest.mark.parametrize(
    "text, suffix, line, part",
    [
        ("dtype = 'auto'\nmax_num_seq = 3\n", ".toml", 2, "did you mean max_num_seqs?"),
        ("# max_num_seqs = 1\n\nmax_num_seqs = 0\n", ".toml", 3, "from 1"),
        ('model = """\nmax_num_seqs = 3\n"""\nmax_num_seqs = 0\n', ".toml", 4, "from 1"),
        ("\n[speculative_config]\nmethod = 'x'\n", ".toml", 2, "mtp"),
        ("speculative_config.method = 'x'\n", ".toml", 1, "mtp"),
        ("drafter = 'x'\n", ".toml", 1, "must be an option"),
        ("\nmax_num_seq: 3\n", ".yaml", 2, "did you mean max_num_seqs?"),
        ("dtype: auto\nmax-num-seqs: 0\n", ".yaml", 2, "from 1"),
        ("dtype: auto\ndtype: float32\n", ".yaml", 2, "line 1 has it"),
        ("max-num-seqs: 1\nmax_num_seqs: 2\n", ".yaml", 2, "line 1 has it"),
        ("7: 1\n", ".yaml", 1, "must be an option"),
        ("max_model_len: 4096\n", ".yaml", 1, "at most 2048"),
    ],
)
def test_an_error_names_the_line(file, text, suffix, line, part):
    config = file(text, suffix)
    with pytest.raises(ConfigError) as error:
        resolve(KINDS["hybrid"], "float32", options_from({"config": config}, {}), CPU)
    assert str(error.value).startswith(f"{config}, line {line}: ")
    assert part in str(error.value)


def test_short_forms_and_speculative_config_replace_each_other_by_place(file):
    config = file(
        "[speculative_config]\nmethod = 'ngram'\nnum_speculative_tokens = 2\nadaptive = false\n"
    )
    options = options_from({"config": config, "spec_tokens": 5}, {})
    spec = resolve(KINDS["hybrid"], "float32", options, CPU).speculation
    assert (spec.method, spec.num_speculative_tokens, spec.adaptive) == ("ngram", 5, False)
    given = {"method": "mtp", "num_speculative_tokens": 1}
    environ = {"COACHWHIP_SPEC_TOKENS": "7", "COACHWHIP_SPEC_METHOD": "ngram"}
    options = options_from({"config": config, "speculative_config": given}, environ)
    spec = resolve(KINDS["hybrid with a draft head"], "float32", options, CPU).speculation
    assert (spec.method, spec.num_speculative_tokens, spec.adaptive) == ("mtp", 1, True)
    # In one place they must agree.
    options = options_from({"speculative_config": given, "spec_tokens": 2}, {})
    with pytest.raises(ConfigError, match="spec_tokens is 2"):
        resolve(KINDS["hybrid with a draft head"], "float32", options, CPU)


def test_an_error_of_resolution_says_where_the_option_was_read_from():
    for environ, start in (
        ({"COACHWHIP_MAX_MODEL_LEN": "99999"}, "COACHWHIP_MAX_MODEL_LEN: max_model_len is 99999"),
        (
            {"COACHWHIP_SPEC_METHOD": "x", "COACHWHIP_SPEC_TOKENS": "2"},
            "COACHWHIP_SPEC_METHOD: speculative_config.method",
        ),
        ({"COACHWHIP_DEVICE": "gpu"}, "COACHWHIP_DEVICE: device"),
    ):
        with pytest.raises(ConfigError) as error:
            resolve(KINDS["hybrid"], "float32", options_from({}, environ), CPU)
        assert str(error.value).startswith(start)
    with pytest.raises(ConfigError) as error:
        resolve(KINDS["hybrid"], "float32", options_from({"max_model_len": 99999}, {}), CPU)
    assert str(error.value).startswith("max_model_len is 99999")
