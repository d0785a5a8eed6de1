"""What of a batch is done: the output, the journal, and how both survive anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from ..errors import BatchError, StorageError, shown
from .appending import AppendedFile, sync_folder, write_whole
from .ids import IdList
from .input_file import BatchInput
from .journal import Journal, Origin
from .line import parse_line
from .paths import BatchPaths
from .records import has_failed, id_of


@dataclass(frozen=True)
class Finished:
    """A line that is done."""

    custom_id: str
    body_digest: str
    record: bytes


class Ledger:
    """The output of a batch while it is written.

    Args:
        paths: The batch's files.
        origin: What the output belongs to.
        source: The input, read again only to say which of its lines changed.

    `done` are the ids of lines that were there when it was opened, `num_failed` counts all failed
    ones.

    Raises:
        BatchError: The output belongs to another input or model or to no batch at all, or another
            run is writing it. Nothing was changed.
    """

    def __init__(self, paths: BatchPaths, origin: Origin, source: BatchInput) -> None:
        self._paths = paths
        self.done, self.num_failed = IdList(), 0
        self._output: AppendedFile | None = None
        paths.refuse_foreign()
        self._journal = Journal(paths.journal)
        try:
            # Only now, as a run that had the lock may have moved them until then.
            there = [p for p in (paths.output, paths.partial) if p.exists()]
            if there:
                self._resume(there, origin, source)
            self._check_errors(there)
            if not there:
                self._journal.origin()  # refuses a file that is no journal
                self._journal.begin(origin)  # nothing is left that an older one could protect
        except BaseException:
            self._journal.close()
            raise

    def _resume(self, there: Sequence, origin: Origin, source: BatchInput) -> None:
        found = self._journal.origin()
        if found is None:
            raise BatchError(
                self._journal.path, "has no first line", f"move {there[0].name} and it away"
            )
        self._check_origin(found, origin, source)
        if len(there) == 2:
            if not os.path.samefile(*there):
                raise BatchError(
                    there[0], f"{there[1].name} is there as well", "move one of the two away"
                )
            there[1].unlink()  # the run ended between giving the name and taking the old one
        self._journal.mend()
        self._read(there[0])

    def _check_origin(self, found: Origin, origin: Origin, source: BatchInput) -> None:
        where, hint = (
            self._paths.output,
            "give another output, or move this one and its journal away",
        )
        if found.model != origin.model:
            raise BatchError(where, "was begun with another model", hint)
        for name, value in origin.settings.items():
            if found.settings.get(name) != value:
                got = shown(found.settings.get(name))
                raise BatchError(where, f"was begun with {name} {got}, not {shown(value)}", hint)
        if found.input != origin.input:
            raise BatchError(where, f"was begun with another input{self._change(source)}", hint)

    def _change(self, source: BatchInput) -> str:
        """Returns which finished line the input has otherwise now; empty if none has changed."""
        bodies = dict(self._journal.entries())
        for number, raw in source.lines():
            line = parse_line(raw)
            if bodies.get(line.custom_id, line.body_digest) != line.body_digest:
                return f": line {number}, {shown(line.custom_id)}, had another body"
        return ""

    def _read(self, path) -> None:
        """Takes in the lines that are there; a last one that is cut short is dropped."""
        complete = number = 0
        with path.open("rb") as file:
            for record in file:
                number += 1
                custom_id = id_of(record) if record.endswith(b"\n") else None
                if custom_id is None:
                    if file.read(1):
                        raise BatchError(path, f"line {number} is no result", "move it away")
                    break
                complete += len(record)
                self.done.add(custom_id)
                self.num_failed += has_failed(record)
        if os.path.getsize(path) > complete:
            repaired = AppendedFile(path)
            repaired.cut(complete)
            repaired.close()

    def _check_errors(self, there: Sequence) -> None:
        """Refuses an error file that holds anything else than failed lines of this output."""
        errors = self._paths.errors
        if not errors.exists():
            return
        with there[0].open("rb") if there else BytesIO() as output, errors.open("rb") as found:
            failed = filter(has_failed, output)
            if any(line != next(failed, None) for line in found):
                raise BatchError(
                    errors, "exists, and is not this output's error file", "move it away"
                )

    def append(self, finished: Sequence[Finished]) -> None:
        """Writes lines and waits until they are on the disk.

        Raises:
            StorageError: They cannot be written; those before are kept.
        """
        if self._output is None:
            if self._paths.output.exists():  # a part of the input was complete, more is to come
                os.replace(self._paths.output, self._paths.partial)
            self._output = AppendedFile(self._paths.partial)
        self._journal.add((line.custom_id, line.body_digest) for line in finished)
        self._output.append(b"".join(line.record for line in finished))
        self.num_failed += sum(has_failed(line.record) for line in finished)

    def complete(self) -> None:
        """Gives the output its name, and writes the error file if any line failed.

        Raises:
            StorageError: One of them cannot be written; the partial output is kept.
        """
        partial, output = self._paths.partial, self._paths.output
        named = not partial.exists() and output.exists()
        if not named:
            AppendedFile(partial).close()  # an output without lines is an empty file
        if self.num_failed:
            with (output if named else partial).open("rb") as file:
                write_whole(self._paths.errors, filter(has_failed, file))
        if not named:
            _give_name(partial, output)

    def close(self) -> None:
        """Lets go of all files."""
        if self._output is not None:
            self._output.close()
        self._journal.close()


def _give_name(partial, output) -> None:
    """Renames, never over a file that came meanwhile."""
    try:
        os.link(partial, output)
    except FileExistsError:
        raise StorageError(
            f"{output}: came into being meanwhile; the results are in {partial}"
        ) from None
    except OSError:  # a file system without links
        if output.exists():
            raise StorageError(
                f"{output}: came into being meanwhile; the results are in {partial}"
            ) from None
        os.rename(partial, output)
    else:
        partial.unlink()
    sync_folder(output)
