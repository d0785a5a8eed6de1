"""All that `coachwhip plan` tells of a configuration, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod

from coachwhip_graphs.spec import LayerKind
from coachwhip_graphs.weight_shapes import model_weights

from .checkpoint import ModelDescription
from .config import Decision, EngineConfig, EngineOptions, Machine, examine, weight_bytes
from .errors import ConfigError, Missing
from .memory_plan import ModePlan, by_mode, concurrency, pool_bytes, room_for, slot_use
from .speculate.draft_pools import draft_model_config, home_bytes


@dataclass(frozen=True)
class DraftModelPlan:
    """A draft model's options, and bytes of one slot, of one page and of its weights."""

    name: str
    config: EngineConfig
    slot: int
    page: int
    weights: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of all its slots and pages."""
        return self.config.num_state_slots * self.slot + self.config.num_kv_pages * self.page

    def as_dict(self) -> dict[str, object]:
        """Returns all of it under stable names, sizes in bytes."""
        names = ("max_model_len", "num_state_slots", "num_kv_pages", "warnings")
        return {
            "name": self.name,
            "weights_bytes": self.weights,
            "slot_bytes": self.slot,
            "page_bytes": self.page,
            "pool_bytes": self.pool_bytes,
            **{name: getattr(self.config, name) for name in names},
        }


class PlanReport:
    """A model with options on a machine.

    Args:
        model: The checkpoint.
        options: What the user set.
        machine: What it has to fit.
        lengths: Tokens of requests, prompt and text; None is the longest.
        read_draft_model: Describes a draft model by name.

    Raises:
        CheckpointError: The files of the draft model are missing or broken.
    """

    def __init__(
        self,
        model: ModelDescription,
        options: EngineOptions,
        machine: Machine,
        lengths: Sequence[int | None],
        read_draft_model: Callable[[str], ModelDescription],
    ) -> None:
        self.model, self.options, self.machine = model, options, machine
        self.found = examine(model.spec, model.dtype, options, machine)
        self.conflicts = list(self.found.conflicts)
        self.draft_model: DraftModelPlan | None = None
        try:
            self._plan_draft_model(read_draft_model)
        except ConfigError as error:
            self.conflicts.append(error)
        self.longest = next(
            (d.value for d in self.found.decisions if d.field == "max_model_len"), None
        )
        chosen = (self.longest if length is None else length for length in lengths)
        self.lengths = sorted({n for n in chosen if n and n <= (self.longest or n)})

    def _plan_draft_model(self, read: Callable[[str], ModelDescription]) -> None:
        """Plans the draft model, if there is one and the model's own options have no conflicts."""
        config = self.found.config
        if config is None or config.speculation is None or not config.speculation.model:
            return
        name = config.speculation.model
        draft = read(name)
        own = draft_model_config(name, draft, self.options, self.found, self.machine)
        weights = weight_bytes(draft.spec, own.dtype, own.device)
        self.draft_model = DraftModelPlan(name, own, *home_bytes(draft.spec, own), weights)

    @property
    def name(self) -> str:
        """The model as the user named it."""
        return self.options.model or "the small model"

    @cached_property
    def num_parameters(self) -> int:
        """Values of all weights, those of a draft head included."""
        return sum(prod(w.shape) for w in model_weights(self.model.spec).values())

    @property
    def layers(self) -> dict[str, int]:
        """Number of layers by kind."""
        spec = self.model.spec
        return {kind.name.lower(): spec.count(kind) for kind in LayerKind if spec.count(kind)}

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of a token."""
        return self.found.row_bytes.page // self.options.kv_cache_page_size

    @cached_property
    def modes(self) -> list[ModePlan]:
        """All cache modes with several numbers of drafts."""
        return by_mode(self.model.spec, self.model.dtype, self.options, self.machine)

    @property
    def hit_tokens(self) -> int:
        """Grid on which a prompt that is sent again hits."""
        config = self.found.config
        return config.mamba_block_size if config.num_state_slots else config.kv_cache_page_size

    @property
    def speculation_bytes(self) -> int:
        """Bytes of slots and pages that would not be there without speculation, those of a draft
        model among them."""
        config = self.found.config
        plain = next(
            m for m in self.modes if m.mode == config.mamba_cache_mode and not m.drafts
        ).resolution
        own = 0 if self.draft_model is None else self.draft_model.pool_bytes
        return pool_bytes(self.found) + own - (0 if plain.config is None else pool_bytes(plain))

    def room(self) -> list[tuple[int, list[int | None]]]:
        """Returns for each number of drafts how many requests of each length memory holds."""
        size = self.options.kv_cache_page_size
        last = self.modes[-1].mode
        return [
            (one.drafts, [room_for(one.resolution, size, n, one.drafts) for n in self.lengths])
            for one in self.modes
            if one.mode == last
        ]

    def origin(self, decision: Decision) -> str:
        """Returns where a decision's option comes from."""
        if decision.field == "speculative_config":
            shorts = ("speculative_config", "spec_method", "spec_tokens", "spec_model")
            given = [self.options.origin(name) for name in shorts if self.options.is_given(name)]
            return given[0] if given else "default"
        return self.options.origin(decision.field)

    def as_dict(self) -> dict[str, object]:
        """Returns all of it under stable names, sizes in bytes."""
        found, config = self.found, self.found.config
        rows, slot = found.row_bytes, found.row_bytes.slot
        return {
            "model": {
                "name": self.name,
                "model_type": self.model.spec.model_type,
                "layers": self.layers,
                "parameters": self.num_parameters,
                "weights_bytes": rows.weights,
                "warnings": list(self.model.warnings),
            },
            "machine": asdict(self.machine),
            "slot": {"bytes": slot.total, **{f"{k}_bytes": v for k, v in asdict(slot).items()}},
            "page": {
                "bytes": rows.page,
                "tokens": self.options.kv_cache_page_size,
                "bytes_per_token": self.token_bytes,
            },
            "decisions": [{**asdict(d), "from": self.origin(d)} for d in found.decisions],
            "conflicts": [conflict_dict(c) for c in self.conflicts],
            "config": None if config is None else self._config_dict(),
            "draft_model": None if self.draft_model is None else self.draft_model.as_dict(),
            "room": [
                {"drafts": drafts, "length": n, "requests": count}
                for drafts, counts in self.room()
                for n, count in zip(self.lengths, counts, strict=True)
            ],
            "modes": [self._mode_dict(one) for one in self.modes],
        }

    def _config_dict(self) -> dict[str, object]:
        config = self.found.config
        values = asdict(config)
        del values["decisions"]
        return {
            **values,
            "slots": asdict(slot_use(config)),
            "pool_bytes": pool_bytes(self.found),
            "speculation_bytes": self.speculation_bytes,
            "hit_tokens": self.hit_tokens if config.mamba_cache_mode != "none" else None,
            "concurrency": [asdict(concurrency(config, n)) for n in self.lengths],
        }

    def _mode_dict(self, one: ModePlan) -> dict[str, object]:
        config = one.resolution.config
        if config is None:
            conflict = conflict_dict(one.resolution.conflicts[0])
            return {"mode": one.mode, "drafts": one.drafts, "conflict": conflict}
        return {
            "mode": one.mode,
            "drafts": one.drafts,
            "slots": asdict(slot_use(config)),
            "num_kv_pages": config.num_kv_pages,
            "pool_bytes": pool_bytes(one.resolution),
            "concurrency": [asdict(concurrency(config, n)) for n in self.lengths],
        }


def conflict_dict(error: ConfigError) -> dict[str, object]:
    """Returns a conflict under stable names."""
    got = None if isinstance(error.got, Missing) else error.got
    return {
        "code": error.code,
        "field": error.field,
        "got": got if isinstance(got, (str, int, float, bool, type(None))) else str(got),
        "allowed": error.allowed,
        "fix": error.hint,
        "from": error.source,
        "message": str(error),
    }
