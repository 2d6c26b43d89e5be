"""The rows of the table, from samples that can be worked out by hand."""

import random
from typing import Any
from unittest.mock import Mock

import pytest

from duo.bench.results import Results, Row, excluded, progress, speed_up, table
from duo.bench.rounds import Contestant, Prompt, Run, Sample

STORY = " ".join(f"word{i}" for i in range(40))
OTHER = STORY[:10] + "!" + STORY[11:]
LOOP = "on and on " * 20
OWN: dict[str, Any] = {
    "prompt_tokens_per_s": 400.0,
    "first_token_s": 0.1,
    "tokens_per_decode": 1.0,
    "target_ms_per_decode": 9.5,
}
DRAFTED = OWN | {"tokens_per_decode": 1.5, "target_ms_per_decode": 12.0, "verified": 40, "accepted": 30,
                 "draft_ms_per_token": 4.0, "hidden": 0.9, "waste": 0.4}  # fmt: skip


PLAIN = Contestant("plain", Mock(), "2", "CPU")
ASYNC = Contestant("async", Mock(), "1+1", "CPU+CPU", "auto")
PEER = Contestant("llama-completion", Mock(), "2", "CPU")


def sample(contestant: Contestant, i: int, category: str, rate: float, text: str = STORY, **figures: Any) -> Sample:
    return Sample(contestant, i, Prompt(category, "?"), Run(text, 64, rate, figures))


def collect(contestants: list[Contestant], *samples: Sample) -> Results:
    found = Results(contestants)
    found.samples += samples
    return found


def results() -> Results:
    """Three rounds: chat, code, and a story that loops. Async is 1.2 and 1.25 times as fast as plain."""
    found = Results([PLAIN, ASYNC, PEER])
    for i, (category, text, plain, drafting, peer) in enumerate(
        (("chat", STORY, 100, 120, 90), ("code", OTHER, 80, 100, 88))
    ):
        found.samples.append(sample(PLAIN, i, category, plain, **OWN))
        found.samples.append(sample(ASYNC, i, category, drafting, text, **DRAFTED))
        found.samples.append(sample(PEER, i, category, peer, prompt_tokens_per_s=500.0))
    found.samples += [sample(contestant, 2, "story", 300, LOOP) for contestant in (PLAIN, ASYNC, PEER)]
    return found


def counted(row: Row) -> tuple[object, ...]:
    return row["runs"], row["looping_runs"], row["tokens_per_s"], row["speed_up"]


def test_the_table_the_progress_and_the_json() -> None:
    found = results()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(map(found.row, found.contestants))]
    assert lines[0][:9] == ["mode", "devices", "threads", "k", "runs", "prompt t/s", "decode t/s", "ms/token",
                            "speed-up"]  # fmt: skip
    assert lines[3][4:] == ["2", "400", "110.0 (105.0–115.0)", "9.09", "1.22", "75", "1.50", "12.00", "4.00", "90",
                            "40", "0.100", "code, from character 10"]  # fmt: skip
    assert lines[4][4:] == ["2", "500", "89.0 (88.5–89.5)", "11.24", "0.99", *[""] * 7, "yes"], "what is not reported"
    assert progress(found.samples[1], found, 3) == "1/3 chat         async k=auto        120.0 t/s    1.20 of plain"
    assert excluded(found) == ["", "Excluded because the text loops: story (round 3, plain)."]
    document = found.document()
    assert [(row["mode"], row["same_text"]) for row in document["rows"]] == [
        ("plain", None), ("async", False), ("llama-completion", True)
    ]  # fmt: skip
    row = document["rows"][1]
    assert counted(row) == (2, 1, 110, pytest.approx((1.2 * 1.25) ** 0.5))
    assert row | DRAFTED == row
    run = {"round": 1, "category": "chat", "mode": "async", "k": "auto", "tokens": 64, "tokens_per_s": 120, **DRAFTED}
    assert document["runs"][1] == run | {"distinct_4grams": 1.0, "loops": False, "text": STORY}


def test_texts_that_loop_are_left_out() -> None:
    assert results().looping() == {2}, "the whole round, if the baseline's text loops"
    alone = sample(ASYNC, 0, "chat", 300, LOOP), sample(ASYNC, 1, "chat", 200)
    found = collect([ASYNC, PLAIN], *alone, *(sample(PLAIN, i, "chat", 100) for i in range(2)))
    assert found.looping() == set()
    assert counted(found.row(ASYNC)) == (1, 1, 200, 2)
    assert found.row(PLAIN)["runs"] == 2
    assert collect([ASYNC], *alone).looping() == {0}, "without a baseline the first contestant decides"


@pytest.mark.parametrize("n", [3, 20])
def test_the_interval_holds_the_truth_as_often_as_it_says(n: int) -> None:
    numbers = random.Random(7)
    found = [speed_up([1.3 * 2.0 ** numbers.gauss(0, 0.2) for _ in range(n)]) for _ in range(1000)]
    assert 930 <= sum((each.low or 2) <= 1.3 <= (each.high or 0) for each in found if each is not None) <= 970
