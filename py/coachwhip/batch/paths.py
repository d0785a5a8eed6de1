"""The files of one batch, and the ways in which they must not meet."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import BatchError

STDIN = "-"
_COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class BatchPaths:
    """An output and what lies beside it.

    `partial` holds finished lines while there are others to come, and becomes `output`. `journal`
    says what both belong to. `errors` gets the failed lines once more.
    """

    output: Path
    partial: Path
    journal: Path
    errors: Path

    @classmethod
    def of(cls, output: str, errors: str | None = None) -> BatchPaths:
        """Returns the paths of an output; a link's target is what is written.

        Args:
            output: The output as the user names it.
            errors: The error file; None puts it beside the output, `NAME.errors.jsonl` for
                `NAME.jsonl`.
        """
        real = Path(os.path.realpath(output))
        failed = real.with_name(f"{real.stem}.errors{real.suffix}")
        return cls(
            real,
            real.with_name(f"{real.name}.partial"),
            real.with_name(f"{real.name}.journal"),
            Path(os.path.realpath(errors)) if errors else failed,
        )

    @property
    def written(self) -> dict[str, Path]:
        """Every file that a batch may write, by what it is."""
        return {
            "the output": self.output,
            "the partial output": self.partial,
            "the journal": self.journal,
            "the error file": self.errors,
        }

    def check(self, source: str) -> None:
        """Checks all that can be known of the files without reading them.

        Args:
            source: The input as the user names it; `-` is standard input.

        Raises:
            BatchError: The input is not there, is one of the files that are written, or a file
                cannot be written.
        """
        if self.output.name == STDIN:
            raise BatchError(
                self.output.name, "an output is a file, not standard output", "name one"
            )
        if self.output.suffix in _COMPRESSED:
            raise BatchError(
                self.output, "an output is not compressed", "give a name without the ending"
            )
        if self.errors in (self.output, self.partial, self.journal):
            raise BatchError(self.errors, "is the error file and the output", "give two names")
        if source != STDIN:
            self._check_source(source)
        for folder in {self.output.parent, self.errors.parent}:
            if not folder.is_dir():
                raise BatchError(folder, "no such folder", "create it")
            if not os.access(folder, os.W_OK | os.X_OK):
                raise BatchError(folder, "the folder cannot be written", "give another output")
        for what, path in self.written.items():
            if path.exists() and not path.is_file():
                raise BatchError(path, f"{what} must be a file", "give another name")
            if path.exists() and not os.access(path, os.W_OK):
                raise BatchError(path, f"{what} cannot be written", "give another name")
        self.refuse_foreign()

    def refuse_foreign(self) -> None:
        """Raises BatchError when there are files that no journal says to be a batch's."""
        if self.journal.exists():
            return
        for path in (self.output, self.partial, self.errors):
            if path.exists():
                raise BatchError(
                    path,
                    "exists, and no journal beside it says that it is this batch's",
                    "move it away or give another output",
                )

    def _check_source(self, source: str) -> None:
        try:
            status = os.stat(source)
        except (OSError, ValueError) as error:
            raise BatchError(
                source, f"cannot be read: {_reason(error)}", "name the input"
            ) from None
        if stat.S_ISDIR(status.st_mode):
            raise BatchError(source, "is a folder", "give a file of requests")
        for what, path in self.written.items():
            if path.exists() and os.path.samestat(status, path.stat()):
                raise BatchError(source, f"is {what} as well as the input", "give another output")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
