"""Names for prefixes: a chain of hashes over blocks of tokens."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256


class BlockChain:
    """The hashes of the prefixes of one sequence that end on a grid.

        h[0] = sha256(root, tokens[0:block]);  h[i] = sha256(h[i - 1], tokens of block i)

    Tokens are hashed as little-endian int32. The root covers the kind of thing that is named, the
    block size and the extra keys, so that equal hashes mean equal prefixes of equal requests. With
    `ahead`, each name covers that many tokens more than the prefix it stands for.

    Args:
        kind: What the hashes name, so that states and pages never share one.
        block: Tokens of a block.
        extra: What else two requests must have in common, such as the `cache_salt`.
        read: Returns tokens [begin, end) of the sequence.
        ahead: Tokens beyond a prefix that its name covers.
    """

    def __init__(
        self,
        kind: str,
        block: int,
        extra: Sequence[str],
        read: Callable[[int, int], Sequence[int]],
        ahead: int = 0,
    ) -> None:
        root = sha256(f"{kind} {block} {ahead}".encode())
        for key in extra:
            data = key.encode()
            root.update(len(data).to_bytes(8, "little") + data)
        self.block = block
        self.ahead = ahead
        self._read = read
        self._root = root.digest()
        self._hashes: list[bytes] = []

    def tokens(self, begin: int, end: int) -> Sequence[int]:
        """Returns tokens [begin, end) of the sequence."""
        return self._read(begin, end)

    def at(self, length: int) -> bytes:
        """Returns the name of the first `length` tokens, a positive multiple of the block.

        Tokens below `length + ahead` must be final: they are read once.
        """
        count, rest = divmod(length, self.block)
        if rest or count < 1:
            raise ValueError(f"{length} tokens do not end a block of {self.block}")
        while len(self._hashes) < count:
            done = len(self._hashes)
            begin = done * self.block + (self.ahead if done else 0)
            end = (done + 1) * self.block + self.ahead
            tokens = array("i", self._read(begin, end))
            if len(tokens) != end - begin:
                raise ValueError(f"the sequence ends before token {end}")
            if sys.byteorder == "big":
                tokens.byteswap()
            parent = self._hashes[-1] if self._hashes else self._root
            self._hashes.append(sha256(parent + tokens.tobytes()).digest())
        return self._hashes[count - 1]
