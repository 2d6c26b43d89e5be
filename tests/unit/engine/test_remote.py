"""Texts with remote drafts, whose remote machine is a thread here, and which connect, disconnect and take over."""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import MAX_BRANCHES
from duo.engine.async_draft import Drafted
from duo.engine.prepared_outcomes import PreparingDrafter
from duo.engine.proposers import RunningText
from duo.engine.recorder import Recorder
from duo.remote.connection import DraftConnection
from duo.remote.drafts import RemoteDraft, RemoteDrafts
from duo.remote.messages import Begin, CandidateMessage, End, FromDraft, Message, PreparedToken, Text, Times
from duo.remote.remote_queue import RemoteQueue
from duo.remote.worker import RemoteTarget
from duo.speculation.acceptance import MAX_DEEP
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.sampling import Greedy
from duo.speculation.types import Candidate
from tests.fakes import N_VOCAB, RANKS, Eager, FakeContext, Preparing, next_token, text_after
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


class Link:
    """A worker's side and a lead's, between which each message takes as long as the test wants."""

    def __init__(self, drafts: "Line", dice: random.Random, lies: float = 0.0) -> None:
        self._dice, self._lies = dice, lies
        self.draft = RemoteDraft(drafts, "linked", "linked", lambda: None)
        self._connection = DraftConnection(cast(Any, None), drafts, self.draft, cast(Any, threading.Event()))
        self._there, self._back = deque[Message](), deque[FromDraft]()
        self._context = FakeContext(self._guess, n_branches=4, others=self._others)
        self._queue: RemoteTarget | None = None
        self._drafter: PreparingDrafter | None = None
        self._connection.take(Times({1: 0.001, 2: 0.001}))

    def _guess(self, prefix: Sequence[int]) -> int:
        right = next_token(prefix)
        return right if right % 3 else (right + 1) % N_VOCAB

    def _others(self, prefix: Sequence[int]) -> Sequence[int]:
        return [(next_token(prefix) + n) % N_VOCAB for n in (0, 2, 3) if n or not next_token(prefix) % 3]

    def work(self, n: int) -> None:
        """So many random acts: a message is sent or arrives, or the draft decodes."""
        for _ in range(n):
            self._dice.choice([self._order, self._hear, self._draft, self._draft, self._tell])()
            if self.draft.current is not None:
                prepared = self.draft._sequence._prepared
                assert len(prepared) <= MAX_BRANCHES
                assert all(len(tokens) <= MAX_DEEP for tokens in prepared.values())

    def _order(self) -> None:
        if (message := self._connection.next_message()) is not None:
            self._there.append(message)

    def _hear(self) -> None:
        message = self._there.popleft() if self._there else None
        if isinstance(message, Begin):
            self._context.rollback(0)
            self._queue = RemoteTarget(message, cast(Any, self._back.append), self._context.cancel)
            sampler = Greedy(n_alternatives=len(RANKS))
            self._drafter = PreparingDrafter(self._context, self._queue, sampler, N_VOCAB, Recorder())
        elif isinstance(message, Text) and self._queue is not None:
            self._queue.update(message)
        elif isinstance(message, End):
            self._queue = self._drafter = None

    def _draft(self) -> None:
        if (
            self._queue is not None
            and self._drafter is not None
            and (self._queue._may_prepare or self._queue._allows())
        ):
            self._drafter.step()

    def _tell(self) -> None:
        if not self._back:
            return
        message, dice = self._back.popleft(), self._dice
        if isinstance(message, CandidateMessage) and dice.random() < self._lies:
            changes: dict[str, Any] = {
                name: max(0, getattr(message, name) + dice.randint(-2, 2)) for name in ("epoch", "n_known", "position")
            }
            tokens = [
                PreparedToken(each.wrong + dice.randint(0, 2), dice.randrange(N_VOCAB), each.position, 3, 1.0)
                for each in message.prepared
            ]
            message = msgspec.structs.replace(message, **changes, prepared=tuple(tokens))
        self._connection.take(message)


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


class Prepared(Line):
    """One draft that prepares as much as it may."""

    def new_estimates(self, model: str) -> DraftEstimates:
        return Preparing(4, 6, target=self.costs, remote=True, name=model)


class Usual(Line):
    """Drafts whose use is as it pays."""

    new_estimates = RemoteDrafts.new_estimates


@pytest.mark.parametrize("times", [{1: 5e-324, 2: 3600.0}, {1: 5e-324, 2: 5e-324}, {1: 3600.0, 2: 5e-324}])
def test_a_worker_whose_times_cannot_be_ends_no_text(times: dict[int, float]) -> None:
    drafts = Usual(lambda: 0)
    for n in range(1, 20):
        drafts.costs.alone.add(n, 0.01)
    link = Link(drafts, random.Random(1))
    link._connection.take(Times(times))
    link.draft._allow()
    link.draft.estimates.choose_branches(allowed=True)
    assert link.draft.estimates.costs.concurrent.seconds(0.0, 2) < 1e12


@pytest.mark.parametrize("lies", [0.0, 0.5], ids=["honest", "lying"])
@given(seed=st.integers(0, 2**32))
def test_the_text_while_outcomes_are_prepared_over_a_link(seed: int, lies: float) -> None:
    """Whose messages take any time, in each direction."""
    dice = random.Random(seed)
    drafts = Prepared(lambda: 0)
    link = Link(drafts, dice, lies)
    drafts.all.append(cast(Any, link.draft))
    target = FakeContext(during=lambda: link.work(dice.randrange(40)), n_batch=32)
    generation = Writing(target, None, make_ending(30), remote=drafts)
    assert run(generation) == TEXT
    assert not link.draft.current


def test_without_delay_most_outcomes_that_come_true_were_prepared() -> None:
    dice, drafts = random.Random(1), Prepared(lambda: 0)
    link = Link(drafts, dice)
    drafts.all.append(cast(Any, link.draft))
    target = FakeContext(during=lambda: link.work(200), n_batch=32)
    generation = Writing(target, None, make_ending(30), remote=drafts)
    assert run(generation) == TEXT
    metrics = generation.metrics
    assert metrics.hits.total() > 0.8 * metrics.contradictions.total() > 0
    assert metrics.n_prepared > metrics.hits.total()


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
