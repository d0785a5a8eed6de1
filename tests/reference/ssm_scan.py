"""Reference of the Mamba2 recurrence with states in slots, in numpy.

Computes in the type of its arguments (float64 in the tests), row by row as the definition says.

See: Dao & Gu 2024, arXiv 2405.21060.
"""

import math

import numpy as np
from numpy.typing import NDArray

BLOCK = 16
"""Values of dstate, and of headdim, that lie together in the pool's layout."""


def pack_state(state: NDArray) -> NDArray:
    """Brings states [..., headdim, dstate] into the pool's layout [..., headdim * dstate].

    The layout of a head is [dstate / 16, headdim / 16, 16 of dstate, 16 of headdim].
    """
    *lead, headdim, dstate = state.shape
    blocks = state.reshape(*lead, headdim // BLOCK, BLOCK, dstate // BLOCK, BLOCK)
    # axes from the end: -4 headdim block, -3 headdim, -2 dstate block, -1 dstate
    ordered = np.moveaxis(blocks, (-2, -4, -1, -3), (-4, -3, -2, -1))
    return ordered.reshape(*lead, headdim * dstate)


def unpack_state(packed: NDArray, headdim: int, dstate: int) -> NDArray:
    """Undoes `pack_state`: [..., headdim * dstate] to [..., headdim, dstate]."""
    lead = packed.shape[:-1]
    blocks = packed.reshape(*lead, dstate // BLOCK, headdim // BLOCK, BLOCK, BLOCK)
    ordered = np.moveaxis(blocks, (-4, -3, -2, -1), (-2, -4, -1, -3))
    return ordered.reshape(*lead, headdim, dstate)


def softplus(x: NDArray) -> NDArray:
    """Returns log(1 + exp(x)), without overflow."""
    return np.logaddexp(0, x)


def ssm_scan(
    pool: NDArray,
    xbc: NDArray,
    dt: NDArray,
    a: NDArray,
    d: NDArray,
    dt_bias: NDArray,
    seq_start: NDArray,
    read_slot: NDArray,
    write_slot: NDArray,
    *,
    layer: int,
    headdim: int,
    dstate: int,
    dt_offset: int = 0,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> tuple[NDArray, NDArray]:
    """Advances the state of each sequence over its rows.

    dt <- clamp(softplus(dt + dt_bias)); h <- exp(dt*A)*h + dt*x (x) B; y = h.C + D*x.
    Heads share B and C within a group, the first nheads / ngroups heads the first group's.

    Args:
        pool: [slots, layers, nheads, headdim * dstate]; heads as `pack_state` leaves them. Not
            changed.
        xbc: [tokens, nheads*headdim + 2*ngroups*dstate]: x | B | C.
        dt: [tokens, >= dt_offset + nheads], before bias and softplus.
        a: [nheads], negative.
        d: [nheads].
        dt_bias: [nheads].
        seq_start: [batch + 1]; first row of each sequence.
        read_slot: [batch]; slot holding the initial state, -1 = zeros.
        write_slot: [tokens]; where the state after each row goes, -1 = nowhere.
        layer: Layer of the pool.
        headdim: Head size.
        dstate: State size.
        dt_offset: Column of dt where the heads begin.
        dt_limit: Bounds of dt after softplus.

    Returns:
        y [tokens, nheads * headdim], and the pool after the step.
    """
    nheads, tokens = len(a), len(xbc)
    d_inner = nheads * headdim
    ngroups = (xbc.shape[1] - d_inner) // (2 * dstate)
    x = xbc[:, :d_inner].reshape(tokens, nheads, headdim)
    bc = xbc[:, d_inner:].reshape(tokens, 2, ngroups, dstate)
    bc = np.repeat(bc, nheads // ngroups, axis=2)
    step = softplus(dt[:, dt_offset : dt_offset + nheads] + dt_bias).clip(*dt_limit)

    after = pool.copy()
    y = np.empty((tokens, nheads, headdim), xbc.dtype)
    for s, read in enumerate(read_slot):
        h = np.zeros((nheads, headdim, dstate), xbc.dtype)
        if read >= 0:
            h = unpack_state(pool[read, layer], headdim, dstate)
        for t in range(seq_start[s], seq_start[s + 1]):
            b, c = bc[t]
            u = step[t][:, None] * x[t]
            h = np.exp(step[t] * a)[:, None, None] * h + u[:, :, None] * b[:, None, :]
            y[t] = (h @ c[:, :, None])[:, :, 0] + d[:, None] * x[t]
            if write_slot[t] >= 0:
                after[write_slot[t], layer] = pack_state(h)
    return y.reshape(tokens, d_inner), after
