"""Made-up samples, whose figures can be worked out by hand."""

from __future__ import annotations

import threading
from typing import Any

from duo.bench.contestant import Contestant, Job, Run
from duo.bench.prompts import Prompt
from duo.bench.results import Results
from duo.bench.rounds import Sample
from duo.engine.metrics import Metrics
from duo.engine.records import Event
from duo.spec.schedule import Schedule

STORY = " ".join(f"word{i}" for i in range(40))
OTHER = STORY[:10] + "!" + STORY[11:]
LOOP = "on and on " * 20

FACTS: dict[str, Any] = {
    "date": "2026-11-20T12:00:00+00:00",
    "hardware": {"cpu": "A processor", "cores": 2, "usable_cores": 2, "memory_bytes": 8_000_000_000},
    "models": {
        "target": {"name": "large.gguf", "quantisation": "F16", "sha256": {"large.gguf": "a1"}},
        "draft": {"name": "small.gguf", "quantisation": "Q4_0", "sha256": {"small.gguf": "b2"}},
    },
    "options": {"predict": 64, "repetitions": 3},
}
OWN: dict[str, Any] = {"prompt_tokens_per_s": 400.0, "first_token_s": 0.1, "tokens_per_decode": 1.0, "target_ms": 9.5}
DRAFTED: dict[str, Any] = OWN | {
    "tokens_per_decode": 1.5, "target_ms": 12.0, "n_verified": 40, "n_accepted": 30, "draft_ms": 4.0, "hidden": 0.9,
    "waste": 0.4,
}  # fmt: skip


class Silent:
    """Writes nothing: the samples are made up."""

    def write(self, job: Job, stop: threading.Event) -> Run:
        raise NotImplementedError


PLAIN = Contestant("plain", Silent(), "2", "CPU")
ASYNC = Contestant("async", Silent(), "1+1", "CPU+CPU", "auto")
PEER = Contestant("llama-completion", Silent(), "2", "CPU")


def sample(contestant: Contestant, i_round: int, category: str, rate: float, text: str = STORY, **more: Any) -> Sample:
    return Sample(contestant, i_round, Prompt(category, "?"), Run(64, rate, text, **more))


def collect(contestants: list[Contestant], *samples: Sample, baseline: Contestant | None = None) -> Results:
    found = Results(contestants, baseline)
    for each in samples:
        found.add(each)
    return found


def results(baseline: Contestant | None = None) -> Results:
    """Three rounds: chat, code, and a story that loops. Async is 1.2 and 1.25 times as fast as plain."""
    found = collect([PLAIN, ASYNC, PEER], baseline=baseline)
    for i, (category, text, plain, drafting, peer) in enumerate(
        (("chat", STORY, 100, 120, 90), ("code", OTHER, 80, 100, 88))
    ):
        found.add(sample(PLAIN, i, category, plain, **OWN))
        found.add(sample(ASYNC, i, category, drafting, text, **DRAFTED))
        found.add(sample(PEER, i, category, peer, prompt_tokens_per_s=500.0))
    for contestant in (PLAIN, ASYNC, PEER):
        found.add(sample(contestant, 2, "story", 300, LOOP))
    return found


def metrics() -> Metrics:
    """Prefill for 50 ms, then 12 decodes of one token, of 10 ms, and 12 of three, of 20 ms; the draft is concurrent."""
    found = Metrics(started=1.0)
    found.events.append(Event("target", "prompt", 1.0, 1.05, 7))
    now = 1.05
    found.stepped(now, 0, 0, 1, Schedule.OFF)
    for i in range(24):
        n, seconds = (1, 0.01) if i < 12 else (3, 0.02)
        found.events.append(Event("target", "decode", now, now + seconds, n))
        found.draft_events.append(Event("draft", "draft" if i else "catch up", now, now + 0.005, 1))
        found.events.append(Event("target", "wait", now + seconds, now + seconds + 0.001, 0))
        found.stepped(now + seconds, n - 1, min(n - 1, i % 3), 1 + min(n - 1, i % 3), Schedule.ASYNC)
        now += seconds + 0.001
    return found
