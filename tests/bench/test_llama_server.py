"""llama-server is started on the file, compared with ours, and ended; here by a stand-in."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.serve.__main__ import main
from bench.serve.agreement import Agreement, agreement
from bench.serve.llama_server import DRAFTS, llama_flags, llama_running, llama_variants
from bench.serve.load import QUICK, Sizes
from coachwhip.config.machine import this_machine

FAKE = Path(__file__).with_name("fake_llama_server.py")


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    file = tmp_path / "llama-server"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    file.chmod(0o755)
    return file


def asked(port: int, path: str, body: dict) -> dict:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def test_each_variant_runs_with_all_flags_and_ends(binary: Path, tmp_path: Path) -> None:
    flags = llama_flags(Path("m.gguf"), "float32", 4, 256)
    with llama_running(binary, llama_variants(True), flags, tmp_path) as servers:
        assert [s.name for s in servers] == [
            "llama-server",
            "llama-server, ubatch 64",
            "llama-server, mtp",
        ]
        arguments = [asked(s.port, "/tokenize", {"content": ""})["arguments"] for s in servers]
    for own in arguments:
        assert own[4 : 4 + len(flags)] == list(flags)  # behind host and port
    assert arguments[0][4 + len(flags) :] == []
    assert tuple(arguments[2][4 + len(flags) :]) == DRAFTS
    for server in servers:
        with pytest.raises(urllib.error.URLError):
            asked(server.port, "/tokenize", {"content": ""})


def test_a_server_that_ends_at_once_is_reported_with_its_words(
    binary: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(RuntimeError, match="did not start:\nno such model"),
        llama_running(binary, {"llama-server": ("--fail",)}, (), tmp_path),
    ):
        pass


def test_it_gets_the_threads_slots_and_context_that_ours_has() -> None:
    flags = llama_flags(Path("m.gguf"), "bfloat16", 32, 1024)
    given = dict(zip(flags[:-3:2], flags[1:-3:2], strict=True))
    assert given["--threads"] == str(this_machine(None).cores)
    assert (given["--parallel"], given["--ctx-size"]) == ("32", str(32 * 1024))
    assert given["--cache-type-k"] == given["--cache-type-v"] == "f16"
    assert "llama-server, mtp" not in llama_variants(False)


def test_a_request_fits_its_part_of_the_context() -> None:
    assert Sizes().most_tokens == 1024
    assert QUICK.most_tokens == 256


def test_a_folder_without_a_model_ends_the_command_with_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--model", str(tmp_path), "--quick"])
    assert done.exit_code == 2
    assert (
        "Error: " in done.output and "give the folder of a Hugging Face checkpoint" in done.output
    )


def test_agreement_counts_what_two_servers_make_alike(binary: Path, tmp_path: Path) -> None:
    variants = llama_variants(True)
    with llama_running(binary, variants, (), tmp_path) as (ours, same, shouting):
        texts = ["one two", "THREE", "four"]
        assert agreement(ours, same, texts, 4) == Agreement(3, 3, 3)
        assert agreement(ours, shouting, texts, 4) == Agreement(3, 3, 1)
