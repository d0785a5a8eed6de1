"""The whole step graph: embedding, residual layers, final norm, LM head, next tokens.

One graph serves prefill chunks, decode rows and any mix of them, for every pattern of layers.
"""

from __future__ import annotations

from pathlib import Path

from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorValue, ops

from .attention import attention
from .mamba2 import mamba2
from .mlp import mlp
from .moe import moe
from .norm import rms_norm
from .ops import linear
from .pool_rows import load_rows, store_rows
from .registry import Registry
from .sample import sample
from .spec import LayerKind, LayerSpec, ModelSpec
from .step import CacheSpec, StepInputs, bind_inputs, input_types
from .weights import graph_weights


def residual_layers(
    x: TensorValue,
    layers: tuple[LayerSpec, ...],
    spec: ModelSpec,
    dtype: DType,
    weights: Registry,
    step: StepInputs,
    first_attention: int = 0,
) -> TensorValue:
    """Runs residual layers: x = x + mixer(RMSNorm(x)).

    Args:
        x: The residual stream, [tokens, hidden]; its dtype stays.
        layers: What to run.
        spec: The model.
        dtype: Type in which mixers work.
        weights: Registry with the layers as `0.`, `1.`, ...
        step: The ragged batch and the pools.
        first_attention: Index of the first attention layer in the page pool.

    Returns:
        The stream after the last layer.
    """
    index = dict.fromkeys(LayerKind, 0)
    index[LayerKind.ATTENTION] = first_attention
    for i, layer in enumerate(layers):
        below = weights.below(f"{i}.")
        h = rms_norm(x, below["norm.weight"], spec.norm_eps, dtype)
        mixer = below.below("mixer.")
        match layer.kind:
            case LayerKind.MAMBA2:
                h = mamba2(h, mixer, spec.mamba, spec.norm_eps, step, index[layer.kind])
            case LayerKind.ATTENTION:
                h = attention(h, mixer, spec.attention, step, index[layer.kind])
            case LayerKind.MLP:
                h = mlp(h, mixer)
            case LayerKind.MOE:
                h = moe(h, mixer, spec.moe)
        index[layer.kind] += 1
        x = x + ops.cast(h, x.dtype)
    return x


def embed(tokens: TensorValue, weights: Registry) -> TensorValue:
    """Returns the embedding rows of token ids, [tokens, hidden], model dtype."""
    return ops.gather(weights["embeddings.weight"], tokens, axis=0)


def logits_and_tokens(
    hidden: TensorValue, spec: ModelSpec, weights: Registry, step: StepInputs
) -> tuple[TensorValue, TensorValue]:
    """Applies the LM head to output rows: logits [outputs, vocab] f32, tokens [outputs, 1] i64."""
    rows = ops.gather(hidden, step.output_rows, axis=0)
    head = weights.matrix("embeddings.weight" if spec.tie_embeddings else "lm_head.weight")
    logits = linear(rows, head, DType.float32)
    tokens = sample(
        logits,
        step.sample_real,
        step.sample_whole,
        step.edit_start,
        step.edit_token,
        step.edit_count,
        step.edit_bias,
        step.mask_row,
        step.masks,
    )
    return logits, tokens


def with_carry(hidden: TensorValue, step: StepInputs) -> TensorValue:
    """Puts the carry rows of the read slots before a step's hidden rows, and stores new ones.

    Args:
        hidden: [tokens, hidden], post-norm.
        step: The ragged batch and the pools.

    Returns:
        [batch + tokens, hidden], or `hidden` itself where there is no carry pool.
    """
    if step.carry is None:
        return hidden
    carried = load_rows(step.carry, step.read_slot)  # before the same slots may be written
    store_rows(step.carry, hidden, step.write_slot)
    return ops.concat([carried, hidden], axis=0)


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
        A graph with outputs: logits [outputs, vocab] f32 and the tokens [outputs, 1] i64 after the
        rows in `output_rows`. With a head one more: post-norm hidden states of `dtype`, first the
        carry rows of the slots that were read [batch, hidden] (none without Mamba layers; zeros
        where no slot is read), then those of all rows [tokens, hidden].
    """
    with Graph(
        name,
        input_types=input_types(spec, dtype, cache, device),
        custom_extensions=[kernels],
    ) as graph:
        step = bind_inputs(spec, dtype, cache, graph.inputs)
        weights = Registry(graph_weights(spec, dtype), device)
        x = ops.cast(embed(step.tokens, weights), DType.float32 if spec.residual_fp32 else dtype)
        x = residual_layers(x, spec.layers, spec, dtype, weights.below("layers."), step)
        hidden = rms_norm(x, weights["norm_f.weight"], spec.norm_eps, dtype)
        outputs = [*logits_and_tokens(hidden, spec, weights, step)]
        if cache.head:
            outputs.append(with_carry(hidden, step))
        graph.output(*outputs)
    return graph
