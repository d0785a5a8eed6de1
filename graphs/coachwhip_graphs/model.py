"""The whole step graph: embedding, residual layers, final norm, LM head, greedy token.

One graph serves prefill chunks, decode rows and any mix of them, for every pattern of layers.
"""

from __future__ import annotations

from pathlib import Path

from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorValue, ops

from .attention import attention
from .mamba2 import mamba2
from .mlp import mlp
from .norm import rms_norm
from .ops import linear
from .registry import Registry
from .spec import LayerKind, ModelSpec
from .step import CacheSpec, StepInputs, bind_inputs, input_types
from .weights import graph_weights


def trunk(spec: ModelSpec, dtype: DType, weights: Registry, step: StepInputs) -> TensorValue:
    """Runs the embedding and all residual layers: x = x + mixer(RMSNorm(x)).

    Returns:
        The residual stream, [tokens, hidden]; float32 where the spec keeps it so, else `dtype`.
    """
    stream = DType.float32 if spec.residual_fp32 else dtype
    x = ops.cast(ops.gather(weights["embeddings.weight"], step.tokens, axis=0), stream)
    index = dict.fromkeys(LayerKind, 0)
    for i, layer in enumerate(spec.layers):
        below = weights.below(f"layers.{i}.")
        h = rms_norm(x, below["norm.weight"], spec.norm_eps, dtype)
        mixer = below.below("mixer.")
        match layer.kind:
            case LayerKind.MAMBA2:
                h = mamba2(h, mixer, spec.mamba, spec.norm_eps, step, index[layer.kind])
            case LayerKind.ATTENTION:
                h = attention(h, mixer, spec.attention, step, index[layer.kind])
            case LayerKind.MLP:
                h = mlp(h, mixer)
            case _:
                raise ValueError(f"layer {i}: no graph for layer kind {layer.kind.value!r}")
        index[layer.kind] += 1
        x = x + ops.cast(h, stream)
    return x


def step_graph(
    spec: ModelSpec,
    dtype: DType,
    cache: CacheSpec,
    device: DeviceRef,
    kernels: Path,
    name: str = "step",
) -> Graph:
    """Builds the step graph of a model.

    Inputs are those of `step.input_types`; weights are those of `weights.graph_weights`, bound when
    the graph is loaded. Pools are changed in place.

    Args:
        spec: The model.
        dtype: Model dtype, float32 or bfloat16.
        cache: Types and page size of the caches.
        device: Where everything but the scalars lives.
        kernels: The `mojo_kernels` folder.
        name: Name of the graph.

    Returns:
        A graph with outputs, for the rows in `output_rows`: logits [outputs, vocab] f32; the
        greedy tokens [outputs, 1] i64; post-norm hidden states [outputs, hidden] of `dtype`.
    """
    with Graph(
        name,
        input_types=input_types(spec, dtype, cache, device),
        custom_extensions=[kernels],
    ) as graph:
        step = bind_inputs(spec, dtype, cache, graph.inputs)
        weights = Registry(graph_weights(spec, dtype), device)
        x = trunk(spec, dtype, weights, step)
        x = ops.gather(x, step.output_rows, axis=0)
        hidden = rms_norm(x, weights["norm_f.weight"], spec.norm_eps, dtype)
        head = weights["embeddings.weight" if spec.tie_embeddings else "lm_head.weight"]
        logits = linear(hidden, head, DType.float32)
        graph.output(logits, ops.argmax(logits, axis=-1), hidden)
    return graph
