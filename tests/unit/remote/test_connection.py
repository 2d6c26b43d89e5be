"""Faulty workers: each is refused, disconnected or harmless, and the text is the target's own.

Hostile ones: see tests/attacks/test_workers.py.
"""

from contextlib import ExitStack

import pytest

from duo.remote.connection import Admission
from duo.remote.drafts import MAX_DRAFTS
from duo.remote.messages import TRY_LATER, Alive, Begin, Refused, Times, Unable, Welcome
from tests.unit.engine.helpers import until
from tests.unit.remote.workers import TOKEN, ScriptedWorker, Stage, candidate, hello


@pytest.mark.parametrize(
    ("admission", "said"), [(Admission(None), "token"), (Admission(), None), (Admission("ü" * 256), "token")]
)
def test_which_tokens_are_needed(admission: Admission, said: str | None) -> None:
    with Stage(admission) as stage, stage.worker() as worker:
        worker.say(hello())
        message = worker.hear()
    assert isinstance(message, Welcome) if said is None else isinstance(message, Refused) and said in message.reason


def test_a_worker_that_says_nothing_is_refused() -> None:
    with Stage(Admission(TOKEN, hello_s=1.0)) as stage, stage.worker() as silent, stage.worker() as leaving:
        leaving.leave()
        assert silent.close_code() == TRY_LATER
        stage.wait_for("refused: silence", 2)


def test_the_number_of_workers_is_limited(stage: Stage) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_DRAFTS):
            stack.enter_context(stage.worker()).join()
        for _ in range(2):
            late = stack.enter_context(stage.worker())
            late.say(hello())
            assert late.close_code() == TRY_LATER
        assert stage.count("refused: too many") == 2
        assert len(stage.drafts.connected) == MAX_DRAFTS
    until(lambda: not stage.drafts.connected)
    assert stage.count("dropped: left") == MAX_DRAFTS


def test_a_name_cannot_imitate_the_log(
    stage: Stage, stranger: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    stranger.say(hello(model="a\x1b[2J\rb\nduo: error: c\u202ed\u2028"))
    until(lambda: "draft a?[2J?b?duo: error: c?d? at 127.0.0.1:" in caplog.text)


def test_a_fault_of_the_lead_is_logged_and_ends_only_the_connection(
    stage: Stage, joined: ScriptedWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr("duo.remote.connection.Begin")
    stage.begin()
    assert joined.close_code() == TRY_LATER
    assert "internal error while serving the remote draft 127.0.0.1:" in caplog.text
    assert "NameError" in caplog.text
    assert not stage.drafts.connected


def test_a_worker_that_is_unable_may_draft_in_the_next_text(stage: Stage, joined: ScriptedWorker, begin: Begin) -> None:
    joined.say(Unable(begin.serial))
    until(lambda: stage.drafts.choose() is None)
    stage.finish()
    joined.say(candidate(begin), Alive(begin.serial), Unable(begin.serial), candidate(begin, serial=0))
    stage.wait_for("stale", 2)
    stage.begin()
    assert joined.begin().serial > begin.serial


# A worker says its times when it has made its context and measured it


@pytest.mark.parametrize("is_set_up", [False, True])
def test_the_time_until_a_worker_is_set_up_is_no_round_trip(
    stage: Stage, joined: ScriptedWorker, *, is_set_up: bool
) -> None:
    (draft,) = stage.drafts.connected
    if is_set_up:
        joined.say(Times({}))
        until(lambda: draft.is_set_up)
    stage.begin()
    begin = joined.begin()
    joined.say(Times({}), candidate(begin))
    until(lambda: draft._sequence.pending)
    stage.finish()
    assert (draft.estimates.costs.latency_s > 0) is is_set_up


def test_a_worker_that_takes_long_to_set_up_has_not_stalled(
    stage: Stage, joined: ScriptedWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another draft is used until then, which may be a local one."""
    (draft,) = stage.drafts.connected
    stage.begin()
    joined.begin()
    with monkeypatch.context() as impatient:
        impatient.setattr("duo.remote.drafts.STALL_S", -1.0)
        assert stage.drafts.choose() is None
    assert stage.drafts.choose() is None, "it has given no sign of life"
    assert f"draft {draft.name} does not decode yet" in caplog.text
    joined.say(Times({}))
    until(lambda: stage.drafts.choose() is draft)
    assert not stage.count("stalled")
    monkeypatch.setattr("duo.remote.drafts.STALL_S", -1.0)
    assert stage.drafts.choose() is None
    assert stage.count("stalled") == 1
