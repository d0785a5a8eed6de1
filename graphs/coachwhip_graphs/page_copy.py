"""The graph that copies pages before a step."""

from __future__ import annotations

from pathlib import Path

from max.dtype import DType
from max.graph import BufferType, DeviceRef, Graph, TensorType

from .ops import copy_rows


def page_copy_graph(dtype: DType, device: DeviceRef, kernels: Path) -> Graph:
    """Builds a graph that copies rows of a pool of any shape.

    Inputs: the pool as [rows, values per row] of `dtype`, changed in place; sources [copies] i32;
    destinations [copies] i32, distinct and none of them a source.

    Args:
        dtype: Type of the pool.
        device: Where all of it lives.
        kernels: The `mojo_kernels` folder.
    """
    index = TensorType(DType.int32, ["copies"], device)
    with Graph(
        "page_copy",
        input_types=[BufferType(dtype, ["rows", "values"], device), index, index],
        custom_extensions=[kernels],
    ) as graph:
        pool, source, destination = graph.inputs
        copy_rows(pool.buffer, source.tensor, destination.tensor)
        graph.output()
    return graph
