"""What an output belongs to: the input, the model, and each finished line's body."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic_core import from_json, to_json

from ..errors import BatchError
from .appending import AppendedFile

FORMAT = 1
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems that have no locks."""


@dataclass(frozen=True)
class Origin:
    """What decides about the content of an output."""

    input: str
    """Digest of all lines of the input."""
    model: str
    """Fingerprint of the checkpoint's files."""
    settings: dict[str, object]
    """Options that change what is generated, by name."""


class Journal:
    """A journal: a first line with the origin, then `custom_id` and digest of each finished line.

    It is locked while it is open, so that no two runs write one output; a file system without locks
    leaves that to the user.

    Args:
        path: The file; it is created when it is not there.

    Raises:
        BatchError: Another run has it open.
    """

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path)
        try:
            fcntl.flock(self._file.fileno, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            self._file.close()
            if error.errno != errno.EWOULDBLOCK:
                raise
            raise BatchError(
                path, "another run is writing this output", "wait for it or give another output"
            ) from None

    @property
    def path(self) -> Path:
        return self._file.path

    def origin(self) -> Origin | None:
        """Returns the origin; None when there is none, as after a crash at the very beginning.

        Raises:
            BatchError: The file is no journal.
        """
        with open(self.path, "rb") as file:
            first = file.readline(1 << 20)
        if not first.endswith(b"\n"):
            return None
        try:
            found = from_json(first)
            if found.pop("format") != FORMAT:
                raise ValueError
            return Origin(**found)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise BatchError(
                self.path, "is no journal of coachwhip batch", "move it away"
            ) from None

    def begin(self, origin: Origin) -> None:
        """Starts anew with an origin."""
        self._file.cut(0)
        self._file.append(to_json({"format": FORMAT, **asdict(origin)}) + b"\n")

    def add(self, entries: Iterable[tuple[str, str]]) -> None:
        """Appends (custom_id, body digest) of lines that are about to be written.

        Raises:
            StorageError: They cannot be written.
        """
        rows = [to_json({"custom_id": name, "body": body}) + b"\n" for name, body in entries]
        self._file.append(b"".join(rows))

    def entries(self) -> Iterator[tuple[str, str]]:
        """Yields (custom_id, body digest) of finished lines; a broken last one is left out."""
        with open(self.path, "rb") as file:
            file.readline()
            for row in file:
                try:
                    found = from_json(row)
                    yield found["custom_id"], found["body"]
                except (ValueError, TypeError, KeyError):
                    continue

    def mend(self) -> None:
        """Drops a last line that a crash cut short."""
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            while size:
                step = min(size, 1 << 16)
                file.seek(size - step)
                at = file.read(step).rfind(b"\n")
                if at >= 0:
                    size = size - step + at + 1
                    break
                size -= step
        self._file.cut(size)

    def close(self) -> None:
        """Lets go of the file and its lock."""
        self._file.close()
