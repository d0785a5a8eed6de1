"""MAX accepts the loaded weights as they are: mapped, converted, and realigned."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, Weight, ops

from coachwhip.checkpoint import load_weights, read_model
from coachwhip.checkpoint.safetensors_files import SINGLE_FILE
from coachwhip_graphs.weights import graph_weights
from tests.reference.checkpoints import write_checkpoint
from tests.reference.tiny_configs import TINY_CONFIGS

IN_PROJ = "layers.0.mixer.in_proj.weight"  # bfloat16, mapped
TAPS = "layers.0.mixer.conv1d.weight"  # float32, transposed
NORM = "layers.0.norm.weight"  # float32, converted


@pytest.mark.slow
@pytest.mark.parametrize("pad", [0, 1])
def test_a_graph_computes_with_the_loaded_weights(tmp_path, pad: int):
    stored = write_checkpoint(tmp_path, TINY_CONFIGS["nemotron_dense"], dtype="bfloat16")
    if pad:  # a header length that puts every tensor at an odd address
        path = tmp_path / SINGLE_FILE
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little") + pad
        path.write_bytes(
            length.to_bytes(8, "little") + raw[8 : 7 + length] + b" " + raw[7 + length :]
        )
    spec = read_model(tmp_path).spec
    registry = load_weights(tmp_path, spec, DType.bfloat16)
    wanted = graph_weights(spec, DType.bfloat16)

    def weight(name: str) -> Weight:
        return Weight(name, wanted[name].dtype, wanted[name].shape, DeviceRef.CPU())

    x_type = TensorType(DType.bfloat16, ["rows", spec.hidden_size], DeviceRef.CPU())
    k_type = TensorType(DType.float32, ["rows", spec.mamba.d_conv], DeviceRef.CPU())
    with Graph("registry", input_types=[x_type, k_type]) as graph:
        x, k = (value.tensor for value in graph.inputs)
        projected = x @ ops.transpose(weight(IN_PROJ), 0, 1)
        graph.output(projected.cast(DType.float32), k @ weight(TAPS), weight(NORM) * 2.0)
    model = InferenceSession(devices=[CPU()]).load(graph, weights_registry=registry)
    del registry
    gc.collect()  # the model alone keeps the mapped files alive

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, spec.hidden_size, generator=generator).bfloat16()
    taps = torch.randn(3, spec.mamba.d_conv, generator=generator)
    got = [torch.from_dlpack(out) for out in model.execute(Buffer.from_dlpack(rows), taps.numpy())]
    expected = [
        rows.float() @ stored[f"backbone.{IN_PROJ}"].float().T,
        taps @ stored[f"backbone.{TAPS}"].float().squeeze(1).T,
        stored[f"backbone.{NORM}"].float() * 2.0,
    ]
    for got_value, expected_value, tolerance in zip(got, expected, (2e-2, 1e-5, 0), strict=True):
        np.testing.assert_allclose(
            got_value, expected_value, atol=tolerance, rtol=1e-2 * bool(tolerance)
        )
