"""The Mamba2 recurrence over a ragged batch, CPU kernel.

    dt <- clamp(softplus(dt + dt_bias))
    h  <- exp(dt * A) * h + dt * x (x) B        # [headdim, dstate]
    y   = h . C + D * x

One code path serves prefill, decode and verify: a work item is one head of one sequence, it walks
the rows in order, and the arithmetic of a row never depends on how many rows ride along. So float32
results are bit-equal however a sequence is cut into steps.

Layout. The headdim axis lies across the vector lanes (16 at a time) and dstate runs over registers:
`h . C` is then a chain of FMAs with a broadcast C, without a horizontal sum per row, and 16
registers of state stay put for a whole tile of rows. The pool keeps a head in that order,
`[dstate / 16, headdim / 16, 16 of dstate, 16 of headdim]`, so that a pass over it is one sequential
run of plain vector moves.

See: Dao & Gu 2024, arXiv 2405.21060; tests/reference/ssm_scan.py.
"""

from std.math import exp
from std.memory import stack_allocation

from .activations import softplus

comptime LANES = 16
"""Values of headdim that one vector holds; fixed, so that bits do not depend on the machine."""
comptime BLOCK = 16
"""State vectors held in registers at a time (dstate values per pass)."""
comptime TILE = 16
"""Rows per tile: x, y, B and C of a tile stay in the L1 cache while the state streams by once."""
comptime MAX_HEADDIM = 256
"""Largest headdim: a tile of x and y fits a thread's stack scratch."""
comptime MAX_HEAD_VALUES = 32768
"""Largest headdim * dstate (128 x 256): the state of one head fits a thread's stack scratch."""

comptime Vec = SIMD[DType.float32, LANES]
"""One register of state: 16 values of headdim."""


@always_inline
def advance_block[
    state_dtype: DType
](
    mut state: Array[Vec, BLOCK],
    rows: Int,
    decay: Pointer[mut=True, Float32, ...],
    xdt: Pointer[mut=True, Float32, ...],
    b: Pointer[mut=True, Float32, ...],
    c: Pointer[mut=True, Float32, ...],
    y: Pointer[mut=True, Float32, ...],
    pool: Pointer[mut=True, Scalar[state_dtype], ...],
    slot_stride: Int,
    write_slot: Pointer[mut=False, Int32, ...],
):
    """Folds a tile of rows into 16 dstate values x 16 headdim lanes held in registers.

    Parameters:
        state_dtype: Type of the pool.

    Args:
        state: The registers; on return, the state after the last row.
        rows: Number of rows of the tile.
        decay: `exp(dt * A)` of each row, `[rows]`.
        xdt: `dt * x`, `[rows, 16]`.
        b: B of these dstate values, `[rows, 16]`.
        c: C of these dstate values, `[rows, 16]`.
        y: Accumulator of the output, `[rows, 16]`.
        pool: Where slot 0 keeps these values; written at `write_slot`.
        slot_stride: Elements from one slot to the next.
        write_slot: Slot to store the state to after each row, -1 for none, `[rows]`.
    """
    for t in range(rows):
        var da = Vec(decay[unsafe_offset=t])
        var u = xdt.unsafe_load[width=LANES](t * LANES)
        var even = y.unsafe_load[width=LANES](t * LANES)
        var odd = Vec(0)
        var bt = b.unsafe_offset(t * BLOCK)
        var ct = c.unsafe_offset(t * BLOCK)
        comptime for n in range(BLOCK):
            state[n] = u.fma(Vec(bt[unsafe_offset=n]), state[n] * da)
            comptime if n % 2 == 0:
                even = state[n].fma(Vec(ct[unsafe_offset=n]), even)
            else:
                odd = state[n].fma(Vec(ct[unsafe_offset=n]), odd)
        y.unsafe_store(t * LANES, even + odd)
        var slot = Int(write_slot[unsafe_offset=t])
        if slot >= 0:
            var home = pool.unsafe_offset(slot * slot_stride)
            comptime for n in range(BLOCK):
                home.unsafe_store(n * LANES, state[n].cast[state_dtype]())


def scan_head[
    dtype: DType, state_dtype: DType, dstate: Int
](
    y: Pointer[mut=True, Scalar[dtype], ...],
    y_stride: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    b: Pointer[mut=False, Scalar[dtype], ...],
    c: Pointer[mut=False, Scalar[dtype], ...],
    row_stride: Int,
    dt: Pointer[mut=False, Scalar[dtype], ...],
    dt_stride: Int,
    a: Float32,
    d: Float32,
    dt_bias: Float32,
    dt_min: Float32,
    dt_max: Float32,
    pool: Pointer[mut=True, Scalar[state_dtype], ...],
    slot_stride: Int,
    read_slot: Int,
    write_slot: Pointer[mut=False, Int32, ...],
    rows: Int,
    headdim: Int,
):
    """Runs one head of one sequence over all its rows of this step.

    Parameters:
        dtype: Type of rows and outputs.
        state_dtype: Type of the pool; arithmetic is float32 whatever it is.
        dstate: State size, a multiple of 16.

    Args:
        y: Output of the head's first row, `[rows, headdim]` with `y_stride`.
        y_stride: Elements between rows of `y`.
        x: The head's x after convolution, `[rows, headdim]` with `row_stride`.
        b: The group's B, `[rows, dstate]` with `row_stride`.
        c: The group's C, `[rows, dstate]` with `row_stride`.
        row_stride: Elements between rows of x, b and c.
        dt: The head's dt before bias and softplus, `[rows]` with `dt_stride`.
        dt_stride: Elements between values of `dt`.
        a: A of the head, negative.
        d: D of the head.
        dt_bias: Bias of dt.
        dt_min: Lower bound of dt after softplus.
        dt_max: Upper bound, may be infinite.
        pool: Slot 0's state of this layer and head, `[dstate / 16, headdim / 16, 16, 16]`.
        slot_stride: Elements from one slot to the next.
        read_slot: Slot with the initial state, -1 for zeros.
        write_slot: Slot to store to after each row, -1 for none, `[rows]`.
        rows: Number of rows, may be 0.
        headdim: Head size, a multiple of 16.

    Constraints:
        `headdim <= MAX_HEADDIM`; `headdim * dstate <= MAX_HEAD_VALUES`; dstate % 16 == 0.
    """
    comptime assert dstate % BLOCK == 0, "dstate must be a multiple of 16"
    comptime F = DType.float32
    var dtv = stack_allocation[TILE, F, alignment=64]()
    var decay = stack_allocation[TILE, F, alignment=64]()
    var bs = stack_allocation[TILE * BLOCK, F, alignment=64]()
    var cs = stack_allocation[TILE * BLOCK, F, alignment=64]()
    var xdt = stack_allocation[TILE * MAX_HEADDIM, F, alignment=64]()
    var ys = stack_allocation[TILE * MAX_HEADDIM, F, alignment=64]()
    var carried = stack_allocation[MAX_HEAD_VALUES, F, alignment=64]()
    var chunks = headdim // LANES

    for t0 in range(0, rows, TILE):
        var nt = min(TILE, rows - t0)
        for t in range(nt):
            dtv[unsafe_offset=t] = (
                dt[unsafe_offset=(t0 + t) * dt_stride].cast[F]() + dt_bias
            )
        for t in range(nt, TILE):
            dtv[unsafe_offset=t] = 0
        for t in range(0, nt, LANES):
            var v = softplus(dtv.unsafe_load[width=LANES](t))
            v = min(max(v, Vec(dt_min)), Vec(dt_max))
            dtv.unsafe_store(t, v)
            decay.unsafe_store(t, exp(v * a))
        for p in range(chunks):
            for t in range(nt):
                var xv = x.unsafe_load[width=LANES](
                    (t0 + t) * row_stride + p * LANES
                ).cast[F]()
                var at = (p * TILE + t) * LANES
                xdt.unsafe_store(at, xv * dtv[unsafe_offset=t])
                ys.unsafe_store(at, xv * d)
        var last_tile = t0 + nt == rows
        for i in range(dstate // BLOCK):
            for t in range(nt):
                var row = (t0 + t) * row_stride + i * BLOCK
                bs.unsafe_store(
                    t * BLOCK, b.unsafe_load[width=BLOCK](row).cast[F]()
                )
                cs.unsafe_store(
                    t * BLOCK, c.unsafe_load[width=BLOCK](row).cast[F]()
                )
            for p in range(chunks):
                var at = (i * chunks + p) * BLOCK * LANES
                var state = Array[Vec, BLOCK](fill=0)
                if t0 > 0:
                    comptime for n in range(BLOCK):
                        state[n] = carried.unsafe_load[width=LANES](
                            at + n * LANES
                        )
                elif read_slot >= 0:
                    var home = pool.unsafe_offset(read_slot * slot_stride + at)
                    comptime for n in range(BLOCK):
                        state[n] = home.unsafe_load[width=LANES](
                            n * LANES
                        ).cast[F]()
                advance_block[state_dtype](
                    state,
                    nt,
                    decay,
                    xdt.unsafe_offset(p * TILE * LANES),
                    bs,
                    cs,
                    ys.unsafe_offset(p * TILE * LANES),
                    pool.unsafe_offset(at),
                    slot_stride,
                    write_slot.unsafe_offset(t0),
                )
                if not last_tile:
                    comptime for n in range(BLOCK):
                        carried.unsafe_store(at + n * LANES, state[n])
        for p in range(chunks):
            for t in range(nt):
                y.unsafe_store(
                    (t0 + t) * y_stride + p * LANES,
                    ys.unsafe_load[width=LANES]((p * TILE + t) * LANES).cast[
                        dtype
                    ](),
                )
