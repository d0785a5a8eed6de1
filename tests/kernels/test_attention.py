"""Paged attention against its reference, and its bits however a sequence is cut and paged."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.dtype import DType
from max.engine import Model
from numpy.typing import NDArray

from tests.kernels.arrays import (
    Typed,
    assert_close,
    assert_same_bits,
    concatenated,
    decode,
    encode,
    indices,
    poison,
    run,
    typed,
)
from tests.kernels.op_graphs import ATTENTION, AttentionConfig
from tests.kernels.properties import PROPERTY, SEEDS
from tests.kernels.ragged import CHUNKS, LENGTHS, clipped, steps
from tests.reference.attention import attention

LAYERS = 2
PAGE_SIZES = st.sampled_from([8, 16, 24, 128])
EXACT = [c for c in ATTENTION if c.rows == c.cache == DType.float32]
by_name = pytest.mark.parametrize("config", ATTENTION, ids=lambda c: c.name)


@dataclass(frozen=True)
class Paged:
    """A ragged batch over pages: seq_start [batch + 1], kv_length [batch], block_table."""

    seq_start: NDArray
    kv_length: NDArray
    block_table: NDArray
    pages: int
    page_size: int

    @property
    def tokens(self) -> int:
        return int(self.seq_start[-1])

    @property
    def operands(self) -> list[Typed]:
        """seq_start, kv_length and block_table as the op takes them."""
        return [indices(self.seq_start), indices(self.kv_length), indices(self.block_table)]

    def positions(self, old: bool) -> tuple[NDArray, NDArray]:
        """Returns page and place of every key that a row may see: all, or the old ones only."""
        pages, places = [np.array([], int)], [np.array([], int)]
        for s, before in enumerate(self.kv_length):
            rows = self.seq_start[s + 1] - self.seq_start[s]
            position = np.arange((before if old else before + rows) if rows else 0)
            pages.append(self.block_table[s, position // self.page_size])
            places.append(position % self.page_size)
        return np.concatenate(pages), np.concatenate(places)


@st.composite
def paged_batches(draw: st.DrawFn) -> Paged:
    """Draws a batch of up to 5 sequences in permuted pages, some of them free.

    Full old pages may be shared with the sequence before. A sequence without rows has no pages,
    whatever length it says.
    """
    page_size = draw(PAGE_SIZES)
    lengths = clipped(draw(st.lists(LENGTHS, max_size=5)), 160)
    kv_length, tables, used = [], [], 0
    for rows in lengths:
        before = draw(st.one_of(st.integers(0, 20), st.integers(0, 200)))
        needed = -(-(before + rows) // page_size) if rows else 0
        shared = 0
        if tables and needed and draw(st.booleans()):
            shared = min(before, kv_length[-1]) // page_size
            shared = min(shared, len(tables[-1]))
        fresh = list(range(used, used + needed - shared))
        used += len(fresh)
        tables.append((tables[-1][:shared] if shared else []) + fresh)
        kv_length.append(before)
    pages = used + draw(st.integers(1, 3))
    home = np.array([*draw(st.permutations(range(pages))), -1])
    width = max([len(t) for t in tables], default=0) + draw(st.integers(0, 2))
    table = [t + [-1] * (width - len(t)) for t in tables]
    return Paged(
        seq_start=np.cumsum([0, *lengths]),
        kv_length=np.array(kv_length, int),
        block_table=home[np.array(table, int).reshape(len(lengths), width)],
        pages=pages,
        page_size=page_size,
    )


class Inputs:
    """Random operands of a configuration for a number of K/V heads and heads of each."""

    def __init__(self, config: AttentionConfig, kv_heads: int, group: int, seed: int):
        self.config, self.kv_heads, self.heads = config, kv_heads, kv_heads * group
        self.rng = np.random.default_rng(seed)

    def rows(self, tokens: int) -> tuple[Typed, Typed, Typed]:
        """Returns q, k and v; q is large enough for softmax to choose."""
        c = self.config
        q = self.rng.standard_normal((tokens, self.heads * c.head_dim)) * 2
        k = self.rng.standard_normal((tokens, self.kv_heads * c.head_dim))
        v = self.rng.standard_normal((tokens, self.kv_heads * c.head_dim))
        return typed(q, c.rows), typed(k, c.rows), typed(v, c.rows)

    def pages(self, batch: Paged) -> Typed:
        """Returns pages that are NaN but for the old keys and values of the sequences."""
        c = self.config
        shape = (batch.pages, LAYERS, 2, self.kv_heads, batch.page_size, c.head_dim)
        pages = poison(shape, c.cache)
        page, place = batch.positions(old=True)
        old = self.rng.standard_normal((len(page), 2, self.kv_heads, c.head_dim))
        pages.stored[page, c.layer, :, :, place] = encode(old, c.cache)
        return pages


def assert_matches_reference(
    model: Model, config: AttentionConfig, batch: Paged, kv_heads: int, group: int, seed: int
) -> None:
    """Asserts outputs, stored keys and values to the bit, and that all else is untouched."""
    inputs = Inputs(config, kv_heads, group, seed)
    q, k, v = inputs.rows(batch.tokens)
    pages = inputs.pages(batch)
    before = pages.copy()
    out = run(model, pages, q, k, v, *batch.operands)
    want, want_pages = attention(
        before.values,
        q.values,
        decode(encode(k.values, config.cache), config.cache),
        decode(encode(v.values, config.cache), config.cache),
        batch.seq_start,
        batch.kv_length,
        batch.block_table,
        layer=config.layer,
        scale=config.scale,
    )
    assert_close(out, want, "output")
    assert_same_bits(pages, typed(want_pages, config.cache), "pages")


@by_name
def test_matches_reference(models: dict[str, Model], config: AttentionConfig) -> None:
    @PROPERTY
    @given(batch=paged_batches(), kv_heads=st.integers(1, 3), group=st.integers(1, 8), seed=SEEDS)
    def holds(batch: Paged, kv_heads: int, group: int, seed: int) -> None:
        assert_matches_reference(models[config.name], config, batch, kv_heads, group, seed)

    holds()


@by_name
def test_padding_reads_and_writes_nothing(
    models: dict[str, Model], config: AttentionConfig
) -> None:
    table = np.full((2, 3), -1)
    padding = Paged(np.array([0, 0, 0]), np.array([0, 17]), table, pages=2, page_size=8)
    assert_matches_reference(models[config.name], config, padding, 1, 2, seed=0)
    table = np.array([[1, -1, -1], [-1, -1, -1], [-1, -1, -1]])
    padded = Paged(np.array([0, 3, 3, 3]), np.array([2, 0, 17]), table, pages=2, page_size=8)
    assert_matches_reference(models[config.name], config, padded, 1, 2, seed=0)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("config", EXACT, ids=lambda c: c.name)
def test_bits_do_not_depend_on_steps_or_pages(
    models: dict[str, Model], config: AttentionConfig, chunk: int
) -> None:
    """Whole, alone, in pages of 128, or in chunks beside others in other pages: same outputs."""
    model = models[config.name]

    def attend(inputs: Inputs, pages: Typed, rows: list[Typed], batch: Paged) -> Typed:
        return run(model, pages, *rows, *batch.operands)

    @PROPERTY
    @given(
        rows=st.integers(1, 200),
        page_size=PAGE_SIZES,
        before=st.integers(0, 20),
        after=st.integers(0, 20),
        kv_heads=st.integers(1, 2),
        group=st.integers(1, 8),
        seed=SEEDS,
    )
    def holds(
        rows: int, page_size: int, before: int, after: int, kv_heads: int, group: int, seed: int
    ) -> None:
        inputs = Inputs(config, kv_heads, group, seed)
        mine = inputs.rows(rows)
        alone = Paged(np.array([0, rows]), np.array([0]), np.array([[1, 0]]), 2, 128)
        whole = attend(inputs, inputs.pages(alone), mine, alone)

        # Three pages for each neighbour, then ours, in any order.
        width = -(-rows // page_size)
        pages = poison(
            (6 + max(width, 3), LAYERS, 2, kv_heads, page_size, config.head_dim), config.cache
        )
        home = inputs.rng.permutation(len(pages.stored))
        table = np.full((3, max(width, 3)), -1)
        table[0, :3], table[2, :3], table[1, :width] = home[:3], home[3:6], home[6 : 6 + width]
        parts = []
        for start, end in steps(rows, chunk):
            neighbours = inputs.rows(before), inputs.rows(after)
            operands = [
                concatenated([first, own.rows(start, end), last])
                for first, own, last in zip(neighbours[0], mine, neighbours[1], strict=True)
            ]
            batch = Paged(
                seq_start=np.cumsum([0, before, end - start, after]),
                kv_length=np.array([0, start, 0]),
                block_table=table,
                pages=len(pages.stored),
                page_size=page_size,
            )
            out = attend(inputs, pages, operands, batch)
            parts.append(out.rows(before, before + end - start))
        assert_same_bits(concatenated(parts), whole, "output")

    holds()


RIGHT = Paged(
    np.array([0, 2, 3]), np.array([7, 0]), np.array([[2, 0], [1, -1]]), pages=3, page_size=8
)
"""Two sequences, three rows, three pages; the first sequence crosses into its second page."""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block_table": [[2, 3], [1, -1]]}, r"block_table\[1\] is 3, outside \[0, 3\)"),
        ({"block_table": [[2, 0], [-1, -1]]}, r"block_table\[0\] is -1, outside \[0, 3\)"),
        ({"block_table": [[2], [1]]}, r"sequence 0 needs 2 pages, block_table\.shape\[1\] is 1"),
        ({"block_table": [[2, 0]]}, r"block_table\.shape\[0\] is 1, expected 2"),
        ({"kv_length": [7, -1]}, r"kv_length\[1\] is -1"),
        ({"kv_length": [15, 0]}, r"sequence 0 needs 3 pages, block_table\.shape\[1\] is 2"),
        ({"kv_length": [7]}, r"kv_length\.shape\[0\] is 1, expected 2"),
        ({"seq_start": [1, 2, 3]}, r"seq_start\[0\] is 1, it must be 0"),
        ({"seq_start": [0, 4, 3]}, r"seq_start\[2\] is 3, below seq_start\[1\] = 4"),
        ({"seq_start": [0, 2, 2]}, r"seq_start\[2\] is 2, but there are 3 rows"),
    ],
    ids=lambda v: "-".join(f"{k}={v[k]}" for k in v) if isinstance(v, dict) else "",
)
def test_wrong_batch_is_refused(
    models: dict[str, Model], wrong: dict[str, list], message: str
) -> None:
    """The message names tensor, place, value and range; pages and model stay as they were."""
    config = ATTENTION[0]
    inputs = Inputs(config, 1, 2, seed=0)
    pages = inputs.pages(RIGHT)
    before = pages.copy()
    batch = [
        indices(wrong[name]) if name in wrong else right
        for name, right in zip(
            ["seq_start", "kv_length", "block_table"], RIGHT.operands, strict=True
        )
    ]
    with pytest.raises(ValueError, match=rf"coachwhip\.attention: {message}"):
        run(models[config.name], pages, *inputs.rows(RIGHT.tokens), *batch)
    assert_same_bits(pages, before, "pages")
    assert_matches_reference(models[config.name], config, RIGHT, 1, 2, seed=0)


def test_wrong_shapes_are_refused(models: dict[str, Model]) -> None:
    config = ATTENTION[0]
    model = models[config.name]
    inputs = Inputs(config, 2, 2, seed=0)
    pages = inputs.pages(RIGHT)
    q, k, v = inputs.rows(3)

    def attempt(pages: Typed = pages, q: Typed = q, k: Typed = k, v: Typed = v) -> None:
        run(model, pages, q, k, v, *RIGHT.operands)

    with pytest.raises(ValueError, match=r"k\.shape\[0\] is 2, expected 3"):
        attempt(k=k.rows(0, 2))
    with pytest.raises(ValueError, match=r"v\.shape\[0\] is 1, expected 3"):
        attempt(v=v.rows(0, 1))
    with pytest.raises(ValueError, match=r"k\.shape\[1\] is 16, expected 32"):
        attempt(k=k.columns(16))
    with pytest.raises(ValueError, match=r"v\.shape\[1\] is 64, expected 32"):
        attempt(v=q)
    with pytest.raises(ValueError, match=r"q\.shape\[1\] is 63, expected 48"):
        attempt(q=q.columns(63))
    with pytest.raises(ValueError, match="heads % kv_heads is 1, expected 0"):
        attempt(q=q.columns(48))
    with pytest.raises(ValueError, match="page_size % 8 is 4, expected 0"):
        attempt(pages=Typed(pages.stored[:, :, :, :, :4].copy(), pages.dtype))
    with pytest.raises(ValueError, match="layer is 1, the pool has 1 layers"):
        attempt(pages=pages.columns(1))
    assert_matches_reference(model, config, RIGHT, 2, 2, seed=0)
