"""The engine's metrics for Prometheus: under our own names, and under vLLM's as far as it has them.

Counters count since the engine's last start.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..config import EngineConfig
from .engine_client import EngineClient, EngineState

# field of Metrics -> (name, help); our prefix and vLLM's
_GAUGES = {
    "num_requests_running": "Requests that own a slot.",
    "num_requests_waiting": "Requests that wait for a slot or pages.",
    "kv_cache_usage_perc": "Share of the pages that requests own, from 0 to 1.",
}
_COUNTERS = {
    "prefix_cache_queries": "Tokens of admitted requests, looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens among them whose state was restored.",
    "prompt_tokens": "Prompt tokens of finished requests.",
    "generation_tokens": "Generated tokens.",
    "num_preemptions": "Requests that were sent back to the queue.",
    "spec_decode_num_drafts": "Times that a request's drafts were verified.",
    "spec_decode_num_draft_tokens": "Drafted tokens that were verified.",
    "spec_decode_num_accepted_tokens": "Drafted tokens that were right.",
}
# Ours alone.
_OWN_GAUGES = {
    "slots_total": "State slots.",
    "slots_live": "State slots that requests write.",
    "slots_checkpoint": "State slots that hold a checkpoint.",
    "slot_bytes": "Bytes of a state slot.",
    "pages_total": "Pages of keys and values.",
    "pages_live": "Pages that requests own and no prefix stands for.",
    "pages_cached": "Pages that a prefix stands for.",
    "page_bytes": "Bytes of a page.",
    "spec_decode_num_resting": "Requests that generate without drafts, since they do not pay.",
}
_OWN_COUNTERS = {
    "published": "Checkpoints made.",
    "restored": "Requests that started from a checkpoint.",
    "evicted": "Checkpoints given up for another state.",
    "publish_skipped": "Checkpoints not made for want of a slot.",
    "pages_evicted": "Cached pages given up for others.",
    "page_copies": "Partial pages copied for a hit.",
    "spec_decode_times_off": "Times that a request's drafts were given up.",
    "num_steps": "Steps of the engine.",
}
_OURS, _VLLM = "coachwhip_", "vllm:"


class EngineCollector(Collector):
    """Gives Prometheus what was last seen of the engine.

    Args:
        client: The engine.
        config: What it runs with.
        model: Name of the model, a label.
    """

    def __init__(self, client: EngineClient, config: EngineConfig, model: str) -> None:
        self._client, self._config, self._labels = client, config, {"model_name": model}

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics."""
        yield self._gauge(
            "coachwhip_engine_up",
            "Whether the engine is ready.",
            self._client.state is EngineState.READY,
        )
        yield self._counter(
            "coachwhip_engine_restarts", "Engines that died.", self._client.num_restarts
        )
        yield self._gauge(
            "coachwhip_requests_unfinished",
            "Requests that run or wait, as the HTTP side counts them.",
            self._client.num_unfinished,
        )
        yield from self._cache_config()
        metrics = self._client.metrics
        if metrics is None:
            return
        for fields, prefixes, make in (
            (_GAUGES, (_OURS, _VLLM), self._gauge),
            (_COUNTERS, (_OURS, _VLLM), self._counter),
            (_OWN_GAUGES, (_OURS,), self._gauge),
            (_OWN_COUNTERS, (_OURS,), self._counter),
        ):
            for name, text in fields.items():
                for prefix in prefixes:
                    yield make(prefix + name, text, getattr(metrics, name))
        for prefix in (_OURS, _VLLM):
            yield self._labelled(
                f"{prefix}spec_decode_num_accepted_tokens_per_pos",
                "Drafted tokens that were right, by their position in the draft.",
                "position",
                dict(enumerate(metrics.spec_decode_num_accepted_tokens_per_pos)),
            )
        yield self._labelled(
            "coachwhip_prefix_miss",
            "Requests that no cached prefix was found for, by why.",
            "reason",
            metrics.prefix_miss_total,
        )
        seconds = metrics.step_seconds
        parts = ("plan", "tensors", "execute", "accept", "draft", "commit")
        yield self._labelled(
            "coachwhip_step_seconds",
            "Seconds spent in the parts of all steps.",
            "part",
            {part: getattr(seconds, part) for part in parts},
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _labelled(self, name: str, text: str, label: str, values: dict) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._labels, label])
        for key, value in values.items():
            family.add_metric([*self._labels.values(), str(key)], value)
        return family

    def _cache_config(self) -> Iterator[Metric]:
        """Yields what the caches are configured as; vLLM has it as a gauge of 1 with labels."""
        config = self._config
        values = {
            "block_size": str(config.kv_cache_page_size),
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": str(config.mamba_cache_mode != "none"),
            "mamba_block_size": str(config.mamba_block_size),
            "mamba_cache_mode": config.mamba_cache_mode,
            "mamba_ssm_cache_dtype": config.mamba_ssm_cache_dtype,
            "num_gpu_blocks": str(config.num_kv_pages),
            "num_state_slots": str(config.num_state_slots),
        }
        for prefix in (_OURS, _VLLM):
            family = GaugeMetricFamily(
                f"{prefix}cache_config_info", "The caches.", labels=[*self._labels, *values]
            )
            family.add_metric([*self._labels.values(), *values.values()], 1)
            yield family
