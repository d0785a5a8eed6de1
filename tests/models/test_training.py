"""The training program on a made-up text and tiny models; no network."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from models.train.acceptance import acceptance, greedy_rows
from models.train.batches import Batches
from models.train.conv import causal_conv
from models.train.evaluate import held_out_loss
from models.train.export import export
from models.train.loss import joint_loss
from models.train.main import Trainer
from models.train.mixers import Attention, Router
from models.train.model import NemotronH
from models.train.ssd import ssd_chunked
from models.train.tokenizer import (
    BOS,
    EOS,
    SPECIAL_TOKENS,
    encode_corpus,
    encode_document,
    encode_with_breaks,
    train_tokenizer,
)

VOCAB = 288
MODEL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "hybrid_override_pattern": "M-*E",
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
    "intermediate_size": 48,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 24,
    "routed_scaling_factor": 2.5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 8,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 256,
}
TRAINING = {
    "seed": 3,
    "length": 40,
    "batch_size": 2,
    "steps": 8,
    "warmup_steps": 2,
    "learning_rate": 0.004,
    "final_learning_rate": 0.0,
    "weight_decay": 0.1,
    "balance_speed": 0.001,
    "mtp_weight": 0.3,
    "mtp_depths": 2,
    "model": MODEL,
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    # The models are too small to share between threads.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def texts():
    rng = random.Random(5)
    sentence = "the people of this nation and its government will build roads for all citizens"
    return [" ".join(rng.choices(sentence.split(), k=90)) + "." for _ in range(6)]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return train_tokenizer(texts, VOCAB)


@pytest.fixture(scope="module")
def documents(tokenizer, texts):
    return encode_corpus(tokenizer, texts, 20, seed=1)


def sequential_ssd(x, dt, a, b, c):
    """The recurrence as it is defined, one step at a time."""
    heads_per_group = x.shape[2] // b.shape[2]
    b, c = (t.repeat_interleave(heads_per_group, 2) for t in (b, c))
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3])
    out = []
    for t in range(x.shape[1]):
        keep = torch.exp(dt[:, t] * a)[..., None, None]
        fed = torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], b[:, t])
        state = keep * state + fed
        out.append(torch.einsum("bhpn,bhn->bhp", state, c[:, t]))
    return torch.stack(out, 1), state


@pytest.mark.parametrize(("length", "chunk_size"), [(1, 8), (8, 8), (24, 8), (29, 8), (5, 16)])
def test_chunked_ssd_equals_the_recurrence(length, chunk_size):
    x = torch.randn(2, length, 6, 4)
    dt = F.softplus(torch.randn(2, length, 6))
    a = -torch.empty(6).uniform_(0.5, 16)
    b, c = torch.randn(2, 2, length, 3, 5)
    wanted, wanted_state = sequential_ssd(x, dt, a, b, c)
    y, state = ssd_chunked(x, dt, a, b, c, chunk_size)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, wanted_state, rtol=1e-4, atol=1e-5)


def test_chunked_ssd_has_the_gradient_of_the_recurrence():
    inputs = [torch.randn(1, 11, 4, 3), F.softplus(torch.randn(1, 11, 4)), -torch.rand(4) - 0.1]
    inputs += [torch.randn(1, 11, 2, 5), torch.randn(1, 11, 2, 5)]
    grads = []
    for form in (sequential_ssd, lambda *args: ssd_chunked(*args, chunk_size=4)):
        leaves = [t.clone().requires_grad_() for t in inputs]
        form(*leaves)[0].square().sum().backward()
        grads.append([leaf.grad for leaf in leaves])
    for wanted, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_causal_conv_equals_the_grouped_convolution(length):
    x, upstream = torch.randn(2, 2, length, 6)
    weight, bias = torch.randn(6, 1, 4), torch.randn(6)
    results = []
    for form in (
        lambda x, w, b: F.conv1d(F.pad(x.transpose(1, 2), (3, 0)), w, b, groups=6).transpose(1, 2),
        causal_conv,
    ):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        y = form(*leaves)
        (y * upstream).sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_forward_shapes():
    model = NemotronH(MODEL)
    ids = torch.randint(VOCAB, (2, 19))
    logits, h = model(ids)
    assert logits.shape == (2, 19, VOCAB)
    assert h.shape == (2, 19, 32)
    assert [d.shape for d in model.drafts(ids, h, 2)] == [(2, 18, VOCAB), (2, 17, VOCAB)]


def test_no_row_sees_a_later_token():
    model = NemotronH(MODEL).eval()
    ids = torch.randint(VOCAB, (1, 20))
    changed = ids.clone()
    changed[0, 12] = (ids[0, 12] + 1) % VOCAB
    rows = []
    for text in (ids, changed):
        logits, h = model(text)
        rows.append([logits, *model.drafts(text, h, 2)])
    for depth, (before, after) in enumerate(zip(*rows, strict=True)):
        moved = (before - after).abs().amax(-1)[0] > 1e-5
        assert not moved[: 12 - depth].any()
        assert moved[12 - depth]


def test_second_draft_row_attends_to_the_first_drafts_and_itself():
    attention = Attention(MODEL)
    first, second = torch.randn(2, 1, 7, 32)
    got = attention.after(second, attention.keys_values(first))
    for row in range(7):
        joined = torch.cat([first[:, : row + 1], second[:, row : row + 1]], 1)
        torch.testing.assert_close(got[:, row], attention(joined)[:, -1], rtol=1e-4, atol=1e-5)


def test_unknown_layer_letter_is_named():
    with pytest.raises(ValueError, match="unknown layer letter 'X'"):
        NemotronH({**MODEL, "hybrid_override_pattern": "MX"})
    with pytest.raises(ValueError, match="mtp_hybrid_override_pattern: 'M'"):
        NemotronH({**MODEL, "mtp_hybrid_override_pattern": "M"})


def test_router_bias_chooses_but_does_not_weigh():
    router = Router(MODEL)
    torch.nn.init.normal_(router.weight)
    x = torch.randn(9, 32)
    router.e_score_correction_bias[:2] = 10.0
    chosen, weights = router(x)
    assert (chosen.sort(-1)[0] == torch.tensor([0, 1])).all()
    scores = torch.sigmoid(x @ router.weight.T).gather(1, chosen)
    torch.testing.assert_close(weights, 2.5 * scores / scores.sum(-1, keepdim=True))


def test_rebalance_raises_the_bias_of_idle_experts():
    router = Router(MODEL)
    router.load.copy_(torch.tensor([0.0, 4.0, 8.0, 4.0]))
    router.rebalance(0.5)
    assert router.e_score_correction_bias.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert router.load.sum() == 0


def test_joint_loss_weighs_the_drafts():
    model = NemotronH(MODEL)
    losses = joint_loss(model, torch.randint(5, VOCAB, (2, 21)), weight=0.3, depths=2)
    draft = (losses["draft1"] + losses["draft2"]) / 2
    torch.testing.assert_close(losses["total"], losses["next"] + 0.3 * draft)


def test_acceptance_equals_drafting_one_position_at_a_time():
    # Trained a little on counting, so that some drafts are accepted and some are not.
    trainer = Trainer({**TRAINING, "steps": 40}, [torch.arange(400) % 20 + 5] * 3)
    for _ in range(26):
        trainer.step()
    model = trainer.model.eval()
    prefixes = torch.stack([torch.arange(5, 15), torch.arange(12, 22)])
    tokens = 12
    shares, positions = acceptance(model, prefixes, tokens)
    first = second = 0
    for text in greedy_rows(model, prefixes, tokens):
        for end in range(10, 10 + tokens - 2):
            seen = text[None, : end + 1]
            draft = model.drafts(seen, model.backbone(seen), 1)[0][0, -1].argmax()
            if draft != text[end + 1]:
                continue
            first += 1
            seen = torch.cat([seen, draft[None, None]], 1)
            again = model.drafts(seen, model.backbone(seen), 2)[1][0, -1].argmax()
            second += int(again == text[end + 2])
    assert 0 < shares[1] < shares[0] < 1
    assert positions == 2 * (tokens - 2)
    assert shares == pytest.approx([first / positions, second / positions])


def expected_tensors():
    """Published names and shapes for MODEL: in_proj 2*96 + 2*32 + 6, conv 96 + 2*32."""
    names = {
        "backbone.embeddings.weight": (VOCAB, 32),
        "backbone.norm_f.weight": (32,),
        "lm_head.weight": (VOCAB, 32),
        "backbone.layers.0.mixer.in_proj.weight": (262, 32),
        "backbone.layers.0.mixer.conv1d.weight": (160, 1, 4),
        "backbone.layers.0.mixer.conv1d.bias": (160,),
        "backbone.layers.0.mixer.A_log": (6,),
        "backbone.layers.0.mixer.D": (6,),
        "backbone.layers.0.mixer.dt_bias": (6,),
        "backbone.layers.0.mixer.norm.weight": (96,),
        "backbone.layers.0.mixer.out_proj.weight": (32, 96),
        "backbone.layers.1.mixer.up_proj.weight": (48, 32),
        "backbone.layers.1.mixer.down_proj.weight": (32, 48),
        "mtp.layers.0.enorm.weight": (32,),
        "mtp.layers.0.hnorm.weight": (32,),
        "mtp.layers.0.eh_proj.weight": (32, 64),
        "mtp.layers.1.final_layernorm.weight": (32,),
    }
    for layer in ("backbone.layers.2", "mtp.layers.0"):
        shapes = {"q_proj": (64, 32), "k_proj": (32, 32), "v_proj": (32, 32), "o_proj": (32, 64)}
        names |= {f"{layer}.mixer.{k}.weight": v for k, v in shapes.items()}
    for layer in ("backbone.layers.3", "mtp.layers.1"):
        names[f"{layer}.mixer.gate.weight"] = (4, 32)
        names[f"{layer}.mixer.gate.e_score_correction_bias"] = (4,)
        for expert in range(4):
            names[f"{layer}.mixer.experts.{expert}.up_proj.weight"] = (16, 32)
            names[f"{layer}.mixer.experts.{expert}.down_proj.weight"] = (32, 16)
        names[f"{layer}.mixer.shared_experts.up_proj.weight"] = (24, 32)
        names[f"{layer}.mixer.shared_experts.down_proj.weight"] = (32, 24)
    for layer in [f"backbone.layers.{i}" for i in range(4)] + [f"mtp.layers.{i}" for i in range(2)]:
        names[f"{layer}.norm.weight"] = (32,)
    return names


def test_export_writes_the_published_names_shapes_and_types(tokenizer, tmp_path):
    export(NemotronH(MODEL), tokenizer, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == expected_tensors()
    for name, tensor in tensors.items():
        biased = name.endswith("e_score_correction_bias")
        assert tensor.dtype == (torch.float32 if biased else torch.bfloat16), name


def test_export_writes_strict_json(tokenizer, tmp_path):
    export(NemotronH(MODEL), tokenizer, tmp_path)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    config = json.loads((tmp_path / "config.json").read_text(), parse_constant=refuse)
    assert config["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    assert config["hybrid_override_pattern"] == "M-*E"
    assert config["mtp_hybrid_override_pattern"] == "*E"
    assert config["num_hidden_layers"] == 4
    assert config["tie_word_embeddings"] is False
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == config["eos_token_id"] == EOS
    special = json.loads((tmp_path / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert [special[str(i)]["content"] for i in range(5)] == SPECIAL_TOKENS


def test_resumed_run_has_the_losses_of_an_uninterrupted_one(documents, tmp_path):
    whole = Trainer(TRAINING, documents)
    wanted = [whole.step() for _ in range(6)]
    first = Trainer(TRAINING, documents)
    got = [first.step() for _ in range(3)]
    first.save(tmp_path / "checkpoint.pt")
    torch.manual_seed(99)
    second = Trainer(TRAINING, documents)
    second.load(tmp_path / "checkpoint.pt")
    got += [second.step() for _ in range(3)]
    assert got == wanted


def test_training_lowers_the_loss(documents):
    trainer = Trainer({**TRAINING, "steps": 30}, documents)
    before, count = held_out_loss(trainer.model.eval(), documents[:1], 40)
    trainer.model.train()
    for _ in range(30):
        trainer.step()
    after, _ = held_out_loss(trainer.model.eval(), documents[:1], 40)
    assert count == len(documents[0]) - 1
    assert after < before - 1.0


def test_batches_cover_the_text_once_in_an_epoch():
    documents = [torch.arange(5, 105), torch.arange(105, 160)]
    batches = Batches(documents, length=10, batch_size=4, seed=1)
    epoch = torch.cat([batches.batch(i) for i in range(batches.per_epoch)])
    starts = epoch[:, 0].tolist()
    assert len(set(starts)) == len(starts)
    assert batches.per_epoch == 4
    assert epoch.shape == (16, 11)
    assert {5, 105} <= set(starts)
    again = Batches(documents, length=10, batch_size=4, seed=1)
    assert torch.equal(again.batch(7), batches.batch(7))
    assert not torch.equal(batches.batch(batches.per_epoch), batches.batch(0))


def test_batch_larger_than_the_corpus_is_named():
    with pytest.raises(ValueError, match="batch_size: 64"):
        Batches([torch.arange(50)], length=10, batch_size=64, seed=1)


def test_short_document_is_padded():
    batch = Batches([torch.arange(5, 10)], length=10, batch_size=2, seed=1).batch(0)
    rows = sorted(batch.tolist(), reverse=True)
    assert [5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0] in rows


def test_tokenizer_round_trip_and_special_tokens(tokenizer, texts):
    assert tokenizer.get_vocab_size() == VOCAB
    assert [tokenizer.token_to_id(t) for t in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    strange = "the people — 100 % naïve"
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange
    ids = encode_document(tokenizer, texts[0])
    assert (ids[0], ids[-1]) == (BOS, EOS)
    assert tokenizer.encode(texts[0]).ids == ids[:-1]


def test_tokenizer_vocabulary_too_large_is_named(texts):
    with pytest.raises(ValueError, match="vocab_size: 9000"):
        train_tokenizer(texts, 9000)


def test_broken_spaces_keep_the_text(tokenizer, texts):
    ids = encode_with_breaks(tokenizer, texts[0], 3, random.Random(1))
    space = tokenizer.token_to_id("\u0120")
    assert tokenizer.decode(ids) == texts[0]
    assert ids.count(space) > encode_document(tokenizer, texts[0]).count(space) + 10
    assert (ids[0], ids[-1]) == (BOS, EOS)
