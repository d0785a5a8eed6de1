"""The step graph against the reference: every tiny model, whole, in chunks, in company."""

import numpy as np
import pytest

from coachwhip import LLM
from tests.engine.conftest import MODELS, TinyModel, decided_tensors, poison, run_rows
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

F32_TOLERANCE = 5e-5
BF16_TOLERANCE = 0.15
CHUNKS = [1, 2, 3, 5, 16, 64, 128]
LENGTH = 200


def prompt(vocab: int, length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()


def pages_of(runner, first: int = 40) -> list[int]:
    """Pages for `LENGTH` tokens, out of order, where the model has any."""
    count = -(-LENGTH // runner.config.kv_cache_page_size)
    return list(range(first, first - count, -1)) if runner.config.num_kv_pages else []


def in_chunks(model, ids: list[int], size: int, slot: int = 2) -> np.ndarray:
    """Logits of all rows of a prompt that is processed `size` rows at a time."""
    rows, pages = [], pages_of(model.runner)
    for at in range(0, len(ids), size):
        part = ids[at : at + size]
        rows += run_rows(model.runner, [(part, at, slot if at else -1, slot, pages)])
    return np.concatenate(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_float32_prefill_and_decode_equal_the_reference(tiny, name):
    model = tiny(name)
    ids = prompt(model.vocab, LENGTH)
    want = model.reference.logits(ids).numpy()
    assert np.abs(want).max() > 2, "the reference's logits are too small to tell anything"
    poison(model.runner)
    whole = in_chunks(model, ids, LENGTH)
    assert np.abs(whole - want).max() < F32_TOLERANCE
    poison(model.runner)
    stepwise = in_chunks(model, ids, 1)
    assert np.abs(stepwise - want).max() < F32_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_float32_rows_are_bit_equal_however_a_prompt_is_cut(tiny, name):
    model = tiny(name)
    ids = prompt(model.vocab, LENGTH, seed=1)
    whole = in_chunks(model, ids, LENGTH)
    for size in CHUNKS:
        poison(model.runner)
        got = in_chunks(model, ids, size)
        assert np.array_equal(got.view(np.int32), whole.view(np.int32)), f"chunks of {size}"


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_float32_rows_are_bit_equal_beside_other_requests(tiny, name):
    model = tiny(name)
    runner = model.runner
    ids = prompt(model.vocab, LENGTH, seed=2)
    alone = in_chunks(model, ids, LENGTH)
    poison(runner)
    has_pages = bool(runner.config.num_kv_pages)
    lengths = [0, 37, LENGTH, 1, 130]  # rows of each request in the first step
    others = [prompt(model.vocab, LENGTH, seed=10 + i) for i in range(len(lengths))]
    others[2] = ids
    pages = [list(range(i * 13, i * 13 + 13)) if has_pages else [] for i in range(len(lengths))]
    first = run_rows(
        runner,
        [(others[i][:n], 0, -1, i, pages[i]) for i, n in enumerate(lengths) if n],
    )
    assert np.array_equal(first[1].view(np.int32), alone.view(np.int32))
    # Then mixed steps: one row of some, many of others, the slots and pages as they are.
    done = dict(enumerate(lengths))
    rows = {3: [first[2]], 4: [first[3]]}
    for counts in ({3: 1, 4: 1, 1: 5}, {4: 20, 3: 1}, {1: 1, 3: 60, 4: 1}, {3: 1, 4: 48}):
        step = [
            (others[i][done[i] : done[i] + n], done[i], i, i, pages[i]) for i, n in counts.items()
        ]
        for (i, n), got in zip(counts.items(), run_rows(runner, step), strict=True):
            done[i] += n
            if i in rows:
                rows[i].append(got)
    for i, parts in rows.items():
        poison(runner)
        want = in_chunks(model, others[i][: done[i]], LENGTH)
        assert np.array_equal(np.concatenate(parts).view(np.int32), want.view(np.int32))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_float32_greedy_tokens_equal_the_reference(tiny, name):
    model = tiny(name)
    ids = prompt(model.vocab, 24, seed=3)
    pages = list(range(20, 80)) if model.runner.config.num_kv_pages else []
    (logits,) = run_rows(model.runner, [(ids, 0, -1, 1, pages)], num_outputs=1)
    got = [int(logits[0].argmax())]
    while len(got) < 200:
        at = len(ids) + len(got) - 1
        (logits,) = run_rows(model.runner, [(got[-1:], at, 1, 1, pages)])
        got.append(int(logits[0].argmax()))
    assert got == model.reference.greedy(ids, 200)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nemotron_dense", "mamba2_g1_tied"])
def test_bfloat16_is_close_to_the_float32_reference(tiny, name):
    model = tiny(name, "bfloat16")
    ids = prompt(model.vocab, LENGTH, seed=4)
    want = model.reference.logits(ids).numpy()
    got = in_chunks(model, ids, 64)
    assert np.abs(got - want).max() < BF16_TOLERANCE
    assert (got.argmax(-1) == want.argmax(-1)).mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, tolerance",
    [
        ("nemotron_moe", BF16_TOLERANCE),
        # Two more roundings, of the latent rows, and a factor of 5 on the experts instead of 2.5:
        # 0.13 to 0.17 over four prompts.
        ("nemotron_latent_mtp", 0.2),
    ],
)
def test_bfloat16_experts_are_close_where_the_choice_is_clear(tmp_path, name, tolerance):
    write_checkpoint(tmp_path, TINY_CONFIGS[name], tensors=decided_tensors(name))
    llm = LLM(str(tmp_path), dtype="bfloat16", max_model_len=512, max_num_seqs=6)
    model = TinyModel(tmp_path, Reference.from_folder(tmp_path), llm.engine.runner)
    for seed in (4, 5):
        ids = prompt(model.vocab, LENGTH, seed)
        want = model.reference.logits(ids).numpy()
        got = in_chunks(model, ids, 64)
        assert np.abs(got - want).max() < tolerance
        assert (got.argmax(-1) == want.argmax(-1)).mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nemotron_moe", "nemotron_latent_mtp"])
def test_bfloat16_rows_are_close_but_for_those_that_chose_another_expert(tiny, name):
    """Random routers are often undecided: of three prompts' rows 9 to 37 % were off by more than
    0.15, up to 6, most of them where the reference's third and fourth choice lay within 0.01, or
    after such a row; 90 to 93 % of the greedy tokens were the reference's. So no limit of the
    largest error holds, and what can be asserted is the typical row."""
    model = tiny(name, "bfloat16")
    ids = prompt(model.vocab, LENGTH, seed=4)
    want = model.reference.logits(ids).numpy()
    got = in_chunks(model, ids, 64)
    error = np.abs(got - want).max(axis=-1)
    assert np.median(error) < BF16_TOLERANCE
    assert (error > BF16_TOLERANCE).mean() < 0.4
    assert (got.argmax(-1) == want.argmax(-1)).mean() >= 0.85
