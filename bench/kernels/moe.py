"""`moe`: a whole `E` block (router, routed experts, shared expert) at decode.

What it must do at least is read the weights of the chosen experts, of the shared expert and of the
router once. Rows change from call to call, and with them the experts, whose weights together are
larger than any cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.case import Benchmark, Case, GraphSpec, Work, each
from bench.kernels.graphs import BF16, F32, in_type
from bench.kernels.memory import TORCH_OF, buffer, in_panels, tensor
from coachwhip_graphs.matrix import Matrix
from coachwhip_graphs.moe import moe
from coachwhip_graphs.panels import panels_shape
from coachwhip_graphs.spec import MoeSpec

ROWS = 16
"""Different rows that the calls rotate over."""

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """One case: `batch` rows through a block with `experts` experts, `count` of them per row."""

    batch: int
    dtype: str
    hidden: int
    experts: int
    count: int
    inner: int
    shared: int

    @property
    def name(self) -> str:
        return f"batch {self.batch}, {self.count} of {self.experts} experts, {self.dtype}"

    @property
    def model(self) -> str:
        return f"moe-{self.hidden}-{self.experts}-{self.dtype}"

    @property
    def spec(self) -> MoeSpec:
        return MoeSpec(self.experts, self.count, self.inner, self.shared, None, scaling_factor=2.5)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the block's weights, in the order of the graph's inputs."""
        return {
            "gate.weight": (self.experts, self.hidden),
            "gate.e_score_correction_bias": (self.experts,),
            "experts.up_proj": (self.experts, self.inner, self.hidden),
            "experts.down_proj": (self.experts, self.hidden, self.inner),
            "shared_experts.up_proj.weight": (self.shared, self.hidden),
            "shared_experts.down_proj.weight": (self.hidden, self.shared),
        }

    def work(self, touched: float) -> Work:
        """The least work of a call that touches `touched` experts."""
        size = TORCH_OF[self.dtype].itemsize
        matrices = 2 * self.hidden * (touched * self.inner + self.shared)
        flop = 4 * self.batch * self.hidden * (self.count * self.inner + self.shared)
        read = int(matrices * size) + 4 * self.experts * self.hidden
        return Work(read, "read", flop, self.dtype, flop)


class _Inputs:
    """Stands for the weight registry: the block's weights are inputs of the graph here."""

    def __init__(
        self, values: dict[str, Any], shapes: dict[str, tuple[int, ...]], prefix: str = ""
    ) -> None:
        self._values, self._shapes, self._prefix = values, shapes, prefix

    def below(self, prefix: str) -> _Inputs:
        return _Inputs(self._values, self._shapes, self._prefix + prefix)

    def __getitem__(self, name: str) -> Any:
        return self._values[self._prefix + name]

    def matrix(self, name: str) -> Matrix:
        return Matrix(self[name], self._shapes[self._prefix + name])


def graph(shape: Shape) -> GraphSpec:
    dtype = BF16 if shape.dtype == "bfloat16" else F32
    types = [in_type(dtype, "tokens", shape.hidden)]
    for name, dims in shape.shapes().items():
        of = F32 if name.startswith("gate") else dtype
        types.append(in_type(of, *(panels_shape(dims, of.size_in_bytes) if dims[1:] else dims)))

    def build(inputs: list[Any]) -> list[Any]:
        x, *weights = (v.tensor for v in inputs)
        named = dict(zip(shape.shapes(), weights, strict=True))
        return [moe(x, _Inputs(named, shape.shapes()), shape.spec)]

    return GraphSpec(shape.model, types, build)


def random_weights(shape: Shape) -> Weights:
    """Draws the block's weights; experts repeat a few drawn ones, since only their bytes matter."""
    draws = torch.Generator().manual_seed(6)
    made: Weights = {}
    for name, dims in shape.shapes().items():
        dtype = torch.float32 if name.startswith("gate") else TORCH_OF[shape.dtype]
        if len(dims) == 3:
            drawn = torch.randn(4, *dims[1:], generator=draws) / dims[-1] ** 0.5
            made[name] = drawn.to(dtype).repeat(-(-dims[0] // 4), 1, 1)[: dims[0]].contiguous()
        else:
            scale = dims[-1] ** -0.5 if len(dims) > 1 else 0.01
            made[name] = (torch.randn(dims, generator=draws) * scale).to(dtype)
    return made


def route(x: torch.Tensor, w: Weights, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    score = torch.sigmoid(x.float() @ w["gate.weight"].T)
    chosen = (score + w["gate.e_score_correction_bias"]).topk(shape.count, dim=-1).indices
    weight = score.gather(1, chosen)
    return chosen, weight / weight.sum(-1, keepdim=True) * 2.5


def plain(x: torch.Tensor, w: Weights, shape: Shape) -> torch.Tensor:
    """The block in torch: one product per chosen expert."""
    chosen, weight = route(x, w, shape)
    out = torch.relu(x @ w["shared_experts.up_proj.weight"].T).square()
    out = out @ w["shared_experts.down_proj.weight"].T
    for e in chosen.unique().tolist():
        row, place = (chosen == e).nonzero(as_tuple=True)
        h = torch.relu(x[row] @ w["experts.up_proj"][e].T).square()
        y = h @ w["experts.down_proj"][e].T
        out[row] += (y * weight[row, place, None]).to(out.dtype)
    return out


def _case(shape: Shape, models: Mapping[str, Any]) -> Case:
    weights = random_weights(shape)
    draws = torch.Generator().manual_seed(7)
    rows = [
        torch.randn(shape.batch, shape.hidden, generator=draws).to(TORCH_OF[shape.dtype])
        for _ in range(ROWS)
    ]
    given = [buffer(r) for r in rows]
    bound = [buffer(in_panels(w) if w.ndim > 1 else w) for w in weights.values()]
    touched = sum(len(route(r, weights, shape)[0].unique()) for r in rows) / ROWS
    model = models[shape.model]
    turn, turn_torch = itertools.cycle(range(ROWS)), itertools.cycle(range(ROWS))

    def outputs() -> dict[str, torch.Tensor]:
        return {
            "ours": tensor(model.execute(given[0], *bound)).float(),
            "torch": plain(rows[0], weights, shape).float(),
        }

    return Case(
        "moe",
        shape.name,
        shape.work(touched),
        lambda: model.execute(given[next(turn)], *bound),
        {"torch": lambda: plain(rows[next(turn_torch)], weights, shape)},
        outputs,
        shape.batch,
        tolerance=5e-2 if shape.dtype == "bfloat16" else 1e-3,
    )


def benchmark(quick: bool) -> Benchmark:
    """The MoE block of a 30B-A3B model: hidden 2688, six experts of 1856, shared expert 3712.

    It has 32 experts instead of 128: they fill 640 MB in bfloat16, and a call reads six of them.
    """
    if quick:
        sizes = {"hidden": 128, "experts": 8, "count": 2, "inner": 72, "shared": 144}
    else:
        sizes = {"hidden": 2688, "experts": 32, "count": 6, "inner": 1856, "shared": 3712}
    shapes = [Shape(b, d, **sizes) for d in ("bfloat16", "float32") for b in (1, 8)]
    kinds = {shape.model: shape for shape in shapes}.values()

    return Benchmark(
        [graph(shape) for shape in kinds],
        [],
        each(shapes, lambda shape, models, memory: _case(shape, models)),
    )
