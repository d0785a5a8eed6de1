"""A pool keeps every home free, owned or idle, and evicts the least recently used idle one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.cache.pool import Pool


def check(pool: Pool, **owners: int) -> None:
    pool.check({int(home[1:]): count for home, count in owners.items()})


def test_a_home_is_owned_shared_and_freed():
    pool = Pool("slots", 2)
    home = pool.take()
    pool.hold(home)
    assert (pool.free, pool.live, pool.cached, pool.owners(home)) == (1, 1, 0, 2)
    pool.release(home)
    pool.release(home)
    assert (pool.free, pool.live, pool.available) == (2, 0, 2)
    with pytest.raises(ValueError, match="no owner"):
        pool.release(home)
    with pytest.raises(ValueError, match="nobody can hold"):
        pool.hold(home)
    with pytest.raises(ValueError, match="cannot be published"):
        pool.publish(home, b"key")
    check(pool)


def test_a_key_keeps_a_home_findable_until_it_is_needed():
    pool, evicted, freed = Pool("slots", 2), [], []
    pool.on_evict = lambda home, keys: evicted.append((home, keys))
    pool.on_free = freed.append
    a, b = pool.take(), pool.take()
    assert pool.take() is None
    assert pool.publish(a, b"a") and pool.publish(a, b"also a") and pool.publish(b, b"b")
    assert not pool.publish(b, b"a"), "a key names one home"
    pool.release(a)
    pool.release(b)
    pool.hold(pool.find(b"a"))  # used again: b is the older one now
    pool.release(a)
    assert pool.take() == b and evicted == [(b, frozenset([b"b"]))] and freed == [b]
    assert pool.find(b"b") is None and pool.find(b"also a") == a
    pool.check({b: 1})
    assert pool.take() == a and pool.find(b"a") is None
    pool.check({a: 1, b: 1})


def test_withdrawing_the_last_key_frees_an_idle_home_only():
    pool = Pool("pages", 2)
    a, b = pool.take(), pool.take()
    for home, key in ((a, b"a"), (b, b"b")):
        pool.publish(home, key)
    pool.release(a)
    pool.withdraw(b"a")
    pool.withdraw(b"b")
    pool.withdraw(b"never there")
    assert (pool.free, pool.live, pool.cached) == (1, 1, 0)
    pool.check({b: 1})
    pool.publish(b, b"x")
    assert pool.withdraw_all(b) == frozenset([b"x"])
    pool.check({b: 1})


def test_a_pool_without_homes_gives_none():
    assert Pool("slots", 0).take() is None
    with pytest.raises(ValueError, match="cannot be negative"):
        Pool("slots", -1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 3)), max_size=60))
def test_any_use_keeps_the_pool_consistent(actions):
    pool, owners = Pool("slots", 5), {}
    for what, home, key in actions:
        name = bytes([key])
        if what == 0:
            got = pool.take()
            assert (got is None) == (len(owners) == 5)
            if got is not None:
                owners[got] = 1
        elif what == 1 and home in owners:
            owners[home] -= 1
            pool.release(home)
            if not owners[home]:
                del owners[home]
        elif what == 2 and (found := pool.find(name)) is not None:
            pool.hold(found)
            owners[found] = owners.get(found, 0) + 1
        elif what == 3 and home in owners:
            had = pool.find(name)
            assert pool.publish(home, name) == (had in (None, home))
        elif what == 4:
            pool.withdraw(name)
            assert pool.find(name) is None
        pool.check(owners)
        assert pool.free + pool.live + pool.cached == pool.total
