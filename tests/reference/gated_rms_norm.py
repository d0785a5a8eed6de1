"""Reference of the gated RMSNorm of the Mamba2 mixer, in numpy.

See: model code of NemotronH (norm_before_gate = False).
"""

import numpy as np
from numpy.typing import NDArray


def gated_rms_norm(
    y: NDArray, z: NDArray, weight: NDArray, *, groups: int, eps: float, z_offset: int = 0
) -> NDArray:
    """Gates first, then normalises: v = y*silu(z); v / sqrt(mean over the group of v^2 + eps) * w.

    Args:
        y: [tokens, width].
        z: [tokens, >= z_offset + width].
        weight: [width].
        groups: Groups of a row; each is normalised by its own mean square.
        eps: Added to the mean square.
        z_offset: Column of z where the gate begins.

    Returns:
        [tokens, width].
    """
    tokens, width = y.shape
    gate = z[:, z_offset : z_offset + width]
    v = (y * gate / (1 + np.exp(-gate))).reshape(tokens, groups, width // groups)
    mean_square = (v * v).mean(axis=2, keepdims=True)
    return (v / np.sqrt(mean_square + eps)).reshape(tokens, width) * weight
