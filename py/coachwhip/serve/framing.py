"""Messages on a stream: four bytes of length, little-endian, then msgpack."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size
_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    """Returns a message as bytes for the stream."""
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


def payload_bytes(header: bytes) -> int:
    """Returns how many bytes follow a header of `LENGTH_BYTES`."""
    return _LENGTH.unpack(header)[0]


class Unframer:
    """Cuts a stream that comes in pieces into messages.

    Args:
        kind: Type of the messages.
    """

    def __init__(self, kind: type) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator:
        """Yields the messages that are complete with these bytes."""
        self._data += data
        while len(self._data) >= LENGTH_BYTES:
            end = LENGTH_BYTES + payload_bytes(bytes(self._data[:LENGTH_BYTES]))
            if len(self._data) < end:
                return
            message = self._decoder.decode(self._data[LENGTH_BYTES:end])
            del self._data[:end]
            yield message
