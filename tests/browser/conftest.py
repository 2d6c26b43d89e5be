"""A browser for all tests of a module, and leads whose page it opens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from duo.server.lead_server import Lead
from tests.browser.browsing import SLOW, Visits, a_browser
from tests.command import Argument
from tests.scripted import ScriptedSlot, scripted_engine
from tests.serving import LeadProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while it is open, an event loop runs in this thread."""
    with a_browser() as browser:
        yield browser


@contextmanager
def slow_lead(target: Path, *options: Argument) -> Iterator[LeadProcess]:
    """A real lead, slow enough to see what it does. At the end, it has not failed."""
    with LeadProcess(target, *options, "-c", "2048", "--exact", before=SLOW) as lead:
        yield lead
        assert lead.process.poll() is None
        assert not any("Traceback" in line for line in lead.lines)


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    """Opens pages. At the end, no page had an error, broke its security policy, or left its lead's origin."""
    visits = Visits(browser)
    yield visits
    visits.close()
    assert not visits.faults


@pytest.fixture
def lead_and_slot() -> Iterator[tuple[str, ScriptedSlot]]:
    engine, slot = scripted_engine()
    slot.n_ctx, slot.n_step = 1_000_000, 64
    with engine, Lead(engine, port=0) as lead:
        yield lead.url, slot


@pytest.fixture
def url(lead_and_slot: tuple[str, ScriptedSlot]) -> str:
    """The address of a lead that writes what the test says."""
    return lead_and_slot[0]


@pytest.fixture
def slot(lead_and_slot: tuple[str, ScriptedSlot]) -> ScriptedSlot:
    """What it writes."""
    return lead_and_slot[1]


@pytest.fixture
def page(visit: Visits, url: str) -> Any:
    """The page of the scripted lead."""
    return visit(url)
