"""How many drafts a request gets: as many as measurably pay, down to none."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from statistics import median

SAMPLES = 9
"""Steps whose median time counts."""
PLAIN_SAMPLES = 3
"""Steps without drafts that must have been measured before drafts are judged."""
REFRESH = 256
"""Decode steps after which a step without drafts is measured again."""
SHORTEST_REST, LONGEST_REST = 16, 512
"""Tokens that a request generates without drafts before they are tried again."""
START_RATE = 0.7
"""Assumed share of accepted drafts of a new request."""
MEMORY = 0.1
"""Weight of one verified draft in a request's acceptance rate."""


@dataclass
class _Request:
    rate: float = START_RATE
    """Estimated probability that a draft is right if those before it are."""
    resting: int = 0
    """Steps until drafts are tried again."""
    rest: int = 0
    """Length of the last rest; 0 while drafts pay."""


class DraftControl:
    """Weighs what drafts bring against what they cost.

    With acceptance rate r, `k` drafts bring 1 + r + ... + r^k tokens for the time of a step with k
    drafts, drafting included, relative to one without. Times are medians of measured decode steps,
    for numbers of requests of the same order. A request for which no draft pays rests, and tries
    one draft after 16 tokens, then 32, up to 512.

    Args:
        most: Most drafts of a request.
        adaptive: False always wants `most`.
    """

    def __init__(self, most: int, adaptive: bool = True) -> None:
        self._most, self._adaptive = most, adaptive
        self._requests: dict[str, _Request] = {}
        self._plain: defaultdict[int, deque] = defaultdict(lambda: deque(maxlen=SAMPLES))
        self._drafted: defaultdict[int, deque] = defaultdict(lambda: deque(maxlen=SAMPLES))
        self._age: defaultdict[int, int] = defaultdict(int)
        self.times_off = 0
        """How often a request's drafts were given up."""

    @property
    def num_resting(self) -> int:
        """Requests that generate without drafts for now."""
        return sum(bool(r.rest) for r in self._requests.values())

    def length(self, request_id: str, num_requests: int) -> int:
        """Returns how many drafts a request gets for its next step.

        Args:
            request_id: The request.
            num_requests: Requests of that step.
        """
        if not self._adaptive:
            return self._most
        request = self._requests.setdefault(request_id, _Request())
        if request.resting:
            request.resting -= 1
            return 0
        if request.rest:
            return 1  # a trial
        size = _order(num_requests)
        if len(self._plain[size]) < PLAIN_SAMPLES or self._age[size] >= REFRESH:
            return 0
        best = self._best(request.rate, size)
        if not best:
            self._rest(request)
        return best

    def verified(self, request_id: str, drafts: int, accepted: int) -> None:
        """Takes note of how many of a request's drafts were right."""
        request = self._requests.get(request_id)
        if request is None or not drafts:
            return
        weight = 0.5 if request.rest else MEMORY
        for right in [1.0] * accepted + [0.0] * (accepted < drafts):
            request.rate += weight * (right - request.rate)

    def took(self, num_requests: int, drafts: int, seconds: float) -> None:
        """Takes note of the time of a step of decoding requests alone, drafting included."""
        size = _order(num_requests)
        if not drafts:
            self._plain[size].append(seconds)
            self._age[size] = 0
            return
        self._drafted[size].append((seconds, drafts / num_requests))
        self._age[size] += 1

    def settle(self, request_id: str, num_requests: int) -> None:
        """Decides after a trial whether a resting request drafts again."""
        request = self._requests.get(request_id)
        if request is None or not request.rest or request.resting:
            return
        if self._best(request.rate, _order(num_requests)):
            request.rest = 0
        else:
            self._rest(request)

    def forget(self, request_id: str) -> None:
        """Drops what is known of a request."""
        self._requests.pop(request_id, None)

    def _rest(self, request: _Request) -> None:
        if not request.rest:
            self.times_off += 1
        request.rest = min(LONGEST_REST, max(SHORTEST_REST, 2 * request.rest))
        request.resting = request.rest

    def _best(self, rate: float, size: int) -> int:
        """Returns the number of drafts with the most tokens per time, 0 if none pays."""
        plain, drafted = self._plain[size], self._drafted[size]
        if not drafted or not plain:
            return self._most
        ratio = median(s for s, _ in drafted) / median(plain)
        each = max(0.0, ratio - 1.0) / median(k for _, k in drafted)
        best, most_gain, tokens = 0, 1.0, 1.0
        for k in range(1, self._most + 1):
            tokens += rate**k
            gain = tokens / (1.0 + each * k)
            if gain > most_gain:
                best, most_gain = k, gain
        return best


def _order(count: int) -> int:
    """Returns the power of two up to which a number of requests goes."""
    return max(0, count - 1).bit_length()
