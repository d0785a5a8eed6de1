"""The scan against its reference, and its bits against its own however a sequence is cut."""

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
from tests.kernels.op_graphs import SCAN, ScanConfig
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
from tests.reference.ssm_scan import pack_state, ssm_scan, unpack_state

LAYERS = 3
EXACT = [c for c in SCAN if c.rows == c.state == DType.float32]
by_name = pytest.mark.parametrize("config", SCAN, ids=lambda c: c.name)


class Inputs:
    """Random operands of a configuration: dt spans tiny to above softplus's pass-through."""

    def __init__(self, config: ScanConfig, seed: int):
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.a = typed(-np.exp(self.rng.uniform(-3, 2.7, config.nheads)))
        self.d = typed(self.rng.standard_normal(config.nheads))
        self.dt_bias = typed(self.rng.uniform(-6, 1, config.nheads))

    def rows(self, tokens: int) -> tuple[Typed, Typed]:
        """Returns xbc and dt; NaN where dt's columns belong to something else."""
        c, rng = self.config, self.rng
        xbc = rng.standard_normal((tokens, c.width))
        xbc[:, c.nheads * c.headdim :] *= c.dstate**-0.25  # so that B.C is of unit scale
        dt = np.full((tokens, c.dt_offset + c.nheads + 2), np.nan)
        heads = rng.standard_normal((tokens, c.nheads)) * 2
        heads[rng.random(heads.shape) < 0.02] = 30
        dt[:, c.dt_offset : c.dt_offset + c.nheads] = heads
        return typed(xbc, c.rows), typed(dt, c.rows)

    def pool(self, slots: int, filled: np.ndarray) -> Typed:
        """Returns a pool that is NaN but for the filled slots of the configuration's layer."""
        c = self.config
        pool = poison((slots, LAYERS, c.nheads, c.headdim * c.dstate), c.state)
        values = self.rng.standard_normal((len(filled), c.nheads, c.headdim * c.dstate))
        pool.stored[filled, c.layer] = typed(values, c.state).stored
        return pool

    def scan(self, model: Model, pool: Typed, xbc: Typed, dt: Typed, batch: Ragged) -> Typed:
        return run(model, pool, xbc, dt, self.a, self.d, self.dt_bias, *batch.operands)


def max_tokens(config: ScanConfig) -> int:
    """Rows of an example: many for small states, fewer for what takes the reference long."""
    return min(400, max(40, 2**22 // config.state_values))


def assert_matches_reference(model: Model, config: ScanConfig, batch: Ragged, seed: int) -> None:
    """Asserts outputs and written states, and that every other value of the pool is untouched."""
    inputs = Inputs(config, seed)
    xbc, dt = inputs.rows(batch.tokens)
    pool = inputs.pool(batch.slots, batch.slots_read)
    before = pool.copy()
    y = inputs.scan(model, pool, xbc, dt, batch)
    want_y, want_pool = ssm_scan(
        before.values,
        xbc.values,
        dt.values,
        inputs.a.values,
        inputs.d.values,
        inputs.dt_bias.values,
        batch.seq_start,
        batch.read_slot,
        batch.write_slot,
        layer=config.layer,
        headdim=config.headdim,
        dstate=config.dstate,
        dt_offset=config.dt_offset,
        dt_limit=config.dt_limit,
    )
    written = batch.slots_written
    assert_close(y, want_y, "y")
    assert_close(
        Typed(pool.stored[written, config.layer], pool.dtype),
        want_pool[written, config.layer],
        "states",
    )
    pool.stored[written, config.layer] = before.stored[written, config.layer]
    assert_same_bits(pool, before, "the rest of the pool")


@by_name
def test_matches_reference(models: dict[str, Model], config: ScanConfig) -> None:
    @PROPERTY
    @given(batch=ragged_batches(max_tokens(config)), seed=SEEDS)
    def holds(batch: Ragged, seed: int) -> None:
        assert_matches_reference(models[config.name], config, batch, seed)

    holds()


@by_name
def test_padding_reads_and_writes_nothing(models: dict[str, Model], config: ScanConfig) -> None:
    assert_matches_reference(models[config.name], config, padding(), seed=0)
    padded = surrounded(padding(), before=3, after=0)
    assert_matches_reference(models[config.name], config, padded, seed=1)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("config", EXACT, ids=lambda c: c.name)
def test_bits_do_not_depend_on_steps(
    models: dict[str, Model], config: ScanConfig, chunk: int
) -> None:
    """Whole and alone, or in chunks beside other sequences: same outputs, same states."""
    model = models[config.name]
    live, grid = 0, 16

    @PROPERTY
    @given(
        rows=st.integers(1, 150),
        from_state=st.booleans(),
        before=st.integers(0, 20),
        after=st.integers(0, 20),
        seed=SEEDS,
    )
    def holds(rows: int, from_state: bool, before: int, after: int, seed: int) -> None:
        inputs = Inputs(config, seed)
        xbc, dt = inputs.rows(rows)
        slots = 1 + rows // grid + 1
        writes = np.array([(t + 1) // grid if (t + 1) % grid == 0 else -1 for t in range(rows)])
        whole_pool = inputs.pool(slots, np.array([live]))
        pool = whole_pool.copy()

        first = live if from_state else -1
        last = np.append(writes[:-1], live)
        whole = inputs.scan(model, whole_pool, xbc, dt, one_sequence(rows, first, last, slots))
        parts = []
        for start, end in steps(rows, chunk):
            wanted = writes[start:end].copy()
            # A state of the grid at a chunk's end goes to the live slot here: no row has two.
            wanted[-1] = live
            step = one_sequence(end - start, live if start else first, wanted, slots)
            others = inputs.rows(before), inputs.rows(after)
            y = inputs.scan(
                model,
                pool,
                concatenated([others[0][0], xbc.rows(start, end), others[1][0]]),
                concatenated([others[0][1], dt.rows(start, end), others[1][1]]),
                surrounded(step, before, after),
            )
            parts.append(y.rows(before, before + end - start))
            at_grid = writes[end - 1]
            if at_grid >= 0 and end < rows:
                pool.stored[at_grid] = pool.stored[live]
        assert_same_bits(concatenated(parts), whole, "y")
        layer = config.layer
        assert_same_bits(
            Typed(pool.stored[:, layer], pool.dtype),
            Typed(whole_pool.stored[:, layer], pool.dtype),
            "states",
        )

    holds()


@pytest.mark.parametrize("config", SCAN, ids=lambda c: c.name)
def test_packed_state_is_as_documented(config: ScanConfig) -> None:
    """[headdim, dstate] lies in the pool as [dstate / 16, headdim / 16, 16, 16]."""
    rng = np.random.default_rng(0)
    state = rng.standard_normal((2, config.nheads, config.headdim, config.dstate))
    packed = pack_state(state)
    for p, n in rng.integers([config.headdim, config.dstate], size=(50, 2)):
        at = (n // 16 * (config.headdim // 16) + p // 16) * 256 + n % 16 * 16 + p % 16
        assert (packed[:, :, at] == state[:, :, p, n]).all()
    assert (unpack_state(packed, config.headdim, config.dstate) == state).all()


@each_wrong_batch
def test_wrong_batch_is_refused(
    models: dict[str, Model], wrong: dict[str, list[int]], message: str
) -> None:
    """The message names tensor, place, value and range; pool and model stay as they were."""
    config = SCAN[0]
    inputs = Inputs(config, seed=0)
    xbc, dt = inputs.rows(RIGHT.tokens)
    pool = inputs.pool(RIGHT.slots, RIGHT.slots_read)
    before = pool.copy()
    weights = inputs.a, inputs.d, inputs.dt_bias
    with pytest.raises(ValueError, match=rf"coachwhip\.ssm_scan: {message}"):
        run(models[config.name], pool, xbc, dt, *weights, *wrong_operands(wrong))
    assert_same_bits(pool, before, "pool")
    assert_matches_reference(models[config.name], config, RIGHT, seed=0)


def test_wrong_rows_are_refused(models: dict[str, Model]) -> None:
    config = SCAN[1]
    inputs = Inputs(config, seed=0)
    xbc, dt = inputs.rows(3)
    pool = inputs.pool(2, np.array([0]))
    model = models[config.name]
    with pytest.raises(ValueError, match=r"dt\.shape\[0\] is 2, expected 3"):
        inputs.scan(model, pool, xbc, dt.rows(0, 2), RIGHT)
    narrow = dt.columns(6)
    with pytest.raises(ValueError, match="dt has 6 columns, but 4 heads from column 3"):
        inputs.scan(model, pool, xbc, narrow, RIGHT)
    shallow = pool.columns(1)
    with pytest.raises(ValueError, match="layer is 1, the pool has 1 layers"):
        inputs.scan(model, shallow, xbc, dt, RIGHT)
    assert_matches_reference(model, config, RIGHT, seed=0)
