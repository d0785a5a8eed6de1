"""`coachwhip generate` as a user runs it: texts, JSON, and one clear line for each mistake."""

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from coachwhip.locate import small_model_dir
from tests.cli.one_line import one_line
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    write_checkpoint(folder, TINY_CONFIGS["nemotron_dense"])
    return folder


@pytest.mark.slow
def test_text_goes_to_standard_output(run):
    code, out, _ = run("generate", "The state of the Union is", "--max-tokens", "12")
    reference = Reference.from_folder(small_model_dir())
    from coachwhip.tokenizer import Tokenizer

    tokenizer = Tokenizer.beside(small_model_dir())
    text = tokenizer.decode(reference.greedy(tokenizer.encode("The state of the Union is"), 12))
    assert code == 0
    assert out == f"The state of the Union is{text}\n"


@pytest.mark.slow
def test_standard_input_is_a_prompt(run):
    code, out, _ = run("generate", "-", "--max-tokens", "3", stdin=b"We have")
    assert code == 0 and out.startswith("We have ")


@pytest.mark.slow
def test_json_has_a_line_per_prompt_with_the_documented_keys(run, tiny):
    prompts = [[1, 2, 3], list(range(40)), [7]]
    flags = [f for p in prompts for f in ("--prompt-ids", ",".join(map(str, p)))]
    code, out, _ = run("generate", str(tiny), *flags, "--json", "--max-tokens", "9", "--ignore-eos")
    assert code == 0
    reference = Reference.from_folder(tiny)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["prompt_token_ids"] for line in lines] == prompts
    for line, prompt in zip(lines, prompts, strict=True):
        assert line["token_ids"] == reference.greedy(prompt, 9)
        assert line["finish_reason"] == "length"
        assert line.keys() == {
            "prompt_token_ids",
            "token_ids",
            "text",
            "finish_reason",
            "num_cached_tokens",
            "num_drafted_tokens",
            "num_accepted_tokens",
            "metrics",
        }
        assert all(seconds >= 0 for seconds in line["metrics"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--prompt-ids", "1,2,999"], "prompt_token_ids[2] is 999"),
        (["--prompt-ids", "1,-2"], "prompt_token_ids[1] is -2"),
        (["--prompt-ids", ""], "prompt is []"),
        (["--prompt-ids", "one,two"], '--prompt-ids is "one,two"'),
        (["--prompt-ids", ",".join(["5"] * 2048)], "max_model_len is 2048"),
        (["--prompt-ids", "1", "--max-tokens", "0"], "max_tokens is 0"),
        (["--prompt-ids", "1", "--logprobs", "50"], "logprobs is 50"),
        (["--prompt-ids", "1", "--max-model-len", "9999"], "max_model_len is 9999"),
        (["--prompt-ids", "1", "--kv-cache-page-size", "7"], "kv_cache_page_size is 7"),
        (["text for a model without a tokenizer"], "tokenizer.json"),
    ],
)
def test_bad_requests_are_one_line_and_exit_code_2(run, tiny, arguments, part):
    code, out, err = run("generate", "--model", str(tiny), *arguments)
    assert code == 2 and out == ""
    assert part in one_line(err)


@pytest.mark.slow
def test_an_empty_prompt_is_refused_or_is_the_start_token(run, tiny):
    """The small model's tokenizer adds a start token, so an empty text is still a prompt."""
    code, out, _ = run("generate", "", "--max-tokens", "2")
    assert code == 0 and out.strip()


def broken(tiny, folder, what):
    """Makes a copy of the tiny checkpoint with one thing wrong."""
    folder.mkdir()
    config = (tiny / "config.json").read_bytes()
    weights = (tiny / "model.safetensors").read_bytes()
    tensors = load_file(tiny / "model.safetensors")
    if what == "broken json":
        config = config[: len(config) // 2]
    elif what == "truncated":
        weights = weights[:-1000]
    elif what == "truncated header":
        weights = weights[:100]
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(weights)
    if what == "wrong shape":
        tensors["backbone.layers.0.mixer.D"] = tensors["backbone.layers.0.mixer.D"][:-1].clone()
        save_file(tensors, folder / "model.safetensors")
    elif what == "missing and extra":
        tensors["backbone.layers.0.mixer.E"] = tensors.pop("backbone.layers.0.mixer.D")
        save_file(tensors, folder / "model.safetensors")
    elif what == "no weights":
        (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize(
    "what, parts",
    [
        ("broken json", ["config.json", "line"]),
        ("truncated", ["model.safetensors"]),
        ("truncated header", ["model.safetensors"]),
        ("wrong shape", ["backbone.layers.0.mixer.D", "12", "11"]),
        ("missing and extra", ["missing: backbone.layers.0.mixer.D", "backbone.layers.0.mixer.E"]),
        ("no weights", ["safetensors"]),
    ],
)
def test_broken_checkpoints_are_clear_errors(run, tiny, tmp_path, what, parts):
    folder = broken(tiny, tmp_path / "model", what)
    code, out, err = run("generate", str(folder), "--prompt-ids", "1")
    assert code == 2 and out == "" and "Traceback" not in err
    assert err.startswith("coachwhip: error: ")
    for part in parts:
        assert part in err


def test_no_such_folder(run):
    code, _, err = run("generate", "/no/such/model", "hello")
    assert code == 2 and "/no/such/model" in one_line(err)
    code, _, err = run("generate", "/no/such/model")
    assert code == 2 and "/no/such/model" in one_line(err)


def test_unsupported_models_are_refused_with_key_and_value(run, tiny, tmp_path):
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mamba_hidden_act": "gelu"}))
    code, _, err = run("generate", str(tmp_path), "--prompt-ids", "1")
    assert code == 2 and 'mamba_hidden_act is "gelu"' in one_line(err)


@pytest.mark.slow
def test_a_nan_weight_warns_and_fails_with_exit_code_1(run, tiny, tmp_path):
    folder = broken(tiny, tmp_path / "model", "")
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.norm_f.weight"][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    code, _, err = run("generate", str(folder), "--prompt-ids", "1")
    assert code == 1
    assert "warning" in err and "backbone.norm_f.weight" in err
    assert "not finite" in one_line(err)


def test_usage_errors_exit_with_2(run):
    for arguments in (["generate", "--no-such-flag"], ["nothing"], ["generate", "a", "b", "c"]):
        code, _, err = run(*arguments)
        assert code == 2 and "Error" in err and "Traceback" not in err
    code, out, _ = run("generate", "--help")
    assert code == 0 and "Usage" in out


def test_help_needs_no_max_and_debug_shows_a_traceback(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = "import sys; from coachwhip import cli; sys.argv = ['coachwhip', '--help']\n"
    program += "try:\n cli.main()\nexcept SystemExit: pass\nprint('max' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("False\n")
    done = subprocess.run(
        [sys.executable, "-m", "coachwhip", "generate", str(tmp_path), "x", "--debug"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "Traceback" in done.stderr
