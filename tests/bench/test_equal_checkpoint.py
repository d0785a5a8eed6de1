"""A checkpoint written for llama.cpp computes what the checkpoint computes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from gguf import TokenType
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from bench.serve.dense_as_experts import dense_as_experts
from bench.serve.equal_checkpoint import main, write_equal
from coachwhip.checkpoint import read_model
from coachwhip.errors import CheckpointError, ConfigError
from coachwhip.locate import small_model_dir
from tests.bench.gguf_model import arrays, metadata, published
from tests.reference.byte_tokenizer import byte_tokenizer, save_byte_tokenizer
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

ALL_KINDS = TINY_CONFIGS["nemotron_moe"] | {
    "hybrid_override_pattern": "M-*EM-E",
    "intermediate_size": 144 + 3 * 72,
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
}
IDS = [5, 200, 31, 77, 402, 8, 8, 311, 90, 17]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
"""Of logits of magnitude 6: the same sums in another order."""


def write(folder: Path, config: dict, **more: object) -> dict[str, torch.Tensor]:
    """Writes a checkpoint with a tokenizer that parts words as GPT-2's does."""
    written = write_checkpoint(folder, config, **more)
    tokenizer = byte_tokenizer()
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return written


def as_experts(config: dict) -> dict:
    pattern = config["hybrid_override_pattern"].replace("-", "E")
    return config | {"hybrid_override_pattern": pattern}


def unstacked(tensors: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    found = {}
    for name, values in tensors.items():
        before, matrix = name.rsplit(".", 1)
        if before.endswith(".experts"):
            found |= {f"{before}.{e}.{matrix}.weight": t for e, t in enumerate(values)}
        else:
            found[name] = values
    return {name: torch.as_tensor(t) for name, t in found.items()}


@pytest.mark.parametrize(
    "routing",
    [
        {},
        {"norm_topk_prob": False},
        {"routed_scaling_factor": 1.0},
        {"n_shared_experts": 0, "intermediate_size": 3 * 72},
    ],
    ids=str,
)
def test_dense_layers_as_experts_give_the_same_logits(tmp_path: Path, routing: dict) -> None:
    config = ALL_KINDS | {"hybrid_override_pattern": "M-*M-"} | routing
    written = write_checkpoint(tmp_path, config)
    names = {name.removeprefix("backbone."): t.numpy() for name, t in written.items()}
    spec, found = dense_as_experts(read_model(tmp_path).spec, names)
    assert spec.pattern == "ME*ME"
    zero_width = torch.zeros(0, 128)
    rewritten = unstacked(found)
    if not routing.get("n_shared_experts", 1):
        for i in (1, 4):  # the reference has a shared expert always
            rewritten[f"layers.{i}.mixer.shared_experts.up_proj.weight"] = zero_width
            rewritten[f"layers.{i}.mixer.shared_experts.down_proj.weight"] = zero_width.T
    expected = Reference(config, written).logits(IDS)
    logits = Reference(as_experts(config), rewritten).logits(IDS)
    torch.testing.assert_close(logits, expected, **CLOSE)
    assert expected.abs().max() > 3


def test_a_model_without_both_kinds_stays_as_it_is(tmp_path: Path) -> None:
    for config in (TINY_CONFIGS["nemotron_dense"], TINY_CONFIGS["nemotron_latent_mtp"]):
        write_checkpoint(tmp_path, config)
        spec = read_model(tmp_path).spec
        assert dense_as_experts(spec, {}) == (spec, {})


def test_file_of_the_small_model_computes_the_same(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    write_equal(small_model_dir(), file)
    original = Reference.from_folder(small_model_dir())
    read_back = Reference(as_experts(original.config), published(file, 12))
    expected, logits = original.logits(IDS), read_back.logits(IDS)
    torch.testing.assert_close(logits, expected, **CLOSE)
    assert read_back.draft(IDS, 3) == original.draft(IDS, 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_file_holds_every_tensor_in_llama_cpps_form(tmp_path: Path, dtype: str) -> None:
    written = write(tmp_path, ALL_KINDS, dtype=dtype)
    file = tmp_path / "equal.gguf"
    count = write_equal(tmp_path, file)
    found = arrays(file)
    assert len(found) == count
    assert found["blk.0.ssm_conv1d.weight"].shape == (12 * 16 + 2 * 4 * 32, 4)
    assert found["blk.0.ssm_a"].shape == found["blk.0.ssm_d"].shape == (12, 1)
    assert found["blk.0.ssm_norm.weight"].shape == (4, 48)
    assert found["blk.1.ffn_up_exps.weight"].shape == (10, 72, 128)
    assert found["blk.1.ffn_down_exps.weight"].shape == (10, 128, 72)
    assert found["blk.7.nextn.eh_proj.weight"].shape == (128, 256)
    read_back = published(file, 7)
    kept = {name: t for name, t in written.items() if ".1.mixer" not in name}
    kept = {name: t for name, t in kept.items() if ".5.mixer" not in name or name[:3] == "mtp"}
    assert kept.keys() <= read_back.keys()
    for name, tensor in kept.items():
        near = {"rtol": 1e-6, "atol": 1e-6} if name.endswith("A_log") else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(read_back[name], tensor.float(), **near)


def test_bfloat16_file_computes_the_same(tmp_path: Path) -> None:
    written = write(tmp_path, ALL_KINDS | {"routed_scaling_factor": 1.5}, dtype="bfloat16")
    file = tmp_path / "equal.gguf"
    write_equal(tmp_path, file, "bfloat16")
    # Times 3 / 1.5: exact in any dtype.
    config = as_experts(ALL_KINDS | {"routed_scaling_factor": 1.5})
    expected = Reference(ALL_KINDS | {"routed_scaling_factor": 1.5}, written).logits(IDS)
    torch.testing.assert_close(Reference(config, published(file, 7)).logits(IDS), expected, **CLOSE)


def test_a_model_of_dense_layers_only_keeps_them(tmp_path: Path) -> None:
    config = TINY_CONFIGS["nemotron_repeats"]
    written = write(tmp_path, config)
    file = tmp_path / "equal.gguf"
    write_equal(tmp_path, file)
    found = metadata(file)
    assert found["general.architecture"] == "nemotron_h"
    assert found["nemotron_h.feed_forward_length"] == [0, 0, 200, 72, 0, 0, 0, 136]
    assert found["nemotron_h.attention.head_count_kv"] == [0, 0, 0, 0, 2, 2, 0, 0]
    torch.testing.assert_close(
        Reference(config, published(file, 8)).logits(IDS),
        Reference(config, written).logits(IDS),
        **CLOSE,
    )


def test_file_says_what_the_model_is(tmp_path: Path) -> None:
    write(tmp_path, ALL_KINDS)
    file = tmp_path / "equal.gguf"
    write_equal(tmp_path, file)
    found = metadata(file)
    own = {
        name.removeprefix("nemotron_h_moe."): value
        for name, value in found.items()
        if name.startswith("nemotron_h_moe.")
    }
    assert own["block_count"] == 8
    assert own["nextn_predict_layers"] == 1
    assert own["feed_forward_length"] == [0, 72, 0, 72, 0, 72, 72, 72]
    assert own["attention.head_count_kv"] == [0, 0, 2, 0, 0, 0, 0, 2]
    assert own["expert_count"] == 10
    assert own["expert_used_count"] == 3
    assert own["expert_weights_scale"] == 2.5
    assert own["expert_weights_norm"] is True
    assert own["ssm.inner_size"] == 192
    assert own["ssm.time_step_rank"] == 12
    assert own["attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


def test_file_holds_the_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    write_equal(small_model_dir(), file)
    found = metadata(file)
    tokenizer = Tokenizer.from_file(str(small_model_dir() / "tokenizer.json"))
    assert found["tokenizer.ggml.tokens"] == [tokenizer.id_to_token(i) for i in range(3072)]
    assert found["tokenizer.ggml.merges"][:2] == ["Ġ t", "Ġt h"]
    assert len(found["tokenizer.ggml.merges"]) == 2811
    types = found["tokenizer.ggml.token_type"]
    assert set(types[:5]) == {TokenType.CONTROL}
    assert set(types[5:]) == {TokenType.NORMAL}
    assert found["tokenizer.ggml.pre"] == "gpt-2"
    assert found["tokenizer.ggml.bos_token_id"] == 1
    assert found["tokenizer.ggml.eos_token_id"] == 2
    assert found["tokenizer.ggml.add_bos_token"] is True


def test_ids_without_a_token_get_one_and_text_tokens_stay_text(tmp_path: Path) -> None:
    write(tmp_path, ALL_KINDS)
    file = tmp_path / "equal.gguf"
    write_equal(tmp_path, file)
    found = metadata(file)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert len(tokens) == len(set(tokens)) == 512
    assert types[tokens.index("<think>")] == TokenType.USER_DEFINED
    assert types[tokens.index("</s>")] == TokenType.CONTROL
    assert types[511] == TokenType.UNUSED
    assert found["tokenizer.ggml.add_bos_token"] is False


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ALL_KINDS | {"intermediate_size": 200}, "intermediate_size is 200, but must be .* = 360"),
        (ALL_KINDS | {"moe_latent_size": 48}, "moe_latent_size is 48"),
        (TINY_CONFIGS["nemotron_grouped_moe"], "n_group is 2, but must be 1"),
        (
            TINY_CONFIGS["nemotron_conv3"] | {"time_step_limit": [0.01, 0.05]},
            "time_step_limit is .0.01, 0.05.",
        ),
        (TINY_CONFIGS["nemotron_dt_limit"], 'hybrid_override_pattern is "M-M"'),
        (TINY_CONFIGS["mamba2_g4"], 'model_type is "mamba2"'),
        (TINY_CONFIGS["nemotron_moe"] | {"n_shared_experts": 0}, "n_shared_experts is 0"),
    ],
)
def test_what_has_no_equal_is_refused(tmp_path: Path, config: dict, message: str) -> None:
    write(tmp_path, config)
    with pytest.raises(ConfigError, match=message):
        write_equal(tmp_path, tmp_path / "equal.gguf")
    assert not (tmp_path / "equal.gguf").exists()


def test_a_float16_checkpoint_becomes_float32_as_it_does_when_it_runs(tmp_path: Path) -> None:
    written = write(tmp_path, ALL_KINDS, dtype="float16")
    write_equal(tmp_path, tmp_path / "equal.gguf")
    head = arrays(tmp_path / "equal.gguf")["output.weight"]
    np.testing.assert_array_equal(head, written["lm_head.weight"].float().numpy())


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, ALL_KINDS)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: no such file"):
        write_equal(tmp_path, tmp_path / "equal.gguf")
    save_byte_tokenizer(tmp_path)  # parts no words
    with pytest.raises(CheckpointError, match="by GPT-2's pattern"):
        write_equal(tmp_path, tmp_path / "equal.gguf")


def test_the_command_writes_the_file_or_says_why_not(tmp_path: Path) -> None:
    write(tmp_path, ALL_KINDS)
    out = tmp_path / "equal.gguf"
    done = CliRunner().invoke(main, [str(tmp_path), str(out), "--dtype", "bfloat16"])
    assert done.exit_code == 0, done.output
    assert f"{len(arrays(out))} tensors" in done.output
    write(tmp_path, ALL_KINDS | {"intermediate_size": 200})
    refused = CliRunner().invoke(main, [str(tmp_path), str(out)])
    assert refused.exit_code == 2
    assert "intermediate_size is 200" in refused.output
