"""Sampling as a user sees it: distribution, seeds, every parameter, with and without drafts.

Expected tokens and distributions are those of the float32 torch reference's logits and the float64
numpy reference of the sampling op. `COACHWHIP_FULL_MATRIX=1` draws with more drafters.
"""

import itertools
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from coachwhip import SamplingParams
from coachwhip.config import EngineOptions
from coachwhip.engine import Engine
from coachwhip.verify import speculation_options
from tests.engine.caching import assert_nothing_is_owned, slow, tokens
from tests.engine.scripted import ScriptedDrafter
from tests.reference import sample
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

FULL_MATRIX = bool(int(os.environ.get("COACHWHIP_FULL_MATRIX", 0)))
NAME = "nemotron_latent_mtp"
VOCAB = 512
END = 2
DRAFTS = 3
DRAWS = 20_000
SEED = 2**40 + 12345
"""Has bits in both words."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkpoint of random weights with a tokenizer whose words are w0, w1, ..."""
    folder = tmp_path_factory.mktemp(NAME)
    write_checkpoint(folder, TINY_CONFIGS[NAME])
    tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, "w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def reference(folder) -> Reference:
    return Reference.from_folder(folder)


@pytest.fixture(scope="module")
def base(folder) -> Engine:
    """An engine whose weights and pools those of the tests share."""
    return Engine(
        EngineOptions(
            model=str(folder),
            dtype="float32",
            max_model_len=64,
            mamba_block_size=4,
            max_num_seqs=256,
            max_num_batched_tokens=1024,
            num_state_slots=256 * (1 + DRAFTS),
            speculative_config={"method": "mtp", "num_speculative_tokens": DRAFTS},
        )
    )


@pytest.fixture
def make(base):
    """Returns a function: (method or None, drafts, drafter, options) -> an engine."""

    def engine(
        method: str | None = None, drafts: int = DRAFTS, drafter: object = None, **options
    ) -> Engine:
        return base.with_options(**speculation_options(base, method, drafts, drafter) | options)

    return engine


def run(engine: Engine, prompts, params) -> list:
    """Runs prompts, each with its parameters; returns their outputs.

    The request ids are "0", "1", ...
    """
    outputs = [
        engine.add_request(str(i), prompt, one)
        for i, (prompt, one) in enumerate(zip(prompts, params, strict=True))
    ]
    while engine.has_unfinished:
        engine.step()
    assert_nothing_is_owned(engine)
    return outputs


def texts(outputs) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def scripted(prompts, plain: list[list[int]], most: int = DRAFTS) -> ScriptedDrafter:
    """Returns a drafter that knows what comes, and is wrong at places that look random."""
    known = {str(i): [*p, *text] for i, (p, text) in enumerate(zip(prompts, plain, strict=True))}
    return ScriptedDrafter(known, lambda r, n, k: ((5 * int(r) + 3 * n) % (k + 1), k))


def with_all_drafters(make, prompts, params, **options) -> dict[str, list]:
    """Runs prompts without drafts, then with each drafter; says that drafts took part."""
    found = {"none": run(make(**options), prompts, params)}
    for method in ("mtp", "ngram", "custom"):
        drafter = scripted(prompts, texts(found["none"])) if method == "custom" else None
        engine = make(method, drafter=drafter, **options)
        found[method] = run(engine, prompts, params)
        metrics = engine.metrics()
        # A head of random weights is right by the noise at best, prompt lookup by chance.
        assert method == "ngram" or metrics.spec_decode_num_draft_tokens > 0
        assert method != "custom" or metrics.spec_decode_num_accepted_tokens > 0
    return found


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Returns the probability of counts at least as far from the expected ones; cells that expect
    fewer than 5 are one cell."""
    counts, expected = counts.ravel(), expected.ravel()
    assert counts[expected == 0].sum() == 0, "a token without any probability was chosen"
    many = expected >= 5
    counts, expected = (
        np.append(values[many], values[~many].sum()) for values in (counts, expected)
    )
    kept = expected > 0
    counts, expected = counts[kept], expected[kept]
    statistic = ((counts - expected) ** 2 / expected).sum()
    halves = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*halves))


def probabilities(logits: np.ndarray, row: sample.Row) -> np.ndarray:
    """Returns what each token is chosen with, in float64; no filter's limit is near a token."""
    kept = sample.kept(logits, row)
    for slack in (-1e-6, 1e-6):
        assert np.array_equal(kept, sample.kept(logits, row, slack)), "choose another prompt"
    x = (logits.astype(np.float64) - logits.max()) / row.temperature
    weights = np.where(kept, np.exp(x), 0.0)
    return weights / weights.sum()


@pytest.fixture(scope="module")
def two_tokens(reference):
    """Returns a function: (prompt, row) -> probabilities of its next two tokens, [vocab, vocab]."""
    rows: dict[tuple, tuple] = {}

    def joint(prompt: list[int], row: sample.Row) -> np.ndarray:
        if tuple(prompt) not in rows:
            state = reference.start()
            first = reference.logits(prompt, state)[-1].numpy()
            second = [reference.logits([token], state.copy())[-1].numpy() for token in range(VOCAB)]
            rows[tuple(prompt)] = first, second
        first, second = rows[tuple(prompt)]
        chances = probabilities(first, row)
        return np.stack(
            [
                p * probabilities(logits, row) if p else np.zeros(VOCAB)
                for p, logits in zip(chances, second, strict=True)
            ]
        )

    return joint


@slow
@pytest.mark.parametrize(
    "temperature, top_p, method",
    [(0.7, 0.9, "mtp"), (1.0, 1.0, "custom")]
    + ([(0.7, 0.9, "custom"), (1.0, 1.0, "mtp")] if FULL_MATRIX else []),
)
def test_the_distribution_is_that_of_the_model(make, two_tokens, temperature, top_p, method):
    """The second token is drawn after the first, or in the same step as a draft's successor."""
    prompt = tokens(9)
    joint = two_tokens(prompt, sample.Row(temperature, top_p))
    other = two_tokens(prompt, sample.Row(temperature * 1.3, top_p))
    prompts = [prompt] * DRAWS
    params = [
        SamplingParams(max_tokens=3, ignore_eos=True, temperature=temperature, top_p=top_p, seed=s)
        for s in range(DRAWS)
    ]
    plain = texts(run(make(), prompts, params))
    engine = make(method, 1, scripted(prompts, plain) if method == "custom" else None)
    drafted = texts(run(engine, prompts, params))
    for chosen in (plain, drafted):
        counts = np.zeros((VOCAB, VOCAB))
        for first, second, _ in chosen:
            counts[first, second] += 1
        for axis in ((), 0, 1):  # both, the second, the first
            got = counts.sum(axis)
            assert chi_square(got, DRAWS * joint.sum(axis)) > 0.001, axis
            assert chi_square(got, DRAWS * other.sum(axis)) < 1e-6, "this test finds nothing"
    assert drafted == plain
    metrics = engine.metrics()
    assert metrics.spec_decode_num_drafts == DRAWS
    assert 0.02 * DRAWS < metrics.spec_decode_num_accepted_tokens < 0.98 * DRAWS


KINDS = {
    "temperature": {"temperature": 1.0},
    "hot": {"temperature": 1.7},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_p": {"temperature": 0.8, "top_p": 0.8},
    "min_p": {"temperature": 1.2, "min_p": 0.1},
    "all filters": {"temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "presence": {"temperature": 0.5, "presence_penalty": 2.0},
    "frequency": {"temperature": 0.5, "frequency_penalty": 1.5},
    "negative": {"temperature": 0.5, "frequency_penalty": -1.0, "presence_penalty": -0.5},
    "repetition": {"temperature": 0.5, "repetition_penalty": 1.8},
    "greedy with penalties": {
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.3,
    },
    "greedy with biases": {"logit_bias": {7: 4.0, 100: -100.0, 511: 5.5}},
    "biases": {"temperature": 0.9, "logit_bias": {7: 4.0, "100": -100.0, 511: 5.5}},
    "bad words": {"temperature": 0.6, "bad_words": ["w7", "w7 w8 w9", "w250 w251"]},
    "min_tokens": {
        "temperature": 0.7,
        "min_tokens": 9,
        "stop_token_ids": list(range(0, VOCAB, 3)),
        "logit_bias": {END: 3.0, 9: 3.0},
    },
    "everything": {
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.005,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {3: 2.0, 4: -2.0},
        "min_tokens": 4,
    },
}


def expected_row(params: SamplingParams, prompt: list[int], text: list[int]) -> sample.Row:
    """Returns what the numpy reference takes for the token after a prompt and a text."""
    counts = Counter(text)
    edits = {token: (-1, bias) for token, bias in (params.logit_bias or {}).items()}
    for token in {*text, *prompt} if params.penalizes else ():
        if token in counts or params.repetition_penalty != 1.0:
            edits[token] = counts[token], edits.get(token, (0, 0.0))[1]
    forbidden = set()
    if len(text) < params.min_tokens:
        forbidden |= {*params.stop_token_ids, *(() if params.ignore_eos else (END,))}
    for word in params.bad_words:
        *begin, last = (int(part[1:]) for part in word.split())
        if text[len(text) - len(begin) :] == begin:
            forbidden.add(last)
    for token in forbidden:
        edits[token] = edits.get(token, (-1, 0.0))[0], -np.inf
    return sample.Row(
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        params.top_k,
        params.seed or 0,
        len(prompt) + len(text),
        tuple((token, times, bias) for token, (times, bias) in edits.items()),
    )


@slow
def test_every_token_is_the_references(make, reference):
    """Each parameter on its own and all together, token by token, with each drafter."""
    prompts, params = [], []
    for i, kind in enumerate(KINDS.values()):
        for length in (1, 12):
            prompts.append(tokens(length, seed=i))
            params.append(SamplingParams(max_tokens=20, logprobs=3, seed=SEED + i, **kind))
    found = with_all_drafters(make, prompts, params)
    for method, outputs in found.items():
        assert texts(outputs) == texts(found["none"]), method
        assert [o.outputs[0].logprobs for o in outputs] == [
            o.outputs[0].logprobs for o in found["none"]
        ], method
    close = 0
    for prompt, one, output in zip(prompts, params, found["none"], strict=True):
        state, rows, text = reference.start(), prompt, []
        completion = output.outputs[0]
        for token, logprobs in zip(completion.token_ids, completion.logprobs, strict=True):
            logits = reference.logits(rows, state)[-1].numpy()
            row = expected_row(one, prompt, text)
            fine = sample.acceptable(logits, row, 1e-6)
            assert token in fine, (one, text)
            close += len(fine) > 1
            # Log probabilities are the model's own: nothing asked for changes them.
            raw = logits - np.logaddexp.reduce(logits.astype(np.float64))
            assert np.allclose([raw[t] for t in logprobs], list(logprobs.values()), atol=1e-4)
            assert list(logprobs)[:3] == np.argsort(-logits, kind="stable")[:3].tolist()
            assert token in logprobs
            text.append(token)
            rows = [token]
        assert completion.finish_reason == "stop" or len(text) == one.max_tokens
    assert close < 5
    ended = [o.outputs[0] for o in found["none"] if o.outputs[0].finish_reason == "stop"]
    assert ended, "no text ended early: min_tokens is not tested"


@slow
def test_the_seed_alone_decides_the_text(make):
    """Alone and in a batch, on every run, in any cache mode, in any order."""
    prompts = [tokens(1 + 3 * i % 20, seed=i // 2) for i in range(12)]
    params = [
        SamplingParams(
            max_tokens=16, ignore_eos=True, temperature=0.6 + 0.1 * (i % 6), top_p=0.95, seed=i - 5
        )
        for i in range(12)
    ]
    alone = [
        texts(run(make(max_num_seqs=1), [prompt], [one]))[0]
        for prompt, one in zip(prompts, params, strict=True)
    ]
    for mode, budget in (("none", 5), ("align", 1024), ("all", 7)):
        grid = {"mamba_block_size": 4 if mode != "none" else None}
        for method in (None, "mtp"):
            engine = make(method, mamba_cache_mode=mode, max_num_batched_tokens=budget, **grid)
            for _ in range(2):
                assert texts(run(engine, prompts, params)) == alone, (mode, budget, method)
            assert texts(run(engine, prompts[::-1], params[::-1])) == alone[::-1]
            assert (engine.metrics().prefix_cache_hits > 0) == (mode != "none")


@slow
def test_other_seeds_give_other_texts(make):
    prompt = tokens(9)
    # Both words of a seed count, and a negative one is another than its magnitude.
    seeds = [*range(30), 2**32, 2**32 + 1, 2**63, 2**64 - 2, -3, -(2**62)]
    params = [SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, seed=s) for s in seeds]
    found = texts(run(make(), [prompt] * len(seeds), params))
    assert len({tuple(text) for text in found}) == len(seeds)
    assert len({text[0] for text in found}) > 5


@slow
def test_the_engines_seed_decides_requests_without_one(make):
    prompts = [tokens(9)] * 6
    params = [SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0)] * 6
    greedy = SamplingParams(max_tokens=3)

    def generated(seed: int | None, method: str | None = None) -> list[list[int]]:
        engine = make(method, seed=seed)
        first = texts(run(engine, prompts, params))
        return first + texts(run(engine, prompts, params))

    want = generated(5)
    assert generated(5) == generated(5, "mtp") == want
    assert len({tuple(text) for text in want}) == 12  # each request has another seed
    others = [generated(6), generated(None), generated(None)]
    for one, two in itertools.combinations([want, *others], 2):
        assert all(a != b for a, b in zip(one, two, strict=True))
    # A seed of its own wins.
    own = [SamplingParams(max_tokens=8, ignore_eos=True, temperature=1.0, seed=9)]
    assert texts(run(make(seed=5), prompts[:1], own)) == texts(run(make(seed=6), prompts[:1], own))
    assert texts(run(make(seed=5), prompts[:1], [greedy])) == texts(
        run(make(seed=6), prompts[:1], [greedy])
    )


@slow
def test_greedy_is_what_sampling_among_one_token_gives(make):
    prompts = [tokens(1 + 5 * i, seed=i) for i in range(6)]
    for more in ({}, {"presence_penalty": 1.5, "repetition_penalty": 1.4}, {"logit_bias": {5: 4}}):
        greedy = SamplingParams(max_tokens=16, ignore_eos=True, **more)
        one = [
            SamplingParams(max_tokens=16, ignore_eos=True, temperature=1.5, top_k=1, seed=i, **more)
            for i in range(6)
        ]
        want = texts(run(make(), prompts, [greedy] * 6))
        for outputs in with_all_drafters(make, prompts, one).values():
            assert texts(outputs) == want
        tiny = [SamplingParams(max_tokens=16, ignore_eos=True, temperature=1e-4, **more)] * 6
        assert texts(run(make("mtp"), prompts, tiny)) == want


@slow
def test_penalties_are_seen_in_the_text(make):
    """Strong ones forbid what is there; drafts of the same step count as text."""
    prompts = [[*tokens(12, seed=i), 7, 7, 7] for i in range(8)]

    def repeats(found) -> int:
        return sum(len(text) - len(set(text)) for text in texts(found))

    def generated(**more) -> dict[str, list]:
        params = [SamplingParams(max_tokens=24, ignore_eos=True, **more)] * 8
        found = with_all_drafters(make, prompts, params)
        assert all(texts(outputs) == texts(found["none"]) for outputs in found.values())
        return found["none"]

    plain = repeats(generated(logit_bias={7: 2.0}))
    assert plain > 0
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert repeats(generated(logit_bias={7: 2.0}, **penalty)) < plain
    assert repeats(generated(logit_bias={7: 2.0}, repetition_penalty=1e9)) == 0
    assert repeats(generated(repetition_penalty=1e-9)) > 80  # says the prompt again and again
    told = generated(repetition_penalty=1e9)
    for prompt, output in zip(prompts, told, strict=True):
        assert not set(prompt) & set(output.outputs[0].token_ids)


@slow
def test_bias_forces_and_forbids(make):
    prompts = [tokens(5 + i, seed=i) for i in range(4)]
    for temperature in (0.0, 1.0):
        only = SamplingParams(
            max_tokens=9, temperature=temperature, seed=1, logit_bias={33: 100.0}, ignore_eos=True
        )
        for outputs in with_all_drafters(make, prompts, [only] * 4).values():
            assert texts(outputs) == [[33] * 9] * 4
        free = SamplingParams(max_tokens=9, temperature=temperature, seed=1, ignore_eos=True)
        said = texts(run(make(), prompts, [free] * 4))
        never = [
            SamplingParams(
                max_tokens=9,
                temperature=temperature,
                seed=1,
                ignore_eos=True,
                logit_bias=dict.fromkeys(text, -100.0),
            )
            for text in said
        ]
        for outputs in with_all_drafters(make, prompts, never).values():
            for text, output in zip(said, texts(outputs), strict=True):
                assert not set(text) & set(output)


@slow
def test_bad_words_are_not_said(make):
    prompts = [tokens(5 + i, seed=i) for i in range(4)]
    free = SamplingParams(max_tokens=12, ignore_eos=True)
    said = texts(run(make(), prompts, [free] * 4))
    for size in (1, 2, 3):
        params = []
        for text in said:
            words = [text[begin : begin + size] for begin in (0, 4, 8)]
            words = [" ".join(f"w{token}" for token in word) for word in words]
            params.append(SamplingParams(max_tokens=12, ignore_eos=True, bad_words=words))
        found = with_all_drafters(make, prompts, params)
        for outputs in found.values():
            assert texts(outputs) == texts(found["none"])
        for one, text, output in zip(params, said, found["none"], strict=True):
            # The same up to the last token of the first bad word, which is another one.
            assert output.outputs[0].token_ids[: size - 1] == text[: size - 1]
            words = output.outputs[0].text
            assert len(words.split()) == 12
            assert not any(f" {word} " in f" {words} " for word in one.bad_words)


@slow
def test_no_text_ends_before_min_tokens(make):
    """The end has all the bias there may be, so the text ends as soon as it can."""
    prompts = [tokens(5 + i, seed=i) for i in range(4)]
    for least, temperature in itertools.product((0, 1, 2, 5, 11), (0.0, 0.8)):
        params = SamplingParams(
            max_tokens=12, min_tokens=least, temperature=temperature, seed=4, logit_bias={END: 100}
        )
        for method, outputs in {
            "none": run(make(), prompts, [params] * 4),
            "mtp": run(make("mtp"), prompts, [params] * 4),
            "ngram": run(make("ngram"), prompts, [params] * 4),
        }.items():
            for output in outputs:
                completion = output.outputs[0]
                assert completion.finish_reason == "stop", method
                assert len(completion.token_ids) == least + 1
                assert completion.token_ids.index(END) == least
