"""The reference agrees with transformers (stored logits), with itself in steps, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.reference.checkpoints import LIST_NAMES, LIST_NAMES_5, random_tensors, write_checkpoint
from tests.reference.golden.make_golden import (
    GOLDEN,
    NAMES,
    ROWS,
    fingerprint,
    golden_config,
    golden_ids,
)
from tests.reference.nemotron_h import Reference, Weights, mlp, moe, rms_norm, route
from tests.reference.tiny_configs import TINY_CONFIGS

TOLERANCE = 5e-5
"""On logits of magnitude 6: five times what two float32 implementations differ by."""


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as stored:
        return dict(stored)


def model(name: str) -> Reference:
    config = TINY_CONFIGS[name]
    return Reference(config, random_tensors(config))


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(name: str, golden: dict[str, np.ndarray]):
    config = golden_config(name)
    tensors = random_tensors(config)
    assert fingerprint(tensors) == pytest.approx(float(golden[f"{name}.fingerprint"]), rel=1e-9)
    logits = Reference(config, tensors).logits(golden_ids(name))[list(ROWS)].numpy()
    np.testing.assert_allclose(logits, golden[f"{name}.logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_large_enough_to_compare(name: str, golden: dict[str, np.ndarray]):
    assert 3.0 < np.abs(golden[f"{name}.logits"]).max() < 12.0


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_steps_equal_one_pass(name: str):
    reference = model(name)
    ids = golden_ids(name)[:21]
    whole = reference.logits(ids)
    state = reference.start()
    parts = [reference.logits(ids[a:b], state) for a, b in ((0, 1), (1, 3), (3, 20), (20, 21))]
    torch.testing.assert_close(torch.cat(parts), whole, atol=TOLERANCE, rtol=0)


def test_a_copied_state_does_not_move_with_the_original():
    reference = model("nemotron_dense")
    state = reference.start()
    reference.logits([5, 6, 7], state)
    copied = state.copy()
    expected = reference.logits([8], state.copy())
    reference.logits([9, 10], state)
    torch.testing.assert_close(reference.logits([8], copied), expected, atol=TOLERANCE, rtol=0)


def test_greedy_follows_the_largest_logit_of_the_whole_sequence():
    reference = model("nemotron_dense")
    prompt = golden_ids("nemotron_dense")[:5]
    found = reference.greedy(prompt, 6)
    sequence = prompt + found
    logits = reference.logits(sequence)
    assert found == [int(logits[i].argmax()) for i in range(len(prompt) - 1, len(sequence) - 1)]


def test_state_spaces_format_is_the_same_model_as_mamba2():
    ids = [3, 1, 4, 1, 5]
    original, hugging_face = model("state_spaces"), model("mamba2_g1_tied")
    torch.testing.assert_close(
        original.logits(ids), hugging_face.logits(ids), atol=TOLERANCE, rtol=0
    )


def test_tiny_steps_of_dt_are_not_clamped():
    config = TINY_CONFIGS["nemotron_dense"]
    tensors = random_tensors(config, dt_bias=(-12.0, -8.0))
    free = Reference(config, tensors).logits([7, 8, 9, 10])
    clamped = Reference(config | {"time_step_limit": [0.001, 1e9]}, tensors).logits([7, 8, 9, 10])
    assert float((free - clamped).abs().max()) > 1e-3


def test_experts_are_chosen_with_the_bias_and_weighted_without():
    config = {
        "n_routed_experts": 3,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.0,
    }
    gate = Weights(
        {
            "weight": torch.tensor([[0.0], [2.0], [-2.0]]),
            "e_score_correction_bias": torch.tensor([0.0, 0.0, 5.0]),
        }
    )
    chosen, shares = route(torch.ones(1, 1), gate, config)
    assert chosen.tolist() == [[2, 1]]
    high, low = torch.sigmoid(torch.tensor([2.0, -2.0]))
    expected = torch.tensor([[low, high]]) / (low + high) * 2.0
    torch.testing.assert_close(shares, expected)


def test_expert_groups_are_ranked_by_their_two_best():
    config = {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    }
    logits = torch.tensor([[3.0], [-9.0], [1.0], [1.0]])  # the best expert is in the worse group
    gate = Weights({"weight": logits, "e_score_correction_bias": torch.zeros(4)})
    chosen, shares = route(torch.ones(1, 1), gate, config)
    assert sorted(chosen[0].tolist()) == [2, 3]
    torch.testing.assert_close(shares, torch.sigmoid(torch.tensor([[1.0, 1.0]])))


def test_latent_experts_alone_see_the_projection():
    config = TINY_CONFIGS["nemotron_latent_mtp"]
    tensors = {
        n: t for n, t in random_tensors(config).items() if n.startswith("backbone.layers.1.")
    }
    weights = Weights(tensors, "backbone.layers.1.mixer.")
    u = torch.randn(2, 128, generator=torch.Generator().manual_seed(0))
    tensors["backbone.layers.1.mixer.fc2_latent_proj.weight"] = torch.zeros(128, 48)
    shared = mlp(u, weights.below("shared_experts"))
    torch.testing.assert_close(moe(u, weights, config), shared)


def test_mtp_head_joins_the_embedding_first_and_the_row_second():
    config = TINY_CONFIGS["nemotron_latent_mtp"]
    tensors = random_tensors(config)
    for silent in ("0.mixer.o_proj", "1.mixer.shared_experts.down_proj", "1.mixer.fc2_latent_proj"):
        tensors[f"mtp.layers.{silent}.weight"].zero_()  # both layers add nothing
    reference = Reference(config, tensors)
    rows = reference.hidden([3, 4, 5], reference.start())
    logits, out = reference.mtp([4, 5, 6], rows, reference.start_mtp())
    embedded = tensors["backbone.embeddings.weight"][[4, 5, 6]]
    e = rms_norm(embedded, tensors["mtp.layers.0.enorm.weight"], 1e-5)
    g = rms_norm(rows, tensors["mtp.layers.0.hnorm.weight"], 1e-5)
    eh_proj = tensors["mtp.layers.0.eh_proj.weight"]
    x = e @ eh_proj[:, :128].T + g @ eh_proj[:, 128:].T
    expected = rms_norm(x, tensors["mtp.layers.1.final_layernorm.weight"], 1e-5)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, expected @ tensors["lm_head.weight"].T, atol=1e-4, rtol=1e-5)


def test_mtp_steps_equal_one_pass_and_drafts_chain():
    reference = model("nemotron_latent_mtp")
    ids = golden_ids("nemotron_latent_mtp")[:9]
    rows = reference.hidden(ids, reference.start())
    token = int(reference.head(rows[-1]).argmax())
    shifted = [*ids[1:], token]
    whole, out = reference.mtp(shifted, rows, reference.start_mtp())
    state = reference.start_mtp()
    first, _ = reference.mtp(shifted[:5], rows[:5], state)
    rest, last = reference.mtp(shifted[5:], rows[5:], state)
    torch.testing.assert_close(torch.cat([first, rest]), whole, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(last[-1], out[-1], atol=TOLERANCE, rtol=0)
    second, _ = reference.mtp([int(whole[-1].argmax())], out[-1:], state)
    drafts = [int(whole[-1].argmax()), int(second[-1].argmax())]
    assert reference.draft(ids, 2) == (token, drafts)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("layer_names", [None, LIST_NAMES, LIST_NAMES_5])
def test_a_written_checkpoint_reads_back(tmp_path, shards: int, layer_names: dict | None):
    config = TINY_CONFIGS["nemotron_moe"]
    written = write_checkpoint(tmp_path, config, shards=shards, layer_names=layer_names)
    drawn = random_tensors(config)
    assert all(torch.equal(t, drawn[name]) for name, t in written.items())
    expected = Reference(config, written).logits([1, 2, 3])
    torch.testing.assert_close(
        Reference.from_folder(tmp_path).logits([1, 2, 3]), expected, atol=TOLERANCE, rtol=0
    )


def test_stored_dtype_is_as_asked_but_for_the_router_bias(tmp_path):
    written = write_checkpoint(tmp_path, TINY_CONFIGS["nemotron_moe"], dtype="bfloat16")
    bias = {n: t.dtype for n, t in written.items() if n.endswith("e_score_correction_bias")}
    assert set(bias.values()) == {torch.float32}
    others = {t.dtype for n, t in written.items() if n not in bias}
    assert others == {torch.bfloat16}
