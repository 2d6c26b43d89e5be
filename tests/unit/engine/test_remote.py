"""Texts with remote drafts, whose remote machine is a thread here, and which connect, disconnect and take over."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.engine.async_draft import Drafted
from duo.engine.proposers import RunningText
from duo.remote.drafts import RemoteDraft, RemoteDrafts, RemoteQueue
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.types import Candidate
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, text_after
from tests.unit.engine.helpers import PROMPT, Writing, draft_threads, make_ending, run

TEXT = text_after(PROMPT, 30)


class FarEnd(RemoteDraft):
    """Proposes `choose` when the test says so, and knows only what its orders say."""

    def __init__(self, drafts: RemoteDrafts, choose: Callable[[Sequence[int]], int], name: str) -> None:
        super().__init__(drafts, name, name, lambda: None)
        self._choose = choose
        self._text: tuple[RunningText, RemoteQueue] | None = None
        self._known: list[int] = []
        self._epoch, self._may_draft = 0, False

    def work(self, n: int) -> None:
        """Draft `n` tokens, if it may."""
        if self.current is not self._text:
            self._text, self._known, self._may_draft = self.current, [], False
        if self._text is None:
            return
        if (order := self._text[1].order(1, self.estimates.costs.latency_s)) is not None:
            self._known += order.tokens
            self._epoch, self._may_draft = order.epoch, order.may_draft
        drafted = list(self._known)
        for _ in range(n if self._may_draft else 0):
            token = self._choose(drafted)
            self._text[1].offer(self._epoch, len(drafted), Candidate(token, 1.0), len(self._known), Drafted(1, 1e-5))
            drafted.append(token)


class Line(RemoteDrafts):
    """Drafts of which another one may be chosen at every step; `pick` gives the index."""

    def __init__(self, pick: Callable[[], int]) -> None:
        super().__init__()
        self._pick = pick
        self.all: list[FarEnd] = []

    def new_estimates(self, model: str) -> DraftEstimates:
        return Eager(4, 6, target=self.costs, remote=True, name=model)

    def add(self, choose: Callable[[Sequence[int]], int], model: str) -> FarEnd:
        made = FarEnd(self, choose, model)
        assert self.join(made)
        self.all.append(made)
        return made

    def choose(self) -> RemoteDraft | None:
        i = self._pick()
        return self.all[i] if i < len(self.all) else None


@pytest.mark.parametrize("local", [True, False], ids=["with a local draft", "without"])
@given(seed=st.integers(0, 2**32))
def test_the_text_while_drafts_take_over_from_each_other_at_random_steps(seed: int, local: bool) -> None:
    """A good one, a bad one and perhaps the local one."""
    dice, now = random.Random(seed), [0]

    def choose() -> int:
        if dice.random() < 0.2:
            now[0] = dice.randrange(3)
        return now[0]

    line = Line(choose)
    good, bad = line.add(next_token, "good"), line.add(lambda prefix: len(prefix) % N_VOCAB, "bad")

    def work() -> None:
        good.work(dice.randrange(7))
        bad.work(dice.randrange(7))

    target = FakeContext(during=work, n_batch=32)
    generation = Writing(target, FakeContext() if local else None, make_ending(30), remote=line)
    assert run(generation) == TEXT
    assert generation.metrics.draft_error is None
    assert draft_threads() == []
    assert not any(draft.current for draft in line.all)
    if not local:
        steps = generation.metrics.steps
        verified, accepted = zip(*(draft.counts for draft in line.all), strict=True)
        assert sum(verified) == sum(step.n_candidates for step in steps)
        assert sum(accepted) == sum(step.n_accepted for step in steps)
