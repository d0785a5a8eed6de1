"""A file that only grows, by whole lines that are on the disk when they are said to be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ..errors import StorageError

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""Errors of file systems, network ones mostly, that cannot wait for a folder."""


class AppendedFile:
    """Appends lines to a file.

    When the disk is full the file is cut back to what was complete before, so that no line of it is
    ever half there, but for the last one if the process or the machine dies.

    Args:
        path: The file; it is created when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        new = not path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._fd = _guarded(path, lambda: os.open(path, flags, 0o666))
        if new:
            sync_folder(path)
        self._size = os.fstat(self._fd).st_size

    @property
    def fileno(self) -> int:
        return self._fd

    def append(self, data: bytes) -> None:
        """Writes whole lines and waits until they are on the disk.

        Raises:
            StorageError: They cannot be written; the file is as it was before.
        """
        try:
            _guarded(self.path, lambda: self._write(data))
        except StorageError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def cut(self, size: int) -> None:
        """Drops all that comes after the first `size` bytes."""
        if size != self._size:
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)
            self._size = size

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]
        os.fsync(self._fd)


def sync_folder(path: Path) -> None:
    """Waits until the names in a file's folder are on the disk, where that can be asked for.

    Raises:
        StorageError: The disk failed.
    """
    try:
        fd = os.open(path.parent, os.O_RDONLY)
    except PermissionError:  # a folder may be written without being read
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise _cannot_write(path, error) from error
    finally:
        os.close(fd)


def write_whole(path: Path, parts) -> None:
    """Replaces a file by new content in one move: readers see the old or the new one.

    Raises:
        StorageError: It cannot be written; the file is as it was before.
    """
    beside = path.with_name(f"{path.name}.new")

    def write() -> None:
        with beside.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)

    try:
        _guarded(path, write)
    except StorageError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path)


def _guarded(path: Path, action):
    try:
        return action()
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path}: cannot be written: {error.strerror}")
