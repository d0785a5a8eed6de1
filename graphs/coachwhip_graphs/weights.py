"""Names, shapes and dtypes of the weights a step graph asks its registry for.

Names are the Hugging Face ones below the `backbone.` prefix. Matrices are `[out, in]` in the model
dtype. What enters float32 arithmetic only (norms, convolution taps, A, D, dt_bias) is float32,
so that nothing is rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType

from .spec import LayerKind, LayerSpec, ModelSpec


@dataclass(frozen=True)
class WeightSpec:
    """Shape and dtype of one registry entry."""

    shape: tuple[int, ...]
    dtype: DType


def graph_weights(spec: ModelSpec, dtype: DType) -> dict[str, WeightSpec]:
    """Lists every weight of the step graph of `spec`.

    Args:
        spec: The model.
        dtype: Model dtype, float32 or bfloat16; dtype of the matrices.

    Returns:
        Registry name -> shape and dtype. `mixer.conv1d.weight` is `[d_conv, conv_dim]` (tap
        `d_conv - 1` multiplies the current row) and `mixer.A` is `-exp(A_log)`. The experts of a
        layer are stacked, `mixer.experts.up_proj` `[experts, width, in]` and
        `mixer.experts.down_proj` `[experts, in, width]`; the router is float32. With tied
        embeddings there is no `lm_head.weight`.
    """
    hidden, f32 = spec.hidden_size, DType.float32
    found = {"embeddings.weight": WeightSpec((spec.vocab_size, hidden), dtype)}
    for i, layer in enumerate(spec.layers):
        found |= _layer_weights(f"layers.{i}.", layer, spec, dtype)
    found["norm_f.weight"] = WeightSpec((hidden,), f32)
    if not spec.tie_embeddings:
        found["lm_head.weight"] = WeightSpec((spec.vocab_size, hidden), dtype)
    return found


def mtp_weights(spec: ModelSpec, dtype: DType) -> dict[str, WeightSpec]:
    """Lists the weights that the draft graph of `spec` has beside embeddings and LM head.

    Returns:
        Registry name -> shape and dtype, published names: `mtp.layers.0.enorm.weight`, ...
    """
    hidden, f32 = spec.hidden_size, DType.float32
    if not spec.mtp_layers:
        return {}
    last = len(spec.mtp_layers) - 1
    found = {
        "mtp.layers.0.enorm.weight": WeightSpec((hidden,), f32),
        "mtp.layers.0.hnorm.weight": WeightSpec((hidden,), f32),
        "mtp.layers.0.eh_proj.weight": WeightSpec((hidden, 2 * hidden), dtype),
    }
    for i, layer in enumerate(spec.mtp_layers):
        found |= _layer_weights(f"mtp.layers.{i}.", layer, spec, dtype)
    found[f"mtp.layers.{last}.final_layernorm.weight"] = WeightSpec((hidden,), f32)
    return found


def _layer_weights(
    prefix: str, layer: LayerSpec, spec: ModelSpec, dtype: DType
) -> dict[str, WeightSpec]:
    hidden, f32 = spec.hidden_size, DType.float32
    mixer = prefix + "mixer."
    found = {prefix + "norm.weight": WeightSpec((hidden,), f32)}
    if layer.kind == LayerKind.MAMBA2:
        m = spec.mamba
        found |= {
            mixer + "in_proj.weight": WeightSpec((m.in_proj_dim, hidden), dtype),
            mixer + "conv1d.weight": WeightSpec((m.d_conv, m.conv_dim), f32),
            mixer + "conv1d.bias": WeightSpec((m.conv_dim,), f32),
            mixer + "A": WeightSpec((m.nheads,), f32),
            mixer + "D": WeightSpec((m.nheads,), f32),
            mixer + "dt_bias": WeightSpec((m.nheads,), f32),
            mixer + "norm.weight": WeightSpec((m.d_inner,), f32),
            mixer + "out_proj.weight": WeightSpec((hidden, m.d_inner), dtype),
        }
    elif layer.kind == LayerKind.ATTENTION:
        a = spec.attention
        found |= {
            mixer + "q_proj.weight": WeightSpec((a.q_dim, hidden), dtype),
            mixer + "k_proj.weight": WeightSpec((a.kv_dim, hidden), dtype),
            mixer + "v_proj.weight": WeightSpec((a.kv_dim, hidden), dtype),
            mixer + "o_proj.weight": WeightSpec((hidden, a.q_dim), dtype),
        }
    elif layer.kind == LayerKind.MLP:
        found |= _mlp_weights(mixer, layer.intermediate_size, hidden, dtype)
    else:
        e = spec.moe
        width = e.latent_size or hidden
        found |= {
            mixer + "gate.weight": WeightSpec((e.num_experts, hidden), f32),
            mixer + "gate.e_score_correction_bias": WeightSpec((e.num_experts,), f32),
            mixer + "experts.up_proj": WeightSpec(
                (e.num_experts, e.intermediate_size, width), dtype
            ),
            mixer + "experts.down_proj": WeightSpec(
                (e.num_experts, width, e.intermediate_size), dtype
            ),
        }
        if e.shared_intermediate_size:
            shared = mixer + "shared_experts."
            found |= _mlp_weights(shared, e.shared_intermediate_size, hidden, dtype)
        if e.latent_size:
            found |= {
                mixer + "fc1_latent_proj.weight": WeightSpec((e.latent_size, hidden), dtype),
                mixer + "fc2_latent_proj.weight": WeightSpec((hidden, e.latent_size), dtype),
            }
    return found


def _mlp_weights(prefix: str, width: int, hidden: int, dtype: DType) -> dict[str, WeightSpec]:
    return {
        prefix + "up_proj.weight": WeightSpec((width, hidden), dtype),
        prefix + "down_proj.weight": WeightSpec((hidden, width), dtype),
    }
