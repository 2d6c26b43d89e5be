"""The rows of the table, from samples that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duo.bench.contestant import Run
from duo.bench.formats import run_line
from duo.bench.prompts import Prompt
from duo.bench.results import Row
from duo.bench.rounds import Sample
from tests.unit.bench.samples import ASYNC, LOOP, PEER, PLAIN, collect, results, sample


def counted(row: Row) -> tuple[object, ...]:
    return row["runs"], row["looping_runs"], row["tokens_per_s"], row["speed_up"]


def test_a_row_over_all_prompts() -> None:
    row = results().row(ASYNC)
    assert (row["tokens_per_s_lower_quartile"], row["tokens_per_s_upper_quartile"]) == (105, 115), "of 100 and 120"
    assert counted(row) == (2, 1, 110, pytest.approx((1.2 * 1.25) ** 0.5))
    figures = {"ms_per_token": pytest.approx(1000 / 110), "accept_rate": 0.75, "tokens_per_decode": 1.5, "hidden": 0.9,
               "target_ms_per_decode": 12.0, "draft_ms_per_token": 4.0, "waste": 0.4, "first_token_s": 0.1}  # fmt: skip
    assert {name: row[name] for name in figures} == figures


def test_what_was_not_reported_is_left_blank() -> None:
    row = results().row(PEER)
    assert row["prompt_tokens_per_s"] == 500
    names = ("first_token_s", "accept_rate", "target_ms_per_decode", "draft_ms_per_token", "hidden", "waste")
    assert {row[name] for name in names} == {None}


def test_acceptance_is_that_of_all_candidates_together() -> None:
    counts = (("chat", 1, 0), ("code", 99, 90), ("list", 0, 0))
    samples = [sample(ASYNC, i, kind, 100, n_verified=n, n_accepted=m) for i, (kind, n, m) in enumerate(counts)]
    found = collect([ASYNC], *samples)
    assert found.row(ASYNC)["accept_rate"] == 0.9
    assert found.row(ASYNC, "list")["accept_rate"] is None


def test_texts_that_loop_are_left_out() -> None:
    found = results()
    assert found.looping() == {2}, "the whole round, if the baseline's text loops"
    assert counted(found.row(PLAIN, "story")) == (0, 1, None, None)
    alone = sample(ASYNC, 0, "chat", 300, LOOP), sample(ASYNC, 1, "chat", 200)
    found = collect([ASYNC, PLAIN], *alone, *(sample(PLAIN, i, "chat", 100) for i in range(2)))
    assert found.looping() == set()
    assert counted(found.row(ASYNC)) == (1, 1, 200, 2)
    assert found.row(PLAIN)["runs"] == 2
    assert collect([ASYNC], *alone).looping() == {0}, "without a baseline the first contestant decides"


def test_a_text_that_only_repeats_its_prompt_counts() -> None:
    looping = Sample(PLAIN, 0, Prompt("edit", "?"), Run(64, 100, LOOP))
    asked = replace(looping, prompt=Prompt("edit", LOOP))
    assert (looping.loops, asked.loops) == (True, False)
    assert counted(collect([PLAIN], looping).row(PLAIN))[:2] == (0, 1)
    assert counted(collect([PLAIN], asked).row(PLAIN))[:2] == (1, 0)
    assert (run_line(asked)["loops"], run_line(asked)["copied_4grams"]) == (False, 1.0)


def test_texts_are_compared_with_plain_decoding() -> None:
    found = results()
    row = found.row(ASYNC)
    assert (row["same_text"], row["differs_in"], row["differs_at"]) == (False, "code", 10)
    same = [found.row(*which)["same_text"] for which in ((ASYNC, "chat"), (PEER, "all"), (PLAIN, "all"))]
    assert same == [True, True, None]


def test_the_baseline_may_be_another_contestant_or_missing() -> None:
    found = results(baseline=PEER)
    assert found.row(PLAIN)["speed_up"] == pytest.approx((100 / 90 * 80 / 88) ** 0.5)
    assert found.row(PEER)["speed_up"] is None
    ratio = found.speed_up(ASYNC, PLAIN, figure=lambda run: run.tokens_per_decode)
    assert ratio is not None
    assert ratio.middle == pytest.approx(1.5)
    row = collect([ASYNC], sample(ASYNC, 0, "chat", 100)).row(ASYNC)
    assert (row["tokens_per_s"], row["speed_up"], row["same_text"]) == (100, None, None)
