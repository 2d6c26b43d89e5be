"""What the tests of remote drafts share."""

from collections.abc import Iterator

import pytest

from duo.remote.messages import Begin
from tests.unit.remote.backs import Back, Stage


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level("DEBUG", "duo.remote")
    with Stage() as stage:
        yield stage


@pytest.fixture
def stranger(stage: Stage) -> Iterator[Back]:
    """A client that has said nothing yet."""
    with stage.back() as back:
        yield back


@pytest.fixture
def joined(stranger: Back) -> Back:
    return stranger.join()


@pytest.fixture
def begin(stage: Stage, joined: Back) -> Begin:
    """What a back is asked, while the target is held."""
    stage.begin()
    return joined.begin()
