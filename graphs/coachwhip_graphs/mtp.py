"""The draft graph: the multi-token-prediction head of NemotronH.

    e = RMSNorm(embedding[t_{i+1}]; enorm);  g = RMSNorm(h_i; hnorm);  x = [e ; g] @ eh_proj^T
    x = x + mixer(RMSNorm(x)) for each layer;  m_i = RMSNorm(x; final_layernorm)

`m_i` through the LM head predicts `t_{i+2}`. `h_i` is the trunk's post-norm hidden state, or for a
deeper draft the head's own `m` of the row before. Attention layers keep their keys and values in
the pages, behind the trunk's. Drafts are chosen as the trunk's tokens are, with the same noise.

See: DeepSeek-AI 2024, arXiv 2412.19437 (multi-token prediction); tests/reference/nemotron_h.py.
"""

from __future__ import annotations

from pathlib import Path

from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops

from .model import embed, logits_and_tokens, residual_layers
from .norm import rms_norm
from .ops import linear
from .registry import Registry
from .spec import LayerKind, ModelSpec
from .step import CacheSpec, bind_inputs, input_types
from .weights import graph_weights, mtp_weights


def mtp_graph(
    spec: ModelSpec,
    dtype: DType,
    cache: CacheSpec,
    device: DeviceRef,
    kernels: Path,
    name: str = "mtp",
) -> Graph:
    """Builds the draft graph of a model with an MTP head.

    Inputs are those of the step graph, `tokens` being the token after each row's position; then
    `hidden` [rows, hidden] and `kept` [kept, hidden] of `dtype`, and `hidden_row` [tokens] i32: the
    row of `hidden` followed by `kept` that holds the hidden state of each row's position. Slots are
    unused.

    Args:
        spec: The model; `mtp_layers` must not be empty, nor hold Mamba2 layers.
        dtype: Model dtype, float32 or bfloat16.
        cache: Types and page size of the caches, with `head`.
        device: Where everything but the scalars lives.
        kernels: The `mojo_kernels` folder.
        name: Name of the graph.

    Returns:
        A graph with outputs: the drafts [outputs, 1] i64 after the rows in `output_rows`; the
        head's post-norm rows [tokens, hidden] of `dtype`.

    Raises:
        ValueError: The model has no MTP head, or one with Mamba2 layers.
    """
    if not spec.mtp_layers or spec.count_mtp(LayerKind.MAMBA2):
        kinds = "".join(layer.kind.value for layer in spec.mtp_layers)
        raise ValueError(f"mtp: the head's layers are {kinds!r}; a graph needs some of *, E and -")
    types = input_types(spec, dtype, cache, device)
    types += [TensorType(dtype, [rows, spec.hidden_size], device) for rows in ("rows", "kept")]
    types.append(TensorType(DType.int32, ["tokens"], device))
    with Graph(name, input_types=types, custom_extensions=[kernels]) as graph:
        *values, hidden, kept, hidden_row = graph.inputs
        step = bind_inputs(spec, dtype, cache, values)
        weights = Registry(graph_weights(spec, dtype) | mtp_weights(spec, dtype), device)
        layers = weights.below("mtp.layers.")
        eps, last = spec.norm_eps, len(spec.mtp_layers) - 1
        e = rms_norm(embed(step.tokens, weights), layers["0.enorm.weight"], eps, dtype)
        rows = ops.concat([hidden.tensor, kept.tensor], axis=0)
        h = ops.gather(rows, hidden_row.tensor, axis=0)
        g = rms_norm(h, layers["0.hnorm.weight"], eps, dtype)
        x = linear(ops.concat([e, g], axis=1), layers.matrix("0.eh_proj.weight"))
        x = residual_layers(
            x, spec.mtp_layers, spec, dtype, layers, step, spec.count(LayerKind.ATTENTION)
        )
        m = rms_norm(x, layers[f"{last}.final_layernorm.weight"], eps, dtype)
        graph.output(logits_and_tokens(m, spec, weights, step)[1], m)
    return graph
