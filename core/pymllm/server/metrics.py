"""Prometheus metrics: what the server measures itself, and what the engine's snapshot says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pymllm.engine.client import EngineClient
from pymllm.frontend.generation import Delta

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)

_GAUGES = {
    "running": ("pymllm_requests_running", "Requests in the running batch"),
    "waiting": ("pymllm_requests_waiting", "Requests that wait for the engine"),
    "pages_used": ("pymllm_kv_pages_used", "KV pages of running requests"),
    "pages_cached": ("pymllm_kv_pages_cached", "KV pages that only the prefix cache keeps"),
    "pages_free": ("pymllm_kv_pages_free", "KV pages that hold nothing"),
}
_COUNTERS = {
    "total_steps": ("pymllm_engine_steps", "Steps of the engine"),
    "total_prompt_tokens": ("pymllm_prompt_tokens", "Prompt tokens of all requests, cached ones included"),
    "total_cached_tokens": ("pymllm_prefix_cache_hit_tokens", "Prompt tokens taken from the prefix cache"),
    "total_generated_tokens": ("pymllm_generated_tokens", "Tokens generated"),
    "total_preemptions": ("pymllm_preemptions", "Requests that were preempted and recomputed"),
    "total_evicted_pages": ("pymllm_evicted_pages", "Pages dropped by the prefix cache"),
}


class Metrics:
    """One registry per app, so that two servers in a process do not share numbers.

    client: the engine's current client (it changes when an engine is restarted).
    """

    def __init__(self, client: Callable[[], EngineClient], labels: dict[str, str]) -> None:
        self.registry = _Registry()
        self.first_token = self._histogram("time_to_first_token", "From arrival to the first token", SECONDS)
        self.per_token = self._histogram("time_per_output_token", "Mean time between an answer's tokens", TOKEN_SECONDS)
        self.end_to_end = self._histogram("e2e_request", "From arrival to the end of an answer", SECONDS)
        self.queue = self._histogram("queue_time", "From arrival to being scheduled first", SECONDS)
        self.finished = Counter(
            "pymllm_requests_finished", "Answers by finish reason", ["reason"], registry=self.registry
        )
        self.errors = Counter("pymllm_errors", "Errors by kind", ["kind"], registry=self.registry)
        for reason in ("stop", "length", "abort", "error"):
            self.finished.labels(reason)
        self.registry.register(_EngineCollector(client, labels))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"pymllm_{name}_seconds", text, buckets=buckets, registry=self.registry)

    def exposition(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)


class AnswerClock:
    """Takes the times of one answer. arrived: time.monotonic() when its HTTP request came."""

    def __init__(self, metrics: Metrics, arrived: float) -> None:
        self._metrics = metrics
        self._arrived = arrived
        self._first: float | None = None
        self._tokens = 0

    def observe(self, delta: Delta) -> None:
        """Take note of news of this answer."""
        self._tokens += len(delta.token_ids)
        if self._first is not None and delta.finish_reason is None:
            return
        now = time.monotonic()
        if delta.token_ids and self._first is None:
            self._first = now
            self._metrics.first_token.observe(now - self._arrived)
            self._metrics.queue.observe(delta.queue_seconds)
        if delta.finish_reason is None:
            return
        self._metrics.finished.labels(delta.finish_reason).inc()
        self._metrics.end_to_end.observe(now - self._arrived)
        if self._first is not None and self._tokens > 1:
            self._metrics.per_token.observe((now - self._first) / (self._tokens - 1))


class _Registry(CollectorRegistry):
    """Without the ``_created`` series that prometheus_client adds to every counter and histogram. Its own
    switch for them is global to the process."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _EngineCollector(Collector):
    def __init__(self, client: Callable[[], EngineClient], labels: dict[str, str]) -> None:
        self._client = client
        self._labels = labels

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | InfoMetricFamily]:
        client = self._client()
        stats = client.stats()
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(stats, field))
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(stats, field))
        yield GaugeMetricFamily("pymllm_engine_up", "1 while the engine can answer", value=float(client.alive))
        yield InfoMetricFamily("pymllm_server", "What is served", value=self._labels)
