"""Makes the drafter that the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..checkpoint import ModelDescription
from ..config import EngineConfig, EngineOptions, Machine, Resolution
from ..errors import ConfigError
from ..hub import resolve_model
from ..runner import Runner
from ..schedule.scheduler import Scheduler
from ..tokenizer import Tokenizer
from .custom import CustomDrafter
from .draft_model import DraftModelDrafter
from .draft_pools import FIELD, draft_model_config
from .drafter import Drafter
from .mtp import MtpDrafter, MtpHead
from .ngram import NgramDrafter
from .read_draft_model import read_draft_model

Line = Callable[[str], None] | None


class DraftModelSource:
    """The checkpoint of a draft model, checked against the model it drafts for.

    Args:
        name: Folder or hub id.
        options: Of the engine.
        model: The model it drafts for.
        found: What became of the options for that model.
        machine: What both have to fit.

    Raises:
        ConfigError: It has another vocabulary, or finds no room in memory.
        CheckpointError: Its files are missing or broken.
    """

    def __init__(
        self,
        name: str,
        options: EngineOptions,
        model: ModelDescription,
        found: Resolution,
        machine: Machine,
    ) -> None:
        self.model = draft = read_draft_model(name, resolve_model)
        _check_vocabulary(name, model, draft)
        self.config = draft_model_config(name, draft, options, found, machine)


def make_drafter(
    config: EngineConfig,
    options: EngineOptions,
    runner: Runner,
    scheduler: Scheduler,
    source: DraftModelSource | None,
    loaded: dict[str, object],
    on_progress: Line,
    on_warning: Line,
) -> Drafter | None:
    """Returns the configured drafter, or None for none.

    Args:
        config: Resolved options.
        options: As the user set them.
        runner: The loaded model.
        scheduler: Owns the pages of its requests.
        source: The draft model, with that method.
        loaded: Heads and draft models by name; what is made here is kept in it.
        on_progress: Gets lines while graphs compile.
        on_warning: Gets warnings about weights and the user's drafter.
    """
    wanted = config.speculation
    if wanted is None:
        return None
    if wanted.method == "ngram":
        return NgramDrafter(wanted.prompt_lookup_min, wanted.prompt_lookup_max)
    if wanted.method == "custom":
        return CustomDrafter(options.drafter, runner.spec.vocab_size, on_warning)
    if wanted.method == "mtp":
        if "mtp" not in loaded:
            loaded["mtp"] = MtpHead(runner, on_progress)
        publishes = config.mamba_cache_mode != "none"
        return MtpDrafter(loaded["mtp"], scheduler.ownership.take_pages, publishes)
    return _draft_model(source, loaded, on_progress, on_warning)


def _draft_model(
    source: DraftModelSource, loaded: dict[str, object], on_progress: Line, on_warning: Line
) -> DraftModelDrafter:
    """Returns a drafter over a draft model, which is loaded unless it is already."""
    config, key = source.config, f"draft model {source.model.path}"
    if key not in loaded:
        for line in (*source.model.warnings, *config.warnings) if on_warning else ():
            on_warning(line)
        loaded[key] = Runner(source.model.path, source.model.spec, config, on_progress, on_warning)
    runner = loaded[key]
    if config.copies_pages:
        runner.load_page_copy(on_progress)
    config = replace(
        config,
        num_state_slots=min(config.num_state_slots, runner.config.num_state_slots),
        num_kv_pages=min(config.num_kv_pages, runner.config.num_kv_pages),
    )
    return DraftModelDrafter(runner, config)


def _check_vocabulary(name: str, model: ModelDescription, draft: ModelDescription) -> None:
    mine, yours = draft.spec.vocab_size, model.spec.vocab_size
    fix = "name a draft model of the same family"
    if mine != yours:
        raise ConfigError(
            "vocabulary",
            FIELD,
            name,
            f"a model with a vocabulary of {yours} tokens; it has {mine}",
            fix,
        )
    tokenizers = Tokenizer.beside(draft.path), Tokenizer.beside(model.path)
    if None not in tokenizers and tokenizers[0].vocabulary() != tokenizers[1].vocabulary():
        raise ConfigError(
            "vocabulary", FIELD, name, "a model with the same tokens under the same ids", fix
        )
