"""How many drafts a request gets: as many as measurably pay, down to none."""

from __future__ import annotations

from dataclasses import dataclass

from .step_times import StepTimes

SHORTEST_REST, LONGEST_REST = 16, 512
"""Tokens that a request generates without drafts before they are tried again."""
START_RATE = 0.7
"""Assumed share of accepted drafts before any request has shown its own."""
PRIOR = 2
"""Verified drafts that the assumption counts for."""
LEAST_GAIN = 1.03
"""Tokens per time, relative to none, from which drafts are worth it: less is noise of the clock."""
LEAST_WEIGHT = 0.04
"""Weight of one verified draft among many."""
TRIAL_WEIGHT = 0.5
"""Weight of the one draft of a trial."""
REQUEST_WEIGHT = 0.1
"""Weight of one request in the rate that new ones begin with."""


@dataclass
class _Request:
    rate: float
    """Estimated probability that a draft is right if those before it are."""
    verified: int = 0
    """Drafts that the estimate is made of, since drafts were last turned on."""
    resting: int = 0
    """Steps until drafts are tried again."""
    rest: int = 0
    """Length of the last rest; 0 while drafts pay."""


class DraftControl:
    """Weighs what drafts bring against what they cost.

    With acceptance rate r, `k` drafts bring 1 + r + ... + r^k tokens for the time of a step with k
    drafts, drafting included, relative to one without. Times are those of decode steps with as many
    drafts, for numbers of requests of the same order. A request for which no draft pays rests, and
    tries one draft after 16 tokens, then 32, up to 512. A new request begins with the rate that
    those before it had.

    Args:
        most: Most drafts of a request.
        adaptive: False always wants `most`.
    """

    def __init__(self, most: int, adaptive: bool = True) -> None:
        self._most, self._adaptive = most, adaptive
        self._requests: dict[str, _Request] = {}
        self._times: dict[int, StepTimes] = {}
        self._start_rate = START_RATE
        self._wanted = 0  # drafts for the next step
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
        wanted = self._length(request_id, num_requests) if self._adaptive else self._most
        self._wanted += wanted
        return wanted

    def verified(self, request_id: str, drafts: int, accepted: int) -> None:
        """Takes note of how many of a request's drafts were right."""
        request = self._requests.get(request_id)
        if request is None or not drafts:
            return
        for right in [1.0] * accepted + [0.0] * (accepted < drafts):
            request.verified += 1
            weight = max(LEAST_WEIGHT, 1 / (PRIOR + request.verified))
            if request.rest:
                weight = TRIAL_WEIGHT
            request.rate += weight * (right - request.rate)

    def took(self, num_requests: int, drafts: int, seconds: float) -> None:
        """Takes note of a step of decoding requests alone.

        Args:
            num_requests: Its requests.
            drafts: Those of all requests that it verified.
            seconds: Its time, that of drafting for the next step included.
        """
        if self._adaptive:
            self._times_of(num_requests).add(seconds, drafts / num_requests, self._wanted > 0)
        self._wanted = 0

    def skipped(self) -> None:
        """Takes note of a step that did not only decode: its time tells nothing."""
        self._wanted = 0

    def settle(self, request_id: str, num_requests: int) -> None:
        """Decides after a trial whether a resting request drafts again."""
        request = self._requests.get(request_id)
        if request is None or not request.rest or request.resting:
            return
        if self._best(request.rate, self._times_of(num_requests)):
            request.rest = request.verified = 0
        else:
            self._rest(request)

    def forget(self, request_id: str) -> None:
        """Drops what is known of a request, but for a share in what new ones begin with."""
        request = self._requests.pop(request_id, None)
        if request is not None and (request.verified or request.rest):
            self._start_rate += REQUEST_WEIGHT * (request.rate - self._start_rate)

    def _length(self, request_id: str, num_requests: int) -> int:
        request = self._requests.get(request_id)
        if request is None:
            request = self._requests[request_id] = _Request(self._start_rate)
        if not request.rest:
            times = self._times_of(num_requests)
            if times.wants_plain:
                return 0
            best = self._best(request.rate, times)
            if best:
                return times.to_measure(best)
            if times.wants_drafted:
                return 1
            self._rest(request)
        if not request.resting:
            return 1  # a trial
        request.resting -= 1
        return 0

    def _rest(self, request: _Request) -> None:
        if not request.rest:
            self.times_off += 1
        request.rest = min(LONGEST_REST, max(SHORTEST_REST, 2 * request.rest))
        request.resting = request.rest

    def _best(self, rate: float, times: StepTimes) -> int:
        """Returns the number of drafts with the most tokens per time, 0 if none pays."""
        costs = times.costs()
        if costs is None:
            return self._most
        best, most_gain, tokens = 0, LEAST_GAIN, 1.0
        for k in range(1, self._most + 1):
            tokens += rate**k
            gain = tokens / (1.0 + costs[k])
            if gain > most_gain:
                best, most_gain = k, gain
        return best

    def _times_of(self, num_requests: int) -> StepTimes:
        """Returns the times of steps with up to the same power of two of requests."""
        order = max(0, num_requests - 1).bit_length()
        times = self._times.get(order)
        if times is None:
            times = self._times[order] = StepTimes(self._most)
        return times
