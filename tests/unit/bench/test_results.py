"""The rows of the table, from samples that can be worked out by hand."""

from __future__ import annotations

import pytest

from duo.bench.results import Difference, Results
from tests.unit.bench.samples import ASYNC, LOOP, PEER, PLAIN, STORY, results, sample


def test_a_row_over_all_prompts() -> None:
    row = results().row(ASYNC)
    assert (row.n_runs, row.n_looping) == (2, 1)
    assert row.tokens_per_s == (110, 105, 115)  # the median and the quartiles of 100 and 120
    assert row.ms_per_token == pytest.approx(1000 / 110)
    assert row.speed_up is not None
    assert row.speed_up.middle == pytest.approx((1.2 * 1.25) ** 0.5)
    assert (row.accept_rate, row.tokens_per_decode, row.target_ms, row.draft_ms) == (0.75, 1.5, 12.0, 4.0)
    assert (row.hidden, row.waste, row.first_token_s) == (0.9, 0.4, 0.1)


def test_what_is_not_said_is_left_blank() -> None:
    row = results().row(PEER)
    assert row.prompt_tokens_per_s == 500
    assert row.first_token_s is row.accept_rate is row.target_ms is row.draft_ms is row.hidden is row.waste is None


def test_acceptance_is_that_of_all_candidates_together() -> None:
    found = Results([ASYNC])
    found.add(sample(ASYNC, 0, "chat", 100, n_verified=1, n_accepted=0))
    found.add(sample(ASYNC, 1, "code", 100, n_verified=99, n_accepted=90))
    found.add(sample(ASYNC, 2, "list", 100, n_verified=0, n_accepted=0))
    assert found.row(ASYNC).accept_rate == 0.9
    assert found.row(ASYNC, "list").accept_rate is None


def test_a_round_that_loops_is_left_out() -> None:
    found = results()
    assert found.looping() == {2}
    row = found.row(PLAIN, "story")
    assert (row.n_runs, row.n_looping, row.tokens_per_s) == (0, 1, None)


def test_a_text_that_loops_where_plain_decoding_does_not_is_left_out_too() -> None:
    found = Results([ASYNC, PLAIN])
    for i_round, text in enumerate((LOOP, STORY)):
        found.add(sample(ASYNC, i_round, "chat", 300 - 100 * i_round, text))
        found.add(sample(PLAIN, i_round, "chat", 100, STORY))
    assert found.looping() == set()
    row = found.row(ASYNC)
    assert (row.n_runs, row.n_looping, row.tokens_per_s, row.speed_up) == (1, 1, (200, None, None), (2, None, None))
    assert found.row(PLAIN).n_runs == 2
    alone = Results([ASYNC])
    alone.add(sample(ASYNC, 0, "chat", 100, LOOP))
    assert alone.looping() == {0}


def test_texts_are_compared_with_plain_decoding() -> None:
    found = results()
    assert found.row(ASYNC).same_text is False
    assert found.row(ASYNC).difference == Difference("code", 10)
    assert found.row(ASYNC, "chat").same_text is True
    assert found.row(PEER).same_text is True
    assert found.row(PLAIN).same_text is None


def test_without_plain_decoding_there_is_no_speed_up() -> None:
    found = Results([ASYNC])
    found.add(sample(ASYNC, 0, "chat", 100))
    row = found.row(ASYNC)
    assert row.tokens_per_s is not None
    assert (row.speed_up, row.same_text) == (None, None)


def test_the_rows_are_in_order() -> None:
    found = results()
    assert [row.contestant for row in found.rows()] == [PLAIN, ASYNC, PEER]
    by_category = [(row.contestant, row.category) for row in found.rows_by_category()]
    assert by_category[:4] == [(PLAIN, "chat"), (PLAIN, "code"), (PLAIN, "story"), (ASYNC, "chat")]
