"""The built-in prompts, other ones, and which of them each round takes."""

from __future__ import annotations

import pytest

from duo.bench.rounds import OWN, Prompt, built_in, parse_prompts, rounds
from duo.errors import PromptError

EIGHT = ["chat", "code", "story", "summary", "translation", "list", "JSON", "reasoning"]


def test_two_prompts_of_each_of_eight_categories_are_built_in() -> None:
    prompts = built_in()
    assert [prompt.category for prompt in prompts] == [name for name in EIGHT for _ in range(2)]
    assert len({prompt.text for prompt in prompts}) == 16


def test_a_file_has_a_prompt_in_each_line() -> None:
    text = "Once upon a time\n\n[mine]\nfirst\\nsecond\n  spaces around  \n"
    expected = [Prompt(OWN, "Once upon a time"), Prompt("mine", "first\nsecond"), Prompt("mine", "spaces around")]
    assert parse_prompts(text) == expected
    with pytest.raises(PromptError, match="the prompts file is empty"):
        parse_prompts("[mine]\n\n")


def test_no_round_repeats_a_prompt_while_there_are_others() -> None:
    taken = rounds(built_in(), 17)
    assert [prompt.category for prompt in taken] == [*EIGHT * 2, "chat"]
    assert len(set(taken[:16])) == 16
    assert taken[16] == taken[0]
