"""The promise: with --exact the text is the target's own, token for token, whatever the draft does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from duo.config import AUTO_DRAFT, ContextConfig, ModelConfig, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.background import Background
from duo.engine.cache import Cache
from duo.engine.decoder import Decoder
from duo.engine.draft import DraftRequest
from duo.engine.generation import Generation
from duo.engine.local_draft import LocalDraft
from duo.engine.metrics import Metrics
from duo.engine.text import Ending, TextStream
from duo.errors import DecodeError
from duo.llama.context import Context
from duo.llama.model import Model
from duo.spec.policy import Policy
from duo.spec.sampling import Greedy
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Logits
from duo.spec.verify import Matching
from tests.fakes import Eager, FakeContext, restless
from tests.prompts import PROMPTS

N = 24

ONE = ThreadConfig(1, 1, (1,), (1, 1))
TWO = ThreadConfig(2, 2, (1, 2), (1, 1))


class Bench:
    """The demo pair with one context each, which keep a prompt for as long as it is asked for."""

    def __init__(self, target: Model, draft: Model) -> None:
        self.model = target
        config = ContextConfig(2304, 1, 1, n_outputs_max=Policy.PROBE_TOKENS, exact=True)
        self.target = Context(target, config)
        self.twin = Context(target, config)
        self.draft = Context(draft, config)
        self.prompt: list[int] = []

    def close(self) -> None:
        for context in (self.target, self.twin, self.draft):
            context.close()

    def hold(self, text: str) -> None:
        self.prompt = self.model.tokenize(text)
        for context in (self.target, self.twin, self.draft):
            context.rollback(0)

    def write(self, draft: Decoder | None, policy: Policy, threads: ThreadConfig = ONE) -> tuple[list[int], Metrics]:
        """The tokens that follow the prompt."""
        return run(*self.generation(self.target, draft, policy, threads))

    def generation(
        self, target: Decoder, draft: Decoder | None, policy: Policy, threads: ThreadConfig = ONE
    ) -> tuple[Generation, Metrics]:
        for context in (self.target, self.twin, self.draft):
            context.rollback(min(context.n_past, len(self.prompt) - 1))
            context.set_threads(threads.target_batch, threads.target_batch)
        ending = Ending(StopConfig(N), TextStream(self.model.piece), self.model.is_end)
        metrics, n_vocab = Metrics(), self.model.n_vocab
        request = DraftRequest(
            Session(self.prompt, n_vocab), ending, metrics, n_vocab, Greedy(), SamplingConfig(), mode="greedy"
        )
        local = None
        if draft is not None:
            cache = Cache(draft)
            cache.end(self.prompt)  # as much of it as is there
            local = LocalDraft(cache, policy, threads)
        return Generation(target, request, Matching(Greedy()), threads, local), metrics


def run(generation: Generation, metrics: Metrics) -> tuple[list[int], Metrics]:
    """Run on a thread of its own, as in earnest: OpenMP's team of threads ends with it."""
    with Background(generation.run, "test") as running:
        return [token for step in running for token in step.tokens], metrics


@pytest.fixture(scope="module")
def bench(demo_pair: tuple[Path, Path]) -> Iterator[Bench]:
    target, draft = (Model(ModelConfig(path)) for path in demo_pair)
    with closing(target), closing(draft), closing(Bench(target, draft)) as made:
        yield made


class Before:
    """A context that calls `before` in front of every decode."""

    def __init__(self, context: Context, before: Callable[[], None]) -> None:
        self._context = context
        self._before = before
        self.n_ctx, self.n_batch, self.n_vocab = context.n_ctx, context.n_batch, context.n_vocab
        self.n_rollback = context.n_rollback
        self.rollback, self.set_threads = context.rollback, context.set_threads
        self.cancel, self.abort, self.resume = context.cancel, context.abort, context.resume

    @property
    def n_past(self) -> int:
        return self._context.n_past

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        self._before()
        return self._context.decode(tokens, n_rows)


def dies_at(n: int) -> Callable[[], None]:
    countdown = iter(range(n))

    def check() -> None:
        if next(countdown, None) is None:
            raise DecodeError(f"dead after {n} decodes")

    return check


def eager(schedule: Schedule = Schedule.ASYNC) -> Policy:
    return Eager(AUTO_DRAFT, 2 * AUTO_DRAFT, schedule)


def real(*schedules: Schedule) -> Policy:
    return Policy(AUTO_DRAFT, 2 * AUTO_DRAFT, schedules or tuple(Schedule))


def fake(choose: Callable[[Sequence[int]], int], n_vocab: int) -> FakeContext:
    return FakeContext(choose, n_ctx=2304, n_batch=512, n_vocab=n_vocab)


def schedules(bench: Bench) -> dict[str, tuple[Decoder, Policy]]:
    """A good draft in every schedule; most policies verify whatever is ready: much is accepted and much rejected."""
    return {
        "async": (bench.draft, eager()),
        "sync": (bench.draft, eager(Schedule.SYNC)),
        "off": (bench.draft, real(Schedule.OFF)),
        "auto": (bench.draft, real()),
        "changes at random": (bench.draft, restless(len(bench.prompt), 16, 32)),
    }


def cases(bench: Bench) -> dict[str, tuple[Decoder, Policy]]:
    """Other policies, and other drafts."""
    dice = random.Random(1)
    n_vocab = bench.model.n_vocab
    return {
        **{f"async, --draft {n}": (bench.draft, Eager(n, 2 * n)) for n in (1, 4)},
        "sync, --draft 4": (bench.draft, Eager(4, 8, Schedule.SYNC)),
        "async, the real policy": (bench.draft, real(Schedule.ASYNC)),
        "sync, the real policy": (bench.draft, real(Schedule.SYNC)),
        "random": (fake(lambda _: dice.randrange(n_vocab), n_vocab), eager()),
        "constant": (fake(lambda _: 7, n_vocab), eager(Schedule.SYNC)),
        "slow": (Before(bench.draft, lambda: time.sleep(0.02)), eager()),
        "dies at once": (Before(bench.draft, dies_at(0)), eager()),
        "dies later": (Before(bench.draft, dies_at(9)), eager(Schedule.SYNC)),
        "the target itself": (bench.twin, eager()),
    }


@pytest.mark.parametrize("kind", PROMPTS)
def test_the_text_is_the_targets_own(bench: Bench, kind: str) -> None:
    bench.hold(PROMPTS[kind])
    if kind == "long":
        assert len(bench.prompt) >= 2000
    if kind == "one token":
        assert len(bench.prompt) == 1
    plain, _ = bench.write(None, eager())
    assert 0 < len(plain) <= N
    assert bench.write(None, eager(), TWO)[0] == plain, "plain, 2 threads"
    threads = (ONE, TWO)[sorted(PROMPTS).index(kind) % 2]
    for name, (draft, policy) in schedules(bench).items():
        assert bench.write(draft, policy, threads)[0] == plain, f"{name}, {threads.target} threads"


@pytest.mark.parametrize("kind", sorted(PROMPTS)[::3])
def test_no_draft_changes_the_text(bench: Bench, kind: str) -> None:
    bench.hold(PROMPTS[kind])
    plain, _ = bench.write(None, eager())
    for name, (draft, policy) in cases(bench).items():
        tokens, metrics = bench.write(draft, policy)
        assert tokens == plain, name
        if name == "dies at once":
            assert metrics.draft_error == "dead after 0 decodes"


@pytest.mark.parametrize("kind", ["code", "story", "german"])
def test_the_text_is_the_same_when_guesses_are_surely_used(bench: Bench, kind: str) -> None:
    """So that the identity above is not that of a draft that never took part, on however busy a machine."""
    bench.hold(PROMPTS[kind])
    plain, _ = bench.write(None, eager())
    # A target so slow that the draft is always ahead.
    slow = Before(bench.target, lambda: time.sleep(0.1))
    for target, schedule in ((slow, Schedule.ASYNC), (bench.target, Schedule.SYNC)):
        tokens, metrics = run(*bench.generation(target, bench.draft, eager(schedule)))
        assert tokens == plain
        statistics = metrics.statistics().draft
        assert statistics is not None
        assert 0 < statistics.accepted < statistics.verified, "some were accepted and some rejected"


@pytest.mark.parametrize("seed", range(12))
def test_the_text_is_the_same_whatever_the_schedule_of_each_step(bench: Bench, seed: int) -> None:
    """Changes at random, at every step, of the schedule and with it of the threads; probes at random."""
    bench.hold(PROMPTS[("code", "story", "german")[seed % 3]])
    plain, _ = bench.write(None, eager())
    for draft in (bench.draft, bench.twin):
        tokens, metrics = bench.write(draft, restless(seed, 8, 16), replace(TWO, beside=(1 + seed % 2, 1)))
        assert tokens == plain
        assert metrics.draft_error is None
        assert len({step.schedule for step in metrics.steps}) > 1
