"""The connection to the engine: messages whole and in order, and no wait for who does not read."""

from __future__ import annotations

import socket

import pytest

from coachwhip.sampling.params import SamplingParams
from coachwhip.serve.engine_link import EngineLink, PeerGone
from coachwhip.serve.framing import LENGTH_BYTES, Unframer, frame, payload_bytes
from coachwhip.serve.messages import Abort, Add, Command, Event, Look, Update, Updates

PARAMS = SamplingParams(
    max_tokens=None,
    temperature=0.5,
    logit_bias={5: -1.5},
    stop=["a", "b"],
    stop_token_ids=[7],
    seed=2**64 - 1,
    speculative_config={"num_speculative_tokens": 1},
)


@pytest.fixture
def ends() -> tuple[socket.socket, EngineLink]:
    ours, theirs = socket.socketpair()
    return ours, EngineLink(theirs)


def test_parameters_arrive_as_they_were() -> None:
    add = Add("r", [1, 2, 3], PARAMS, priority=-3, cache_salt="s")
    (found,) = Unframer(Command).feed(frame(add))
    assert found == add and isinstance(found.params, SamplingParams)
    assert found.params.logit_bias == {5: -1.5} and found.params.stop == ("a", "b")


def test_messages_are_cut_wherever_the_stream_is() -> None:
    events = [Updates([Update("a", "text", [1], [{1: -0.5}])]), Updates([]), Updates([Update("b")])]
    data = b"".join(map(frame, events))
    for size in (1, 3, 7, len(data)):
        unframer, found = Unframer(Event), []
        for at in range(0, len(data), size):
            found += unframer.feed(data[at : at + size])
        assert found == events
    assert payload_bytes(data[:LENGTH_BYTES]) == len(frame(events[0])) - LENGTH_BYTES


def test_commands_come_in_order(ends) -> None:
    ours, link = ends
    assert link.receive(wait=False) == []
    ours.sendall(frame(Abort(["a"])) + frame(Look(7))[:3])
    assert link.receive(wait=True) == [Abort(["a"])]
    ours.sendall(frame(Look(7))[3:])
    assert link.receive(wait=True) == [Look(7)]


def test_who_does_not_read_stops_nobody(ends) -> None:
    ours, link = ends
    updates = [Updates([Update(f"{i}", "a" * 10_000)]) for i in range(300)]
    for one in updates:
        link.send(one)  # would wait for ever, if it waited
    assert not link.is_clear
    unframer, found = Unframer(Event), []
    while len(found) < len(updates):
        found += unframer.feed(ours.recv(1 << 16))
        link.flush()
    assert found == updates and link.is_clear


def test_waiting_ends_when_there_is_room_again(ends) -> None:
    ours, link = ends
    while link.is_clear:
        link.send(Updates([Update("a", "a" * 10_000)]))
    ours.recv(1 << 22)
    assert link.receive(wait=True) == []


def test_the_end_of_the_other_side_is_noticed(ends) -> None:
    ours, link = ends
    ours.close()
    with pytest.raises(PeerGone):
        link.receive(wait=True)
    with pytest.raises(PeerGone):
        link.send(Updates([]))
