"""Metrics: what the lead has done, for Prometheus. Names as llama-server's, and vLLM's for speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duo.engine.metrics import Metrics
from duo.link.remote_drafts import RemoteDrafts


class ServerMetrics:
    """Counters over all texts. Counted on the engine's thread, read on the server's."""

    def __init__(self, n_texts: Callable[[], int], drafts: RemoteDrafts) -> None:
        """`n_texts` tells how many texts are being written or wait for it."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(name, what, labels, registry=registry)

        self._prompt = counter("llamacpp:prompt_tokens", "Tokens of prompts that were read.")
        self._prompt_s = counter("llamacpp:prompt_seconds", "Time for that.")
        self._cached = counter("duo:prompt_tokens_cached", "Tokens of prompts that had been read before.")
        self._predicted = counter("llamacpp:tokens_predicted", "Tokens that were generated.")
        self._predicted_s = counter("llamacpp:tokens_predicted_seconds", "Time for that.")
        self._decodes = counter("llamacpp:n_decode", "Decodes of the target.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Candidates that were verified.")
        self._drafts = counter("spec_decode_num_drafts", "Batches that verified candidates.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Candidates that were accepted.")
        self._by_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Candidates accepted at a position of their batch.", "position"
        )
        self._stops = counter("duo:generations", "Generations, by what ended them.", "stop")
        self._rates = {
            name: Gauge(f"llamacpp:{name}_tokens_seconds", f"Tokens/s of the last {name} phase.", registry=registry)
            for name in ("prompt", "predicted")
        }

        def gauge(name: str, what: str, value: object) -> None:
            Gauge(name, what, registry=registry).set_function(value)  # type: ignore[arg-type]

        gauge("llamacpp:requests_processing", "Requests that are being answered.", lambda: min(1, n_texts()))
        gauge("llamacpp:requests_deferred", "Requests that wait.", lambda: max(0, n_texts() - 1))
        gauge("duo:workers_connected", "Remote drafts that are connected.", lambda: drafts.n_connected)
        gauge("duo:round_trip_seconds", "From a decision to the first guess after it.", lambda: drafts.latency_s)
        registry.register(_DraftCounts(drafts))

    def add(self, metrics: Metrics, n_cached: int) -> None:
        """A generation has ended."""
        statistics = metrics.statistics()
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
        for step in metrics.steps:
            self._drafts.inc(step.n_candidates > 0)
            self._drafted.inc(step.n_candidates)
            self._accepted.inc(step.n_accepted)
            for position in range(step.n_accepted):
                self._by_position.labels(position).inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)


class _DraftCounts(Collector):
    """What remote drafts did, counted where it happens."""

    def __init__(self, drafts: RemoteDrafts) -> None:
        self._drafts = drafts

    def collect(self) -> Iterable[Metric]:
        counts = self._drafts.counts
        for key, name, what in (
            ("joined", "duo:worker_joins", "Remote drafts that have joined."),
            ("stalled", "duo:worker_stalls", "Times that a remote draft did not answer."),
            ("stale", "duo:stale_candidates", "Candidates of remote drafts that came too late or fitted nowhere."),
        ):
            yield CounterMetricFamily(name, what, value=counts.get(key, 0))
        for prefix, name, what in (
            ("dropped: ", "duo:worker_drops", "Remote drafts that have gone, by reason."),
            ("refused: ", "duo:worker_refusals", "Remote drafts that were refused, by reason."),
        ):
            family = CounterMetricFamily(name, what, labels=["reason"])
            for key, value in counts.items():
                if key.startswith(prefix):
                    family.add_metric([key.removeprefix(prefix)], value)
            yield family
