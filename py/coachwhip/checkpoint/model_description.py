"""Reads everything about a checkpoint but its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coachwhip_graphs.spec import ModelSpec

from ..errors import CheckpointError
from .generation_defaults import generation_defaults
from .hf_config import HFConfig
from .mamba2 import (
    STATE_SPACES_TOKEN_ID,
    is_state_spaces,
    mamba2_hf_spec,
    state_spaces_spec,
)
from .nemotron_h import nemotron_h_spec
from .shapes import check_vocabulary

_SPECS = {"nemotron_h": nemotron_h_spec, "mamba2": mamba2_hf_spec}
_DTYPES = ("float32", "bfloat16", "float16")
_FILE_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class ModelDescription:
    """A checkpoint as its configuration files describe it."""

    path: Path
    """The checkpoint's folder."""
    spec: ModelSpec
    dtype: str
    """Dtype to compute in: `float32`, `bfloat16` or `float16`."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Tokens that end a text; empty when the checkpoint names none."""
    pad_token_id: int | None
    generation_defaults: dict[str, bool | int | float]
    """`do_sample`, `temperature`, `top_p`, `top_k` of `generation_config.json`, where given."""
    warnings: tuple[str, ...]
    """What the files ask for and does not happen, one line each."""


def read_model(path: str | Path, *, has_weights: bool = True) -> ModelDescription:
    """Reads a checkpoint folder's `config.json` and `generation_config.json`.

    `generation_config.json` wins for the special tokens, as in transformers. The dtype is
    `torch_dtype` (or `dtype`) of the config, else the one that most of the stored bytes have;
    weight files are opened only for that.

    Args:
        path: The folder.
        has_weights: Whether the weights are there; without them and without a dtype in the config,
            float32 is assumed, with a warning.

    Raises:
        CheckpointError: No such folder, or a file in it cannot be read.
        ConfigError: The config is malformed or asks for what is not supported.
    """
    folder = checkpoint_folder(path)
    config = HFConfig.read(folder / "config.json")
    spec = _spec(config, folder)
    generation = _generation_config(config, folder)
    check_vocabulary(config, spec.vocab_size)
    bos, eos, pad = _special_tokens(config, generation, spec.vocab_size)
    return ModelDescription(
        path=folder,
        spec=spec,
        dtype=_dtype(config, folder, has_weights),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        pad_token_id=pad[0] if pad else None,
        generation_defaults=generation_defaults(generation),
        warnings=tuple(config.warnings),
    )


def checkpoint_folder(path: str | Path) -> Path:
    """Returns `path` as the folder of a checkpoint; raises CheckpointError when it is none."""
    folder = Path(path)
    try:
        if folder.is_dir():
            if not (folder / "config.json").exists():
                empty = "is empty" if not any(folder.iterdir()) else "holds no config.json"
                raise CheckpointError(folder, empty, "give the folder of a Hugging Face checkpoint")
            return folder
        if folder.exists():
            raise CheckpointError(
                folder, "is a file, but must be a folder", f"give its folder, {folder.parent}"
            )
    except (OSError, ValueError) as e:  # no permission, a name too long, a zero byte
        raise CheckpointError(folder, f"cannot be opened: {e}") from None
    raise CheckpointError(
        folder, "no such folder", "give a checkpoint's folder or a hub id (org/name)"
    )


def stores_conv_bias(config: HFConfig) -> bool:
    """Says whether the checkpoint holds `conv1d.bias`; without, the bias is zero."""
    if is_state_spaces(config):
        return config.nested("ssm_cfg").flag("conv_bias", default=True)
    return config.flag("use_conv_bias", "mamba_conv_bias", default=True)


def _spec(config: HFConfig, folder: Path) -> ModelSpec:
    quantization = config.get("quantization_config", default=None)
    if quantization is not None:
        raise config.error("quantization_config", quantization, "absent", _NOT_QUANTIZED, _CODE)
    if (folder / "hf_quant_config.json").exists():
        raise CheckpointError(folder, "hf_quant_config.json is present", _NOT_QUANTIZED)
    if is_state_spaces(config):
        return state_spaces_spec(config)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in _SPECS:
        raise config.error(
            "model_type",
            model_type,
            " or ".join(f'"{name}"' for name in _SPECS),
            "no other architecture is supported",
            _CODE,
        )
    return _SPECS[model_type](config)


_CODE = "unsupported"
_NOT_QUANTIZED = "quantised weights are not supported: use the checkpoint in bfloat16 or float32"


def _generation_config(config: HFConfig, folder: Path) -> HFConfig:
    """Returns `generation_config.json`, empty without one, sharing the config's warnings."""
    path = folder / "generation_config.json"
    values = HFConfig.read(path).values if path.exists() else {}
    return HFConfig(values, path, warnings=config.warnings)


def _special_tokens(
    config: HFConfig, generation: HFConfig, vocab_size: int
) -> list[tuple[int, ...]]:
    """Returns the ids of bos, eos and pad; ids outside the vocabulary are dropped with a note."""
    default = (STATE_SPACES_TOKEN_ID,) if is_state_spaces(config) else ()
    found = []
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ids = generation.token_ids(key, config.token_ids(key, default))
        for i in ids:
            if not 0 <= i < vocab_size:
                config.warnings.append(f"{key} {i} is ignored: the vocabulary has {vocab_size} ids")
        found.append(tuple(i for i in ids if 0 <= i < vocab_size))
    if not found[1]:
        config.warnings.append("eos_token_id is not given: only a request's limits end its text")
    return found


def _dtype(config: HFConfig, folder: Path, has_weights: bool) -> str:
    for key in ("torch_dtype", "dtype"):
        value = config.get(key, default="auto")
        if value == "auto":
            continue
        name = value.removeprefix("torch.") if isinstance(value, str) else None
        if name not in _DTYPES:
            raise config.error(key, value, ", ".join(_DTYPES), "no other dtype is supported", _CODE)
        return name
    if not has_weights:
        config.warnings.append("torch_dtype is not given: float32 is assumed")
        return "float32"
    from .safetensors_files import SafetensorsFiles  # numpy is for those who open weights

    stored: dict[str, int] = {}
    for tensor in SafetensorsFiles.open(folder).tensors.values():
        stored[tensor.dtype] = stored.get(tensor.dtype, 0) + tensor.nbytes
    return _FILE_DTYPES.get(max(stored, key=stored.get, default="F32"), "float32")
