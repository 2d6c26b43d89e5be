"""What the tests of the link share."""

from collections.abc import Iterator

import pytest

from duo.remote.messages import Begin
from tests.unit.remote.workers import ScriptedWorker, Stage


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level("DEBUG", "duo.remote")
    with Stage() as stage:
        yield stage


@pytest.fixture
def stranger(stage: Stage) -> Iterator[ScriptedWorker]:
    """A client that has said nothing yet."""
    with stage.worker() as worker:
        yield worker


@pytest.fixture
def joined(stranger: ScriptedWorker) -> ScriptedWorker:
    return stranger.join()


@pytest.fixture
def begin(stage: Stage, joined: ScriptedWorker) -> Begin:
    """What a worker is asked, while the target is held."""
    stage.begin()
    return joined.begin()
