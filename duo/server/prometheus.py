"""Prometheus metrics of the lead, with llama-server's names, and vLLM's for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duo.engine.metrics import Metrics, Totals
from duo.link.remote_drafts import RemoteDrafts

_COUNTERS = {
    "llamacpp:prompt_tokens": "Number of prompt tokens processed.",
    "llamacpp:prompt_seconds": "Prompt processing time in seconds.",
    "duo:prompt_tokens_cached": "Number of prompt tokens reused from the KV cache.",
    "llamacpp:tokens_predicted": "Number of generated tokens.",
    "llamacpp:tokens_predicted_seconds": "Generation time in seconds.",
    "llamacpp:n_decode": "Number of decode calls of the target.",
    "spec_decode_num_draft_tokens": "Number of candidates verified by the target.",
    "spec_decode_num_drafts": "Number of target decodes that verified candidates.",
    "spec_decode_num_accepted_tokens": "Number of candidates accepted.",
    "duo:outcomes_prepared": "Number of likely outcomes that a draft prepared in branches.",
    "duo:contradictions": "Number of times that the target contradicted a draft with branches.",
    "duo:contradictions_prepared": "Number of contradictions that the draft had prepared.",
}


class ServerMetrics:
    """Counters over all generations. Updated on the engine's thread, exported on the server's."""

    def __init__(self, n_texts: Callable[[], int], drafts: RemoteDrafts) -> None:
        """`n_texts` returns the number of generations that are running or wait in the queue."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        self._counters = {name: Counter(name, text, registry=registry) for name, text in _COUNTERS.items()}
        by_position = "spec_decode_num_accepted_tokens_per_pos", "Number of candidates accepted, by draft position."
        self._by_position = Counter(*by_position, ["position"], registry=registry)
        stops = "duo:generations", "Number of generations finished, by stop reason."
        self._stops = Counter(*stops, ["stop"], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        rate = "rate in tokens per second."
        self._prompt_rate = gauge("llamacpp:prompt_tokens_seconds", f"Last prompt processing {rate}")
        self._rate = gauge("llamacpp:predicted_tokens_seconds", f"Last generation {rate}")
        processing = gauge("llamacpp:requests_processing", "Number of requests being processed.")
        processing.set_function(lambda: min(1, n_texts()))
        deferred = gauge("llamacpp:requests_deferred", "Number of requests in the queue.")
        deferred.set_function(lambda: max(0, n_texts() - 1))
        gauge("duo:workers_connected", "Number of remote drafts connected.").set_function(lambda: drafts.n_connected)
        round_trip = "Seconds from an order to the remote draft to its first candidate, less the time to draft it."
        gauge("duo:round_trip_seconds", round_trip).set_function(lambda: drafts.latency_s)
        registry.register(_DraftCounts(drafts))

    def add(self, metrics: Metrics, n_cached: int) -> None:
        """Count a generation that has ended."""
        totals = Totals(metrics)
        statistics = totals.statistics()
        prompt, generation = statistics.prompt, statistics.generation
        branches = statistics.draft.branches if statistics.draft is not None else None
        counts = {
            "llamacpp:prompt_tokens": max(0, prompt.tokens - n_cached),
            "llamacpp:prompt_seconds": prompt.seconds,
            "duo:prompt_tokens_cached": n_cached,
            "llamacpp:tokens_predicted": generation.tokens,
            "llamacpp:tokens_predicted_seconds": generation.seconds,
            "llamacpp:n_decode": generation.decodes,
            "spec_decode_num_draft_tokens": totals.draft.verified + totals.lookup.verified,
            "spec_decode_num_drafts": totals.draft.decodes + totals.lookup.decodes,
            "spec_decode_num_accepted_tokens": totals.draft.accepted + totals.lookup.accepted,
            "duo:outcomes_prepared": branches.prepared if branches else 0,
            "duo:contradictions": branches.contradictions if branches else 0,
            "duo:contradictions_prepared": branches.hits if branches else 0,
        }
        for name, n in counts.items():
            self._counters[name].inc(n)
        for source in (totals.draft, totals.lookup):
            for position, n in source.accepted_at.items():
                self._by_position.labels(position).inc(n)
        self._stops.labels(generation.stop).inc()
        self._rate.set(generation.tokens_per_s or 0)
        self._prompt_rate.set((prompt.tokens - n_cached) / prompt.seconds if prompt.seconds else 0)

    def text(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _DraftCounts(Collector):
    """Exports the counts of RemoteDrafts."""

    def __init__(self, drafts: RemoteDrafts) -> None:
        self._drafts = drafts

    def collect(self) -> Iterable[Metric]:
        counts = self._drafts.counts
        for key, name, text in (
            ("joined", "duo:worker_joins", "Number of times that a remote draft connected."),
            ("stalled", "duo:worker_stalls", "Number of times that the remote draft in use timed out."),
            ("stale", "duo:stale_candidates", "Number of candidates from remote drafts discarded as late or useless."),
        ):
            yield CounterMetricFamily(name, text, value=counts.get(key, 0))
        for prefix, name, text in (
            ("dropped: ", "duo:worker_drops", "Number of times that a remote draft disconnected, by reason."),
            ("refused: ", "duo:worker_refusals", "Number of times that a remote draft was refused, by reason."),
        ):
            family = CounterMetricFamily(name, text, labels=["reason"])
            for key, value in counts.items():
                if key.startswith(prefix):
                    family.add_metric([key.removeprefix(prefix)], value)
            yield family
