"""Hub ids: what is downloaded, what is kept, and one clear line for each way it can fail."""

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from coachwhip.errors import CheckpointError, ConfigError
from coachwhip.hub import is_hub_id, resolve_model
from coachwhip.hub_errors import explained
from tests.hub.fake_hub import COMMIT

WANTED = {"config.json", "model.safetensors", "chat_template.jinja"}


def one_line(done) -> str:
    """Returns the only line of a failed run's standard error."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def folder_of(done) -> Path:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return Path(done.stdout.strip())


def same_files(folder: Path, checkpoint: Path) -> bool:
    names = {p.name for p in folder.iterdir()}
    return names == WANTED and all(
        (folder / n).read_bytes() == (checkpoint / n).read_bytes() for n in names
    )


def test_what_is_spelled_like_a_hub_id():
    for model in ("nvidia/Nemotron-H-8B-Base-8K", "a/b", "0x/m_1.5"):
        assert is_hub_id(model)
    for model in ("model", "/a/b", "./a", "../a", "~/a", "a/b/c", "a/b/", "a b/c", "", "a/.b"):
        assert not is_hub_id(model)


def test_an_existing_folder_wins_and_paths_stay_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    assert resolve_model("org/tiny") == Path("org/tiny")
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model("/no/such/folder") == Path("/no/such/folder")
    with pytest.raises(ConfigError, match='revision is "v1"'):
        resolve_model("org/tiny", "v1")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/models/tiny") == tmp_path / "models" / "tiny"
    assert resolve_model(Path("~/tiny")) == tmp_path / "tiny"
    assert resolve_model("~no-such-user/tiny") == Path("~no-such-user/tiny")
    assert resolve_model("./~/tiny") == Path("~/tiny")  # a folder of that very name


def test_downloads_what_is_needed_and_nothing_else(hub, resolve, checkpoint):
    hub.add("org/tiny", checkpoint)
    folder = folder_of(resolve("org/tiny"))
    assert same_files(folder, checkpoint)
    # The second time only the commit is looked up.
    hub.requests.clear()
    assert folder_of(resolve("org/tiny")) == folder
    assert not hub.requests


def test_sends_no_telemetry(hub, resolve, checkpoint):
    hub.add("org/tiny", checkpoint)
    folder_of(resolve("org/tiny", AI_AGENT="someone"))
    assert all(p.startswith(("/api/models/org/tiny", "/org/tiny/")) for p in hub.paths)
    assert hub.agents and not [a for a in hub.agents if "torch" in a or "agent/" in a]
    # Without our setting it would: else this test says nothing.
    folder_of(resolve("org/tiny", AI_AGENT="someone", HF_HUB_DISABLE_TELEMETRY="0"))
    assert [p for p in hub.paths if "agent" in p] or [a for a in hub.agents if "torch" in a]


def test_works_offline_once_downloaded(hub, resolve, checkpoint):
    hub.add("org/tiny", checkpoint)
    folder = folder_of(resolve("org/tiny"))
    hub.paths.clear()
    assert folder_of(resolve("org/tiny", HF_HUB_OFFLINE="1")) == folder
    assert folder_of(resolve("org/tiny", "main", HF_HUB_OFFLINE="1")) == folder
    assert not hub.paths
    # A dead network, and a hub that has lost the model, are no obstacle either.
    assert folder_of(resolve("org/tiny", HF_ENDPOINT=dead_url())) == folder
    hub.repositories["org/tiny"].api_status = 503
    assert folder_of(resolve("org/tiny")) == folder


def dead_url() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"


def test_offline_and_not_downloaded(resolve):
    line = one_line(resolve("org/tiny", HF_HUB_OFFLINE="1"))
    assert line.startswith("org/tiny: HF_HUB_OFFLINE is set")


def test_a_cache_with_nothing_but_the_config(hub, program, resolve, checkpoint):
    """As another program leaves it that only looked at the config."""
    hub.add("org/tiny", checkpoint)
    code = "from huggingface_hub import hf_hub_download as get; get('org/tiny', 'config.json')"
    assert program("-c", code).returncode == 0
    line = one_line(resolve("org/tiny", HF_HUB_OFFLINE="1"))
    assert line.startswith("org/tiny: HF_HUB_OFFLINE is set")
    url = dead_url()
    line = one_line(resolve("org/tiny", HF_ENDPOINT=url))
    assert line.startswith(f"org/tiny: {url} cannot be reached: ")
    assert same_files(folder_of(resolve("org/tiny")), checkpoint)


def test_a_revision_is_downloaded_or_refused(hub, resolve, checkpoint):
    hub.add("org/tiny", checkpoint, branches=("main", "v2"))
    for revision in ("v2", COMMIT):
        assert same_files(folder_of(resolve("org/tiny", revision)), checkpoint)
    line = one_line(resolve("org/tiny", "v3"))
    assert 'revision is "v3"' in line and "org/tiny" in line


def test_a_wrong_hub_id(hub, resolve):
    line = one_line(resolve("org/none"))
    assert 'model is "org/none"' in line and hub.url in line
    assert "HF_TOKEN" in line  # it may be a private one
    line = one_line(resolve("org/no--ne"))
    assert 'model is "org/no--ne"' in line and "--" in line


def test_a_gated_repository_needs_the_token(hub, resolve, checkpoint):
    hub.add("org/gated", checkpoint, token="hf_right")
    for extra in ({}, {"HF_TOKEN": "hf_wrong"}):
        line = one_line(resolve("org/gated", **extra))
        assert "gated" in line and f"{hub.url}/org/gated" in line and "HF_TOKEN" in line
    assert same_files(folder_of(resolve("org/gated", HF_TOKEN="hf_right")), checkpoint)


def test_the_token_of_a_login_is_used(hub, resolve, checkpoint, tmp_path):
    hub.add("org/gated", checkpoint, token="hf_right")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_right")
    assert same_files(folder_of(resolve("org/gated")), checkpoint)


def test_a_refused_token_and_a_failing_hub(hub, resolve, checkpoint):
    hub.add("org/closed", checkpoint, api_status=403)
    assert "answers 403" in one_line(resolve("org/closed"))
    hub.add("org/down", checkpoint, api_status=500)
    assert "answers 500" in one_line(resolve("org/down"))


def test_a_dead_network(resolve):
    url = dead_url()
    line = one_line(resolve("org/tiny", HF_ENDPOINT=url))
    assert line.startswith(f"org/tiny: {url} cannot be reached: ")


def test_a_silent_network_is_given_up(hub, resolve, checkpoint):
    hub.add("org/silent", checkpoint, silent=True)
    line = one_line(resolve("org/silent"))
    assert "cannot be reached" in line and "timed out" in line


def test_a_dead_proxy(resolve):
    line = one_line(resolve("org/tiny", HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=dead_url()))
    assert line.startswith("org/tiny: http://hub.invalid cannot be reached: ")


def test_a_connection_that_drops_is_taken_up_where_it_broke(hub, resolve, checkpoint, tmp_path):
    large = tmp_path / "large"
    large.mkdir()
    (large / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    (large / "model.safetensors").write_bytes(bytes(range(256)) * (12 << 12))  # 12 MiB
    hub.add("org/large", large).cuts["model.safetensors"] = [(11 << 20) + 5]
    folder = folder_of(resolve("org/large"))
    for name in ("config.json", "model.safetensors"):
        assert (folder / name).read_bytes() == (large / name).read_bytes()
    # The library writes in pieces of 10 MiB, so that is what it has when the connection breaks.
    assert hub.ranges == [f"bytes={10 << 20}-"]


def test_a_download_that_ended_early_goes_on_next_time(hub, resolve, checkpoint):
    repository = hub.add("org/tiny", checkpoint)
    repository.cuts["model.safetensors"] = [1000, *[0] * 20]
    line = one_line(resolve("org/tiny"))
    assert line.startswith("org/tiny: the connection to ") and "broke" in line
    line = one_line(resolve("org/tiny", HF_HUB_OFFLINE="1"))
    assert "not wholly" in line
    repository.cuts.clear()
    hub.requests.clear()
    assert same_files(folder_of(resolve("org/tiny")), checkpoint)
    assert {file for _, _, file in hub.requests} == {"model.safetensors"}


def test_unsupported_models_are_refused_before_their_weights_come(
    hub, resolve, checkpoint, tmp_path
):
    config = json.loads((checkpoint / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    (other / "model.safetensors").write_bytes(b"0" * 1000)
    hub.add("org/llama", other)
    assert 'model_type is "llama"' in one_line(resolve("org/llama"))
    assert not [key for key in hub.requests if "model.safetensors" in key]


def test_a_repository_without_a_model(hub, resolve, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("nothing here")
    hub.add("org/text", other)
    assert one_line(resolve("org/text")).startswith("org/text: holds no config.json")


def test_a_cache_that_cannot_be_written(hub, resolve, checkpoint, tmp_path):
    hub.add("org/tiny", checkpoint)
    (tmp_path / "file").write_text("")
    line = one_line(resolve("org/tiny", HF_HOME=str(tmp_path / "file")))
    assert "cannot be written" in line and "HF_HOME" in line


def test_a_full_disk_is_named_also_when_it_is_the_cause_of_another_error():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    other = RuntimeError("the transfer failed")
    other.__cause__ = full
    for error in (full, other):
        found = explained(error, "org/tiny", None)
        assert isinstance(found, CheckpointError)
        assert "disk is full" in str(found) and "\n" not in str(found)


def test_the_command_line_says_one_line_and_leaves_with_2(hub, program):
    done = program("-m", "coachwhip", "generate", "org/none")
    assert one_line(done).startswith('coachwhip: error: model is "org/none"')
    done = program("-m", "coachwhip", "generate", "--model", "org/x", "hi", "--revision", "v1")
    assert 'model is "org/x"' in one_line(done)
    done = program("-m", "coachwhip", "generate", "hi", "--revision", "v1")
    assert 'revision is "v1"' in one_line(done)


@pytest.mark.slow
def test_the_command_line_generates_from_a_hub_id(hub, program, checkpoint):
    hub.add("org/tiny", checkpoint)
    arguments = ("--prompt-ids", "1,2,3", "--json", "--max-tokens", "4")
    from_hub = program("-m", "coachwhip", "generate", "org/tiny", *arguments)
    from_folder = program("-m", "coachwhip", "generate", str(checkpoint), *arguments)
    assert from_hub.returncode == from_folder.returncode == 0, from_hub.stderr
    tokens = [json.loads(done.stdout)["token_ids"] for done in (from_hub, from_folder)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 4


def test_a_plan_of_a_hub_id_fetches_no_weights(hub, program, checkpoint):
    hub.add("org/tiny", checkpoint)
    done = program("-m", "coachwhip", "plan", "org/tiny", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["name"] == "org/tiny"
    assert any(path.endswith("/config.json") for path in hub.paths)
    assert not any(path.endswith(".safetensors") for path in hub.paths)
