"""Which prefixes have a checkpoint, and how they continue each other: for people who look."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NEAREST = 64
"""Grid points back to which the checkpoint that another one continues is looked for."""
SHOWN_TOKENS = 12
"""Tokens kept of what a checkpoint adds to the one before it."""


@dataclass(frozen=True)
class TreeNode:
    """A checkpoint.

    Attributes:
        name: Identifies it, in hexadecimal.
        parent: Name of the checkpoint that it continues; empty for none, or one that is gone or not
            among those asked for.
        length: Tokens that it stands for.
        hits: Requests that started from it.
        tokens: The first tokens after the parent's; none of a text with a `cache_salt`.
    """

    name: str
    parent: str
    length: int
    hits: int
    tokens: tuple[int, ...]


@dataclass
class _Node:
    parent: bytes | None
    length: int
    tokens: tuple[int, ...]
    hits: int = 0


class PrefixTree:
    """Checkpoints by their keys; every operation but `nodes` takes constant time."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._nodes

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._nodes)

    def add(self, key: bytes, parent: bytes | None, length: int, tokens: Sequence[int]) -> None:
        """Adds a checkpoint of `length` tokens that continues `parent` with `tokens`."""
        self._nodes[key] = _Node(parent, length, tuple(tokens[:SHOWN_TOKENS]))

    def hit(self, key: bytes) -> None:
        """Counts a request that starts from a checkpoint; it may have taken its slot over."""
        if key in self._nodes:
            self._nodes[key].hits += 1

    def remove(self, key: bytes) -> None:
        """Drops a checkpoint, if it is there."""
        self._nodes.pop(key, None)

    def clear(self) -> None:
        """Drops all."""
        self._nodes.clear()

    def nodes(self, most: int) -> list[TreeNode]:
        """Returns up to `most` checkpoints, parents before children.

        The most used ones come first in line, each with those that it continues, the nearest first.
        """
        if most <= 0:
            return []
        chosen: dict[bytes, _Node] = {}
        ranked = heapq.nlargest(most, self._nodes, key=lambda key: self._nodes[key].hits)
        for key in ranked:
            line, at = [], key
            while at in self._nodes and at not in chosen:
                line.append(at)
                at = self._nodes[at].parent
            line = line[: most - len(chosen)]  # of a line that is too long, its end
            chosen.update((k, self._nodes[k]) for k in reversed(line))
            if len(chosen) == most:
                break
        return [
            TreeNode(
                _name(key),
                _name(node.parent) if node.parent in chosen else "",
                node.length,
                node.hits,
                node.tokens,
            )
            for key, node in chosen.items()
        ]


def _name(key: bytes) -> str:
    return key[:8].hex()
