"""Config dicts as the readers get them."""

from __future__ import annotations

import json
from pathlib import Path

from coachwhip.checkpoint.hf_config import HFConfig
from coachwhip.checkpoint.json_file import parse_json_object
from coachwhip.checkpoint.nemotron_h import nemotron_h_spec
from coachwhip_graphs.spec import ModelSpec


def parsed(config: dict) -> HFConfig:
    """Passes a config through JSON, as a file would."""
    path = Path("config.json")
    return HFConfig(parse_json_object(json.dumps(config).encode(), path), path)


def spec_of(config: dict) -> ModelSpec:
    """Reads a NemotronH config."""
    return nemotron_h_spec(parsed(config))


def without(config: dict, *keys: str) -> dict:
    return {k: v for k, v in config.items() if k not in keys}
