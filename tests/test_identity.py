"""The promise: with --exact the text is the target's own, token for token, whatever the draft does."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from duo.cli.configs import AUTO_DRAFT
from duo.config import ContextConfig, ModelConfig, StopConfig
from duo.engine.background import Background
from duo.engine.decoder import Decoder
from duo.engine.generation import Generation
from duo.engine.metrics import Metrics
from duo.engine.pair import Pair
from duo.engine.text import Ending, TextStream
from duo.errors import DecodeError
from duo.llama.context import Context
from duo.spec.policy import Policy
from duo.spec.sampling import Greedy
from duo.spec.types import Logits
from tests.fakes import Eager, FakeContext
from tests.prompts import PROMPTS

N = 24


class Bench:
    """The demo pair with one context each, which keep a prompt for as long as it is asked for."""

    def __init__(self, pair: Pair) -> None:
        assert pair.draft is not None
        self.model = pair.target
        config = ContextConfig(2304, 1, 1, n_outputs_max=17, exact=True)
        self.target = Context(pair.target, config)
        self.twin = Context(pair.target, config)
        self.draft = Context(pair.draft, config)
        self.prompt: list[int] = []

    def hold(self, text: str) -> None:
        self.prompt = self.model.tokenize(text)
        for context in (self.target, self.twin, self.draft):
            context.rollback(0)

    def write(self, draft: Decoder | None, policy: Policy, n_threads: int = 1) -> tuple[list[int], Metrics]:
        """The tokens that follow the prompt."""
        self.target.set_threads(n_threads, n_threads)
        return run(self.generation(self.target, draft, policy))

    def generation(self, target: Decoder, draft: Decoder | None, policy: Policy) -> Generation:
        for context in (self.target, self.twin, self.draft):
            context.rollback(min(context.n_past, len(self.prompt) - 1))
        ending = Ending(StopConfig(N), TextStream(self.model.piece), self.model.is_end)
        return Generation(target, draft, self.prompt, Greedy(), ending, policy, Metrics())


def run(generation: Generation) -> tuple[list[int], Metrics]:
    """Run on a thread of its own, as in earnest: OpenMP's team of threads ends with it."""
    with Background(generation.run, "test") as running:
        return [token for step in running for token in step.tokens], generation.metrics


@pytest.fixture(scope="module")
def bench(demo_pair: tuple[Path, Path]) -> Iterator[Bench]:
    with Pair.load(ModelConfig(demo_pair[0]), ModelConfig(demo_pair[1])) as pair:
        yield Bench(pair)


class Unabortable:
    """A context that outlives the draft thread, whose last act is to abort it."""

    def __init__(self, context: Context, before: Callable[[], None] = lambda: None) -> None:
        self._context = context
        self._before = before
        self.n_ctx, self.n_batch, self.n_vocab = context.n_ctx, context.n_batch, context.n_vocab
        self.rollback, self.cancel = context.rollback, context.cancel

    @property
    def n_past(self) -> int:
        return self._context.n_past

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        self._before()
        return self._context.decode(tokens, n_rows)

    def abort(self) -> None:
        """The decodes here are short."""


def dies_at(n: int) -> Callable[[], None]:
    countdown = iter(range(n))

    def check() -> None:
        if next(countdown, None) is None:
            raise DecodeError(f"dead after {n} decodes")

    return check


def eager() -> Policy:
    return Eager(AUTO_DRAFT, 2 * AUTO_DRAFT)


def fake(choose: Callable[[Sequence[int]], int], n_vocab: int) -> FakeContext:
    return FakeContext(choose, n_ctx=2304, n_batch=512, n_vocab=n_vocab)


def cases(bench: Bench) -> dict[str, tuple[Decoder, Policy]]:
    """Drafts, each with a policy: most verify whatever is ready, so that much is accepted and much rejected."""
    dice = random.Random(1)
    n_vocab = bench.model.n_vocab
    good: Decoder = Unabortable(bench.draft)
    return {
        **{f"--draft {n}": (good, Eager(n, 2 * n)) for n in (1, 4, 16)},
        "--draft auto": (good, Policy(AUTO_DRAFT, 2 * AUTO_DRAFT)),
        "random": (fake(lambda _: dice.randrange(n_vocab), n_vocab), eager()),
        "constant": (fake(lambda _: 7, n_vocab), eager()),
        "slow": (Unabortable(bench.draft, lambda: time.sleep(0.02)), eager()),
        "dies at once": (Unabortable(bench.draft, dies_at(0)), eager()),
        "dies later": (Unabortable(bench.draft, dies_at(9)), eager()),
        "the target itself": (Unabortable(bench.twin), eager()),
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
    for n_threads in (1, 2):
        assert bench.write(None, eager(), n_threads)[0] == plain, f"plain, {n_threads} threads"
        for name, (draft, policy) in cases(bench).items():
            tokens, metrics = bench.write(draft, policy, n_threads)
            assert tokens == plain, f"{name}, {n_threads} threads"
            if name == "dies at once":
                assert metrics.draft_error == "dead after 0 decodes"


@pytest.mark.parametrize("kind", ["code", "story", "german"])
def test_the_text_is_the_same_when_guesses_are_surely_used(bench: Bench, kind: str) -> None:
    """So that the identity above is not that of a draft that never took part, on however busy a machine."""
    bench.hold(PROMPTS[kind])
    plain, _ = bench.write(None, eager())
    # A target so slow that the draft is always ahead.
    slow = Unabortable(bench.target, lambda: time.sleep(0.1))
    tokens, metrics = run(bench.generation(slow, Unabortable(bench.draft), eager()))
    assert tokens == plain
    statistics = metrics.statistics()["draft"]
    assert statistics["accepted"] > 0
    assert statistics["accepted"] < statistics["verified"], "and some were rejected"
