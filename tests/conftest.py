"""What all tests may share."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Threads that wait for each other sleep: where they spin, a busy machine makes each decode take seconds. Read when
# llama.cpp is loaded; not in the package, because benchmarks use that, too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that runs the tests in the background has Ctrl-C ignored, and every duo that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: a busy machine is no fault of the code's. `make fuzz` sets DUO_FUZZ.
settings.register_profile("duo", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("fuzz", deadline=None, max_examples=2000)
settings.load_profile("fuzz" if "DUO_FUZZ" in os.environ else "duo")


@pytest.fixture(scope="session")
def demo_pair() -> tuple[Path, Path]:
    """Target and draft of the demo pair, from the user's cache; the first time they are fetched and made."""
    from duo.models.demo import demo_pair

    return demo_pair()
