"""Names of prefixes are equal exactly where the prefixes, and all that must agree, are."""

import hashlib
import struct

import pytest

from coachwhip.cache.block_chain import BlockChain
from coachwhip.cache.history import History


def chain(tokens, kind="state", block=4, extra=()):
    return BlockChain(kind, block, extra, lambda a, b: tokens[a:b])


def test_a_name_covers_the_tokens_ahead():
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    root = hashlib.sha256(b"page 4 1").digest()
    first = hashlib.sha256(root + struct.pack("<5i", *tokens[:5])).digest()
    ahead = BlockChain("page", 4, (), lambda begin, end: tokens[begin:end], ahead=1)
    assert ahead.at(4) == first
    assert ahead.at(8) == hashlib.sha256(first + struct.pack("<4i", *tokens[5:9])).digest()
    with pytest.raises(ValueError, match="ends before token 13"):
        ahead.at(12)


def test_a_name_is_the_hash_of_parent_and_little_endian_tokens():
    tokens = [1, 2, 3, 70_000, 5, 6, 7, 8]
    root = hashlib.sha256(b"state 4 0").digest()
    first = hashlib.sha256(root + struct.pack("<4i", *tokens[:4])).digest()
    assert chain(tokens).at(4) == first
    assert chain(tokens).at(8) == hashlib.sha256(first + struct.pack("<4i", *tokens[4:])).digest()


def test_names_differ_with_any_token_kind_block_and_extra_key():
    tokens = list(range(8))
    names = {chain(tokens).at(8), chain(tokens).at(4)}
    for at in range(8):
        names.add(chain([*tokens[:at], 99, *tokens[at + 1 :]]).at(8))
    names |= {chain(tokens, "page").at(8), chain(tokens, block=8).at(8)}
    names |= {chain(tokens, extra=e).at(8) for e in (("a",), ("b",), ("ab",), ("a", "b"), ("",))}
    assert len(names) == 2 + 8 + 2 + 5


def test_a_chain_grows_with_its_sequence_and_reads_each_token_once():
    tokens, seen = [1, 2, 3, 4], []

    def read(a, b):
        seen.append((a, b))
        return tokens[a:b]

    growing = BlockChain("state", 2, (), read)
    first = growing.at(4)
    tokens += [5, 6]
    assert growing.at(6) != first == growing.at(4)
    assert seen == [(0, 2), (2, 4), (4, 6)]
    with pytest.raises(ValueError, match="ends before"):
        growing.at(8)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match="do not end a block"):
            growing.at(wrong)


def test_the_history_forgets_the_oldest():
    history = History(capacity=2)
    history.computed(b"a")
    history.evicted(b"b")
    history.computed(b"a")
    history.computed(b"c")
    assert history.knows(b"a") and history.knows(b"c") and not history.knows(b"b")
    history.evicted(b"a")
    history.computed(b"a")
    assert history.lost(b"a") and not history.lost(b"c") and len(history) == 2
    history.clear()
    assert not history.knows(b"a")
