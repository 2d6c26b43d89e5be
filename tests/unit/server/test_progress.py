"""What the events say about a text: counts, rates and spans, read piece by piece."""

from __future__ import annotations

import time

import msgspec
import pytest

from duo.config import GenerationConfig
from duo.engine.metrics import StepRecord
from duo.engine.slot import TextRequest
from duo.server.progress import CandidateCounts, TextReader
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.types import Source

START = 1000.0  # of the lead


@pytest.fixture
def request_() -> TextRequest:
    return TextRequest([1, 2, 3], GenerationConfig(), lambda _: None)


def step(request: TextRequest, end: float, candidates: int, accepted: int, source: Source = Source.DRAFT) -> None:
    record = StepRecord(end, end, candidates, accepted, accepted + 1, Schedule.ASYNC, source)
    request.metrics.steps.append(record)


def test_a_text_begins_and_ends(request_: TextRequest) -> None:
    reader = TextReader(7, request_, START)
    assert not reader.has_begun
    request_.metrics.n_prompt, request_.n_cached = 3, 2
    request_.metrics.decoded(START + 0.5, START + 0.7, 1)
    assert reader.has_begun
    assert not reader.is_known
    begins = {"state": "begins", "id": 7, "time_ms": 500.0, "prompt_tokens": 3, "cached_tokens": 2}
    assert msgspec.to_builtins(reader.begins()) == begins
    assert reader.is_known
    step(request_, START + 1.0, 0, 0)
    step(request_, START + 1.5, 3, 3)
    request_.metrics.stop = "token limit"
    reader.read()
    ends = {"state": "ends", "id": 7, "time_ms": 1500.0, "stop": "token limit", "tokens": 5, "tokens_per_s": 8.0}
    assert msgspec.to_builtins(reader.ends()) == ends


def test_a_text_that_ends_in_its_prompt(request_: TextRequest) -> None:
    reader = TextReader(1, request_, time.perf_counter())
    request_.metrics.n_prompt, request_.metrics.stop = 3, "interrupted"
    reader.read()
    assert (reader.ends().tokens, reader.ends().tokens_per_s, reader.ends().stop) == (0, None, "interrupted")
    found = reader.progress(None)
    assert (found.tokens, found.seconds, found.tokens_per_s, found.alone_tokens_per_s) == (0, 0.0, None, None)


def test_candidates_are_counted_by_source_and_position(request_: TextRequest) -> None:
    reader = TextReader(1, request_, START)
    step(request_, START, 0, 0)
    step(request_, START, 3, 1)
    reader.read()
    step(request_, START, 2, 2)
    step(request_, START, 4, 4, Source.LOOKUP)
    reader.read()
    found = reader.progress(None)
    assert (found.draft, found.lookup) == (CandidateCounts(5, 3), CandidateCounts(4, 4))
    assert found.accepted_by_position == [1.0, 0.5, 0.0]
    assert found.tokens == 1 + 2 + 3 + 5
    assert (request_.metrics._draft_statistics() is None) == (not request_.metrics.draft_events)


def test_the_rate_is_that_of_the_last_second(request_: TextRequest) -> None:
    now = time.perf_counter()
    reader = TextReader(1, request_, now - 100)
    for i in range(20):  # 2 tokens in 0.1 s, until 2 s ago
        step(request_, now - 4 + i / 10, 1, 1)
    for i in range(10):  # 4 tokens in 0.2 s
        step(request_, now - 2 + (i + 1) / 5, 3, 3)
    for _ in range(2):
        reader.read()
        assert reader.progress(None).tokens_per_s == pytest.approx(20.0)
    assert reader.progress(None).seconds == pytest.approx(4.0)


def test_a_slow_step_counts_whole_and_a_stalled_target_shows(request_: TextRequest) -> None:
    now = time.perf_counter()
    reader = TextReader(1, request_, now - 100)
    for end in (now - 12, now - 10):
        step(request_, end, 0, 0)
    reader.read()
    rate = reader.progress(None).tokens_per_s
    assert rate is not None
    assert rate <= 1 / 12, "nothing came for ten seconds"
    step(request_, time.perf_counter(), 0, 0)
    reader.read()
    assert reader.progress(None).tokens_per_s == pytest.approx(1 / 10, rel=0.5)


def test_spans_are_read_once_and_none_from_before_the_subscriber(request_: TextRequest) -> None:
    metrics = request_.metrics
    metrics.decoded(START + 1, START + 2, 9)
    reader = TextReader(1, request_, START, since_s=START + 3)
    metrics.decoded(START + 2, START + 3.125, 4)
    metrics.drafted(START + 3, START + 3.25, 1, "remote draft")
    metrics.prepared(START + 3, START + 4, 2, 2)
    spans = [tuple(msgspec.to_builtins(span).values()) for span in reader.read()]
    assert spans == [("target", "prompt", 2000.0, 3125.0, 4), ("remote draft", "draft", 3000.0, 3250.0, 1)]
    assert reader.read() == []


def test_steps_from_before_the_subscriber_count(request_: TextRequest) -> None:
    step(request_, START + 1, 2, 2)
    reader = TextReader(1, request_, START, since_s=START + 3)
    reader.read()
    assert reader.progress(None).tokens == 3


def test_the_target_alone_as_measured(request_: TextRequest) -> None:
    reader, policy = TextReader(1, request_, START), Policy(4, 4)
    assert reader.progress(policy).alone_tokens_per_s is None
    policy.beside.add_target(1, 0.5)
    assert reader.progress(policy).alone_tokens_per_s is None, "it was not alone"
    policy.alone.add_target(1, 0.02)
    assert reader.progress(policy).alone_tokens_per_s == 50.0
