"""The endpoint's benchmark: what it asks for, and what it makes of the waits."""

from __future__ import annotations

import click
import pytest

from bench.serve.__main__ import _peer
from bench.serve.load import QUICK, Waits, measure, prompts
from bench.serve.report import rows
from bench.serve.servers import Measured, variants
from tests.serve.server import Server


def test_clients_get_all_their_tokens(server: Server) -> None:
    found = measure(Measured("ours", "127.0.0.1", server.port), QUICK, 3, seed=1)
    assert found.tokens == 3 * QUICK.requests * QUICK.new_tokens
    assert len(found.first_s) == len(found.between_s) == 3 * QUICK.requests
    assert 0 < found.first < found.seconds and 0 < found.between < found.seconds


def test_a_refused_request_is_an_error_and_no_wait(server: Server) -> None:
    with pytest.raises(RuntimeError, match="ours sent no text"):
        measure(Measured("ours", "127.0.0.1", server.port, "large"), QUICK, 1, seed=1)


def test_prompts_share_their_beginning_within_a_seed_only() -> None:
    (first, second), (other, _) = prompts(QUICK, 2, seed=1), prompts(QUICK, 2, seed=2)
    shared = len(first[0]) - 60
    assert first[0][:shared] == second[0][:shared] and first != second
    assert first[0][:40] != other[0][:40]


def test_ratios_say_how_many_times_better_than_the_first_server() -> None:
    slow, quick = Waits((0.4,), (0.02,), 100, 2.0), Waits((0.1,), (0.01,), 100, 1.0)
    first, second = rows({("base", 8): [slow], ("ours", 8): [quick, quick]})
    names = ("first_token_ratio", "between_tokens_ratio", "rate_ratio")
    assert [first[name] for name in names] == [1, 1, 1]
    assert [second[name] for name in names] == pytest.approx([4, 2, 2])


def test_peers_and_variants() -> None:
    assert _peer("llama=http://10.0.0.2:81/a/b") == Measured("llama", "10.0.0.2", 81, "a/b")
    assert _peer("llama=http://localhost:81").model is None
    with pytest.raises(click.BadParameter):
        _peer("http://localhost:81")
    assert len(variants(False)) == 3 and len(variants(True)) == 6
