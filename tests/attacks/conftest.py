"""What attacks share, with the tests of the link, too."""

from collections.abc import Iterator

import pytest

from duo.engine.engine import Engine
from tests.scripted import scripted_engine
from tests.unit.conftest import begin, joined, stage, stranger

__all__ = ["begin", "joined", "stage", "stranger"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine, _ = scripted_engine()
    with engine:
        yield engine
