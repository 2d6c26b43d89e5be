"""SingleDrafts: which draft has which of the texts that are written together."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from duo.engine.local_draft import LocalDraft
from duo.engine.single_draft import SingleDrafts
from duo.speculation.modes import ASYNC, SYNC


class Known(SimpleNamespace):
    """Is only equal to itself."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]


def estimates(*, remote: bool) -> Any:
    def begin(*_: object) -> None: ...

    costs = SimpleNamespace(use_cores=begin, read_s=1.0)
    schedules = [ASYNC if remote else SYNC]
    return SimpleNamespace(
        name="a draft", remote=remote, has_ended=False, schedules=schedules, costs=costs, begin=begin, n_max=4
    )


class Remote:
    is_set_up, is_unable = True, False

    def __init__(self) -> None:
        self.estimates, self.n_recalled = estimates(remote=True), 0

    def recall(self) -> None:
        self.n_recalled += 1

    def begin(self, text: Any) -> None: ...

    def end(self) -> None: ...


class Local(LocalDraft):
    """In turns, with another vocabulary."""

    def __init__(self, n_unread: int) -> None:
        self.estimates, self.cache, self.n = estimates(remote=False), cast(Any, None), n_unread

    def is_single(self, sequence: int) -> bool:
        return True

    def n_unread(self, n_text: int) -> int:
        return self.n

    def begin(self, text: Any) -> None: ...

    def end(self) -> None: ...


class Scene:
    def __init__(self, local: Local, *connected: Remote) -> None:
        self.connected = list(connected)
        remote = SimpleNamespace(begin=lambda: None, choose_all=lambda: self.connected)
        pair = SimpleNamespace(remote=remote, draft=None, threads=None, cores=SimpleNamespace(limit=0))
        self.drafts = SingleDrafts(cast(Any, pair), cast(Any, SimpleNamespace(curve=lambda n: [0.1] * n)))
        sources = SimpleNamespace(drafts=[local], remote=remote)
        self.texts: list[Any] = [
            Known(
                text=SimpleNamespace(tokens=[1] * 10, mode="greedy", n_room=8),
                generation=SimpleNamespace(sources=sources, proposers=[]),
                request=SimpleNamespace(metrics=SimpleNamespace(steps=[]), owner=""),
                sequence=0,
            )
            for _ in range(3)
        ]

    def used(self, *numbers: int) -> list[Any]:
        """The drafts of these texts, if they are written together."""
        self.drafts._follow([self.texts[i] for i in numbers])
        return [self.drafts._used.get(self.texts[i]) for i in numbers]


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duo.engine.single_draft.belong", lambda *_: None)
    monkeypatch.setattr("duo.engine.single_draft.within", lambda *_: None)


def test_a_text_that_the_local_draft_would_read_too_long_may_have_a_remote_one() -> None:
    remote = Remote()
    scene = Scene(Local(n_unread=10**6), remote)
    assert scene.used(0, 1, 2) == [remote, None, None]
    scene.drafts.remove(scene.texts[0])
    assert scene.used(1, 2) == [remote, None]


def test_a_remote_draft_comes_before_the_local_one() -> None:
    local, first, second = Local(n_unread=0), Remote(), Remote()
    scene = Scene(local)
    assert scene.used(0, 1) == [local, None]
    scene.connected.append(first)
    assert scene.used(0, 1) == [first, local]
    scene.connected.append(second)
    assert scene.used(0, 1) == [first, second]
    assert (first.n_recalled, second.n_recalled) == (1, 1), "each before its first text"


def test_texts_keep_their_remote_drafts_when_another_one_takes_sequence_0() -> None:
    local, first, second = Local(n_unread=0), Remote(), Remote()
    scene = Scene(local, first, second)
    assert scene.used(0, 1, 2) == [first, second, local]
    scene.drafts.remove(scene.texts[0])
    scene.drafts.end_local()
    assert scene.used(1) == [second]
    assert scene.used(1, 2) == [second, first]


def test_a_draft_that_fails_when_it_begins_fails_for_its_text_only() -> None:
    first, second = Remote(), Remote()
    scene = Scene(Local(n_unread=10**6), first, second)
    second.begin = lambda _: 1 / 0  # type: ignore[method-assign,assignment]
    assert scene.used(0, 1) == [first, None]
    assert scene.texts[1].request.metrics.draft_error == "division by zero"
