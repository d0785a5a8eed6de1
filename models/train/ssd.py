"""The Mamba2 state-space recurrence in its chunked matrix form (SSD).

The recurrence, for head j with its group g, in float32:

    h_t = exp(dt_t A_j) h_{t-1} + dt_t x_t (outer) B_t        h: [headdim, dstate]
    y_t = h_t C_t

Inside a chunk of `chunk_size` steps the sum over earlier steps is one masked matrix product; only
the chunk boundary states are carried one after another. Source: Dao and Gu 2024, "Transformers are
SSMs", section 6.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def _chunked(t: Tensor, chunk_size: int) -> Tensor:
    """[batch, length, heads, ...] -> [batch, chunks, heads, chunk_size, ...]."""
    batch, length = t.shape[:2]
    t = t.reshape(batch, length // chunk_size, chunk_size, *t.shape[2:])
    return t.transpose(2, 3)


def ssd_chunked(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Runs the recurrence from a zero state.

    x [batch, length, nheads, headdim]; dt [batch, length, nheads], positive; a [nheads], negative;
    b, c [batch, length, ngroups, dstate]; all float32, any length. Returns y like x, without the
    D term, and the last state [batch, nheads, headdim, dstate].
    """
    batch, length, nheads, headdim = x.shape
    ngroups, dstate = b.shape[2:]
    per_group = nheads // ngroups
    tail = -length % chunk_size
    if tail:
        # dt = 0 neither decays nor feeds the state, so the padding changes nothing.
        x, b, c = (F.pad(t, (0, 0, 0, 0, 0, tail)) for t in (x, b, c))
        dt = F.pad(dt, (0, 0, 0, tail))
    x, b, c = (_chunked(t, chunk_size) for t in (x, b, c))
    dt = _chunked(dt, chunk_size)
    chunks = x.shape[1]

    log_decay = (dt * a[:, None]).cumsum(-1)
    last = log_decay[..., -1:]
    causal = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=x.device).tril()
    span = log_decay[..., :, None] - log_decay[..., None, :]
    decay = span.masked_fill(~causal, float("-inf")).exp()

    scores = (c @ b.transpose(-1, -2)).unsqueeze(3)
    shape = (batch, chunks, ngroups, per_group, chunk_size, chunk_size)
    mixed = (scores * decay.view(shape)).view(batch, chunks, nheads, chunk_size, chunk_size)
    fed = x * dt[..., None]
    y = mixed @ fed

    grouped = (batch, chunks, ngroups, per_group)
    weighted = (fed * (last - log_decay).exp()[..., None]).view(*grouped, chunk_size, headdim)
    added = weighted.transpose(-1, -2) @ b.unsqueeze(3)
    added = added.view(batch, chunks, nheads, headdim, dstate)
    chunk_decay = last.exp()[..., None]
    state = added.new_zeros(batch, nheads, headdim, dstate)
    before = []
    for i in range(chunks):
        before.append(state)
        state = state * chunk_decay[:, i] + added[:, i]
    entering = torch.stack(before, 1).view(*grouped, headdim, dstate)
    carried = c.unsqueeze(3) @ entering.transpose(-1, -2)
    carried = carried.view(batch, chunks, nheads, chunk_size, headdim)
    y = y + carried * log_decay.exp()[..., None]
    y = y.transpose(2, 3).reshape(batch, length + tail, nheads, headdim)
    return y[:, :length], state
