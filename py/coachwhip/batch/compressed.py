"""What a compressed file holds, with an error where it ends too early."""

from __future__ import annotations

import gzip
import io
from typing import BinaryIO

import zstandard

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""After a byte from 0x50 to 0x5f: a frame without content, which pzstd writes first."""
_STEP = 1024
"""Bytes that are decompressed at a time; a hostile one becomes 32 MB at most."""
_MOST_WINDOW = 1 << 31


def decompressed(file: BinaryIO) -> BinaryIO:
    """Returns a reader of what a file holds; the first bytes tell how it is compressed, if at all.

    Args:
        file: The file, at its beginning.
    """
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if magic == _ZSTD or (magic[1:] == _ZSTD_SKIPPABLE and magic[0] >> 4 == 5):
        return io.BufferedReader(_ZstdFile(file), 1 << 17)
    return file


class _ZstdFile(io.RawIOBase):
    """Frames of zstd, one after the other. The library's own reader takes a file that was cut
    short for one that ends there."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._frame = file, None
        self._packed, self._plain = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._plain:
            packed = self._packed or self._file.read(_STEP)
            self._packed = b""
            if not packed:
                if self._frame is not None:
                    raise EOFError("the compressed data ends too early")
                return 0
            if self._frame is None:
                unpacker = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
                self._frame = unpacker.decompressobj()
            self._plain = self._frame.decompress(packed)
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count
