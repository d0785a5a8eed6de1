"""All that happens to a batch before weights load: reading, checking, and finding what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ..checkpoint.fingerprint import fingerprint
from ..engine import Engine
from ..errors import shown
from ..openai import Frontend
from .counts import BatchCounts
from .input_file import BatchInput
from .journal import Origin
from .ledger import Ledger
from .paths import BatchPaths
from .selection import selected
from .validate import CheckedInput, validate
from .window import Window, windows

_SETTINGS = ("dtype", "mamba_ssm_cache_dtype", "kv_cache_dtype", "max_model_len")
"""Options that change what is generated, and not only how fast."""


class PreparedBatch:
    """A checked input, and the ledger of its output.

    Args:
        engine: An engine whose configuration is known; its weights need not be there.
        source: The input.
        paths: The batch's files.
        names: Names that lines may give as model; none takes every name.
        shard: (i, n), which part of the input to run.
        limit: Most lines of it; None is all.
        on_warning: Gets what the user should know, one line each.

    Raises:
        BatchError: The input is wrong, or the output is another's; nothing was written.
    """

    def __init__(
        self,
        engine: Engine,
        source: BatchInput,
        paths: BatchPaths,
        names: Sequence[str],
        shard: tuple[int, int],
        limit: int | None,
        on_warning: Callable[[str], None],
    ) -> None:
        config, folder = engine.config, engine.model.path
        model = str(engine.options.model or folder.name)
        self._source = source
        self._frontend = Frontend(
            engine.model, config, tuple(names) or (model,), any_model=not names
        )
        checked = validate(source, self._frontend)
        for line in _remarks(checked, model):
            on_warning(line)
        settings = {name: getattr(config, name) for name in _SETTINGS}
        settings["seed"] = self._seed = engine.options.seed
        origin = Origin(checked.digest, fingerprint(folder), settings)
        self.ledger = Ledger(paths, origin, source)
        mine = selected(len(checked.ids), shard, limit)
        done = checked.ids.also_in(self.ledger.done)
        self._wanted = mine & ~done
        # A checkpoint every so many tokens is what two prompts can share.
        cached = config.mamba_cache_mode != "none"
        self._grain = config.mamba_block_size if cached else 0
        self.counts = BatchCounts(int((mine | done).sum()), before=int(done.sum()))

    def begin(self) -> BatchCounts:
        """Starts the clock of the counts, and returns them."""
        self.counts = BatchCounts(self.counts.total, self.counts.before)
        return self.counts

    def windows(self) -> Iterator[Window]:
        """Yields what is left to run."""
        return windows(self._source, self._wanted, self._frontend, self._grain, self._seed)


def _remarks(checked: CheckedInput, model: str) -> Iterator[str]:
    if checked.other_models:
        yield (
            f"lines name {_listed(checked.other_models)}; all are answered by {model} "
            "(--served-model-name makes other names an error)"
        )
    if checked.ignored_fields:
        yield f"fields without a meaning here are ignored: {_listed(checked.ignored_fields)}"


def _listed(names: Counter[str]) -> str:
    return ", ".join(f"{shown(name)} in {count}" for name, count in names.most_common(5))
