"""What the registry of a written checkpoint must hold, computed by torch."""

from __future__ import annotations

import numpy as np
import torch
from max.driver import Buffer

from coachwhip_graphs.weights import WeightSpec
from tests.reference.checkpoints import DTYPES, stack_experts


def as_torch(value: np.ndarray | Buffer) -> torch.Tensor:
    return torch.from_dlpack(value) if isinstance(value, Buffer) else torch.from_numpy(value)


def expected_weights(
    stored: dict[str, torch.Tensor], wanted: dict[str, WeightSpec]
) -> dict[str, torch.Tensor]:
    """Computes every wanted weight from tensors under their published names."""
    stacked, found = stack_experts(stored), {}
    for name, weight in wanted.items():
        source = name if name.startswith(("lm_head.", "mtp.")) else f"backbone.{name}"
        if name.endswith("mixer.A"):
            found[name] = -torch.exp(stacked[source + "_log"].double()).float()
        elif name.endswith("conv1d.weight"):
            found[name] = stacked[source].float().squeeze(1).T
        elif name.endswith("conv1d.bias") and source not in stacked:
            found[name] = torch.zeros(weight.shape)
        else:
            found[name] = stacked[source].to(DTYPES[weight.dtype.name])
    return found
