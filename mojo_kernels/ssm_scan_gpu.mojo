"""The Mamba2 recurrence over a ragged batch, GPU kernel.

Same contract and pool layout as `ssm_scan.mojo`. A block owns one head of one sequence: thread
`(split, p)` holds `dstate / SPLITS` state values of headdim lane `p` in registers for all rows, so
the state is read once and written only where a row asks for it; partial outputs of the splits are
summed through shared memory.
"""

from max.gpu import barrier, block_idx, thread_idx
from max.gpu.memory import AddressSpace
from std.math import exp, log1p
from std.memory import stack_allocation

from .ssm_scan import MAX_HEADDIM

comptime SPLITS = 4
"""Threads that share the dstate axis of one headdim lane."""


def ssm_scan_gpu[
    dtype: DType, state_dtype: DType, dstate: Int
](
    y: Pointer[Scalar[dtype], MutAnyOrigin],
    xbc: Pointer[Scalar[dtype], ImmutAnyOrigin],
    dt: Pointer[Scalar[dtype], ImmutAnyOrigin],
    a: Pointer[Float32, ImmutAnyOrigin],
    d: Pointer[Float32, ImmutAnyOrigin],
    dt_bias: Pointer[Float32, ImmutAnyOrigin],
    pool: Pointer[Scalar[state_dtype], MutAnyOrigin],
    seq_start: Pointer[Int32, ImmutAnyOrigin],
    read_slot: Pointer[Int32, ImmutAnyOrigin],
    write_slot: Pointer[Int32, ImmutAnyOrigin],
    nheads_: Int32,
    headdim_: Int32,
    ngroups_: Int32,
    dt_stride_: Int32,
    slot_stride: Int64,
    dt_min: Float32,
    dt_max: Float32,
):
    """Runs one head of one sequence.

    The grid is (batch, nheads), a block has headdim * SPLITS threads, at most 1,024.

    Parameters:
        dtype: Type of rows and outputs.
        state_dtype: Type of the pool.
        dstate: State size, a multiple of 16.

    Args:
        y: Output, `[tokens, nheads, headdim]`.
        xbc: Rows x | B | C after convolution, `[tokens, nheads*headdim + 2*ngroups*dstate]`.
        dt: Time steps before bias and softplus, `[tokens, nheads]` with `dt_stride_`.
        a: A, `[nheads]`.
        d: D, `[nheads]`.
        dt_bias: Bias of dt, `[nheads]`.
        pool: Slot 0's state of this layer, `[nheads, dstate / 16, headdim / 16, 16, 16]`.
        seq_start: First row of each sequence, `[batch + 1]`.
        read_slot: Initial state of each sequence, -1 for zeros.
        write_slot: Where each row's state goes, -1 for nowhere.
        nheads_: Number of heads.
        headdim_: Head size.
        ngroups_: Number of B/C groups.
        dt_stride_: Elements between rows of dt.
        slot_stride: Elements between slots.
        dt_min: Lower bound of dt after softplus.
        dt_max: Upper bound.
    """
    comptime F = DType.float32
    comptime SHARE = dstate // SPLITS  # state values of one thread
    var nheads = Int(nheads_)
    var headdim = Int(headdim_)
    var ngroups = Int(ngroups_)
    var h = Int(block_idx.y)
    var s = Int(block_idx.x)
    var p = Int(thread_idx.x) % headdim
    var split = Int(thread_idx.x) // headdim
    var threads = headdim * SPLITS
    var width = nheads * headdim + 2 * ngroups * dstate
    var group = h // (nheads // ngroups)
    var b_at = nheads * headdim + group * dstate
    var c_at = b_at + ngroups * dstate
    # value n of this lane lies 256 * (headdim / 16) elements per 16 n, 16 elements per n
    var chunks = headdim // 16
    var head = h * headdim * dstate + p // 16 * 256 + p % 16
    var bc = stack_allocation[
        2 * dstate, F, address_space=AddressSpace.SHARED
    ]()
    var partial = stack_allocation[
        SPLITS * MAX_HEADDIM, F, address_space=AddressSpace.SHARED
    ]()

    var state = Array[Float32, SHARE](fill=0)
    var first = Int(read_slot[unsafe_offset=s])
    if first >= 0:
        comptime for n in range(SHARE):
            state[n] = pool[
                unsafe_offset=first * Int(slot_stride)
                + head
                + (
                    (split * SHARE + n) // 16 * chunks * 16
                    + (split * SHARE + n) % 16
                )
                * 16
            ].cast[F]()
    var av = a[unsafe_offset=h]
    var dv = d[unsafe_offset=h]
    var bias = dt_bias[unsafe_offset=h]
    for t in range(
        Int(seq_start[unsafe_offset=s]), Int(seq_start[unsafe_offset=s + 1])
    ):
        for n in range(Int(thread_idx.x), dstate, threads):
            bc[unsafe_offset=n] = xbc[unsafe_offset=t * width + b_at + n].cast[
                F
            ]()
            bc[unsafe_offset=dstate + n] = xbc[
                unsafe_offset=t * width + c_at + n
            ].cast[F]()
        barrier()
        var step = dt[unsafe_offset=t * Int(dt_stride_) + h].cast[F]() + bias
        step = step if step > 20.0 else log1p(exp(step))
        step = min(max(step, dt_min), dt_max)
        var decay = exp(step * av)
        var xv = xbc[unsafe_offset=t * width + h * headdim + p].cast[F]()
        var u = step * xv
        var acc = Float32(0)
        comptime for n in range(SHARE):
            state[n] = u.fma(
                bc[unsafe_offset=split * SHARE + n], state[n] * decay
            )
            acc = state[n].fma(
                bc[unsafe_offset=dstate + split * SHARE + n], acc
            )
        partial[unsafe_offset=split * MAX_HEADDIM + p] = acc
        barrier()
        if split == 0:
            var sum = dv * xv
            comptime for k in range(SPLITS):
                sum += partial[unsafe_offset=k * MAX_HEADDIM + p]
            y[unsafe_offset=(t * nheads + h) * headdim + p] = sum.cast[dtype]()
        var slot = Int(write_slot[unsafe_offset=t])
        if slot >= 0:
            comptime for n in range(SHARE):
                pool[
                    unsafe_offset=slot * Int(slot_stride)
                    + head
                    + (
                        (split * SHARE + n) // 16 * chunks * 16
                        + (split * SHARE + n) % 16
                    )
                    * 16
                ] = state[n].cast[state_dtype]()
