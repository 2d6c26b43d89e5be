"""Prompts, the rounds in which every contestant writes after one of them, and which of their texts loop."""

import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from duo.bench.rounds import (
    OWN,
    Contestant,
    Job,
    ParseError,
    Prompt,
    Run,
    Sample,
    built_in,
    distinct_share,
    first_difference,
    loops,
    measure,
    parse_prompts,
    rounds,
)  # fmt: skip
from duo.errors import PromptError

EIGHT = ["chat", "code", "story", "summary", "translation", "list", "JSON", "reasoning"]
PROMPTS = [Prompt("chat", "one"), Prompt("code", "two\n"), Prompt("list", "three")]


def test_sixteen_prompts_are_built_in_and_none_is_repeated_while_there_are_others() -> None:
    assert [prompt.category for prompt in built_in()] == [name for name in EIGHT for _ in range(2)]
    taken = rounds(built_in(), 17)
    assert [prompt.category for prompt in taken] == [*EIGHT * 2, "chat"]
    assert len(set(taken[:16])) == 16
    assert taken[16] == taken[0]


def test_a_file_has_a_prompt_in_each_line() -> None:
    text = "Once upon a time\n\n[mine]\nfirst\\nsecond\n  spaces around  \n"
    expected = [Prompt(OWN, "Once upon a time"), Prompt("mine", "first\nsecond"), Prompt("mine", "spaces around")]
    assert parse_prompts(text) == expected
    with pytest.raises(PromptError, match="the prompts file is empty"):
        parse_prompts("[mine]\n\n")


@dataclass
class Asked:
    """Contestants that note what they are asked; "d" fails."""

    asked: list[tuple[str, str, int]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, names: str, *, may_fail: bool = False) -> None:
        contestants = [Contestant(name, partial(self._write, name), may_fail=may_fail) for name in names]
        job = Job(Path("target.gguf"), None, "", Path(), 64, 256)
        put, note = self.samples.append, self.notes.append
        measure(contestants, PROMPTS, job, put, note, threading.Event(), warm_up=PROMPTS[-1])

    def _write(self, name: str, job: Job, _: threading.Event) -> Run:
        assert job.prompt_file.read_text(encoding="utf-8") == job.prompt + "\n"
        self.asked.append((name, job.prompt, job.n_tokens))
        if name == "d":
            raise ParseError("d exited with 3")
        return Run(job.prompt, job.n_tokens, 1.0)


def test_all_write_once_per_round_in_another_order() -> None:
    asked = Asked()
    asked.run("abc")
    assert asked.asked[:3] == [(name, "three", 16) for name in "abc"], "to warm up"
    orders = ["".join(name for name, _, _ in asked.asked[i : i + 3]) for i in (3, 6, 9)]
    assert [sorted(order) for order in orders] == [list("abc")] * 3
    assert len(set(orders)) > 1
    assert not all(order in "abcab" for order in orders), "as in a rotation"
    expected = [(name, prompt.text, 64) for prompt, order in zip(PROMPTS, orders, strict=True) for name in order]
    assert asked.asked[3:] == expected
    assert [(s.contestant.mode, s.run.text, s.run.tokens) for s in asked.samples] == expected
    assert [sample.i_round for sample in asked.samples] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_failure_is_found_before_anything_is_measured_and_one_that_is_allowed_leaves_the_contestant_out() -> None:
    asked = Asked()
    with pytest.raises(ParseError, match="d exited with 3"):
        asked.run("abcd")
    assert not asked.samples
    asked.asked.clear()
    asked.run("abcd", may_fail=True)
    assert asked.notes[-1] == "d exited with 3: skipped"
    assert [name for name, _, _ in asked.asked].count("d") == 1, "it was not asked again"
    assert len(asked.samples) == 9


def test_a_text_loops_below_thirty_per_cent_distinct_4_grams_that_are_not_in_the_prompt() -> None:
    words = [str(i) for i in range(33)]  # 30 different 4-grams and three across the seam of each repetition
    assert not loops(" ".join(words * 3))
    assert loops(" ".join(words * 4))
    assert distinct_share("a b c d " * 25) == pytest.approx(4 / 97)
    assert distinct_share("too short") == 1.0
    prompt, loop = " ".join(map(str, range(100))), " ".join(["on and on"] * 10)
    assert not loops(f"{prompt} well", prompt), "almost nothing is left"
    assert loops(f"{prompt} {loop}", prompt)
    assert not loops(f"{prompt} {loop}"), "the copy hides the loop"


@pytest.mark.parametrize(
    ("text", "reference", "place"),
    [
        ("the cat sat", "the cow sat", 5),
        ("the cat", "the cat sat", None),  # one may be some tokens longer
        ("the cat sat", "the", None),
        ("the", "the cat sat", 3),  # it ended early
        ("", "x", 0),
        ("the ca\ufffd", "the café", None),  # a character that the last token cut
        ("the co\ufffd", "the café", 5),
    ],
)
def test_texts_differ_from_a_character_on(text: str, reference: str, place: int | None) -> None:
    assert first_difference(text, reference) == place
