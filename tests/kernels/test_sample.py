"""Sampling: every filter against sorting in float64, and a row's token against its company."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model

from tests.kernels.op_graphs import SAMPLE
from tests.kernels.properties import PROPERTY, SEEDS
from tests.kernels.sampling import sampled
from tests.reference.sample import Row, acceptable, edited, philox4x32

SLACK = 1e-6
"""How far shares of the mass and probabilities may be off in float32."""


@pytest.fixture
def model(models: dict[str, Model]) -> Model:
    return models[SAMPLE.name]


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


def random_row(rng: np.random.Generator, vocab: int) -> Row:
    """A row with any mixture of filters, penalties and edits."""
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
        top_k=int(rng.choice([0, 1, 3, 50, 2000])),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        position=int(rng.integers(0, 2**20)),
        edits=tuple(
            (int(token), int(rng.integers(-1, 4)), float(bias))
            for token, bias in zip(rng.permutation(vocab)[:count], biases, strict=True)
        ),
    )


@pytest.mark.parametrize("vocab", [1, 2, 5, 17, 512, 1000, 4097])
def test_matches_reference(model: Model, vocab: int) -> None:
    @PROPERTY
    @given(rows=st.integers(0, 6), scale=st.sampled_from([0.0, 0.3, 2.0, 10.0]), seed=SEEDS)
    def holds(rows: int, scale: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        logits = (rng.standard_normal((rows, vocab)) * scale).astype(np.float32)
        asked = [random_row(rng, vocab) for _ in range(rows)]
        for row, line, got in zip(asked, logits, sampled(model, logits, asked), strict=True):
            if not np.isfinite(edited(line, row)).any():
                assert got == 0
            else:
                assert got in acceptable(line, row, SLACK), row

    holds()
