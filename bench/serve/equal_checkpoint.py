"""`python -m bench.serve.equal_checkpoint`: a checkpoint as a GGUF file that computes the same.

llama.cpp runs a NemotronH with dense MLP layers or one with experts, not one with both: there the
dense layers are expressed as experts first.
"""

from __future__ import annotations

import math
from pathlib import Path

import click

DTYPES = ("float32", "bfloat16")


@click.command()
@click.argument("model_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--dtype", type=click.Choice(DTYPES), help="Default: as it runs here.")
def main(model_dir: Path, out: Path, dtype: str | None) -> None:
    """Write the checkpoint in MODEL_DIR as OUT, a GGUF file that llama.cpp reads."""
    import coachwhip.telemetry  # noqa: F401
    from bench.packages import require
    from coachwhip.errors import CoachwhipError

    require("gguf")
    try:
        count = write_equal(model_dir, out, dtype)
    except CoachwhipError as error:
        raise click.UsageError(str(error)) from None
    click.echo(f"{out}: {count} tensors, {out.stat().st_size / 1e6:.1f} MB")


def write_equal(model_dir: Path, out: Path, dtype: str | None = None) -> int:
    """Writes a GGUF file that computes what a checkpoint computes, and returns its tensor count.

    Norms, routers, convolutions and the scan's own weights are float32, as they are here. A
    multi-token-prediction head is taken along where llama.cpp has its form.

    Args:
        model_dir: The checkpoint.
        out: The file.
        dtype: Of the matrices, one of `DTYPES`; None is `default_dtype`.

    Raises:
        ConfigError: llama.cpp has nothing that equals the model.
        CheckpointError: The checkpoint cannot be read, or its tokenizer not be expressed.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quantize
    from max.dtype import DType

    from bench.serve.dense_as_experts import dense_as_experts
    from bench.serve.gguf_tensors import gguf_tensors
    from bench.serve.gguf_vocabulary import add_vocabulary
    from coachwhip.checkpoint import load_weights, read_model
    from coachwhip_graphs.weight_shapes import model_weights

    model = read_model(model_dir)
    dtype = dtype or default_dtype(model.dtype)
    check(model.spec)
    weights = load_weights(model.path, model.spec, DType.float32)
    spec, weights = dense_as_experts(model.spec, weights)
    wide = {name for name, weight in model_weights(spec).items() if weight.wide}
    writer = GGUFWriter(out, "nemotron_h_moe" if spec.moe else "nemotron_h")
    writer.add_name(model.path.resolve().name)
    _add_shapes(writer, spec)
    add_vocabulary(writer, model)
    count = 0
    for name, values in weights.items():
        for its_name, form in gguf_tensors(spec, {name: values}):
            count += 1
            if dtype == "float32" or name in wide:
                writer.add_tensor(its_name, form)
            else:
                kind = GGMLQuantizationType.BF16
                writer.add_tensor(its_name, quantize(form, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return count


def default_dtype(stored: str) -> str:
    """Returns the dtype in which coachwhip runs a checkpoint, unless told otherwise."""
    return "float32" if stored == "float16" else stored


def check(spec) -> None:
    """Refuses what llama.cpp computes differently, or not at all.

    Raises:
        ConfigError: The model is no NemotronH, or asks for one of these things.
    """
    from coachwhip.errors import ConfigError

    attention, moe = spec.attention, spec.moe
    clamps = spec.mamba is not None and spec.mamba.clamps_dt
    plain = attention is None or (
        attention.rope_theta is None and math.isclose(attention.scale, attention.head_dim**-0.5)
    )
    hybrid = attention is not None and spec.mamba is not None
    needs = (
        ("model_type", spec.model_type, "nemotron_h", spec.model_type == "nemotron_h"),
        ("hybrid_override_pattern", spec.pattern, "of Mamba2 and attention layers", hybrid),
        ("time_step_limit", spec.mamba and spec.mamba.dt_limit, "[0, Infinity]", not clamps),
        ("attention", "unusual", "without positions, scaled by 1/sqrt(head_dim)", plain),
        ("n_group", moe and moe.num_groups, "1", moe is None or moe.num_groups == 1),
        ("n_shared_experts", 0, "1", moe is None or moe.shared_intermediate_size > 0),
    )
    for field, got, allowed, met in needs:
        if not met:
            raise ConfigError(
                "no_equal", field, got, allowed, "llama.cpp computes nothing else for a NemotronH"
            )


def _add_shapes(writer, spec) -> None:
    from bench.serve.gguf_tensors import feed_forward_lengths, has_head, kv_head_counts

    attention, mamba = spec.attention, spec.mamba
    lengths = feed_forward_lengths(spec)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_context_length(spec.max_position_embeddings or 4096)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(len(lengths))
    writer.add_feed_forward_length(lengths)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_layer_norm_eps(spec.norm_eps)
    writer.add_rope_dimension_count(0)
    writer.add_head_count_kv(kv_head_counts(spec))
    writer.add_head_count(attention.num_heads)
    writer.add_key_length(attention.head_dim)
    writer.add_value_length(attention.head_dim)
    writer.add_ssm_conv_kernel(mamba.d_conv)
    writer.add_ssm_inner_size(mamba.d_inner)
    writer.add_ssm_state_size(mamba.dstate)
    writer.add_ssm_time_step_rank(mamba.nheads)
    writer.add_ssm_group_count(mamba.ngroups)
    if moe := spec.moe:
        writer.add_expert_count(moe.num_experts)
        writer.add_expert_used_count(moe.experts_per_token)
        writer.add_expert_feed_forward_length(moe.intermediate_size)
        writer.add_expert_shared_feed_forward_length(moe.shared_intermediate_size)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_norm(moe.normalize_weights)
        writer.add_expert_weights_scale(moe.scaling_factor)
        if moe.latent_size:
            writer.add_moe_latent_size(moe.latent_size)
    if has_head(spec):
        writer.add_nextn_predict_layers(1)


if __name__ == "__main__":
    main(prog_name="python -m bench.serve.equal_checkpoint")
