"""The graph that starts the team of threads which the CPU kernels share their work with."""

from __future__ import annotations

from pathlib import Path

from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, ops


def team_graph(kernels: Path) -> Graph:
    """Builds the graph.

    Inputs: most members [1] i64; outputs: members, and jobs that one of them took part in, [2] i64.

    The code that members run is this graph's: once it has run, it must stay loaded.

    Args:
        kernels: The `mojo_kernels` folder.

    See: mojo_kernels/team.mojo.
    """
    device = DeviceRef.CPU()
    with Graph(
        "team",
        input_types=[TensorType(DType.int64, [1], device)],
        custom_extensions=[kernels],
    ) as graph:
        (figures,) = ops.custom(
            "coachwhip.team",
            device=device,
            values=[graph.inputs[0].tensor],
            out_types=[TensorType(DType.int64, [2], device)],
        )
        graph.output(figures.tensor)
    return graph
