"""Texts of every kind with the draft, the target or both on the device: the target's own, and those of the CPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.engine.engine import Engine
from duo.llama.devices import gpus
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule
from tests.device.helpers import (
    KINDS,
    N_MAX,
    PROMPT,
    assert_as_alone,
    assert_as_on_cpu,
    compare,
    has_equal_rows,
    let_branches_grow,
    opened,
    patient,
)
from tests.fakes import Eager, eager, restless

ALL = 99
PLACES = {"the draft": (0, ALL), "the target": (ALL, 0), "both": (ALL, ALL)}  # layers on the device


@pytest.fixture(scope="module", params=PLACES)
def engine(request: pytest.FixtureRequest, gpu: str, deep_pair: tuple[Path, Path]) -> Iterator[Engine]:
    layers = PLACES[request.param]
    with opened(deep_pair, *layers) as engine:
        slot = engine.slot
        assert slot.draft_model is not None
        assert [slot.target.places, slot.draft_model.places] == [{gpu} if n else {"CPU"} for n in layers]
        yield engine


def test_batches_of_few_rows_are_bit_equal_on_a_software_device(engine: Engine) -> None:
    """Then the texts with a draft must be identical. On cards, kernels may differ from row count to row count."""
    if "llvmpipe" in gpus()[0].description:
        assert engine.call(has_equal_rows)


def drafted(engine: Engine, estimates: DraftEstimates, *kinds: str) -> tuple[int, int]:
    """Candidates that were accepted, and all that were verified, in texts that they must not change."""
    found = [compare(engine, estimates, kind) for kind in kinds]
    for comparison in found:
        assert_as_alone(engine, comparison)
    counts = [comparison.drafted for comparison in found]
    return sum(count.accepted for count in counts), sum(count.verified for count in counts)


def test_drafting_changes_no_text(engine: Engine) -> None:
    n_accepted, n_verified = drafted(engine, Eager(N_MAX, 2 * N_MAX, Schedule.SYNC), *KINDS)
    assert 0 < n_accepted < n_verified
    assert drafted(engine, patient(), "greedy", "sampled")[1] > 0
    drafted(engine, restless(1, N_MAX, 2 * N_MAX), "sampled")


def test_branches_change_no_text(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    let_branches_grow(engine, monkeypatch)
    found = compare(engine, patient(n_branches=4), "sampled")
    assert_as_alone(engine, found)
    assert found.n_prepared > 0


@pytest.mark.parametrize("exact", [True, False])
def test_large_batches_change_the_text_at_near_ties_only(gpu: str, deep_pair: tuple[Path, Path], exact: bool) -> None:
    """With more than eight rows the device has other kernels. Mesa's makes the second text another one."""
    prompt = f"f g {PROMPT} a b c d e"
    with opened(deep_pair, ALL, 0, n_max=16, exact=exact) as engine:
        for kind in ("sampled", "greedy"):
            found = compare(engine, Eager(16, 32, Schedule.SYNC), kind, prompt, n=48)
            assert found.difference is None or found.difference.is_near_tie, found


def test_the_demo_pair_writes_what_it_writes_on_the_cpu(demo_pair: tuple[Path, Path], gpu: str) -> None:
    with opened(demo_pair) as cpu:
        for layers in PLACES.values():
            with opened(demo_pair, *layers) as engine:
                sources = eager(engine.slot.new_draft(Eager(4, 8, Schedule.SYNC)))
                assert_as_on_cpu(cpu, engine, "greedy", "a b c d e", sources=sources)
                statistics = engine.statistics
                assert statistics is not None
                assert statistics.draft is not None
                assert statistics.draft.accepted > 0
