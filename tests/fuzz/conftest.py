"""What damaged files and command lines are tried with. No test here may make duo log an internal error."""

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz.forks import Forks


@pytest.fixture(autouse=True)
def no_internal_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture(scope="module")
def duo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("empty")) as running:
        yield running
