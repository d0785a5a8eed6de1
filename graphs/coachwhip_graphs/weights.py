"""Names, shapes and dtypes of the weights a step graph asks its registry for.

Names are the Hugging Face ones below the `backbone.` prefix. Matrices are `[out, in]` in the model
dtype. What enters float32 arithmetic only (norms, convolution taps, A, D, dt_bias) is float32,
so that nothing is rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType

from .spec import LayerKind, ModelSpec


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
        `d_conv - 1` multiplies the current row) and `mixer.A` is `-exp(A_log)`. With tied
        embeddings there is no `lm_head.weight`.
    """
    hidden, f32 = spec.hidden_size, DType.float32
    found = {"embeddings.weight": WeightSpec((spec.vocab_size, hidden), dtype)}
    for i, layer in enumerate(spec.layers):
        found[f"layers.{i}.norm.weight"] = WeightSpec((hidden,), f32)
        mixer = f"layers.{i}.mixer."
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
            ffn = layer.intermediate_size
            found |= {
                mixer + "up_proj.weight": WeightSpec((ffn, hidden), dtype),
                mixer + "down_proj.weight": WeightSpec((hidden, ffn), dtype),
            }
        else:
            raise ValueError(f"layer {i}: no graph for layer kind {layer.kind.value!r}")
    found["norm_f.weight"] = WeightSpec((hidden,), f32)
    if not spec.tie_embeddings:
        found["lm_head.weight"] = WeightSpec((spec.vocab_size, hidden), dtype)
    return found
