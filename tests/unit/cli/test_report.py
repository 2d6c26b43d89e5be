"""The report at the end of a run: five lines, and with -v all statistics."""

from __future__ import annotations

from typing import Any

import pytest

from duo.cli.terminal.report import render, render_verbose
from duo.spec.policy import Policy

PLAIN: dict[str, Any] = {
    "prompt": {"tokens": 5, "seconds": 0.5, "tokens_per_s": 10.0},
    "generation": {
        "tokens": 16, "seconds": 1.5, "tokens_per_s": 10.0, "time_to_first_token_s": 0.61, "decodes": 15,
        "tokens_per_decode": 1.0, "target_ms_per_decode": 100.0, "waited_s": 0.0, "tokens_by_schedule": {"off": 15},
        "stop": "token limit",
    },
    "draft": None,
    "lookup": None,
    "memory": {"peak_bytes": 1_234_500_000},
    "sampling": {"temperature": 0.0, "seed": 7, "mode": "greedy"},
}  # fmt: skip
DRAFTED: dict[str, Any] = PLAIN | {
    "generation": PLAIN["generation"]
    | {"tokens_per_s": 15.0, "decodes": 8, "tokens_per_decode": 1.875, "tokens_by_schedule": {"sync": 5, "async": 10}},
    "draft": {
        "drafted": 20, "verified": 12, "accepted": 7, "accept_rate": 7 / 12, "accept_rate_by_position": [0.75, 0.25],
        "decodes_by_candidates": [2, 0, 6], "ms_per_token": 20.0, "computed_s": 0.45, "hidden": 0.8, "unused": 0.65,
        "error": None, "vocabulary": "shared", "lost_to_translation": 0, "branches": None,
    },
    "policy": {
        "schedule": "async", "schedules": ["async", "sync", "off"], "changes": [], "rate": 14.0,
        "forecast_tokens_per_s": {"off": 10.0, "async": 16.0},
        "acceptance": 0.6, "scored": 100, "most_gain": 1.8, "alone_ms": {"this_run": 100.0, "earlier_runs": 80.0},
        "target_ms": {"alone": {"1": 100.0}, "beside": {"1": 110.0, "3": 120.0}},
        "draft_ms": {"alone": 20.0, "beside": 25.0},
        "curve_ms": {"alone": [100.0, 105.0, 110.0, 115.0, 120.0], "beside": None},
        "measured": {"alone": [1, 5], "beside": [1, 3]}, "pair_ms": 26.0,
    },
}  # fmt: skip
FASTER = "the draft made this 1.50 times as fast (alone: 10.0 tokens/s by its decodes); tokens: 5 sync, 10 async"
SAMPLED = {"sampling": {"temperature": 0.8, "seed": 7, "mode": "coupled"}}


def test_a_plain_run() -> None:
    assert render(PLAIN) == (
        "speed   16 tokens in 1.50 s, 10.0 tokens/s; prompt: 5 tokens in 0.50 s, 10.0 tokens/s; stopped: token limit\n"
        "memory  1234 MB at most\n"
        "tokens: 16 tps: 10.000"
    )
    assert render_verbose(PLAIN) == (
        "prompt      5 tokens in 0.50 s, 10.0 tokens/s\n"
        "first token 0.61 s\n"
        "generated   16 tokens in 1.50 s, 10.0 tokens/s; stopped: token limit\n"
        "target      15 decodes, 100.00 ms each, 1.00 tokens each, waited 0.00 s for the draft\n"
        "time        target computes 100.0 %\n"
        "memory      1234 MB at most\n"
        "tokens: 16 tps: 10.000"
    )


def test_a_verbose_run_says_how_many_cores_other_programs_have_left() -> None:
    for fewest, now, words in ((2, 2, None), (1, 2, "other programs left 1 of 2 at times; now 2 are used")):
        lines = render_verbose(PLAIN | {"cores": {"all": 2, "now": now, "fewest": fewest}}).splitlines()
        assert [line for line in lines if line.startswith("cores")] == ([f"cores       {words}"] if words else [])


def test_a_drafted_run_says_what_the_draft_did_and_whether_it_paid() -> None:
    lines = render(DRAFTED | SAMPLED).splitlines()
    assert len(lines) == 5
    assert lines[0].endswith("; stopped: token limit; seed 7")
    assert lines[1:3] == [
        "draft   20 tokens drafted, 12 verified, 7 accepted (58.3 %)",
        f"gain    {FASTER}",
    ]
    assert render_verbose(DRAFTED | SAMPLED).splitlines()[4:] == [
        "time        target computes 53.3 %, rest 46.7 %; draft computes 30.0 %, 80.0 % of that concurrently with the "
        "target",
        "sampling    temperature 0.8, seed 7, coupled",
        "draft       20 drafted, 12 verified, 7 accepted (58.3 %); 65.0 % of the drafted never used",
        "            20.00 ms/token",
        "            accepted by position, %: 75 25",
        "            decodes × candidates verified: 2 × 0, 6 × 2",
        "schedule    5 tokens sync, 10 tokens async; forecast in tokens/s: off 10.0, async 16.0",
        "measured    alone or sequential: T(1) = 100.0 ms, T(5) in earlier runs, draft 20.0 ms",
        "measured    concurrent: T(1, 3) = 110.0, 120.0 ms, draft 25.0 ms",
        "            60.0 % accepted, λ = 14.0 tokens/s",
        f"gain        {FASTER}",
        "memory      1234 MB at most",
        "tokens: 16 tps: 15.000",
    ]


def test_what_was_assumed_is_not_called_measured() -> None:
    """A draft that did not compute beside the target has no time there."""
    generation = DRAFTED["generation"] | {"tokens_by_schedule": {"sync": 15}}
    policy = DRAFTED["policy"] | {"target_ms": {"alone": {"1": 100.0}, "beside": {}}}
    for measured, lines in (
        ({"alone": [1], "beside": []}, ["alone or sequential: T(1) = 100.0 ms, draft 20.0 ms"]),
        ({"alone": [1], "beside": [2]}, ["alone or sequential: T(1) = 100.0 ms, draft 20.0 ms",
                                         "concurrent: T(2) in earlier runs"]),
    ):  # fmt: skip
        found = render_verbose(DRAFTED | {"generation": generation, "policy": policy | {"measured": measured}})
        assert [
            line.removeprefix("measured    ") for line in found.splitlines() if line.startswith("measured")
        ] == lines


def test_a_draft_that_failed() -> None:
    failed = DRAFTED | {"draft": DRAFTED["draft"] | {"error": "out of memory"}}
    assert render(failed).splitlines()[1].endswith("7 accepted (58.3 %); failed: out of memory")
    assert "            the draft failed: out of memory" in render_verbose(failed).splitlines()


@pytest.mark.parametrize(
    ("learned", "reason"),
    [
        ({"most_gain": 1.011}, "even a draft that is right 95 % of the time would gain at most 2 %"),
        ({"most_gain": 1.0}, "even a draft that is right 95 % of the time would gain nothing"),
        ({"most_gain": 1.2}, "by earlier runs 10.0 tokens/s alone, 9.0 with the draft"),
        (
            {"most_gain": None, "scored": 0},  # T(1) may be from runs without a draft
            "forecast 10.0 tokens/s alone, 9.0 with the draft",
        ),
        (
            {"forecast_tokens_per_s": {"off": 10.0, "sync": 9.0, "async": 10.1}},
            "by earlier runs 10.0 tokens/s alone, 10.1 with the draft",
        ),
        (
            {"forecast_tokens_per_s": {"off": 10.0, "sync": 9.0, "async": 10.3}, "schedule": "off"},
            "trying the draft would have taken more time than may be spent on it",
        ),
        (
            {"forecast_tokens_per_s": {}, "most_gain": None, "schedule": "off"},
            "trying the draft would have taken more time than may be spent on it",
        ),
        ({"forecast_tokens_per_s": {}}, "no candidate was ready or worth its time"),
        (
            {
                "forecast_tokens_per_s": {},
                "schedule": "off",
                "changes": [{"tokens": 4, "schedule": "sync", "reason": ""}],
            },
            "no candidate was ready or worth its time",
        ),
    ],
)
def test_why_the_draft_was_not_used(learned: dict[str, Any], reason: str) -> None:
    rates = {"off": 10.0, "sync": 9.0, "async": 8.0}
    unused = DRAFTED | {"draft": None, "policy": DRAFTED["policy"] | {"forecast_tokens_per_s": rates} | learned}
    lines = render(unused).splitlines()
    assert (len(lines), lines[1]) == (5, f"draft   not used: {reason}")
    assert f"draft       not used: {reason}" in render_verbose(unused).splitlines()
    assert "draft   not used: --schedule off" in render(unused, "off").splitlines()
    assert "draft       not used: --schedule off" in render_verbose(unused, "off").splitlines()


def test_a_draft_that_was_only_probed() -> None:
    rates = {"forecast_tokens_per_s": {"off": 10.0, "sync": 9.0, "async": 8.0}, "most_gain": 1.01}
    probed = {"draft": DRAFTED["draft"] | {"drafted": 0}, "policy": DRAFTED["policy"] | rates}
    reason = "forecast 10.0 tokens/s alone, 9.0 with a draft that is 60 % right"
    assert render(DRAFTED | probed).splitlines()[1] == f"draft   not used: {reason}"
    failed = probed | {"draft": probed["draft"] | {"error": "out of memory"}}
    assert render(DRAFTED | failed).splitlines()[1].endswith("; failed: out of memory")


def test_nothing_generated_divides_by_nothing() -> None:
    nothing = {"tokens": 0, "tokens_per_s": None, "time_to_first_token_s": None, "target_ms_per_decode": None}
    statistics = PLAIN | {
        "generation": PLAIN["generation"] | nothing | {"tokens_per_decode": None},
        "memory": {"peak_bytes": None},
    }
    assert render(statistics).splitlines()[1:] == ["tokens: 0 tps: 0.000"]
    assert "target      15 decodes, - ms each, - tokens each, waited 0.00 s for the draft" in render_verbose(statistics)


def test_a_policy_that_has_learned_nothing() -> None:
    nothing = {"alone": None, "beside": None}
    policy = Policy(4, 8).statistics()
    assert (policy["draft_ms"], policy["curve_ms"]) == (nothing, nothing)
    statistics = DRAFTED | {"policy": policy, "generation": DRAFTED["generation"] | {"tokens_by_schedule": {}}}
    assert "gain    unknown: the target alone was not measured in this run" in render(statistics).splitlines()
    assert "schedule    off; forecast in tokens/s: -" in render_verbose(statistics)
    assert "measured   " not in render_verbose(statistics)


def test_the_first_five_changes_of_schedule_are_shown() -> None:
    changes = [{"tokens": 10 * n, "schedule": "off", "reason": f"reason {n}"} for n in range(1, 9)]
    for n_changes, more in ((0, []), (5, []), (8, ["            and 3 more changes"])):
        lines = render_verbose(DRAFTED | {"policy": DRAFTED["policy"] | {"changes": changes[:n_changes]}}).splitlines()
        at = [line.split()[0] for line in lines].index("schedule") + 1
        shown = [f"            off at {10 * n} (reason {n})" for n in range(1, 1 + min(n_changes, 5))] + more
        assert lines[at : at + len(shown)] == shown
        assert lines[at + len(shown)].startswith("measured ")


def test_a_draft_with_another_vocabulary() -> None:
    draft = DRAFTED["draft"] | {"vocabulary": "translated", "lost_to_translation": 3}
    found = DRAFTED | {"draft": draft}
    assert "accepted (58.3 %); vocabulary translated, 3 guesses lost by it" in render(found)
    assert "            vocabulary translated, 3 guesses lost by it\n" in render_verbose(found)


def test_outcomes_prepared() -> None:
    branches = {
        "prepared": 12, "tokens": 15, "contradictions": 4, "hits": 3, "hit_rate": 0.75,
        "hit_rate_by_position": [1.0, None, 0.5],
    }  # fmt: skip
    found = DRAFTED | {"draft": DRAFTED["draft"] | {"branches": branches, "error": "out of memory"}}
    assert "accepted (58.3 %); 12 outcomes prepared, hit rate 75.0 %; failed: out of memory" in render(found)
    assert len(render(found).splitlines()) == 5
    lines = render_verbose(found).splitlines()
    at = lines.index("            the draft failed: out of memory") + 1
    assert lines[at : at + 2] == [
        "branches    12 outcomes prepared, hit rate 75.0 % (3 of 4 contradictions); 15 tokens drafted in them",
        "            hit rate by position, %: 100 - 50",
    ]
    branches |= {"contradictions": 0, "hits": 0, "hit_rate": None, "hit_rate_by_position": []}
    assert "accepted (58.3 %); 12 outcomes prepared, hit rate -; failed" in render(found)
    assert "hit rate by position" not in render_verbose(found)
