"""A pool of equal homes (slots or pages), each either free or owned."""

from __future__ import annotations


class FreePool:
    """Hands out ids of homes and takes them back, each in constant time.

    The id given out next is the one freed last, whose memory is likeliest in a cache.
    """

    def __init__(self, name: str, total: int) -> None:
        if total < 0:
            raise ValueError(f"{name}: total is {total}, it cannot be negative")
        self.name = name
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._owned: set[int] = set()

    @property
    def free(self) -> int:
        """Number of homes that nobody owns."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Takes `count` homes.

        Raises:
            ValueError: Fewer are free; nothing is taken.
        """
        if count > len(self._free):
            raise ValueError(f"{self.name}: {count} wanted, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(count)]
        self._owned.update(taken)
        return taken

    def give_back(self, homes: list[int]) -> None:
        """Frees homes.

        Raises:
            ValueError: One of them is not owned, or named twice; nothing is freed.
        """
        if len(set(homes)) != len(homes) or not self._owned.issuperset(homes):
            raise ValueError(f"{self.name}: {homes} are not all owned, once each")
        self._owned.difference_update(homes)
        self._free.extend(homes)

    def check(self) -> None:
        """Raises AssertionError unless every home is either free or owned, once."""
        free = set(self._free)
        assert len(free) == len(self._free), f"{self.name}: a home is free twice"
        assert not free & self._owned, f"{self.name}: a home is free and owned"
        assert free | self._owned == set(range(self.total)), f"{self.name}: a home is lost"
