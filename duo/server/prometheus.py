"""Prometheus metrics of the lead, with llama-server's names, and vLLM's for speculative decoding."""

from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from duo.engine.recorder import Recorder, Totals
from duo.remote.drafts import RemoteDrafts

_COUNTERS = {  # with their label, if any
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
    "spec_decode_num_accepted_tokens_per_pos position": "Number of candidates accepted, by draft position.",
    "duo:generations stop": "Number of generations finished, by stop reason.",
    "duo:queue_seconds": "Time in seconds that texts waited, before they began and while they were paused.",
    "duo:queue_pauses": "Number of times that a text paused for others.",
    "duo:worker_joins": "Number of times that a remote draft connected.",
    "duo:worker_stalls": "Number of times that the remote draft in use timed out.",
    "duo:stale_candidates": "Number of candidates from remote drafts discarded as late or useless.",
    "duo:worker_drops reason": "Number of times that a remote draft disconnected, by reason.",
    "duo:worker_refusals reason": "Number of times that a remote draft was refused, by reason.",
}
_OF_DRAFTS = {  # see RemoteDrafts.counts
    "joined": "duo:worker_joins",
    "stalled": "duo:worker_stalls",
    "stale": "duo:stale_candidates",
    "dropped": "duo:worker_drops",
    "refused": "duo:worker_refusals",
}


class ServerMetrics(Collector):
    """What is counted over all generations. Updated on the engine's thread, exported on the server's."""

    def __init__(self, n_texts: Callable[[], tuple[int, int, int, int]], drafts: RemoteDrafts) -> None:
        """`n_texts`: of running generations, with those in the queue; decodes, and the texts of each, added up."""
        self._n_texts, self._drafts = n_texts, drafts
        # By counter and the value of its label, if any
        self._counts = Counter({(name, ""): 0.0 for name in _COUNTERS if " " not in name})
        self._prompt_rate = self._rate = 0.0

    def add(self, metrics: Recorder, n_cached: int, n_pauses: int = 0, waited_s: float = 0.0) -> None:
        """Count a generation that has ended."""
        totals = Totals(metrics)
        statistics = totals.statistics()
        prompt, generation = statistics.prompt, statistics.generation
        n_read = max(0, prompt.tokens - n_cached)
        counts = {
            "llamacpp:prompt_tokens": n_read,
            "llamacpp:prompt_seconds": prompt.seconds,
            "duo:prompt_tokens_cached": n_cached,
            "llamacpp:tokens_predicted": generation.tokens,
            "llamacpp:tokens_predicted_seconds": generation.seconds,
            "spec_decode_num_draft_tokens": statistics.verified,
            "spec_decode_num_drafts": totals.draft.decodes + totals.lookup.decodes,
            "spec_decode_num_accepted_tokens": statistics.accepted,
            "duo:queue_seconds": metrics.paused_s + waited_s,
            "duo:queue_pauses": n_pauses,
            "duo:outcomes_prepared": metrics.n_prepared,
            "duo:contradictions": metrics.contradictions.total(),
            "duo:contradictions_prepared": metrics.hits.total(),
        }
        self._counts.update({(name, ""): n for name, n in counts.items()})
        for source in (totals.draft, totals.lookup):
            for position, n in source.accepted_at.items():
                self._counts["spec_decode_num_accepted_tokens_per_pos", str(position)] += n
        self._counts["duo:generations", generation.stop] += 1
        self._rate = generation.tokens_per_s or 0
        self._prompt_rate = n_read / prompt.seconds if prompt.seconds else 0

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        n_running, n_texts, n_decodes, n_busy = self._n_texts()
        counts = self._counts.copy()  # at once: the engine's thread may add to them
        for happened, n_times in self._drafts.counts.items():
            kind, _, reason = happened.partition(": ")
            counts[_OF_DRAFTS[kind], reason] = n_times
        counts["llamacpp:n_decode", ""] = n_decodes
        for described, text in _COUNTERS.items():
            name, *labels = described.split()
            family = CounterMetricFamily(name, text, labels=labels)
            for (counter, value), n in counts.items():
                if counter == name:
                    family.add_metric([value], n)
            yield family
        round_trip = "Seconds from an order to the remote draft to its first candidate"
        per_decode = n_busy / max(1, n_decodes)
        for name, text, now in (
            ("llamacpp:prompt_tokens_seconds", "Last prompt processing rate in tokens per second.", self._prompt_rate),
            ("llamacpp:predicted_tokens_seconds", "Last generation rate in tokens per second.", self._rate),
            ("llamacpp:requests_processing", "Number of requests being processed.", n_running),
            ("llamacpp:requests_deferred", "Number of requests in the queue.", max(0, n_texts - n_running)),
            ("llamacpp:n_busy_slots_per_decode", "Average number of texts in progress per decode.", per_decode),
            ("duo:workers_connected", "Number of remote drafts connected.", len(self._drafts.connected)),
            ("duo:round_trip_seconds", f"{round_trip}, less the time to draft it.", self._drafts.latency_s),
        ):
            yield GaugeMetricFamily(name, text, now)
