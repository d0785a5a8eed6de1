"""Waiting requests leave in order of urgency and arrival."""

import pytest

from coachwhip.schedule.queue import WaitingQueue
from coachwhip.schedule.request import Request


def drain(queue: WaitingQueue) -> list[str]:
    left = []
    while (head := queue.head()) is not None:
        assert head.request_id in queue
        assert queue.remove(head.request_id) is head
        left.append(head.request_id)
    assert len(queue) == 0
    return left


def request(name: str, priority: int = 0) -> Request:
    return Request(name, [1], 1, priority=priority)


def test_priorities_count_only_with_their_policy():
    for policy, order in (("fcfs", "abcd"), ("priority", "bdac")):
        queue = WaitingQueue(policy)
        for name, priority in (("a", 5), ("b", -1), ("c", 5), ("d", 0)):
            queue.add(request(name, priority))
        assert "".join(drain(queue)) == order
    with pytest.raises(ValueError, match="lifo"):
        WaitingQueue("lifo")


def test_a_preempted_request_keeps_its_place_and_a_new_one_of_its_name_does_not():
    queue = WaitingQueue("fcfs")
    a, b, c = (request(name) for name in "abc")
    for r in (a, b, c):
        queue.add(r)
    assert queue.remove("a") is a
    queue.add(a)  # preempted
    queue.remove("b")
    queue.add(request("b"))  # aborted, and its name used again
    assert drain(queue) == ["a", "c", "b"]
    assert queue.remove("a") is None
