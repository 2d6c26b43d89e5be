"""A draft beside a head and a lookup, drafts that come and go, drafts that fail: one controller for all of them."""

import random
import time
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import DraftConfig
from duo.engine.async_draft import AsyncDraft
from duo.engine.generation import Generation, Proposers
from duo.engine.kv_store import Cache
from duo.engine.local_draft import LocalDraft
from duo.engine.proposers import LookupProposer, RunningText
from duo.errors import DecodeError
from duo.remote.drafts import RemoteDrafts
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import ALL, ALONE, ASYNC, OFF, SYNC, Mode, Schedule
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.types import Candidate, Proposal
from tests.fakes import N_VOCAB, THREADS, FakeContext, next_token, text_after
from tests.unit.engine.helpers import PROMPT, Limited, draft_threads, make_ending, make_text, run

N = 60
TEXT = text_after(PROMPT, N)


def wrong(prefix: Sequence[int]) -> int:
    return (next_token(prefix) + 1) % N_VOCAB


def written(controller: Controller, drafts: Sequence[LocalDraft], *, lookup: bool = False, n: int = N) -> Generation:
    """The generation that has written TEXT, with all of the controller's decisions."""
    others = [LookupProposer(PromptLookup(), 4)] if lookup else []
    generation = Generation(
        FakeContext(n_batch=64), make_text(make_ending(n)), THREADS, Proposers(controller, drafts, None, others),
        cores=Limited(0),
    )  # fmt: skip
    assert run(generation) == text_after(PROMPT, n)
    assert draft_threads() == []
    return generation


def draft(
    controller: Controller, choose: Callable[[Sequence[int]], int], name: str, schedules: Sequence[Schedule] = ALL
) -> LocalDraft:
    return LocalDraft(
        Cache(FakeContext(choose, n_batch=64)), DraftEstimates(controller.target, 4, 6, schedules, name=name)
    )


@given(seed=st.integers(0, 2**32), lookup=st.booleans())
def test_whichever_mode_is_chosen_at_each_step_the_text_is_the_same(seed: int, lookup: bool) -> None:
    """Of a good and a bad draft, in all modes that the controller has to choose among."""

    class Restless(Controller):
        def learn(self, results: object, cost: object) -> None:
            super().learn(results, cost)  # type: ignore[arg-type]
            self.chooser.now = dice.choice(self.chooser.allowed)
            self._update_forecast()

    dice, controller = random.Random(seed), Restless(4)
    drafts = [draft(controller, next_token, "good"), draft(controller, wrong, "bad", (SYNC, OFF))]
    steps = written(controller, drafts, lookup=lookup).text.recorder.steps
    assert controller.chooser.allowed == (ALONE, *(Mode("good", each) for each in (ASYNC, SYNC)), Mode("bad", SYNC))
    assert {step.schedule for step in steps} >= {OFF, SYNC}


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
@pytest.mark.parametrize("n", [0, 5])
def test_where_one_draft_fails_the_other_goes_on(schedule: Schedule, n: int) -> None:
    left = iter(range(n))

    def fail(prefix: Sequence[int]) -> int:
        if next(left, None) is None:
            raise DecodeError("dead")
        return next_token(prefix)

    controller, dead_context = Controller(), FakeContext(fail)
    good = draft(controller, next_token, "good", (schedule,))
    dead = LocalDraft(Cache(dead_context), DraftEstimates(controller.target, 4, 6, (schedule,), name="dead"))
    recorder = written(controller, [dead, good]).text.recorder  # of several, the first one is tried first
    if schedule is SYNC or dead.estimates.has_ended:  # it may be too slow to fail
        assert recorder.draft_error == "dead"
        assert dead.estimates.has_ended
        assert controller.mode == Mode("good", schedule)
    if schedule is SYNC:
        assert sum(step.n_accepted for step in recorder.steps[n + 2 :]) > 0
    dead_context.choose = next_token
    assert written(controller, [dead, good]).text.recorder.draft_error is None
    assert not dead.estimates.has_ended, "in the next text it is tried again"


class Line:
    """Remote drafts of which one joins in the middle of a text, and leaves."""

    def __init__(self, controller: Controller) -> None:
        self.drafting, self.costs = DraftConfig(4, 6), controller.target
        estimates = DraftEstimates(self.costs, 4, 6, remote=True, name="far")
        self.far, self.now = FarAway(estimates), count()

    def ready(self, *_: object) -> None: ...

    def begin(self) -> None: ...

    def choose(self) -> AsyncDraft | None:
        return self.far if 10 <= next(self.now) < 30 else None

    def choose_all(self) -> list[AsyncDraft]:
        return [found] if (found := self.choose()) is not None else []


class FarAway(AsyncDraft):
    """Is always right, and never late."""

    n_begun = n_ended = 0

    def begin(self, text: RunningText) -> None:
        super().begin(text)
        self._queue.open()
        self.n_begun += 1

    def propose(self, texts: Sequence[RunningText]) -> Proposal:
        assert self._sequence.accepted == texts[0].tokens
        while self._lookahead.n_ahead and len(self._sequence.pending) < 4:
            done = self._sequence.accepted + [each.token for each in self._sequence.pending]
            self._queue.publish(self._sequence.epoch, len(done), Candidate(next_token(done), 9.0), 1, 1e-6)
        return super().propose(texts)

    def end(self) -> None:
        self.n_ended += 1


@pytest.mark.parametrize("local", [True, False], ids=["beside a local draft", "alone"])
def test_a_remote_draft_that_joins_in_the_middle_of_a_text_and_leaves(local: bool) -> None:
    controller = Controller()
    line, drafts = Line(controller), [draft(controller, wrong, "near")] if local else []
    target, text = FakeContext(n_batch=64, during=lambda: time.sleep(0.002)), make_text(make_ending(120))
    generation = Generation(target, text, THREADS, Proposers(controller, drafts, line), cores=Limited(0))
    assert run(generation) == text_after(PROMPT, 120)
    steps = text.recorder.steps
    assert [i for i, step in enumerate(steps) if step.n_accepted] != []
    assert all(step.n_accepted == 0 for step in (*steps[:9], *steps[30:]))
    assert (line.far.n_begun, line.far.n_ended) == (1, 1)
    assert controller.mode.draft != "far"
    assert [*controller.known] == [*(["near"] if local else []), "far"]
    assert draft_threads() == []


def test_a_remote_draft_of_the_same_model_as_the_local_one_is_another_draft() -> None:
    drafts = RemoteDrafts()
    remote = drafts.new_estimates("small")
    local = DraftEstimates(drafts.costs, 4, 6, name="small")
    controller = Controller(target=drafts.costs)
    controller.begin([local, remote], 3)
    assert len(controller.drafts) == 2
    assert remote.beside is not local.beside
