"""Makes the drafter that the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..checkpoint import ModelDescription, read_model
from ..config import EngineConfig, EngineOptions, Machine, resolve
from ..errors import ConfigError
from ..hub import resolve_model
from ..runner import Runner
from ..schedule.scheduler import Scheduler
from ..tokenizer import Tokenizer
from .custom import CustomDrafter
from .draft_model import DraftModelDrafter
from .drafter import Drafter
from .mtp import MtpDrafter, MtpHead
from .ngram import NgramDrafter

Line = Callable[[str], None] | None


class DraftModelSource:
    """The checkpoint of a draft model, checked against the model it drafts for.

    Args:
        name: Folder or hub id.
        options: Of the engine; the draft model gets the same types, device and limits.
        model: The model it drafts for.
        machine: What both have to fit.

    Raises:
        ConfigError: It has another vocabulary, or cannot run with these options.
        CheckpointError: Its files are missing or broken.
    """

    def __init__(
        self, name: str, options: EngineOptions, model: ModelDescription, machine: Machine
    ) -> None:
        self.model = read_model(resolve_model(name, None))
        _check_vocabulary(name, model, self.model)
        limit = self.model.spec.max_position_embeddings
        length = options.max_model_len or model.spec.max_position_embeddings
        own = replace(
            options,
            model=name,
            speculative_config=None,
            spec_method=None,
            spec_tokens=None,
            spec_model=None,
            drafter=None,
            num_state_slots=None,
            num_kv_pages=None,
            audit_state=False,
            # One slot follows the text, one runs ahead.
            max_num_seqs=2 * options.max_num_seqs,
            max_model_len=length if limit is None or length is None else min(length, limit),
        )
        self.config = resolve(self.model.spec, self.model.dtype, own, machine)


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
    if wanted.model not in loaded:
        loaded[wanted.model] = Runner(
            source.model.path, source.model.spec, source.config, on_progress, on_warning
        )
        if source.config.copies_pages:
            loaded[wanted.model].load_page_copy(on_progress)
    return DraftModelDrafter(loaded[wanted.model])


def _check_vocabulary(name: str, model: ModelDescription, draft: ModelDescription) -> None:
    mine, yours = draft.spec.vocab_size, model.spec.vocab_size
    field = "speculative_config.model"
    fix = "name a draft model of the same family"
    if mine != yours:
        raise ConfigError(
            "vocabulary", field, name, f"a vocabulary of {yours} tokens; it has {mine}", fix
        )
    tokenizers = Tokenizer.beside(draft.path), Tokenizer.beside(model.path)
    if None not in tokenizers and tokenizers[0].vocabulary() != tokenizers[1].vocabulary():
        raise ConfigError(
            "vocabulary", field, name, "the same tokens under the same ids as the model", fix
        )
