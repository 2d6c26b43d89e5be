"""Prometheus metrics of the lead, with llama-server's names, and vLLM's for speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duo.engine.metrics import Metrics, Totals
from duo.link.remote_drafts import RemoteDrafts


class ServerMetrics:
    """Counters over all generations. Updated on the engine's thread, exported on the server's."""

    def __init__(self, n_texts: Callable[[], int], drafts: RemoteDrafts) -> None:
        """`n_texts` returns the number of generations that are running or wait in the queue."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, value: Callable[[], float] | None = None) -> Gauge:
            made = Gauge(name, text, registry=registry)
            if value is not None:
                made.set_function(value)
            return made

        self._prompt = counter("llamacpp:prompt_tokens", "Number of prompt tokens processed.")
        self._prompt_s = counter("llamacpp:prompt_seconds", "Prompt processing time in seconds.")
        self._cached = counter("duo:prompt_tokens_cached", "Number of prompt tokens reused from the KV cache.")
        self._predicted = counter("llamacpp:tokens_predicted", "Number of generated tokens.")
        self._predicted_s = counter("llamacpp:tokens_predicted_seconds", "Generation time in seconds.")
        self._decodes = counter("llamacpp:n_decode", "Number of decode calls of the target.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Number of candidates verified by the target.")
        self._drafts = counter("spec_decode_num_drafts", "Number of target decodes that verified candidates.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Number of candidates accepted.")
        self._by_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Number of candidates accepted, by draft position.", "position"
        )
        self._prepared = counter(
            "duo:outcomes_prepared", "Number of likely outcomes that a draft prepared in branches."
        )
        self._contradictions = counter(
            "duo:contradictions", "Number of times that the target contradicted a draft with branches."
        )
        self._hits = counter("duo:contradictions_prepared", "Number of contradictions that the draft had prepared.")
        self._stops = counter("duo:generations", "Number of generations finished, by stop reason.", "stop")
        self._rates = {
            "prompt": gauge("llamacpp:prompt_tokens_seconds", "Last prompt processing rate in tokens per second."),
            "predicted": gauge("llamacpp:predicted_tokens_seconds", "Last generation rate in tokens per second."),
        }
        gauge("llamacpp:requests_processing", "Number of requests being processed.", lambda: min(1, n_texts()))
        gauge("llamacpp:requests_deferred", "Number of requests in the queue.", lambda: max(0, n_texts() - 1))
        gauge("duo:workers_connected", "Number of remote drafts connected.", lambda: drafts.n_connected)
        round_trip = "Seconds from an order to the remote draft to its first candidate, less the time to draft it."
        gauge("duo:round_trip_seconds", round_trip, lambda: drafts.latency_s)
        registry.register(_DraftCounts(drafts))

    def add(self, metrics: Metrics, n_cached: int) -> None:
        """Count a generation that has ended."""
        totals = Totals(metrics)
        statistics = totals.statistics()
        prompt, generation = statistics.prompt, statistics.generation
        self._prompt.inc(max(0, prompt.tokens - n_cached))
        self._cached.inc(n_cached)
        self._prompt_s.inc(prompt.seconds)
        self._predicted.inc(generation.tokens)
        self._predicted_s.inc(generation.seconds)
        self._decodes.inc(generation.decodes)
        self._stops.labels(generation.stop).inc()
        self._rates["predicted"].set(generation.tokens_per_s or 0)
        self._rates["prompt"].set((prompt.tokens - n_cached) / prompt.seconds if prompt.seconds else 0)
        if statistics.draft is not None and (branches := statistics.draft.branches) is not None:
            self._prepared.inc(branches.prepared)
            self._contradictions.inc(branches.contradictions)
            self._hits.inc(branches.hits)
        for source in (totals.draft, totals.lookup):
            self._drafts.inc(source.decodes)
            self._drafted.inc(source.verified)
            self._accepted.inc(source.accepted)
            for position, n in source.accepted_at.items():
                self._by_position.labels(position).inc(n)

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
