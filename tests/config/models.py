"""One model of each kind, and machines for them."""

from __future__ import annotations

from pathlib import Path

from coachwhip.checkpoint.hf_config import HFConfig
from coachwhip.checkpoint.mamba2 import mamba2_hf_spec, state_spaces_spec
from coachwhip.checkpoint.nemotron_h import nemotron_h_spec
from coachwhip.config import Gpu, Machine
from coachwhip_graphs.spec import ModelSpec
from tests.checkpoint.parsed_configs import parsed
from tests.checkpoint.published_configs import PUBLISHED
from tests.reference.tiny_configs import TINY_CONFIGS

CPU = Machine(24 << 30, 2)
GPU = Machine(64 << 30, 16, Gpu("H100", 80 * 10**9))


def spec_of(config: dict) -> ModelSpec:
    """Reads a config of any kind."""
    values: HFConfig = parsed(config)
    if "ssm_cfg" in config:
        return state_spaces_spec(values)
    return {"nemotron_h": nemotron_h_spec, "mamba2": mamba2_hf_spec}[config["model_type"]](values)


SPECS: dict[str, ModelSpec] = {
    name: spec_of(config) for name, config in {**TINY_CONFIGS, **PUBLISHED}.items()
}
"""Models by name, tiny and published."""

KINDS: dict[str, ModelSpec] = {
    "hybrid": SPECS["nemotron_dense"],
    "hybrid with a draft head": SPECS["nemotron_latent_mtp"],
    "pure Mamba2": SPECS["mamba2_g4"],
    "attention only": spec_of(TINY_CONFIGS["nemotron_dense"] | {"hybrid_override_pattern": "*-*-"}),
}
"""A model of each kind; all but the pure one have up to 2048 positions."""


def write_config(folder: Path, config: dict) -> Path:
    """Writes a config.json and nothing else; returns the folder."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder
