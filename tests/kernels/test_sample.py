"""Sampling: every filter against sorting in float64, and a row's token against its company."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model
from numpy.typing import NDArray

from tests.kernels.arrays import Typed, assert_same_bits, indices, run, typed
from tests.kernels.op_graphs import SAMPLE
from tests.kernels.properties import PROPERTY, SEEDS
from tests.kernels.sampling import operands, sampled
from tests.reference.sample import Row, acceptable, edited, kept, noise, philox4x32

SLACK = 1e-6
"""How far shares of the mass and probabilities may be off in float32."""
VOCABS = [1, 2, 5, 17, 512, 1000, 4097]
FORBIDDEN = -np.inf
GREEDY = Row(temperature=0)


@pytest.fixture
def model(models: dict[str, Model]) -> Model:
    return models[SAMPLE.name]


def drawn(model: Model, logits: Sequence[float], row: Row, times: int) -> NDArray:
    """Returns the tokens of the same row at positions 0, 1, 2 and so on."""
    lines = np.tile(np.array(logits, np.float32), (times, 1))
    return np.array(sampled(model, lines, [replace(row, position=i) for i in range(times)]))


def random_row(rng: np.random.Generator, vocab: int) -> Row:
    """A row with any mixture of filters, penalties, edits and a mask."""
    count = int(rng.integers(0, min(vocab, 40) + 1)) if rng.random() < 0.5 else 0
    biases = rng.choice([0, 0.5, -1, -np.inf], count, p=[0.5, 0.2, 0.2, 0.1])
    return Row(
        temperature=float(rng.choice([0, 0.1, 0.7, 1, 3])),
        top_p=float(rng.choice([1, 0.99, 0.9, 0.5, 0.01])),
        min_p=float(rng.choice([0, 0.01, 0.3, 1])),
        repetition=float(rng.choice([1, 0.7, 1.3])),
        # Multiples of 1/4: products with counts are exact, so a fused multiply-add is too.
        presence=float(rng.choice([0, 0.5, -0.25])),
        frequency=float(rng.choice([0, 0.25, -0.5])),
        top_k=int(rng.choice([0, 1, 3, 50, 2000, 3000])),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        position=int(rng.integers(0, 2**20)),
        edits=tuple(
            (int(token), int(rng.integers(-1, 4)), float(bias))
            for token, bias in zip(rng.permutation(vocab)[:count], biases, strict=True)
        ),
        allowed=random_allowed(rng, vocab),
    )


def random_allowed(rng: np.random.Generator, vocab: int) -> frozenset[int] | None:
    """No mask as often as one; that of few tokens, of most, or of all."""
    share = rng.choice([0.05, 0.9, 1.0])
    if rng.random() < 0.5:
        return None
    return frozenset(np.flatnonzero(rng.random(vocab) < share).tolist())


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_reference_generator_has_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: str
) -> None:
    assert " ".join(f"{word:08x}" for word in philox4x32(counter, key)) == words


def test_smallest_words_win_in_order(model: Model) -> None:
    """Under equal logits, and the published words of counter 0 and key 0."""
    order = np.argsort([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]).tolist()
    for place in range(4):
        row = Row(edits=tuple((token, -1, FORBIDDEN) for token in order[:place]))
        assert sampled(model, np.zeros((1, 4)), [row]) == [order[place]]


@pytest.mark.parametrize(
    ("seed", "position", "vocab"),
    [(0, 0, 4), (2**32 - 1, 1, 100), (2**63 + 12345, 2**31 - 1, 4097), (7 << 40, 99, 70001)],
)
def test_noise_matches_reference(model: Model, seed: int, position: int, vocab: int) -> None:
    """Two tokens change places where the difference of their logits makes up for their noise."""
    row = Row(seed=seed, position=position)
    g = noise(row, vocab)
    order = np.argsort(g)
    others = {int(order[0]), int(order[vocab // 2]), int(order[-2]), 0, vocab - 1}
    lines, rows, want = [], [], []
    for token in others - {int(order[-1])}:
        for nudge in (-1e-4, 1e-4):
            line = np.full(vocab, FORBIDDEN)
            line[order[-1]] = 0
            line[token] = g[order[-1]] - g[token] + nudge
            lines.append(line)
            rows.append(row)
            want.append(token if nudge > 0 else order[-1])
    assert sampled(model, np.array(lines), rows) == want


@pytest.mark.parametrize("vocab", VOCABS)
def test_matches_reference(model: Model, vocab: int) -> None:
    """All settings at once, also where many logits are equal."""
    sharp: list[bool] = []

    @PROPERTY
    @given(
        rows=st.integers(0, 6),
        scale=st.sampled_from([0.0, 0.3, 2.0, 10.0]),
        ties=st.booleans(),
        seed=SEEDS,
    )
    def holds(rows: int, scale: float, ties: bool, seed: int) -> None:
        rng = np.random.default_rng(seed)
        logits = (rng.standard_normal((rows, vocab)) * scale).astype(np.float32)
        logits = np.round(logits) if ties else logits
        asked = [random_row(rng, vocab) for _ in range(rows)]
        for row, line, got in zip(asked, logits, sampled(model, logits, asked), strict=True):
            if not np.isfinite(edited(line, row)).any():
                assert got == 0
                continue
            allowed = acceptable(line, row, SLACK)
            assert got in allowed, row
            sharp.append(len(allowed) == 1)

    holds()
    assert np.mean(sharp) > 0.95  # close calls are rare, so nearly every token was decided


@pytest.mark.parametrize("vocab", VOCABS)
def test_greedy_takes_the_first_largest(model: Model, vocab: int) -> None:
    @PROPERTY
    @given(rows=st.integers(1, 5), levels=st.sampled_from([1, 2, 5, 10**6]), seed=SEEDS)
    def holds(rows: int, levels: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        logits = (rng.integers(0, levels, (rows, vocab)) - levels // 2).astype(np.float32)
        assert sampled(model, logits, [GREEDY] * rows) == logits.argmax(axis=1).tolist()

    holds()


FILTERS = {
    "none": Row(),
    "top_k": Row(top_k=5),
    "top_k with ties": Row(top_k=3),
    "top_k of one": Row(top_k=1),
    "top_k of more than there are": Row(top_k=100),
    "top_p": Row(top_p=0.8),
    "top_p with ties": Row(top_p=0.3),
    "top_p of the largest alone": Row(top_p=0.0),
    "min_p": Row(min_p=0.3),
    "min_p of the largest alone": Row(min_p=1.0),
    "top_k, then top_p of what it keeps": Row(top_k=6, top_p=0.9),
    "all, at a temperature": Row(temperature=2.0, top_k=7, top_p=0.95, min_p=0.4),
}
LOGITS = np.array([0.1, 1.5, -2, 1.0, 1.0, 0.7, -np.inf, 1.0, 2.0, 0.3, 0.2, 2.0, -0.0, 0.0])


@pytest.mark.parametrize("row", FILTERS.values(), ids=FILTERS.keys())
def test_a_filter_keeps_what_it_should(model: Model, row: Row) -> None:
    """Every kept token is drawn now and then, and no other is."""
    want = kept(LOGITS.astype(np.float32), row)
    assert set(drawn(model, LOGITS, row, 2000)) == set(np.flatnonzero(want))


def test_zero_and_minus_zero_are_equal(model: Model) -> None:
    for logits in ([-0.0, 0.0, -1.0], [0.0, -0.0, -1.0]):
        for row in (Row(top_k=2), Row(top_k=1), Row(top_p=0.7), Row(min_p=0.9)):
            assert set(drawn(model, logits, row, 100)) == {0, 1}


PENALTIES = {
    "positive logits are divided": (Row(repetition=2, edits=((0, 0, 0),)), [1.9, 1.0], 1),
    "though not below others": (Row(repetition=2, edits=((0, 0, 0),)), [2.1, 1.0], 0),
    "negative logits are multiplied": (Row(repetition=2, edits=((0, 5, 0),)), [-1.0, -1.9], 1),
    "but for tokens of neither": (Row(repetition=2, edits=((0, -1, 0),)), [1.9, 1.0], 0),
    "presence counts once": (Row(presence=1, edits=((0, 3, 0), (1, 1, 0))), [1.2, 1.1], 0),
    "presence spares the prompt": (Row(presence=1, edits=((0, 0, 0),)), [1.2, 1.1], 0),
    "presence, of the text": (Row(presence=0.2, edits=((0, 1, 0),)), [1.2, 1.1], 1),
    "frequency counts all": (Row(frequency=1, edits=((0, 3, 0), (1, 2, 0))), [1.2, 1.1], 1),
    "frequency spares the prompt": (Row(frequency=1, edits=((0, 0, 0),)), [1.2, 1.1], 0),
    "bias before repetition": (Row(repetition=2, edits=((0, 0, -2),)), [1.0, -1.9], 1),
    "presence after repetition": (
        Row(repetition=2, presence=1, edits=((0, 1, 0),)),
        [2.0, 0.2],
        1,
    ),
    "forbidden stays forbidden": (
        Row(repetition=0.5, presence=-9, frequency=-9, edits=((0, 2, FORBIDDEN),)),
        [5.0, -5.0],
        1,
    ),
    "a bias lifts": (Row(edits=((1, -1, 4.5),)), [5.0, 1.0], 1),
}


@pytest.mark.parametrize(("row", "logits", "token"), PENALTIES.values(), ids=PENALTIES.keys())
def test_penalties(model: Model, row: Row, logits: list[float], token: int) -> None:
    row = replace(row, temperature=0)
    assert sampled(model, np.array([logits]), [row]) == [token]


def test_edits_belong_to_their_rows(model: Model) -> None:
    """Rows without edits lie between rows with many; the logits themselves stay."""
    vocab = 40
    rows = [
        replace(GREEDY, edits=tuple((t, -1, FORBIDDEN) for t in range(vocab) if t != r))
        if r % 2
        else GREEDY
        for r in range(9)
    ]
    arrays = operands(np.tile(np.arange(vocab)[::-1], (9, 1)), rows)
    before = arrays[0].copy()
    assert run(model, *arrays).stored[:, 0].tolist() == [0, 1, 0, 3, 0, 5, 0, 7, 0]
    assert_same_bits(arrays[0], before, "logits")


MASKED = {
    "greedy": GREEDY,
    "temperature": Row(seed=3),
    "filtered": Row(seed=3, top_k=7, top_p=0.9, min_p=0.05),
    "penalised": Row(seed=3, repetition=1.5, edits=((0, 1, 3.0), (2, -1, -1.0), (5, 2, 0.5))),
}


@pytest.mark.parametrize("row", MASKED.values(), ids=MASKED.keys())
@pytest.mark.parametrize("vocab", [6, 32, 33, 1000])
def test_masked_tokens_are_as_if_their_logits_were_minus_infinity(
    model: Model, row: Row, vocab: int
) -> None:
    """Also for the filters; and a mask of all tokens changes nothing."""
    rng = np.random.default_rng(vocab)
    count = 40
    logits = (rng.standard_normal((count, vocab)) * 2).astype(np.float32)
    rows = [
        replace(row, position=i, allowed=frozenset(np.flatnonzero(rng.random(vocab) < 0.5)))
        for i in range(count)
    ]
    rows = [
        r if r.allowed else replace(r, allowed=frozenset({i % vocab})) for i, r in enumerate(rows)
    ]
    forbidden = np.array([[t not in r.allowed for t in range(vocab)] for r in rows])
    by_hand = np.where(forbidden, -np.inf, logits)
    masked = sampled(model, logits, rows)
    assert masked == sampled(model, by_hand, [replace(r, allowed=None) for r in rows])
    assert all(token in r.allowed for token, r in zip(masked, rows, strict=True))
    everything = frozenset(range(vocab))
    free = sampled(model, logits, [replace(r, allowed=None) for r in rows])
    assert free == sampled(model, logits, [replace(r, allowed=everything) for r in rows])
    assert free != masked


def test_masks_belong_to_their_rows(model: Model) -> None:
    """Rows share masks, in any order, beside rows without; the logits themselves stay."""
    vocab = 70
    allowed = [None, {69}, {31, 40}, None, {32}, {69}, {31, 40}, {0}, None]
    rows = [replace(GREEDY, allowed=None if a is None else frozenset(a)) for a in allowed]
    arrays = operands(np.tile(np.arange(vocab)[::-1], (9, 1)), rows)
    before = arrays[0].copy()
    assert run(model, *arrays).stored[:, 0].tolist() == [0, 69, 31, 0, 32, 69, 31, 0, 0]
    assert_same_bits(arrays[0], before, "logits")


def test_a_mask_that_allows_nothing_gives_token_zero(model: Model) -> None:
    rows = [Row(allowed=frozenset()), Row(allowed=frozenset({1}), edits=((1, -1, FORBIDDEN),))]
    assert sampled(model, np.ones((2, 40)), rows) == [0, 0]


@pytest.mark.parametrize("vocab", [17, 1000, 4097])
def test_a_row_does_not_depend_on_its_company(model: Model, vocab: int) -> None:
    """Alone, among 64 on several threads, in another order: the same token."""
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((64, vocab)) * 3).astype(np.float32)
    rows = [random_row(rng, vocab) for _ in range(64)]
    together = sampled(model, logits, rows)
    alone = [sampled(model, logits[r : r + 1], rows[r : r + 1])[0] for r in range(64)]
    turned = sampled(model, logits[::-1].copy(), rows[::-1])[::-1]
    assert together == alone == turned


def chi_square(tokens: NDArray, probabilities: NDArray) -> float:
    """Returns by how many standard deviations the chi-square sum exceeds its mean."""
    expected = probabilities * len(tokens)
    counts = np.bincount(tokens, minlength=len(probabilities))
    assert counts[probabilities == 0].sum() == 0
    some = probabilities > 0
    freedom = some.sum() - 1
    total = ((counts - expected)[some] ** 2 / expected[some]).sum()
    return (total - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "row",
    [Row(), Row(seed=2**64 - 1, temperature=0.5), Row(seed=3, top_k=8, top_p=0.9, temperature=1.5)],
    ids=["plain", "sharp", "filtered"],
)
def test_tokens_are_distributed_as_they_should(model: Model, row: Row) -> None:
    """Over 20,000 positions; then over 20,000 seeds at one position."""
    mass = np.exp(LOGITS / row.temperature) * kept(LOGITS.astype(np.float32), row)
    count = 20_000
    assert chi_square(drawn(model, LOGITS, row, count), mass / mass.sum()) < 4
    rows = [replace(row, seed=row.seed + 977 * i, position=5) for i in range(count)]
    tokens = sampled(model, np.tile(LOGITS, (count, 1)), rows)
    assert chi_square(np.array(tokens), mass / mass.sum()) < 4


def test_every_part_of_a_large_vocabulary_is_drawn(model: Model) -> None:
    """4,096 equal tokens: neither lanes, words of a counter nor regions are preferred."""
    tokens = drawn(model, np.zeros(4096), Row(seed=1), 8000)
    sixteenths = np.full(16, 1 / 16)
    assert chi_square(tokens % 16, sixteenths) < 4
    assert chi_square(tokens // 16 % 16, sixteenths) < 4
    assert chi_square(tokens // 256, sixteenths) < 4


def test_the_largest_vocabulary_does_not_overflow(model: Model) -> None:
    """Nearly equal tokens, of which a sum that wrapped around would keep the largest alone."""
    logits = np.zeros((5, 524288), np.float32)
    logits[:, 7] = 1e-3
    rows = [Row(top_p=0.9, position=i) for i in range(5)]
    tokens = sampled(model, logits, rows)
    assert len(set(tokens)) > 1
    for token, row in zip(tokens, rows, strict=True):
        assert token in acceptable(logits[0], row, SLACK)


def test_positions_draw_independently(model: Model) -> None:
    """Pairs of tokens that follow one another are distributed as a product."""
    tokens = drawn(model, np.zeros(4), Row(seed=9), 20_000)
    pairs = tokens[:-1:2] * 4 + tokens[1::2]
    assert chi_square(pairs, np.full(16, 1 / 16)) < 4


def test_extreme_temperatures(model: Model) -> None:
    """Cold rows take the largest though the quotient overflows; hot ones draw evenly."""
    logits = [1.0, 60.0, 59.0, -np.inf]
    for temperature in (1e-3, 1e-30, 1e-44):
        assert set(drawn(model, logits, Row(temperature=temperature), 50)) == {1}
    hot = drawn(model, logits, Row(temperature=1e30), 3000)
    assert chi_square(hot, np.array([1, 1, 1, 0]) / 3) < 4


MIXED = Row(top_k=3, top_p=0.9, min_p=0.1, seed=4)


@pytest.mark.parametrize("vocab", [1, 16, 100])
@pytest.mark.parametrize("row", [GREEDY, Row(), MIXED], ids=["greedy", "plain", "filtered"])
def test_logits_that_are_no_numbers(model: Model, row: Row, vocab: int) -> None:
    """Ids are in range, and the rows beside keep their tokens; infinities have their own rule."""
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((7, vocab)).astype(np.float32)
    clean = sampled(model, logits, [row] * 7)
    logits[1] = np.nan
    logits[2] = -np.nan
    logits[3, ::2] = np.nan
    logits[4] = -np.inf
    logits[5, vocab // 2 :] = np.inf
    got = sampled(model, logits, [row] * 7)
    assert got[0] == clean[0]
    assert got[6] == clean[6]
    assert all(0 <= token < vocab for token in got)
    assert got[3] % 2 == 1 or vocab == 1  # a number, where there is one
    assert got[4] == 0
    assert got[5] == vocab // 2


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition", "frequency"])
@pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
def test_settings_that_make_no_sense_do_no_harm(model: Model, field: str, value: float) -> None:
    """The engine refuses them; the kernel stays within its memory and its ids."""
    row = replace(Row(top_k=20, top_p=0.9, edits=((1, 1, 0),)), **{field: value})
    assert set(drawn(model, LOGITS, row, 20)) <= set(range(len(LOGITS)))


def wrong(place: int, array: Typed) -> list[Typed]:
    """Operands of two rows of ten tokens with one edit each, one of them replaced."""
    row = Row(edits=((3, 1, 0.0),))
    arrays = operands(np.zeros((2, 10)), [row, row])
    arrays[place] = array
    return arrays


@pytest.mark.parametrize(
    ("place", "array", "message"),
    [
        (4, indices([3, 10]), r"edit_token\[1\] is 10, outside \[0, 10\)"),
        (4, indices([-1, 3]), r"edit_token\[0\] is -1, outside \[0, 10\)"),
        (3, indices([0, 2, 1]), r"edit_start\[2\] is 1, outside \[2, 2\]"),
        (3, indices([0, 1, 3]), r"edit_start\[2\] is 3, outside \[1, 2\]"),
        (3, indices([-1, 1, 2]), r"edit_start\[0\] is -1, outside \[0, 2\]"),
        (3, indices([0, 2]), r"edit_start\.shape\[0\] is 2, expected 3"),
        (5, indices([1]), r"edit_count\.shape\[0\] is 1, expected 2"),
        (6, typed(np.zeros(3)), r"edit_bias\.shape\[0\] is 3, expected 2"),
        (7, indices([0, 1]), r"mask_row\[1\] is 1, outside \[-1, 1\)"),
        (7, indices([-2, 0]), r"mask_row\[0\] is -2, outside \[-1, 1\)"),
        (7, indices([0]), r"mask_row\.shape\[0\] is 1, expected 2"),
        (8, indices([[0, 0]]), r"masks\.shape\[1\] is 2, expected 1"),
        (1, typed(np.ones((1, 6))), r"real\.shape\[0\] is 1, expected 2"),
        (2, indices(np.zeros((3, 4))), r"whole\.shape\[0\] is 3, expected 2"),
        (0, typed(np.zeros((2, 0))), r"logits\.shape\[1\] is 0, expected 1 to 524288"),
        (0, typed(np.zeros((2, 524289))), r"logits\.shape\[1\] is 524289, expected 1 to 524288"),
    ],
)
def test_wrong_operands_are_refused(model: Model, place: int, array: Typed, message: str) -> None:
    """The message names tensor, place, value and range; the model goes on working."""
    with pytest.raises(ValueError, match=rf"coachwhip\.sample: {message}"):
        run(model, *wrong(place, array))
    assert run(model, *wrong(4, indices([3, 9]))).stored.shape == (2, 1)


def test_edits_after_the_last_row_are_not_read(model: Model) -> None:
    arrays = wrong(4, indices([3, 99]))
    arrays[3] = indices([0, 1, 1])
    assert run(model, *arrays).stored.shape == (2, 1)
