"""The convolution against its reference, and its bits against its own however a sequence is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.dtype import DType
from max.engine import Model

from tests.kernels.arrays import (
    Typed,
    assert_close,
    assert_same_bits,
    concatenated,
    poison,
    run,
    typed,
)
from tests.kernels.op_graphs import CONV, ConvConfig
from tests.kernels.properties import PROPERTY, SEEDS
from tests.kernels.ragged import (
    CHUNKS,
    Ragged,
    one_sequence,
    padding,
    ragged_batches,
    steps,
    surrounded,
)
from tests.kernels.wrong_batches import RIGHT, each_wrong_batch, wrong_operands
from tests.reference.conv1d import conv1d

LAYERS = 3
EXACT = [c for c in CONV if c.rows == DType.float32]
by_name = pytest.mark.parametrize("config", CONV, ids=lambda c: c.name)


class Inputs:
    """Random operands of a configuration."""

    def __init__(self, config: ConvConfig, seed: int):
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.weight = typed(self.rng.standard_normal((config.d_conv, config.channels)))
        self.bias = typed(self.rng.standard_normal(config.channels))

    def rows(self, tokens: int) -> Typed:
        """Returns x; NaN in the columns that belong to something else."""
        c = self.config
        x = np.full((tokens, c.x_offset + c.channels + 3), np.nan)
        values = self.rng.standard_normal((tokens, c.channels)) * 2
        values[self.rng.random(values.shape) < 0.01] = -200  # silu is 0 there, not NaN
        x[:, c.x_offset : c.x_offset + c.channels] = values
        return typed(x, c.rows)

    def pool(self, slots: int, filled: np.ndarray) -> Typed:
        """Returns a pool that is NaN but for the filled slots of the configuration's layer."""
        c = self.config
        pool = poison((slots, LAYERS, c.d_conv - 1, c.channels), c.rows)
        values = self.rng.standard_normal((len(filled), c.d_conv - 1, c.channels))
        pool.stored[filled, c.layer] = typed(values, c.rows).stored
        return pool

    def conv(self, model: Model, pool: Typed, x: Typed, batch: Ragged) -> Typed:
        return run(model, pool, x, self.weight, self.bias, *batch.operands)


def assert_matches_reference(model: Model, config: ConvConfig, batch: Ragged, seed: int) -> None:
    """Asserts outputs, written windows to the bit, and that the rest of the pool is untouched."""
    inputs = Inputs(config, seed)
    x = inputs.rows(batch.tokens)
    pool = inputs.pool(batch.slots, batch.slots_read)
    before = pool.copy()
    y = inputs.conv(model, pool, x, batch)
    want_y, want_pool = conv1d(
        before.values,
        x.values,
        inputs.weight.values,
        inputs.bias.values,
        batch.seq_start,
        batch.read_slot,
        batch.write_slot,
        layer=config.layer,
        x_offset=config.x_offset,
        activation=config.activation,
    )
    assert_close(y, want_y, "y")
    # Windows are copies of rows: the reference's pool holds the very values, NaN where untouched.
    assert_same_bits(pool, typed(want_pool, config.rows), "pool")


@by_name
def test_matches_reference(models: dict[str, Model], config: ConvConfig) -> None:
    @PROPERTY
    @given(batch=ragged_batches(), seed=SEEDS)
    def holds(batch: Ragged, seed: int) -> None:
        assert_matches_reference(models[config.name], config, batch, seed)

    holds()


@by_name
def test_padding_reads_and_writes_nothing(models: dict[str, Model], config: ConvConfig) -> None:
    assert_matches_reference(models[config.name], config, padding(), seed=0)
    padded = surrounded(padding(), before=3, after=0)
    assert_matches_reference(models[config.name], config, padded, seed=1)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("config", EXACT, ids=lambda c: c.name)
def test_bits_do_not_depend_on_steps(
    models: dict[str, Model], config: ConvConfig, chunk: int
) -> None:
    """Whole and alone, or in chunks beside other sequences: same outputs, same window."""
    model = models[config.name]

    @PROPERTY
    @given(
        rows=st.integers(1, 150),
        from_window=st.booleans(),
        before=st.integers(0, 20),
        after=st.integers(0, 20),
        seed=SEEDS,
    )
    def holds(rows: int, from_window: bool, before: int, after: int, seed: int) -> None:
        inputs = Inputs(config, seed)
        x = inputs.rows(rows)
        whole_pool = inputs.pool(1, np.array([0]))
        pool = whole_pool.copy()
        first = 0 if from_window else -1
        last_to_slot = np.append(np.full(rows - 1, -1), 0)
        whole = inputs.conv(model, whole_pool, x, one_sequence(rows, first, last_to_slot, 1))
        parts = []
        for start, end in steps(rows, chunk):
            step = one_sequence(end - start, 0 if start else first, last_to_slot[start - end :], 1)
            y = inputs.conv(
                model,
                pool,
                concatenated([inputs.rows(before), x.rows(start, end), inputs.rows(after)]),
                surrounded(step, before, after),
            )
            parts.append(y.rows(before, before + end - start))
        assert_same_bits(concatenated(parts), whole, "y")
        assert_same_bits(pool, whole_pool, "pool")

    holds()


@each_wrong_batch
def test_wrong_batch_is_refused(
    models: dict[str, Model], wrong: dict[str, list[int]], message: str
) -> None:
    """The message names tensor, place, value and range; pool and model stay as they were."""
    config = CONV[0]
    inputs = Inputs(config, seed=0)
    x = inputs.rows(RIGHT.tokens)
    pool = inputs.pool(RIGHT.slots, RIGHT.slots_read)
    before = pool.copy()
    with pytest.raises(ValueError, match=rf"coachwhip\.conv1d: {message}"):
        run(models[config.name], pool, x, inputs.weight, inputs.bias, *wrong_operands(wrong))
    assert_same_bits(pool, before, "pool")
    assert_matches_reference(models[config.name], config, RIGHT, seed=0)


def test_wrong_shapes_are_refused(models: dict[str, Model]) -> None:
    config = CONV[1]
    inputs = Inputs(config, seed=0)
    x = inputs.rows(3)
    pool = inputs.pool(2, np.array([0]))
    model = models[config.name]
    narrow = x.columns(52)
    with pytest.raises(ValueError, match="x has 52 columns, but channels 5 to 53"):
        inputs.conv(model, pool, narrow, RIGHT)
    shallow = pool.columns(1)
    with pytest.raises(ValueError, match="layer is 1, the pool has 1 layers"):
        inputs.conv(model, shallow, x, RIGHT)
    assert_matches_reference(model, config, RIGHT, seed=0)
