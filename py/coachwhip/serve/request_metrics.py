"""What the HTTP side measures of requests: their times, and how they end."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Histogram

from .live_output import LiveOutput, TokenTimes

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
BETWEEN_TOKENS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
WHOLE_S = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 240.0)
PREFIXES = ("coachwhip_", "vllm:")
"""Each measure under our own name and under vLLM's, which dashboards and routers read."""

_WEIGHT = 0.1


class RequestMetrics:
    """Histograms and counters of requests.

    Args:
        model: Name of the model, the label of all of them.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._first = self._histograms(
            "time_to_first_token_seconds", "Seconds to the first token.", FIRST_TOKEN_S
        )
        self._between = self._histograms(
            "inter_token_latency_seconds", "Seconds from one token to the next.", BETWEEN_TOKENS_S
        )
        self._whole = self._histograms(
            "e2e_request_latency_seconds", "Seconds from a request to its end.", WHOLE_S
        )
        self._ended = [
            Counter(
                f"{prefix}request_success",
                "Texts that ended, by why.",
                ("model_name", "finished_reason"),
                registry=self.registry,
            )
            for prefix in PREFIXES
        ]
        for counter in self._ended:
            for reason in ("stop", "length", "abort", "error"):
                counter.labels(model, reason)
        self.mean_seconds = 1.0
        """Seconds of a text, the last ones weighing most."""

    def take_times(self, times: TokenTimes) -> None:
        """Counts what is new in the times of a text."""
        if times.first_s is not None and not times.first_counted:
            times.first_counted = True
            for histogram in self._first:
                histogram.observe(times.first_s)
        for seconds, tokens in times.gaps:
            for histogram in self._between:
                for _ in range(tokens):
                    histogram.observe(seconds)
        times.gaps.clear()

    def ended(self, live: LiveOutput) -> None:
        """Counts a text that has ended, however it did."""
        self.take_times(live.token_times)
        reason = "abort" if live.failure is None else "error"
        if live.output.finished:
            reason = live.output.outputs[0].finish_reason
            seconds = time.monotonic() - live.added_s
            self.mean_seconds += _WEIGHT * (seconds - self.mean_seconds)
            for histogram in self._whole:
                histogram.observe(seconds)
        for counter in self._ended:
            counter.labels(self._model, reason).inc()

    def _histograms(self, name: str, text: str, buckets: tuple[float, ...]) -> list[Histogram]:
        return [
            Histogram(
                prefix + name, text, ("model_name",), buckets=buckets, registry=self.registry
            ).labels(self._model)
            for prefix in PREFIXES
        ]
