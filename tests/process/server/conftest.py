"""One lead with the demo pair for all tests that need a real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import LeadProcess


@pytest.fixture(scope="session")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    target, draft = demo_pair
    with LeadProcess(target, "-md", draft, "-td", "1", "-c", "512", "--exact", "--queue", "8") as lead:
        yield lead
        assert lead.process.poll() is None, lead.lines[-5:]
        odd = [line for line in lead.lines if not line.startswith(("duo: ", "prompt: ", "tokens: "))]
        assert not odd, odd[:5]
        assert lead.stdout == b"", "texts are shown only where asked for"
