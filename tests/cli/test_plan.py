"""`coachwhip plan`: numbers and reasons within a second, from config.json alone, without MAX."""

import json
import os
import re
import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from coachwhip.cli import cli
from coachwhip.config import EngineOptions, resolve, this_machine
from coachwhip.config.machine import named_gpu
from tests.checkpoint.published_configs import PUBLISHED
from tests.config.models import SPECS, write_config
from tests.reference.tiny_configs import TINY_CONFIGS

MIB = 1 << 20
TWO = ("--spec-tokens", "2", "--max-model-len", "2048")
NANO = "Nemotron-3-Nano-30B-A3B"
MEMORY = "coachwhip.config.machine.memory_bytes"


@pytest.fixture
def plan():
    """Returns a function: arguments -> (exit code, standard output, standard error)."""

    def run(*arguments: str, **environ: str):
        no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
        done = CliRunner().invoke(cli, ["plan", *map(str, arguments)], env=no_gpu | environ)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.fixture
def folder(tmp_path):
    """Returns a function: name of a config -> a folder with it and nothing else."""
    configs = {**PUBLISHED, **TINY_CONFIGS}
    return lambda name: write_config(tmp_path / name, configs[name])


def test_the_small_model_in_tables(plan):
    code, out, err = plan()
    assert (code, err) == (0, "")
    for title in ("the small model", "Decisions", "Memory", "Requests at a time", "Slots, pages"):
        assert title in out
    for line in (
        r"mamba_cache_mode +│ all +│ default +│ auto is all",
        r"slots of running requests +│ +8 │",
        r"a prompt sent again +│ +│ +hits each 64 tokens",
        r"all +│ +5 │ +8 │ +40 │ +512 │ 4,096 │",
    ):
        assert re.search(line, out), line


def test_it_takes_no_second_and_neither_max_nor_numpy(tmp_path, folder):
    program = (
        "import sys; from coachwhip import cli\n"
        "try: cli.main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sorted({'max', 'torch', 'numpy'} & sys.modules.keys()), file=sys.stderr)"
    )
    for model in ([], [str(folder(NANO)), "--gpu", "H200", "--spec-method", "ngram", "--json"]):
        more = ["--spec-tokens", "3"] if model else []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", program, "plan", *model, *more],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode, done.stderr) == (0, "\n")
        # Seconds of the processor: the clock's depend on what else runs here.
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.parametrize(
    "name, ssm_mib",
    [
        (NANO, 46),
        ("Nemotron-3-Super-120B-A12B", 160),
        ("Nemotron-3-Ultra-550B-A55B", 384),
        ("Nano-9B-v2", 135),
        ("Nemotron-H-8B", 96),
    ],
)
def test_published_models_by_their_config_alone(plan, folder, name, ssm_mib):
    code, out, _ = plan(folder(name), "--json", "--gpu", "2TB")
    found = json.loads(out)
    assert code == 0
    assert found["slot"]["ssm_bytes"] == ssm_mib * MIB
    parts = ("conv_bytes", "ssm_bytes", "carry_bytes")
    assert found["slot"]["bytes"] == sum(found["slot"][part] for part in parts)
    assert found["model"]["layers"]["mamba2"] == SPECS[name].pattern.count("M")


@pytest.mark.parametrize("name", [*TINY_CONFIGS, *PUBLISHED])
def test_the_plan_is_what_an_engine_resolves(plan, folder, monkeypatch, name):
    """Slots and pages are counted for the very `EngineConfig` that an engine allocates by."""
    monkeypatch.setattr(MEMORY, lambda: 4 << 40)
    code, out, err = plan(folder(name), "--max-num-seqs", "3", "--max-model-len", "640", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    dtype = PUBLISHED.get(name, {}).get("torch_dtype", "float32")
    options = EngineOptions(max_num_seqs=3, max_model_len=640)
    config = resolve(SPECS[name], dtype, options, this_machine(None))
    for key in ("num_state_slots", "num_kv_pages", "mamba_block_size", "dtype", "max_model_len"):
        assert found["config"][key] == getattr(config, key)
    pools = config.num_state_slots * found["slot"]["bytes"]
    pools += config.num_kv_pages * found["page"]["bytes"]
    assert found["config"]["pool_bytes"] == pools
    assert sum(found["config"]["slots"].values()) == config.num_state_slots
    (warning,) = found["model"]["warnings"] if dtype == "float32" else [""]
    assert warning == "" or "float32 is assumed" in warning


def test_candidates_and_room_are_counted(plan, folder):
    arguments = ["--gpu", "H100", "--max-num-seqs", "16", "--spec-method", "ngram"]
    code, out, _ = plan(folder(NANO), *arguments, "--spec-tokens", "3", "--json")
    found = json.loads(out)
    assert code == 0
    slots = found["config"]["slots"]
    assert (slots["live"], slots["candidates"]) == (16, 48)
    machine = this_machine(named_gpu("H100"))
    for row in found["room"]:
        # So many requests, with slots and pages of their own and no more, are what fits.
        pages = -(-(row["length"] - 1) // 16)
        one = (1 + row["drafts"]) * found["slot"]["bytes"] + pages * found["page"]["bytes"]
        total = int(machine.gpu.memory_bytes * 0.9) - found["model"]["weights_bytes"]
        assert row["requests"] == total // one
    assert {(m["mode"], m["drafts"]) for m in found["modes"]} == {
        (mode, drafts) for mode in ("none", "align", "all") for drafts in range(6)
    }
    for mode in found["modes"]:
        if "conflict" not in mode:
            assert mode["slots"]["candidates"] == 16 * mode["drafts"]
            assert mode["mode"] != "none" or mode["slots"]["checkpoints"] == 0
            assert mode["pool_bytes"] <= total


def test_where_values_come_from_is_shown(plan, tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text("max_num_seqs = 3\n\n[speculative_config]\nmethod = 'mtp'\n")
    code, out, _ = plan(
        "--json",
        "--config",
        file,
        "--spec-tokens",
        "2",
        COACHWHIP_MAX_MODEL_LEN="512",
    )
    assert code == 0
    origins = {d["field"]: d["from"] for d in json.loads(out)["decisions"]}
    assert origins["max_num_seqs"] == f"{file}, line 1"
    assert origins["max_model_len"] == "COACHWHIP_MAX_MODEL_LEN"
    assert origins["speculative_config"] == f"{file}, line 3"
    assert origins["dtype"] == "default"
    code, out, _ = plan("--json", "--max-num-seqs", "3")
    assert {d["field"]: d["from"] for d in json.loads(out)["decisions"]}[
        "max_num_seqs"
    ] == "command line"


def test_conflicts_are_all_named_and_exit_with_1(plan, folder):
    flags = ["--mamba-cache-mode", "align", "--no-enable-chunked-prefill", "--spec-method", "mtp"]
    model = folder("nemotron_dense")
    code, out, err = plan(model, *flags, "--spec-tokens", "3", "--device", "gpu")
    assert code == 1
    lines = err.splitlines()
    assert len(lines) == 3 and all(line.startswith("coachwhip: error: ") for line in lines)
    assert "device is" in lines[0]
    assert "mamba_cache_mode is" in lines[1] and "enable_chunked_prefill" in lines[1]
    assert "speculative_config.method is" in lines[2]
    assert "a slot" in out and "Decisions" in out and "Memory" not in out
    code, out, err = plan(model, *flags, "--spec-tokens", "3", "--json")
    found = json.loads(out)
    assert code == 1 and found["config"] is None
    assert [c["code"] for c in found["conflicts"]] == ["align_without_chunks", "speculation"]
    assert [f"coachwhip: error: {c['message']}" for c in found["conflicts"]] == err.splitlines()


def test_wrong_values_exit_with_1_and_wrong_usage_with_2(plan, tmp_path):
    for arguments, part in (
        (["--max-num-seqs", "0"], "max_num_seqs is 0"),
        (["--config", str(tmp_path / "none.toml")], "none.toml"),
        (["--gpu", "potato"], 'gpu is "potato"'),
        (["--gpu", "H100", "--device", "cpu"], "gpu is"),
    ):
        code, out, err = plan(*arguments)
        assert (code, out) == (1, "") and part in err
        code, out, err = plan(*arguments, "--json")
        assert code == 1 and part in json.loads(out)["conflicts"][0]["message"]
    for arguments in (["--lengths", "1k,x"], ["--lengths", "0"], ["a", "--model", "b"], ["--no"]):
        assert plan(*arguments)[0] == 2


def test_lengths(plan):
    for lengths, want in (
        ("2k,100,max", [100, 2048, 4096]),
        ("8k", []),
        ("max,MAX, 4096", [4096]),
    ):
        code, out, _ = plan("--json", "--lengths", lengths)
        found = json.loads(out)["config"]["concurrency"]
        assert code == 0 and [c["length"] for c in found] == want


def test_a_draft_model_is_planned_within_cache_memory(plan, folder):
    """Its slots and pages, and those of the model, together; as an engine resolves it."""
    model, draft = folder("nemotron_dense"), folder("nemotron_moe")
    flags = ("--spec-model", draft, "--spec-method", "draft_model", *TWO)
    for size in (12 << 20, 16 << 20, 64 << 20):
        code, out, err = plan(model, *flags, "--cache-memory", size, "--json")
        assert code == 0, err
        found = json.loads(out)
        mine = found["draft_model"]
        assert mine["name"] == str(draft) and mine["weights_bytes"] > 0
        assert 0 < mine["pool_bytes"] <= size // 4
        assert found["config"]["pool_bytes"] + mine["pool_bytes"] <= size
        assert mine["pool_bytes"] == (
            mine["num_state_slots"] * mine["slot_bytes"] + mine["num_kv_pages"] * mine["page_bytes"]
        )
        shares = [d["value"] for d in found["decisions"] if d["code"] == "cache_memory_drafts"]
        assert shares == [size // 4]
    code, out, err = plan(model, *flags)
    assert code == 0 and "slots of the draft model" in out and "pages of the draft model" in out
    code, out, err = plan(model, "--json")
    assert json.loads(out)["draft_model"] is None


def test_a_draft_model_without_room_is_a_conflict(plan, folder):
    model, draft = folder("nemotron_dense"), folder("nemotron_moe")
    flags = ("--spec-model", draft, "--spec-method", "draft_model", *TWO)
    few = ("--max-num-seqs", "2")
    code, out, err = plan(model, *flags, "--cache-memory", "4MiB", *few, "--json")
    assert code == 1 and "speculative_config.model is" in err
    assert "has 1,048,576 bytes, a quarter of the memory for slots and pages; name" in err
    (conflict,) = json.loads(out)["conflicts"]
    assert conflict["field"] == "speculative_config.model"
    # What the model itself needs at least is said of the whole.
    code, out, err = plan(model, *flags, "--cache-memory", "1MiB", *few)
    assert code == 1 and 'cache_memory is "1.00 MiB"' in err and "give 3MiB" in err
    assert "and a quarter of it for the draft model" in err


def test_all_of_a_draft_model_has_to_fit_beside_the_model(plan, folder, monkeypatch):
    model, draft = folder("nemotron_dense"), folder("nemotron_moe")
    flags = ("--spec-model", draft, "--spec-method", "draft_model", *TWO, "--max-num-seqs", "2")
    flags = (model, *flags, "--cache-memory", 12 << 20, "--json")
    found = json.loads(plan(*flags)[1])
    mine = found["draft_model"]
    rest = found["model"]["weights_bytes"] + found["config"]["pool_bytes"] + mine["weights_bytes"]
    for left in (mine["pool_bytes"] - 1, 2 << 20):
        monkeypatch.setattr(MEMORY, lambda left=left: rest + left)
        code, out, err = plan(*flags)
        assert code == 0, err
        assert 0 < json.loads(out)["draft_model"]["pool_bytes"] <= left
    monkeypatch.setattr(MEMORY, lambda: rest + 1000)
    code, out, err = plan(*flags)
    assert code == 1 and "has 1,000 bytes, what all weights and the model's own slots" in err


def test_a_draft_model_may_have_another_dtype(plan, folder, tmp_path, monkeypatch):
    model = write_config(
        tmp_path / "model", TINY_CONFIGS["nemotron_dense"] | {"torch_dtype": "bfloat16"}
    )
    flags = ("--spec-model", folder("nemotron_moe"), "--spec-method", "draft_model", *TWO)
    flags = (model, *flags, "--num-state-slots", 6, "--num-kv-pages", 256, "--json")
    found = json.loads(plan(*flags)[1])
    rest = found["model"]["weights_bytes"] + found["config"]["pool_bytes"]
    monkeypatch.setattr(MEMORY, lambda: rest + found["draft_model"]["weights_bytes"] + 1000)
    code, _, err = plan(*flags)
    assert code == 1 and "a quarter of the 1,000 bytes left of this machine's memory" in err


def test_on_a_gpu_a_draft_model_has_a_part_of_its_memory(plan, folder):
    model, draft = folder("nemotron_dense"), folder("nemotron_moe")
    flags = ("--spec-model", draft, "--spec-method", "draft_model", *TWO, "--json")
    code, out, err = plan(model, *flags, "--gpu", "64MB")
    assert code == 0, err
    found = json.loads(out)
    mine, model_bytes = found["draft_model"], found["model"]["weights_bytes"]
    taken = found["config"]["pool_bytes"] + mine["pool_bytes"] + mine["weights_bytes"]
    assert 0.3 * 64e6 < taken + model_bytes <= 0.9 * 64e6
