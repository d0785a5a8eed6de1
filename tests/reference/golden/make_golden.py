"""Computes the logits that transformers gives for the tiny models and stores some rows of them.

    python -m tests.reference.golden.make_golden

Needs transformers 5.24 and no network. Only a full forward pass in float32 is used: transformers'
NemotronH takes dt's lower bound from `time_step_min`, which the weights were never trained with,
so the limit of the config is put in its place first.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.reference.checkpoints import random_tensors, write_checkpoint
from tests.reference.nemotron_h import dt_limit
from tests.reference.tiny_configs import TINY_CONFIGS

GOLDEN = Path(__file__).with_name("logits.npz")

TOKENS = 45
ROWS = (0, 1, 2, 3, 16, 17, 44)
"""Rows that are stored: the first few, where states are still empty, and some late ones."""

NAMES = tuple(name for name in TINY_CONFIGS if name != "state_spaces")
"""All but the format that transformers does not read."""


def golden_config(name: str) -> dict:
    """Returns the tiny config as transformers can read it: one width for all MLP layers."""
    config = dict(TINY_CONFIGS[name])
    if isinstance(config.get("intermediate_size"), list):
        config["intermediate_size"] = config["intermediate_size"][0]
    return config


def golden_ids(name: str) -> list[int]:
    """Returns the prompt of one model."""
    generator = torch.Generator().manual_seed(len(name))
    return torch.randint(0, 512, (TOKENS,), generator=generator).tolist()


def fingerprint(tensors: dict[str, torch.Tensor]) -> float:
    """Returns the sum of all magnitudes: equal draws have equal sums, up to rounding."""
    return sum(float(t.double().abs().sum()) for t in tensors.values())


def transformers_logits(
    config: dict, tensors: dict[str, torch.Tensor], ids: list[int]
) -> np.ndarray:
    """Returns the logits of a full forward pass, [tokens, vocab] float32."""
    from transformers import Mamba2ForCausalLM, NemotronHForCausalLM

    pure = config["model_type"] == "mamba2"
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), config, tensors=tensors)
        architecture = Mamba2ForCausalLM if pure else NemotronHForCausalLM
        model = architecture.from_pretrained(folder, dtype=torch.float32).eval()
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = dt_limit(config)
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def main() -> None:
    """Writes `logits.npz`."""
    stored = {}
    for name in NAMES:
        config = golden_config(name)
        tensors = random_tensors(config)
        logits = transformers_logits(config, tensors, golden_ids(name))
        stored[f"{name}.logits"] = logits[list(ROWS)]
        stored[f"{name}.fingerprint"] = np.float64(fingerprint(tensors))
        print(f"{name}: largest |logit| {np.abs(logits).max():.2f}")
    np.savez_compressed(GOLDEN, **stored)
    print(f"{GOLDEN.name}: {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
