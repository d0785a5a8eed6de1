"""A pool of equal homes (slots, or pages) with owners and keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Pool:
    """Homes that are free, live or cached; every operation takes constant time.

    An owned home has a count of owners. A home may have keys, under which others find it; then its
    content must not change. Without owners, a home without keys is free, and one with keys is idle:
    still findable, and evicted when a home is needed, the least recently used one first.

    Args:
        name: What a home is, for messages.
        total: Number of homes.
    """

    def __init__(self, name: str, total: int) -> None:
        if total < 0:
            raise ValueError(f"{name}: total is {total}, it cannot be negative")
        self.name = name
        self.total = total
        self.on_evict: Callable[[int, frozenset[bytes]], None] | None = None
        """Called with a home and its keys when it is evicted."""
        self.on_free: Callable[[int], None] | None = None
        """Called with a home whose content is no longer of use to anyone."""
        # The home given out next is the one freed last, whose memory is likeliest in a cache.
        self._free = list(range(total - 1, -1, -1))
        self._owners = [0] * total
        self._keys: list[set[bytes] | None] = [None] * total
        self._index: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._num_keyed = 0

    @property
    def free(self) -> int:
        """Number of homes with neither owner nor key."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Number of homes that have a key."""
        return self._num_keyed

    @property
    def live(self) -> int:
        """Number of homes that have an owner and no key."""
        return self.total - len(self._free) - self._num_keyed

    @property
    def available(self) -> int:
        """Number of homes that `take` could give out."""
        return len(self._free) + len(self._idle)

    @property
    def owned(self) -> int:
        """Number of homes that have an owner."""
        return self.total - self.available

    def owners(self, home: int) -> int:
        """Returns how many owners a home has."""
        return self._owners[home]

    def is_cached(self, home: int) -> bool:
        """Says whether a home has a key."""
        return self._keys[home] is not None

    def take(self) -> int | None:
        """Gives a home to its first owner, free or evicted; None if all are owned."""
        if self._free:
            home = self._free.pop()
        elif self._idle:
            home, _ = self._idle.popitem(last=False)
            keys = self._drop_keys(home)
            if self.on_evict is not None:
                self.on_evict(home, keys)
            self._freed(home)
        else:
            return None
        self._owners[home] = 1
        return home

    def hold(self, home: int) -> None:
        """Adds an owner to a home that has owners or keys."""
        if not self._owners[home] and home not in self._idle:
            raise ValueError(f"{self.name}: {home} is free, nobody can hold it")
        self._idle.pop(home, None)
        self._owners[home] += 1

    def release(self, home: int) -> None:
        """Takes one owner from a home; the last one leaves it idle if it has a key, else free."""
        if self._owners[home] < 1:
            raise ValueError(f"{self.name}: {home} has no owner to release it")
        self._owners[home] -= 1
        if self._owners[home]:
            return
        if self._keys[home] is not None:
            self._idle[home] = None
        else:
            self._free.append(home)
            self._freed(home)

    def find(self, key: bytes) -> int | None:
        """Returns the home with a key, or None."""
        return self._index.get(key)

    def publish(self, home: int, key: bytes) -> bool:
        """Gives an owned home a key; False, and nothing happens, if another home has it."""
        if not self._owners[home]:
            raise ValueError(f"{self.name}: {home} has no owner, it cannot be published")
        if self._index.setdefault(key, home) != home:
            return False
        keys = self._keys[home]
        if keys is None:
            self._keys[home] = keys = set()
            self._num_keyed += 1
        keys.add(key)
        return True

    def withdraw(self, key: bytes) -> None:
        """Takes a key from its home; an idle home without keys becomes free."""
        home = self._index.pop(key, None)
        if home is None:
            return
        keys = self._keys[home]
        keys.discard(key)
        if not keys:
            self._keys[home] = None
            self._num_keyed -= 1
            self._free_if_idle(home)

    def withdraw_all(self, home: int) -> frozenset[bytes]:
        """Takes all keys from a home and returns them."""
        keys = self._drop_keys(home)
        self._free_if_idle(home)
        return keys

    def clear(self) -> None:
        """Takes all keys from all homes; those with owners stay theirs."""
        for home in set(self._index.values()):
            self.withdraw_all(home)

    def check(self, owners: dict[int, int]) -> None:
        """Raises AssertionError unless the pool is consistent and owned as the caller says.

        Args:
            owners: Home -> number of owners, for every owned home.
        """
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), f"{self.name}: a home is free twice"
        assert self.free + self.live + self.cached == self.total, f"{self.name}: a home is lost"
        keyed = 0
        for home in range(self.total):
            count, keys = self._owners[home], self._keys[home]
            keyed += keys is not None
            assert count == owners.get(home, 0), (
                f"{self.name}: {home} counts {count} owners, but has {owners.get(home, 0)}"
            )
            assert (home in free) == (not count and keys is None), f"{self.name}: {home} leaked"
            assert (home in idle) == (not count and keys is not None), f"{self.name}: {home} lost"
            for key in keys or ():
                assert self._index[key] == home, f"{self.name}: {home} is not where its key leads"
        assert keyed == self._num_keyed
        assert len(self._index) == sum(len(k) for k in self._keys if k)

    def _drop_keys(self, home: int) -> frozenset[bytes]:
        keys = self._keys[home]
        if keys is None:
            return frozenset()
        for key in keys:
            del self._index[key]
        self._keys[home] = None
        self._num_keyed -= 1
        return frozenset(keys)

    def _free_if_idle(self, home: int) -> None:
        if home in self._idle:
            del self._idle[home]
            self._free.append(home)
            self._freed(home)

    def _freed(self, home: int) -> None:
        if self.on_free is not None:
            self.on_free(home)
