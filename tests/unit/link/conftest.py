"""What the tests of the link share."""

from collections.abc import Iterator

import pytest

from tests.unit.link.backs import Stage


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    caplog.set_level("DEBUG", "duo.link")
    with Stage() as stage:
        yield stage
