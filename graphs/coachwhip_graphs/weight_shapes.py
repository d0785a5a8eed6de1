"""Names and shapes of the weights a step graph asks its registry for, free of MAX.

Names are the Hugging Face ones below the `backbone.` prefix. Matrices are `[out, in]` in the model
dtype. What enters float32 arithmetic only (norms, convolution taps, A, D, dt_bias) is float32,
so that nothing is rounded twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from .spec import LayerKind, LayerSpec, ModelSpec


@dataclass(frozen=True)
class WeightShape:
    """Shape of one weight.

    Attributes:
        shape: Its shape.
        wide: Whether it is float32, else of the model dtype.
        matrix: Whether rows are multiplied by it. A CPU has it in panels then, and as it is only if
            rows are looked up in it too.
        lookup: Whether rows are looked up in it.
    """

    shape: tuple[int, ...]
    wide: bool = False
    matrix: bool = False
    lookup: bool = False

    @property
    def plain(self) -> bool:
        """Whether a CPU has it as it is."""
        return self.lookup or not self.matrix


def _matrix(*shape: int, wide: bool = False) -> WeightShape:
    return WeightShape(shape, wide, matrix=True)


def model_weights(spec: ModelSpec) -> dict[str, WeightShape]:
    """Lists the weights of all graphs of a model, those of its draft head last."""
    return trunk_weights(spec) | head_weights(spec)


def trunk_weights(spec: ModelSpec) -> dict[str, WeightShape]:
    """Lists every weight of the step graph of `spec`.

    Returns:
        Registry name -> shape. `mixer.conv1d.weight` is `[d_conv, conv_dim]` (tap
        `d_conv - 1` multiplies the current row) and `mixer.A` is `-exp(A_log)`. The experts of a
        layer are stacked, `mixer.experts.up_proj` `[experts, width, in]` and
        `mixer.experts.down_proj` `[experts, in, width]`; the router is float32. With tied
        embeddings there is no `lm_head.weight`.
    """
    hidden = spec.hidden_size
    embeddings = WeightShape((spec.vocab_size, hidden), matrix=spec.tie_embeddings, lookup=True)
    found = {"embeddings.weight": embeddings}
    for i, layer in enumerate(spec.layers):
        found |= _layer_weights(f"layers.{i}.", layer, spec)
    found["norm_f.weight"] = WeightShape((hidden,), wide=True)
    if not spec.tie_embeddings:
        found["lm_head.weight"] = _matrix(spec.vocab_size, hidden)
    return found


def head_weights(spec: ModelSpec) -> dict[str, WeightShape]:
    """Lists the weights that the draft graph of `spec` has beside embeddings and LM head.

    Returns:
        Registry name -> shape, published names: `mtp.layers.0.enorm.weight`, ...
    """
    hidden = spec.hidden_size
    if not spec.mtp_layers:
        return {}
    last = len(spec.mtp_layers) - 1
    found = {
        "mtp.layers.0.enorm.weight": WeightShape((hidden,), wide=True),
        "mtp.layers.0.hnorm.weight": WeightShape((hidden,), wide=True),
        "mtp.layers.0.eh_proj.weight": _matrix(hidden, 2 * hidden),
    }
    for i, layer in enumerate(spec.mtp_layers):
        found |= _layer_weights(f"mtp.layers.{i}.", layer, spec)
    found[f"mtp.layers.{last}.final_layernorm.weight"] = WeightShape((hidden,), wide=True)
    return found


def _layer_weights(prefix: str, layer: LayerSpec, spec: ModelSpec) -> dict[str, WeightShape]:
    hidden = spec.hidden_size
    mixer = prefix + "mixer."
    found = {prefix + "norm.weight": WeightShape((hidden,), wide=True)}
    if layer.kind == LayerKind.MAMBA2:
        m = spec.mamba
        found |= {
            mixer + "in_proj.weight": _matrix(m.in_proj_dim, hidden),
            mixer + "conv1d.weight": WeightShape((m.d_conv, m.conv_dim), wide=True),
            mixer + "conv1d.bias": WeightShape((m.conv_dim,), wide=True),
            mixer + "A": WeightShape((m.nheads,), wide=True),
            mixer + "D": WeightShape((m.nheads,), wide=True),
            mixer + "dt_bias": WeightShape((m.nheads,), wide=True),
            mixer + "norm.weight": WeightShape((m.d_inner,), wide=True),
            mixer + "out_proj.weight": _matrix(hidden, m.d_inner),
        }
    elif layer.kind == LayerKind.ATTENTION:
        a = spec.attention
        found |= {
            mixer + "q_proj.weight": _matrix(a.q_dim, hidden),
            mixer + "k_proj.weight": _matrix(a.kv_dim, hidden),
            mixer + "v_proj.weight": _matrix(a.kv_dim, hidden),
            mixer + "o_proj.weight": _matrix(hidden, a.q_dim),
        }
    elif layer.kind == LayerKind.MLP:
        found |= _mlp_weights(mixer, layer.intermediate_size, hidden)
    else:
        e = spec.moe
        width = e.latent_size or hidden
        found |= {
            mixer + "gate.weight": _matrix(e.num_experts, hidden, wide=True),
            mixer + "gate.e_score_correction_bias": WeightShape((e.num_experts,), wide=True),
            mixer + "experts.up_proj": _matrix(e.num_experts, e.intermediate_size, width),
            mixer + "experts.down_proj": _matrix(e.num_experts, width, e.intermediate_size),
        }
        if e.shared_intermediate_size:
            shared = mixer + "shared_experts."
            found |= _mlp_weights(shared, e.shared_intermediate_size, hidden)
        if e.latent_size:
            found |= {
                mixer + "fc1_latent_proj.weight": _matrix(e.latent_size, hidden),
                mixer + "fc2_latent_proj.weight": _matrix(hidden, e.latent_size),
            }
    return found


def _mlp_weights(prefix: str, width: int, hidden: int) -> dict[str, WeightShape]:
    return {
        prefix + "up_proj.weight": _matrix(width, hidden),
        prefix + "down_proj.weight": _matrix(hidden, width),
    }
