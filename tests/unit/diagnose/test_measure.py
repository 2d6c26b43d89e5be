"""What `duo tune` measures, of models whose times are known: each thread has a clock that only decodes move."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from duo.diagnose.measure import Measurements, Meter
from duo.diagnose.target_meter import SIZES, Stopped
from duo.engine.translated import Translation
from duo.errors import DecodeError
from duo.spec.sampling import Greedy
from duo.spec.translation import Translator
from tests.fakes import FakeContext
from tests.tokenizers import Words
from tests.unit.engine.helpers import draft_threads

N_VOCAB = 300
TEXT = [7, 8, 9]


class Clock(threading.local):
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def count(prefix: Sequence[int]) -> int:
    """The text counts up."""
    return (prefix[-1] + 1) % N_VOCAB


class Pair:
    """A target that takes 10 s and 1 s more for each token, a draft that takes 1.5 s and 0.5 s more for each.

    Both are divided by their threads.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.target = FakeContext(count, lambda: self._pass(self.target, 10.0, 1.0), 64, 32, N_VOCAB)
        self.draft = FakeContext(count, lambda: self._pass(self.draft, 1.5, 0.5), 64, 32, N_VOCAB, n_branches=8)
        self.also: Callable[[FakeContext], object] = lambda _: None  # what else happens in each decode
        self.stop = threading.Event()
        self.progress: list[tuple[str, float]] = []
        self.meter = Meter(self.target, self.draft, self._on_progress, self.stop)
        self.stop_at: str | None = None

    def _on_progress(self, name: str, share: float) -> None:
        self.progress.append((name, share))
        if self.stop_at is not None and name.startswith(self.stop_at):
            self.stop.set()

    def _pass(self, model: FakeContext, once: float, each: float) -> None:
        self.clock.now += (once + each * model.batches[-1]) / max(1, model.teams[-1])
        if threading.current_thread().name == "duo-draft":
            time.sleep(0.001)  # its decodes take no time: let the target's thread run
        self.also(model)

    def measure(self) -> Measurements:
        return self.meter.measure([1, 2], [1, 4], [(1, 1), (2, 1)], n_more=1)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """No thread is left behind, and none has raised."""
    clock, failed = Clock(), list[object]()
    monkeypatch.setattr("duo.diagnose.target_meter.time", clock)
    monkeypatch.setattr("duo.diagnose.target_meter.other_cpu_use", lambda _: 0.0)
    monkeypatch.setattr("duo.diagnose.target_meter._SHORT_S", 0.0)
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield Pair(clock)
    assert draft_threads() == []
    assert failed == []


# Times


def test_each_model_is_timed_alone_on_each_number_of_threads(pair: Pair) -> None:
    pair.target.decode([1, 2, 3])  # of an earlier use
    found = pair.measure()
    assert found.target == {(threads, n): pytest.approx((10 + n) / threads) for threads in (1, 2) for n in SIZES}
    assert found.draft == {1: pytest.approx(2.0), 4: pytest.approx(0.5)}
    assert found.pair == {1: pytest.approx(2.5), 4: pytest.approx(0.625)}
    assert found.doubts == ""
    assert pair.target.n_past == pair.draft.n_past == 32, "each decode after the same text"


def test_both_models_are_timed_concurrently(pair: Pair) -> None:
    found = pair.measure()
    assert list(found.concurrent) == [(1, 1), (2, 1)]
    for (n_threads, _), (times, draft_s) in found.concurrent.items():
        assert times == {n: pytest.approx((10 + n) / n_threads) for n in SIZES}
        assert draft_s == pytest.approx(2.0)
    assert pair.target.threads == {threading.get_ident()}
    assert pair.draft.threads > {threading.get_ident()}


def test_a_draft_that_decodes_several_sequences_is_timed_concurrently(pair: Pair) -> None:
    alone = list[int]()

    def also(model: FakeContext) -> None:
        if model is pair.draft and threading.current_thread().name != "duo-draft":
            alone.append(model.batches[-1])

    pair.also = also
    assert pair.meter.branches((1, 2), (2, 5, 9)) == {n: pytest.approx((1.5 + 0.5 * n) / 2) for n in (2, 5, 9)}
    assert set(alone) == {32}, "only the prompt"
    assert pair.target.n_past == pair.draft.n_past == 32
    assert pair.draft.branches == {}


# Acceptance


@pytest.mark.parametrize(
    ("choose", "n_vocab", "n", "right"),
    [
        (count, N_VOCAB, 10, [True] * 10),
        # Wrong for every third token; later ones are scored after the target's own text.
        (lambda prefix: 0 if prefix[-1] % 3 == 0 else count(prefix), N_VOCAB, 6, [False, True, True] * 2),
        # The text leaves the draft's vocabulary.
        (lambda prefix: min(count(prefix), 12), 13, 10, [True] * 3 + [False]),
        # The draft would propose what the target does not have.
        (lambda _: N_VOCAB + 1, N_VOCAB + 2, 3, [False] * 3),
    ],
    ids=["the same model", "wrong", "smaller vocabulary", "larger vocabulary"],
)
def test_acceptance_is_measured_along_the_targets_text(
    pair: Pair, choose: Callable[[Sequence[int]], int], n_vocab: int, n: int, right: list[bool]
) -> None:
    pair.draft.choose, pair.draft.n_vocab = choose, n_vocab
    pair.target.decode([1, 2, 3])
    found, ratio = pair.meter.score(TEXT, pair.meter.write(TEXT, n, 3), 3)
    assert ratio == 1
    assert [accepted for _, accepted in found] == right
    assert set(pair.target.teams[1:]) == set(pair.draft.teams) == {3}


@pytest.mark.parametrize(("last", "n"), [(12, 3), (99, 10)])
def test_a_text_ends_where_the_target_ends_it(pair: Pair, last: int, n: int) -> None:
    assert pair.meter.write(TEXT, 10, 1, lambda token: token == last) == list(range(10, 10 + n))


class Digits:
    """Stands for a Translation: the target's tokens are letters, or two of them; the draft's are letters."""

    target = Words(*"abcdefgh", "ab", "cd", "ef")
    draft = Words(*"hgfedcba")

    def begin(self, text: Sequence[int]) -> tuple[list[int], Translator]:
        prompt = self.draft.fragment(b"".join(map(self.target.piece, text)))
        return prompt, Translator(self.target, self.draft, len(text), prompt)

    def guesser(self, *, ends: bool) -> Greedy:
        return Greedy()


def test_a_draft_with_another_vocabulary_is_scored_on_the_targets_tokens(pair: Pair) -> None:
    target, draft = Digits.target, Digits.draft
    order = "abcdefgh"

    def following(prefix: Sequence[int]) -> int:
        last = draft.piece(prefix[-1]).decode()
        return draft.of(order[(order.index(last) + 1) % len(order)])[0]

    pair.draft.choose, pair.draft.n_vocab = following, draft.n_vocab
    text = target.of("cd", "ef", "g", "h", "ab", "h", "ab", "cd")
    translation = cast("Translation", Digits())
    scores, ratio = pair.meter.score(target.of("ab"), text, 1, translation)
    assert [right for _, right in scores] == [True, True, True, True, True, False, True, True]
    assert ratio == pytest.approx((16 + 11) / (16 + 7)), "letters for each token that the draft was told, and a prior"


# Ends


@pytest.mark.parametrize("phase", range(4))
def test_a_request_to_stop_ends_every_phase(pair: Pair, phase: int) -> None:
    pair.stop_at = ("the draft on", "the target on", "both on", "the draft's acceptance")[phase]
    with pytest.raises(Stopped):
        _ = pair.measure(), pair.meter.score(TEXT, TEXT, 1)


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_failure_of_either_concurrent_model_is_raised(pair: Pair, which: str) -> None:
    def also(model: FakeContext) -> None:
        on_draft_thread = threading.current_thread().name == "duo-draft"
        if draft_threads() and model is getattr(pair, which) and on_draft_thread == (which == "draft"):
            raise DecodeError(f"the {which} is dead")

    pair.also = also
    with pytest.raises(DecodeError, match=f"the {which} is dead"):
        pair.measure()


def test_the_drafts_times_become_those_of_the_targets_tokens() -> None:
    found = Measurements({(1, 1): 0.1}, {1: 0.01, 2: 0.02}, {1: 0.015}, {(1, 1): ({1: 0.2}, 0.03)})
    found.scale_draft(2)
    assert found == Measurements({(1, 1): 0.1}, {1: 0.02, 2: 0.04}, {1: 0.03}, {(1, 1): ({1: 0.2}, 0.06)})
