"""Reads the lines of an input, plain or compressed, as often as they are wanted."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from ..errors import BatchError
from .compressed import decompressed
from .paths import STDIN

MOST_LINE_BYTES = 64 << 20
"""Longest line: one request, with room for any context."""
_BOM = b"\xef\xbb\xbf"


class BatchInput:
    """An input that can be read from its beginning again.

    Standard input and pipes are copied to a file without a name first, since they can be read once
    only. Compression is told by the first bytes, not by the name.

    Args:
        source: A file's name, or `-` for standard input.
        spool_dir: Where the copy of a pipe goes.

    Raises:
        BatchError: It cannot be read.
    """

    def __init__(self, source: str, spool_dir: Path) -> None:
        self.name = "standard input" if source == STDIN else source
        try:
            file = sys.stdin.buffer if source == STDIN else open(source, "rb")  # noqa: SIM115
            self._file = file if self._rereads(file, source) else _spooled(file, spool_dir)
        except OSError as error:
            raise BatchError(self.name, f"cannot be read: {error.strerror}") from None
        self._status = self._stamp()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yields number, from 1, and content of each line that is not blank.

        Raises:
            BatchError: It cannot be read to its end, or changed since it was opened.
        """
        number = 0
        self._file.seek(0)
        try:
            reader = decompressed(self._file)
            while line := reader.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(line) > MOST_LINE_BYTES:
                    raise BatchError(
                        self.name, f"line {number} has more than {MOST_LINE_BYTES >> 20} MiB"
                    )
                if number % 1024 == 1:
                    self._check_unchanged()
                if number == 1:
                    line = line.removeprefix(_BOM)
                line = line.strip()
                if line:
                    yield number, line
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            what = getattr(error, "strerror", None) or str(error)
            raise BatchError(
                self.name, f"cannot be read after line {number}: {what}", "restore the file"
            ) from None
        self._check_unchanged()

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    @staticmethod
    def _rereads(file: BinaryIO, source: str) -> bool:
        # A terminal or a pipe may claim what it cannot do; standard input is copied in any case.
        return source != STDIN and file.seekable()

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _check_unchanged(self) -> None:
        if self._stamp() != self._status:
            raise BatchError(self.name, "changed while it was read", "start again")


def _spooled(file: BinaryIO, folder: Path) -> BinaryIO:
    copy = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    shutil.copyfileobj(file, copy, 1 << 20)
    copy.flush()
    return copy
