"""Compiles the graphs of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from max.dtype import DType
from max.engine import InferenceSession, Model
from max.graph import BufferType, DeviceRef, Graph, KernelLibrary, Module, TensorType

from bench.kernels.case import GraphSpec

CPU = DeviceRef.CPU()
F32, BF16, I32, I64, U32, BOOL = (
    DType.float32,
    DType.bfloat16,
    DType.int32,
    DType.int64,
    DType.uint32,
    DType.bool,
)


def in_type(dtype: DType, *shape: int | str) -> TensorType:
    """Type of an input on the CPU."""
    return TensorType(dtype, list(shape), CPU)


def in_place(dtype: DType, *shape: int | str) -> BufferType:
    """Type of a buffer on the CPU that the graph changes."""
    return BufferType(dtype, list(shape), CPU)


def compiled(
    session: InferenceSession, specs: Sequence[GraphSpec], extensions: Sequence[Path]
) -> dict[str, Model]:
    """Compiles graphs together: what a compile costs is mostly its start.

    Args:
        session: A session on a CPU.
        specs: The graphs; names must differ.
        extensions: Folders of Mojo packages with their ops.

    Returns:
        The models by name.
    """
    if not specs:
        return {}
    module = Module()
    library = KernelLibrary()
    if extensions:
        library.load_paths(list(extensions))
    for spec in specs:
        with Graph(
            spec.name, input_types=spec.types, kernel_library=library, module=module
        ) as graph:
            graph.output(*spec.build(graph.inputs))
    program = session.compile(module, custom_extensions=list(extensions))
    return session.init_all(program)
