"""Which of the connected remote drafts is used."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duo.engine.async_draft import Drafted
from duo.engine.proposers import Result
from duo.engine.recorder import Recorder
from duo.remote.drafts import MAX_DRAFTS, RemoteDraft, RemoteDrafts
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule
from duo.speculation.sequence import TokenSequence
from duo.speculation.types import Candidate
from tests.fakes import N_VOCAB
from tests.unit.engine.helpers import PROMPT, as_far_as, make_text


class Standing(SimpleNamespace):
    """What RemoteDrafts knows of a draft."""

    def __init__(self, name: str = "a draft") -> None:
        estimates = SimpleNamespace(is_chosen=True, state=dict)
        super().__init__(
            name=name,
            model=name,
            process="",
            recall=lambda: None,
            estimates=estimates,
            current=None,
            is_unable=False,
            is_set_up=True,
            has_stalled=False,
            answers=True,
        )

    @property
    def is_usable(self) -> bool:
        return bool(self.answers and not self.is_unable)

    def interrupt(self) -> None:
        self.is_closed = True

    @property
    def draft(self) -> RemoteDraft:
        return cast(RemoteDraft, self)


def line(n: int) -> tuple[RemoteDrafts, list[Standing]]:
    drafts, standing = RemoteDrafts(), [Standing(str(i)) for i in range(n)]
    assert all(drafts.join(one.draft) for one in standing)
    drafts.begin()
    return drafts, standing


def chosen(drafts: RemoteDrafts) -> Any:
    """The draft that is chosen, which the target then uses."""
    found: Any = drafts.choose()
    if found is not None:
        found.current = ()
    return found


def test_the_first_that_answers_is_used_and_one_that_does_not_moves_to_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "duo.remote")
    drafts, (first, second) = line(2)
    assert chosen(drafts) is first
    drafts.begin()
    first.answers = False
    assert chosen(drafts) is second
    first.answers = True
    assert chosen(drafts) is second
    second.answers = False
    assert chosen(drafts) is first
    first.answers = False
    assert chosen(drafts) is chosen(drafts) is None
    assert drafts.counts["stalled"] == 3
    lost, found = "draft {} does not answer", "draft {} is in use"
    said = (found, 0), (lost, 0), (found, 1), (lost, 1), (found, 0), (lost, 0)
    assert caplog.messages == [text.format(number) for text, number in said], "each once"
    second.answers = True
    drafts.leave(second.draft, "left")
    assert second.is_closed, "the target waits for its candidates no longer"
    assert chosen(drafts) is None
    assert (drafts.counts["dropped: left"], len(drafts.connected)) == (1, 1)


def test_a_draft_that_does_not_pay_is_given_up_for_this_text() -> None:
    drafts, (first, second) = line(2)
    assert chosen(drafts) is first
    first.estimates.is_chosen = False
    assert chosen(drafts) is second
    second.estimates.is_chosen = False
    assert chosen(drafts) in (first, second), "there is no other one"
    first.current = second.current = None
    first.estimates.is_chosen = True
    drafts.begin()
    assert chosen(drafts) in (first, second)


def test_a_process_that_does_not_pay_is_given_up_with_all_its_connections() -> None:
    drafts, (first, second, third, fourth) = line(4)
    first.process = second.process = third.process = "a process"
    fourth.process = "another"
    assert chosen(drafts) is first
    first.estimates.is_chosen = False
    assert chosen(drafts) is fourth
    fourth.current = None
    drafts.begin()
    assert second.is_given_up is False, "in the next text it is tried again"


def test_each_of_several_texts_has_a_draft_that_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "duo.remote")
    drafts, (first, second, third) = line(3)
    assert drafts.choose_all() == [first, second, third]
    second.current, third.current = (), ()
    second.answers = False
    assert drafts.choose_all() == [first, third]
    assert drafts.counts["stalled"] == 1
    assert caplog.messages == ["draft 0 is in use", "draft 1 does not answer"]
    third.is_unable = True
    drafts.begin()
    assert third.is_unable, "its text has not ended"
    third.current = None
    drafts.begin()
    assert not third.is_unable
    first.answers = False
    assert drafts.choose_all() == [third]
    third.answers = False
    assert drafts.choose_all() == []


def test_the_number_of_drafts_is_limited_but_for_the_leads_own() -> None:
    drafts, _ = line(MAX_DRAFTS)
    assert not drafts.join(Standing().draft)
    assert len(drafts.connected) == MAX_DRAFTS
    assert drafts.join(Standing().draft, always=True), "the lead's own"


def test_a_draft_begins_with_what_was_learned_about_its_model_and_mode() -> None:
    """Once it is used: what it has learned of T(n) is not to be changed on another thread."""

    def used(model: str, mode: str) -> DraftEstimates:
        draft = RemoteDraft(drafts, "1", model, lambda: None)
        assert drafts.join(draft)
        assert not draft.estimates.costs.latency_s
        assert drafts.choose() is draft
        drafts.leave(draft, "left")
        draft.estimates.begin(mode, 4)
        return draft.estimates

    drafts = RemoteDrafts()
    earlier = used("a model", "greedy")
    earlier.learn_scores([(1.0, True)] * 50)
    earlier.costs.add_latency(0.5)
    drafts.learn("a model", earlier.state())

    found = [used(*each) for each in (("a model", "greedy"), ("a model", "coupled"), ("another", "greedy"))]
    assert [estimates.costs.latency_s for estimates in found] == [0.5, 0.5, 0.0]
    same, coupled, other = (estimates.acceptance.mean for estimates in found)
    assert same > coupled == other


def test_what_others_have_learned_until_a_draft_is_used_first_counts() -> None:
    drafts = RemoteDrafts()
    first, second = (RemoteDraft(drafts, str(i), "a model", lambda: None) for i in range(2))
    for draft in (first, second):
        assert drafts.join(draft)
        draft.measured = {}
    assert drafts.choose_all() == [first, second]
    first.estimates.costs.add_latency(0.5)
    drafts.learn("a model", first.estimates.state())
    assert drafts.choose_all() == [first, second]
    second.recall()
    assert second.estimates.costs.latency_s == 0.5


def test_a_draft_that_does_not_decode_yet_is_used_only_while_there_is_no_other_one() -> None:
    drafts, (first, second) = line(2)
    first.is_set_up = second.is_set_up = False
    assert chosen(drafts) is first
    second.is_set_up = True
    assert chosen(drafts) is second
    first.is_set_up = True
    assert chosen(drafts) is second, "it stays"
    assert not drafts.counts["stalled"]


def test_the_draft_is_told_the_verdict_before_the_lead_learns_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that has paused waits for it, as does one whose decode is now useless."""
    done = list[str]()
    draft = RemoteDraft(RemoteDrafts(), "far", "far", lambda: done.append("told"))
    draft._connect(TokenSequence(PROMPT, N_VOCAB), Recorder())
    for name in ("learn_scores", "learn_draft"):
        monkeypatch.setattr(draft.estimates, name, lambda *_, name=name: done.append(name))
    draft.estimates.schedule, queue, n = Schedule.ASYNC, draft._queue, len(PROMPT)
    queue.open()
    queue.allow(as_far_as(1))
    assert queue.order(1, 0.0) is not None
    queue.offer(0, n, Candidate(7, 1.0), n, Drafted(1, 0.1))
    assert queue.order(1, 0.0) is not None, "it has to pause"
    draft.commit([Result((7, 3), n_candidates=1, draft=draft.estimates.name)])
    assert done == ["told", "learn_draft", "learn_scores"]


def milliseconds(*ms: float) -> dict[int, float]:
    """What a worker says of 1, 2, 4 and 8 sequences."""
    return {n: each / 1000 for n, each in zip((1, 2, 4, 8), ms, strict=False)}


CARD, CPU, BUSY = milliseconds(62, 66, 70, 75), milliseconds(62, 130, 330, 700), milliseconds(150, 310, 700, 1500)


@pytest.mark.parametrize("first", [CARD, CPU, BUSY], ids=["card", "cpu", "busy"])
@pytest.mark.parametrize("then", [CARD, CPU], ids=["card", "cpu"])
@pytest.mark.parametrize("n_cores", [0, 1])
def test_a_worker_knows_its_own_device_better_than_another_one_of_its_name(
    first: dict[int, float], then: dict[int, float], n_cores: int
) -> None:
    """Such as the same worker that was busy when it was measured, before it was started again."""

    def used(said: dict[int, float], *decodes: Drafted) -> DraftEstimates:
        draft = RemoteDraft(drafts, "1", "a model", lambda: None)
        assert drafts.join(draft)
        assert drafts.choose() is draft
        draft.measured = said
        draft.begin(make_text())
        estimates = draft.estimates
        estimates.costs.use_cores(n_cores)
        estimates.learn_scores([(1.0, i % 5 > 0) for i in range(200)])
        for _ in range(20):
            estimates.acceptance.add_rank(0)
        estimates.schedule = Schedule.ASYNC
        for each in decodes:
            draft._learn_drafted(each)
        estimates.choose_branches(allowed=True)
        draft.end()
        drafts.leave(draft, "left")
        return estimates

    def decodes(said: dict[int, float]) -> list[Drafted]:
        return [Drafted(n, each_s, n) for n, each_s in said.items() for _ in range(8)]

    drafts = RemoteDrafts()
    for n in range(1, 20):
        drafts.costs.alone.add(n, 0.3 + 0.008 * n)
    used(first, *decodes(first))
    found, curve = used(then), [then[n] for n in (1, 2, 4, 8)]
    for times in (found.costs.alone, found.costs.concurrent):
        assert [times.seconds(0.0, n) for n in then] == pytest.approx(curve)
    assert found.acceptance.mean > 0.7, "that is of the model"
    assert (found.n_branches > 0) is (then is CARD)
    assert used({}).costs.concurrent.seconds(0.0, 8) == pytest.approx(then[8]), "it has said nothing"


def test_what_a_draft_says_of_its_device_does_not_replace_what_was_measured_with_it() -> None:
    estimates = RemoteDrafts().new_estimates("a model")
    estimates.learn_sequences(CARD)
    estimates.schedule = Schedule.ASYNC
    for n, each_s in CPU.items():
        for _ in range(8):
            estimates.learn_draft(n, each_s, n)
    estimates.learn_sequences(CARD)
    assert [estimates.costs.concurrent.seconds(0.0, n) for n in CPU] == pytest.approx(list(CPU.values()))
