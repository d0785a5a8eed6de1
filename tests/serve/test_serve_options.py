"""The endpoint's options, from flags and variables."""

from __future__ import annotations

import pytest

from coachwhip import ConfigError
from coachwhip.commands.serve_flags import take_serve_options
from coachwhip.config.environment import ENDPOINT_VARIABLES, environment_options
from coachwhip.serve.serve_options import ServeOptions

NUMBERS = ("port", "max_queue_size", "request_timeout", "drain_seconds", "max_body_bytes")
NONE_GIVEN = dict.fromkeys(("host", "log_format", *NUMBERS)) | {
    "api_keys": (),
    "served_model_names": (),
}


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ENDPOINT_VARIABLES:
        monkeypatch.delenv(f"COACHWHIP_{name}", raising=False)
    return monkeypatch


def test_without_a_key_only_this_machine_is_served() -> None:
    assert ServeOptions().address == "127.0.0.1"
    assert ServeOptions(api_keys=("k",)).address == "0.0.0.0"
    assert ServeOptions(host="10.0.0.5").address == "10.0.0.5"


def test_flags_win_over_variables(environ) -> None:
    environ.setenv("COACHWHIP_PORT", "81")
    environ.setenv("COACHWHIP_API_KEY", "one, two")
    environ.setenv("COACHWHIP_REQUEST_TIMEOUT", "2.5")
    options = take_serve_options(NONE_GIVEN | {"port": 82})
    assert (options.port, options.api_keys, options.request_timeout) == (82, ("one", "two"), 2.5)
    assert take_serve_options(dict(NONE_GIVEN)).port == 81


@pytest.mark.parametrize("name", ["API_KEY", "SERVED_MODEL_NAME"])
def test_a_list_of_nothing_is_refused(environ, name: str) -> None:
    environ.setenv(f"COACHWHIP_{name}", " , ")
    with pytest.raises(ConfigError, match=f"COACHWHIP_{name}"):
        take_serve_options(dict(NONE_GIVEN))


def test_flags_of_the_engine_are_left(environ) -> None:
    flags = NONE_GIVEN | {"max_num_seqs": 4}
    assert take_serve_options(flags) == ServeOptions()
    assert flags == {"max_num_seqs": 4}


def test_other_commands_leave_the_variables_alone() -> None:
    assert environment_options({f"COACHWHIP_{name}": "x" for name in ENDPOINT_VARIABLES}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("max_queue_size", -1),
        ("drain_seconds", -0.1),
        ("drain_seconds", float("nan")),
        ("request_timeout", 0.0),
        ("request_timeout", float("nan")),
        ("max_body_bytes", 5),
    ],
)
def test_what_is_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is "):
        ServeOptions(**{name: value})


@pytest.mark.parametrize("key", ["", "two words", "schl\u00fcssel", "a\nb"])
def test_keys_that_no_header_can_hold_are_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key") as error:
        ServeOptions(api_keys=(key,))
    assert not key or key not in str(error.value)
