"""What all tests may share."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.models.demo import demo_pair as _demo_pair


@pytest.fixture(scope="session")
def demo_pair() -> tuple[Path, Path]:
    """Target and draft of the demo pair, from the user's cache; the first time they are fetched and made."""
    return _demo_pair()
