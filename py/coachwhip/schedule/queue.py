"""The requests that wait, in the order in which they are admitted."""

from __future__ import annotations

import heapq

from .request import Request

POLICIES = ("fcfs", "priority")


class WaitingQueue:
    """First come, first served; with `priority`, lower numbers first and then by arrival.

    A preempted request comes back to its place in the order of arrival.
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}, it must be one of {POLICIES}")
        self.policy = policy
        self._heap: list[tuple[int, int, str]] = []
        self._waiting: dict[str, Request] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def rank(self, request: Request) -> tuple[int, int]:
        """Returns what requests are ordered by, smaller first."""
        return self.urgency(request), request.arrival

    def urgency(self, request: Request) -> int:
        """Returns the priority, or 0 where the policy ignores it."""
        return request.priority if self.policy == "priority" else 0

    def add(self, request: Request) -> None:
        """Puts a request into the queue, new or preempted."""
        if not request.arrival:
            self._arrivals += 1
            request.arrival = self._arrivals
        self._waiting[request.request_id] = request
        heapq.heappush(self._heap, (*self.rank(request), request.request_id))

    def head(self) -> Request | None:
        """Returns the request that is admitted next."""
        while self._heap:
            _, arrival, request_id = self._heap[0]
            request = self._waiting.get(request_id)
            if request is not None and request.arrival == arrival:
                return request
            heapq.heappop(self._heap)  # removed while it waited
        return None

    def remove(self, request_id: str) -> Request | None:
        """Takes a request out, wherever it stands; None if it does not wait."""
        return self._waiting.pop(request_id, None)
