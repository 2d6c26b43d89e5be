"""The verdict of a run: how much faster it was, and what to try if the draft did not pay."""

from __future__ import annotations

from typing import Any

import pytest

from duo.cli.terminal.verdict import verdict
from duo.spec.policy import Policy
from tests.unit.cli.test_report import DRAFTED, FASTER

LOOKUP = {"verified": 14, "accepted": 9, "accept_rate": 9 / 14, "decodes": 3, "accepted_by_schedule": {"off": 9}}
ALONE = {"generation": DRAFTED["generation"] | {"tokens_per_s": 10.0, "tokens_by_schedule": {"off": 15}}}
SLOW = {"forecast_tokens_per_s": {"off": 10.0, "sync": 8.0, "async": 8.0}}
CHEAP, DEAR = [100.0, 102.0, 104.0, 106.0, 108.0], [100.0, 200.0, 300.0, 400.0, 500.0]  # T(n) in ms


def said(
    *,
    apart: bool = False,
    n_others: float = 0.0,
    n_threads: int | None = None,
    policy: dict[str, Any] | None = None,
    **more: Any,
) -> str:
    statistics = DRAFTED | more | {"policy": DRAFTED["policy"] | (policy or {})}
    return verdict(statistics, apart=apart, n_others=n_others, n_threads=n_threads)


def rate(tokens_per_s: float | None) -> dict[str, Any]:
    return {**DRAFTED["generation"], "tokens_per_s": tokens_per_s}


def test_who_made_it_faster() -> None:
    assert said() == FASTER
    assert said(lookup=LOOKUP).startswith("the draft and lookup made this 1.50 times as fast (alone: ")
    assert said(draft=None, lookup=LOOKUP).startswith("lookup made this 1.50 times as fast")
    assert said(draft=None, lookup=LOOKUP, policy={"schedules": ["off"]}) == (
        "lookup made this 1.50 times as fast (alone: 10.0 tokens/s by its decodes)"
    )


def test_no_gain_is_stated_over_what_was_not_measured_in_this_run() -> None:
    """The machine may have been disturbed when it was measured."""
    earlier = {"alone_ms": {"this_run": None, "earlier_runs": 80.0}}
    assert said(policy=earlier) == ("unknown: the target alone was not measured in this run; tokens: 5 sync, 10 async")


@pytest.mark.parametrize(
    ("tokens_per_s", "compared"),
    [(10.4, "about as fast as"), (9.6, "about as fast as"), (9.0, "10 % slower than")],
)
def test_no_gain(tokens_per_s: float, compared: str) -> None:
    no_draft = {"schedules": ["off"]}
    target = f"{compared} the target alone (10.0 tokens/s by its decodes)"
    assert said(generation=rate(tokens_per_s), draft=None, lookup=LOOKUP, policy=no_draft) == (
        f"lookup did not pay here; {target}"
    )
    assert f"; {target}; tokens: 5 sync, 10 async" in said(generation=rate(tokens_per_s), policy=SLOW)


def test_what_is_not_known_is_not_said() -> None:
    unknown = {"alone_ms": {"this_run": None, "earlier_runs": None}}
    for more in ({"policy": unknown}, {"generation": rate(None)}):
        assert said(**more).startswith("unknown: the target alone was not measured in this run; tokens: ")
    assert said(**ALONE, draft=None, policy={"forecast_tokens_per_s": {}}).startswith("unknown: too little is known")


def test_the_target_alone() -> None:
    assert said(**ALONE, draft=None, policy=SLOW).startswith("the draft did not pay here: it needs ")
    assert said(**ALONE, draft=DRAFTED["draft"] | {"error": "out of memory"}) == "the draft failed"


def test_a_text_that_the_target_wrote_nearly_alone() -> None:
    """Its rate and that of its decodes differ by noise only."""
    text = ALONE["generation"] | {"tokens": 100, "tokens_by_schedule": {"off": 99}, "tokens_per_s": 3.0}
    few, many = (LOOKUP | {"verified": n, "accepted": 0} for n in (2, 20))
    assert said(generation=text, draft=None, lookup=few, policy=SLOW).startswith("the draft did not pay here: it needs")
    assert "slower than" not in said(generation=text, draft=None, lookup=few, policy=SLOW)
    assert "70 % slower than" in said(generation=text, draft=None, lookup=many, policy=SLOW)


@pytest.mark.parametrize(
    ("n_threads", "fewest", "advice"),
    [
        (2, 1, "; fewer threads may be faster: -t 1"),
        (1, 1, "; try again when the machine is idle"),
        (None, 1, ", so duo used 1 of 2 at times; try again when the machine is idle"),
        (None, 2, "; try again when the machine is idle"),
    ],
)
def test_a_run_beside_other_programs_says_what_to_do(n_threads: int | None, fewest: int, advice: str) -> None:
    busy, cores = f"unknown: other programs used 1.9 cores{advice}", {"all": 2, "now": 2, "fewest": fewest}
    others: dict[str, Any] = {"n_others": 1.9, "n_threads": n_threads, "cores": cores}
    assert said(**others) == f"{busy}; tokens: 5 sync, 10 async"
    assert said(**ALONE, **others, draft=None, policy=SLOW).startswith(busy)


def test_no_advice_from_times_that_cannot_be_true() -> None:
    curve = {"curve_ms": {"alone": [10.0, 200.0, 300.0, 400.0, 500.0], "beside": []}}
    assert said(**ALONE, draft=None, policy=SLOW | curve) == "the draft did not pay here"


def test_a_draft_that_came_too_late() -> None:
    assert said(**ALONE, draft=None) == ("the draft came too late to pay; a longer text, or the next, may be faster")


@pytest.mark.parametrize(
    ("curve", "draft_ms", "acceptance", "advice"),
    [
        (CHEAP, 50.0, 0.6, "it needs half the target's time per token; try a smaller one (duo tune)"),
        (CHEAP, 120.0, 0.6, "it needs 1.2 times the target's time per token; try a smaller one (duo tune)"),
        (CHEAP, 10.0, 0.1, "10 % of its tokens are right; try one more like the target (duo tune)"),
        (CHEAP, 90.0, 0.1, "it needs 90 % of the target's time per token; try a smaller and better one (duo tune)"),
        (CHEAP, 600.0, 0.6, "it needs 6.0 times the target's time per token; it may pay on another device (-devd) or "
         "machine (duo back)"),
        (DEAR, 25.0, 0.6, "the target needs 5.0 times as long for 5 tokens as for one; omit the draft"),
    ],
)  # fmt: skip
def test_what_to_try(curve: list[float], draft_ms: float, acceptance: float, advice: str) -> None:
    policy = SLOW | {
        "curve_ms": {"alone": curve, "beside": None},
        "draft_ms": {"alone": draft_ms, "beside": None},
        "pair_ms": None,
        "acceptance": acceptance,
    }
    assert said(**ALONE, policy=policy) == f"the draft did not pay here: {advice}"


def test_a_draft_on_its_own_device_is_not_sent_to_another() -> None:
    policy = SLOW | {"draft_ms": {"alone": 600.0, "beside": None}}
    assert "(-devd)" in said(**ALONE, policy=policy)
    assert said(**ALONE, policy=policy, apart=True).endswith("; try a much smaller one")


def test_too_little_known_for_a_remedy() -> None:
    learned = Policy(4, 8).statistics()
    policy = SLOW | {name: learned[name] for name in ("curve_ms", "draft_ms", "pair_ms")}
    assert said(**ALONE, policy=policy) == "the draft did not pay here"
