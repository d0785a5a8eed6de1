"""One typed wrapper per custom op: builds it into the current graph after checking its operands.

Ops are found in the `mojo_kernels` folder that the graph was given as a custom extension. The
wrappers of sampling and of pool rows have files of their own.
"""

from __future__ import annotations

import math

from max.dtype import DType
from max.graph import BufferValue, DeviceRef, TensorType, TensorValue, ops

from .limits import (
    D_CONV_LIMITS,
    DSTATE_LIMIT,
    EXPERTS_LIMIT,
    GROUPS_LIMIT,
    HEAD_VALUES_LIMIT,
    HEADDIM_LIMIT,
)
from .matrix import Matrix
from .operands import FLOATS, STATES
from .operands import check as _check
from .operands import check_same_dtype as _check_same_dtype
from .operands import scalar as _scalar


def conv1d(
    pool: BufferValue,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue,
    seq_start: TensorValue,
    read_slot: TensorValue,
    write_slot: TensorValue,
    *,
    layer: int,
    x_offset: int = 0,
    activation: str = "silu",
) -> TensorValue:
    """Convolves each channel causally over a ragged batch, with windows in slots.

    y[t, ch] = act(bias[ch] + sum_k weight[k, ch] * x[t - (d_conv - 1) + k, ch]), sums in f32.

    Args:
        pool: [slots, layers, d_conv - 1, channels], dtype of x; changed in place.
        x: [tokens, >= x_offset + channels], f32|bf16.
        weight: [d_conv, channels], f32; d_conv 2 to 4, channels a multiple of 16.
        bias: [channels], f32.
        seq_start: [batch + 1] i32; first row of each sequence.
        read_slot: [batch] i32; window before the first row, -1 = zeros.
        write_slot: [tokens] i32; where the window after each row goes, -1 = nowhere.
        layer: Layer of the pool.
        x_offset: Column of x where the channels begin.
        activation: "silu" or "none".

    Returns:
        [tokens, channels], dtype of x.

    Raises:
        ValueError: An operand's rank or dtype, d_conv or channels is not as above (when built); a
            slot or row offset is out of range (when run on a CPU).

    See: mojo_kernels/conv1d.mojo; tests/reference/conv1d.py.
    """
    op = "coachwhip.conv1d"
    _check(op, "pool", pool, 4, FLOATS)
    _check(op, "x", x, 2, FLOATS)
    _check(op, "weight", weight, 2, DType.float32)
    _check(op, "bias", bias, 1, DType.float32)
    _check(op, "seq_start", seq_start, 1, DType.int32)
    _check(op, "read_slot", read_slot, 1, DType.int32)
    _check(op, "write_slot", write_slot, 1, DType.int32)
    _check_same_dtype(op, x=x, pool=pool)
    d_conv, channels = int(weight.shape[0]), int(weight.shape[1])
    if not D_CONV_LIMITS[0] <= d_conv <= D_CONV_LIMITS[1]:
        raise ValueError(f"{op}: weight.shape[0] (d_conv) is {d_conv}, expected 2 to 4")
    if channels % 16:
        raise ValueError(f"{op}: weight.shape[1] (channels) is {channels}, not a multiple of 16")
    if activation not in ("silu", "none"):
        raise ValueError(f"{op}: activation is {activation!r}, expected 'silu' or 'none'")
    (y,) = ops.inplace_custom(
        op,
        device=x.device,
        values=[
            pool,
            x,
            weight,
            bias,
            seq_start,
            read_slot,
            write_slot,
            _scalar(layer, DType.int32),
        ],
        out_types=[TensorType(x.dtype, [x.shape[0], channels], x.device)],
        parameters={"d_conv": d_conv, "activation": activation, "x_offset": x_offset},
    )
    return y.tensor


def ssm_scan(
    pool: BufferValue,
    xbc: TensorValue,
    dt: TensorValue,
    a: TensorValue,
    d: TensorValue,
    dt_bias: TensorValue,
    seq_start: TensorValue,
    read_slot: TensorValue,
    write_slot: TensorValue,
    *,
    layer: int,
    headdim: int,
    dstate: int,
    dt_offset: int = 0,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> TensorValue:
    """Advances the SSM state over a ragged batch.

    dt <- clamp(softplus(dt + dt_bias)); h <- exp(dt*A)*h + dt*x (x) B; y = C.h + D*x, all in f32.

    Args:
        pool: [slots, layers, nheads, headdim * dstate], f32|f16|bf16; a head is kept as
            [dstate / 16, headdim / 16, 16, 16]. Changed in place.
        xbc: [tokens, nheads*headdim + 2*ngroups*dstate], f32|bf16: x | B | C after conv and SiLU.
        dt: [tokens, >= dt_offset + nheads], dtype of xbc, before bias and softplus.
        a: [nheads] f32, negative.
        d: [nheads] f32.
        dt_bias: [nheads] f32.
        seq_start: [batch + 1] i32; first row of each sequence.
        read_slot: [batch] i32; slot holding the initial state, -1 = zeros.
        write_slot: [tokens] i32; where the state after each row goes, -1 = nowhere.
        layer: Layer of the pool.
        headdim: Multiple of 16, at most 256.
        dstate: Multiple of 16, at most 256; headdim * dstate at most 32,768.
        dt_offset: Column of dt where the heads begin.
        dt_limit: Bounds of dt after softplus; (0, inf) = none.

    Returns:
        y, [tokens, nheads * headdim], dtype of xbc.

    Raises:
        ValueError: An operand's rank or dtype or a size is not as above, nheads % ngroups != 0
            (when built); a slot or row offset is out of range (when run on a CPU).

    See: Dao & Gu 2024, arXiv 2405.21060; mojo_kernels/ssm_scan.mojo; tests/reference/ssm_scan.py.
    """
    op = "coachwhip.ssm_scan"
    _check(op, "pool", pool, 4, STATES)
    _check(op, "xbc", xbc, 2, FLOATS)
    _check(op, "dt", dt, 2, FLOATS)
    for name, value in (("a", a), ("d", d), ("dt_bias", dt_bias)):
        _check(op, name, value, 1, DType.float32)
    _check(op, "seq_start", seq_start, 1, DType.int32)
    _check(op, "read_slot", read_slot, 1, DType.int32)
    _check(op, "write_slot", write_slot, 1, DType.int32)
    _check_same_dtype(op, xbc=xbc, dt=dt)
    if headdim < 16 or headdim % 16 or headdim > HEADDIM_LIMIT:
        raise ValueError(
            f"{op}: headdim is {headdim}, expected a multiple of 16 up to {HEADDIM_LIMIT}"
        )
    if dstate < 16 or dstate % 16 or dstate > DSTATE_LIMIT:
        raise ValueError(
            f"{op}: dstate is {dstate}, expected a multiple of 16 up to {DSTATE_LIMIT}"
        )
    if headdim * dstate > HEAD_VALUES_LIMIT:
        raise ValueError(
            f"{op}: headdim * dstate is {headdim * dstate}, at most {HEAD_VALUES_LIMIT}"
        )
    nheads = int(a.shape[0])
    bc = int(xbc.shape[1]) - nheads * headdim
    if bc <= 0 or bc % (2 * dstate) or nheads % (bc // (2 * dstate)):
        raise ValueError(
            f"{op}: xbc has {int(xbc.shape[1])} columns, expected {nheads} * {headdim} + "
            f"2 * ngroups * {dstate} with ngroups a divisor of nheads"
        )
    (y,) = ops.inplace_custom(
        op,
        device=xbc.device,
        values=[
            pool,
            xbc,
            dt,
            a,
            d,
            dt_bias,
            seq_start,
            read_slot,
            write_slot,
            _scalar(layer, DType.int32),
        ],
        out_types=[TensorType(xbc.dtype, [xbc.shape[0], nheads * headdim], xbc.device)],
        parameters={
            "dstate": dstate,
            "headdim": headdim,
            "dt_offset": dt_offset,
            "dt_min": float(dt_limit[0]),
            "dt_max": min(float(dt_limit[1]), 3.0e38),
        },
    )
    return y.tensor


def gated_rms_norm(
    y: TensorValue,
    z: TensorValue,
    weight: TensorValue,
    *,
    groups: int,
    eps: float,
    z_offset: int = 0,
) -> TensorValue:
    """Gates, then normalises each group: v = y*silu(z); v * rsqrt(mean(v^2) + eps) * weight.

    Args:
        y: [tokens, width], f32|bf16.
        z: [tokens, >= z_offset + width], dtype of y.
        weight: [width] f32.
        groups: Groups of a row; width / groups is a multiple of 16.
        eps: Added to the mean square.
        z_offset: Column of z where the gate begins.

    Returns:
        [tokens, width], dtype of y; statistics and products are f32.

    Raises:
        ValueError: An operand's rank or dtype or a size is not as above.

    See: mojo_kernels/gated_rms_norm.mojo; tests/reference/gated_rms_norm.py.
    """
    op = "coachwhip.gated_rms_norm"
    _check(op, "y", y, 2, FLOATS)
    _check(op, "z", z, 2, FLOATS)
    _check(op, "weight", weight, 1, DType.float32)
    _check_same_dtype(op, y=y, z=z)
    width = int(y.shape[1])
    if groups < 1 or width % groups or width // groups % 16:
        raise ValueError(
            f"{op}: {width} columns in {groups} groups: a group must be a multiple of 16 wide"
        )
    return ops.custom(
        op,
        device=y.device,
        values=[y, z, weight, _scalar(eps, DType.float32)],
        out_types=[y.type],
        parameters={"groups": groups, "z_offset": z_offset},
    )[0].tensor


def attention(
    pages: BufferValue,
    q: TensorValue,
    k: TensorValue,
    v: TensorValue,
    seq_start: TensorValue,
    kv_length: TensorValue,
    block_table: TensorValue,
    *,
    layer: int,
    scale: float,
) -> TensorValue:
    """Stores new keys and values in pages, then attends causally, grouped-query.

    out[t] = softmax(scale * q[t] . k[0..pos(t)]) . v[0..pos(t)], in f32; a row's arithmetic depends
    on its position alone, not on the rows beside it.

    Args:
        pages: [pages, layers, 2, kv_heads, page_size, head_dim], f32|bf16; changed in place.
            page_size is a multiple of 8, head_dim of 16.
        q: [tokens, heads * head_dim], f32|bf16.
        k: [tokens, kv_heads * head_dim], dtype of q.
        v: [tokens, kv_heads * head_dim], dtype of q.
        seq_start: [batch + 1] i32; first row of each sequence.
        kv_length: [batch] i32; keys that each sequence had before this step.
        block_table: [batch, pages per sequence] i32; pages in order, -1 past the end.
        layer: Attention layer of the pool.
        scale: Factor on q.k, usually head_dim^-0.5.

    Returns:
        [tokens, heads * head_dim], dtype of q.

    Raises:
        ValueError: An operand's rank or dtype or a size is not as above (when built); a page or
            length is out of range (when run on a CPU).

    See: mojo_kernels/attention.mojo; tests/reference/attention.py.
    """
    op = "coachwhip.attention"
    _check(op, "pages", pages, 6, FLOATS)
    for name, value in (("q", q), ("k", k), ("v", v)):
        _check(op, name, value, 2, FLOATS)
    _check(op, "seq_start", seq_start, 1, DType.int32)
    _check(op, "kv_length", kv_length, 1, DType.int32)
    _check(op, "block_table", block_table, 2, DType.int32)
    _check_same_dtype(op, q=q, k=k, v=v)
    head_dim = int(pages.shape[5])
    if head_dim % 16:
        raise ValueError(f"{op}: head_dim is {head_dim}, expected a multiple of 16")
    return ops.inplace_custom(
        op,
        device=q.device,
        values=[
            pages,
            q,
            k,
            v,
            seq_start,
            kv_length,
            block_table,
            _scalar(layer, DType.int32),
            _scalar(scale, DType.float32),
        ],
        out_types=[q.type],
        parameters={"head_dim": head_dim},
    )[0].tensor


def linear(x: TensorValue, w: Matrix, out_dtype: DType | None = None) -> TensorValue:
    """Multiplies rows by a weight: y = x @ w^T, sums in f32.

    On a CPU this is our own op: a row's bits do not depend on the rows beside it, whatever the
    shapes, and one compiled kernel serves every shape. On a GPU it is MAX's matmul.

    Args:
        x: [tokens, k], f32|bf16.
        w: [n, k], dtype of x.
        out_dtype: Type of the result; dtype of x when None.

    Returns:
        [tokens, n].

    Raises:
        ValueError: An operand's rank or dtype is not as above, or the k differ (when built); on a
            CPU the panels are not those of a matrix [n, k] (when run).

    See: mojo_kernels/linear.mojo; tests/kernels/test_linear.py.
    """
    op = "coachwhip.linear"
    _check(op, "x", x, 2, FLOATS)
    on_cpu = x.device == DeviceRef.CPU()
    _check(op, "w", w.value, 3 if on_cpu else 2, FLOATS)
    _check_same_dtype(op, x=x, w=w.value)
    n, k = w.shape
    if x.shape[1] != k:
        raise ValueError(f"{op}: x has {x.shape[1]} columns, but w has {k}")
    out_dtype = out_dtype or x.dtype
    if not on_cpu:
        return ops.cast(x @ w.value.T, out_dtype)
    return ops.custom(
        op,
        device=x.device,
        values=[x, w.value],
        out_types=[TensorType(out_dtype, [x.shape[0], n], x.device)],
    )[0].tensor


def moe_route(
    logits: TensorValue,
    bias: TensorValue,
    *,
    count: int,
    groups: int = 1,
    kept_groups: int = 1,
    normalize: bool = True,
    scale: float = 1.0,
) -> tuple[TensorValue, TensorValue]:
    """Chooses and weights the experts of each token.

    score = sigmoid(logits); the `count` largest score + bias are chosen, among the `kept_groups`
    groups with the largest sum of their two best; weights = scores (/ their sum) * scale.

    Args:
        logits: [tokens, experts] f32; at most 1,024 experts.
        bias: [experts] f32; takes part in the choice only.
        count: Experts per token.
        groups: Groups of experts, a divisor of their number, at most 64.
        kept_groups: Groups that a token may choose from.
        normalize: Divide a token's weights by their sum.
        scale: Factor on the weights.

    Returns:
        Experts [tokens, count] i32, best first, ties to the lower index; weights [tokens, count]
        f32.

    Raises:
        ValueError: An operand's rank or dtype or a size is not as above.

    See: mojo_kernels/moe_route.mojo; tests/reference/moe.py.
    """
    op = "coachwhip.moe_route"
    _check(op, "logits", logits, 2, DType.float32)
    _check(op, "bias", bias, 1, DType.float32)
    experts = int(logits.shape[1])
    if experts > EXPERTS_LIMIT:
        raise ValueError(f"{op}: logits has {experts} columns (experts), at most {EXPERTS_LIMIT}")
    if groups > GROUPS_LIMIT:
        raise ValueError(f"{op}: groups is {groups}, at most {GROUPS_LIMIT}")
    if groups < 1 or experts % groups or not 1 <= kept_groups <= groups:
        raise ValueError(
            f"{op}: {groups} groups of {experts} experts, {kept_groups} of them kept; groups must "
            "divide the experts"
        )
    if not 1 <= count <= experts // groups * kept_groups:
        raise ValueError(
            f"{op}: {count} experts per token, but {experts // groups * kept_groups} to choose from"
        )
    chosen, weights = ops.custom(
        op,
        device=logits.device,
        values=[logits, bias, _scalar(scale, DType.float32)],
        out_types=[
            TensorType(DType.int32, [logits.shape[0], count], logits.device),
            TensorType(DType.float32, [logits.shape[0], count], logits.device),
        ],
        parameters={"groups": groups, "kept_groups": kept_groups, "normalize": normalize},
    )
    return chosen.tensor, weights.tensor


def moe_experts(
    x: TensorValue,
    chosen: TensorValue,
    weights: TensorValue,
    up: Matrix,
    down: Matrix,
) -> TensorValue:
    """Runs each token's experts: out = sum_j weights[j] * down[e_j] . relu(up[e_j] . x)^2.

    Args:
        x: [tokens, width], f32|bf16.
        chosen: [tokens, count] i32.
        weights: [tokens, count] f32.
        up: [experts, inner, width], dtype of x.
        down: [experts, width, inner], dtype of x.

    Returns:
        [tokens, width], dtype of x; a token's experts are added in their order, in f32.

    Raises:
        ValueError: An operand's rank or dtype is not as above, or the shapes of up and down do not
            fit (when built); an expert does not exist, or the panels are not those of such
            matrices (when run on a CPU).

    See: mojo_kernels/moe_experts.mojo; tests/reference/moe.py.
    """
    op = "coachwhip.moe_experts"
    _check(op, "x", x, 2, FLOATS)
    _check(op, "chosen", chosen, 2, DType.int32)
    _check(op, "weights", weights, 2, DType.float32)
    _check(op, "up", up.value, 3, FLOATS)
    _check(op, "down", down.value, 3, FLOATS)
    _check_same_dtype(op, x=x, up=up.value, down=down.value)
    count = int(chosen.shape[1])
    (experts, inner, width), other = ([int(size) for size in w.shape] for w in (up, down))
    if other != [experts, width, inner]:
        raise ValueError(f"{op}: up is {[experts, inner, width]}, but down is {other}")
    pairs = x.shape[0] * count
    on_cpu = x.device == DeviceRef.CPU()
    # The work space is an output so that the graph's memory planner owns it; a GPU needs only h.
    spare = pairs if on_cpu else 0
    return ops.custom(
        op,
        device=x.device,
        values=[x, chosen, weights, up.value, down.value],
        out_types=[
            x.type,
            TensorType(x.dtype, [pairs, inner], x.device),
            TensorType(x.dtype, [spare, width], x.device),
            TensorType(DType.float32, [spare, width], x.device),
            TensorType(DType.int32, [2 * pairs + experts + 1 if on_cpu else 0], x.device),
        ],
    )[0].tensor


def copy_rows(pool: BufferValue, source: TensorValue, destination: TensorValue) -> None:
    """Copies pool row `source[i]` to row `destination[i]`; a row is a slot or a page.

    Args:
        pool: [rows, values per row], any float type; changed in place.
        source: [copies] i32.
        destination: [copies] i32; distinct rows, none of them a source.

    Raises:
        ValueError: A rank or dtype is not as above (when built); a row is out of range (when run
            on a CPU).

    See: mojo_kernels/copy_rows.mojo; tests/reference/copy_rows.py.
    """
    op = "coachwhip.copy_rows"
    _check(op, "pool", pool, 2, STATES)
    _check(op, "source", source, 1, DType.int32)
    _check(op, "destination", destination, 1, DType.int32)
    ops.inplace_custom(
        op,
        device=source.device,
        values=[pool, source, destination],
        out_types=[TensorType(DType.int32, [0], source.device)],
    )
