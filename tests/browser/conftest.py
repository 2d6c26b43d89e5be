"""A browser for all tests of a module, and leads whose page it opens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from duo.server.lead_server import Lead
from tests.browser.browsing import Visits, a_browser
from tests.scripted import ScriptedSlot, scripted_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while it is open, an event loop runs in this thread."""
    with a_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    """Opens pages. At the end, no page had an error, broke its security policy, or left its lead's origin."""
    visits = Visits(browser)
    yield visits
    visits.close()
    assert not visits.faults


@pytest.fixture
def scripted() -> Iterator[tuple[Lead, ScriptedSlot]]:
    """A lead that writes what the test says, on a port, and what is behind it."""
    engine, slot = scripted_engine()
    with engine, Lead(engine, port=0) as lead:
        yield lead, slot


@pytest.fixture
def slot(scripted: tuple[Lead, ScriptedSlot]) -> ScriptedSlot:
    """What the lead at `url` writes."""
    scripted[1].n_ctx, scripted[1].n_step = 1_000_000, 64
    return scripted[1]


@pytest.fixture
def url(scripted: tuple[Lead, ScriptedSlot]) -> str:
    """The scripted lead's address."""
    return scripted[0].url


@pytest.fixture
def page(visit: Visits, url: str, slot: ScriptedSlot) -> Any:
    """The page of the scripted lead."""
    return visit(url)
