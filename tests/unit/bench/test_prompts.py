"""The built-in prompts, other ones, and which of them each round takes."""

from __future__ import annotations

import pytest

from duo.bench.prompts import OWN, Prompt, built_in, chosen, parse_prompts, rounds
from duo.errors import PromptError, UsageError

EIGHT = ["chat", "code", "story", "summary", "translation", "list", "JSON", "reasoning"]


def test_there_are_two_of_each_of_eight_categories() -> None:
    prompts = built_in()
    assert [prompt.category for prompt in prompts] == [name for name in EIGHT for _ in range(2)]
    assert len({prompt.text for prompt in prompts}) == 16


def test_a_file_has_a_prompt_in_each_line() -> None:
    text = "Once upon a time\n\n[mine]\nfirst\\nsecond\n  spaces around  \n"
    assert parse_prompts(text) == [
        Prompt(OWN, "Once upon a time"),
        Prompt("mine", "first\nsecond"),
        Prompt("mine", "spaces around"),
    ]


def test_a_file_without_a_prompt_is_refused() -> None:
    with pytest.raises(PromptError, match="there is no prompt"):
        parse_prompts("[mine]\n\n")


def test_only_some_categories() -> None:
    found = chosen(built_in(), ["list", "chat"])
    assert [prompt.category for prompt in found] == ["list", "list", "chat", "chat"]
    assert chosen(built_in(), None) == built_in()
    with pytest.raises(UsageError, match=r"categories: no prompt of 'poem' \(there are chat, code"):
        chosen(built_in(), ["chat", "poem"])


def test_no_round_takes_the_prompt_of_another_while_there_are_new_ones() -> None:
    taken = rounds(built_in(), 16)
    assert [prompt.category for prompt in taken] == EIGHT * 2
    assert len(set(taken)) == 16
    assert rounds(built_in(), 17)[16] == taken[0]
    assert len(rounds(built_in(), 5)) == 5
