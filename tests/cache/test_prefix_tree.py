"""The prefix tree: what it shows of checkpoints, and that it never shows more than asked for."""

from coachwhip.cache.pool import Pool
from coachwhip.cache.prefix_cache import Hit, PrefixCache
from coachwhip.cache.prefix_tree import SHOWN_TOKENS, PrefixTree


def key(n: int) -> bytes:
    return n.to_bytes(8, "big") + bytes(24)


def published(tokens: list[int], lengths: list[int], slots: Pool) -> PrefixCache:
    """Returns a cache in which prefixes of a sequence were published in this order."""
    cache = PrefixCache(slots, None, 8, "all", 4)
    prefix = cache.prefix((), lambda begin, end: tokens[begin:end])
    for length in lengths:
        cache.publish_state(prefix, length, slots.take())
    return cache


def test_a_checkpoint_continues_the_nearest_one_before_it():
    cache = published(list(range(100, 120)), [4, 12, 20], Pool("state slots", 4))
    first, second, third = cache.tree.nodes(10)
    assert [n.length for n in (first, second, third)] == [4, 12, 20]
    assert [n.parent for n in (first, second, third)] == ["", first.name, second.name]
    assert first.tokens == (100, 101, 102, 103)
    assert second.tokens == tuple(range(104, 112))


def test_tokens_of_a_salted_text_are_not_shown():
    cache = PrefixCache(Pool("state slots", 4), None, 8, "all", 4)
    prefix = cache.prefix(("alice",), lambda begin, end: list(range(100, 120))[begin:end])
    cache.publish_state(prefix, 8, cache.slots.take())
    (node,) = cache.tree.nodes(10)
    assert (node.length, node.tokens) == (8, ())


def test_hits_are_counted_by_checkpoint():
    tokens = list(range(30))
    cache = published(tokens, [4, 8], Pool("state slots", 4))
    hit = cache.lookup(cache.prefix((), lambda begin, end: tokens[begin:end]), 9)
    for _ in range(3):
        cache.count(hit, 9)
    cache.count(Hit(miss="no_state"), 9)
    assert {n.length: n.hits for n in cache.tree.nodes(10)} == {4: 0, 8: 3}


def test_what_is_evicted_or_reset_leaves_the_tree():
    slots = Pool("state slots", 2)
    cache = published(list(range(30)), [4, 8], slots)
    slots.release(0)
    slots.release(1)
    slots.take()
    assert [n.length for n in cache.tree.nodes(10)] == [8]
    assert cache.tree.nodes(10)[0].parent == ""
    cache.reset()
    assert cache.tree.nodes(10) == [] and len(cache.tree) == 0


def test_few_nodes_are_the_most_used_ones_with_all_that_they_continue():
    tree = PrefixTree()
    for n in range(1, 6):  # a line of five
        tree.add(key(n), key(n - 1) if n > 1 else None, 4 * n, range(50))
    for n in range(6, 100):
        tree.add(key(n), None, 4, [n])
    for _ in range(2):
        tree.hit(key(3))
    nodes = tree.nodes(3)
    assert [n.length for n in nodes] == [4, 8, 12]
    assert [n.hits for n in nodes] == [0, 0, 2]
    assert nodes[0].tokens == tuple(range(SHOWN_TOKENS))
    assert [(n.length, bool(n.parent)) for n in tree.nodes(2)] == [(8, False), (12, True)]
    assert len(tree.nodes(40)) == 40
    assert tree.nodes(0) == []
