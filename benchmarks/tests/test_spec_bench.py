"""Spec-Bench: what its files must be, which ratios come out, and that an interrupted run continues."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import servers
from benchmarks.contestants import Setup
from benchmarks.questions import Question
from benchmarks.ratios import Ratios, Text, by_text
from benchmarks.servers import LlamaServer
from benchmarks.spec_bench import Journal, write_all
from duo.bench.rounds import Contestant, Job, Run
from duo.models.demo import demo_pair

PLAIN = "llama-completion -t 2"
TEXT = Text("pair", "1", "qa", 1, 0.0, "duo", 101, 20.0, 1.0, 0.9, "text")


def texts(rates: dict[str, list[float]]) -> list[Text]:
    """Texts of the same prompts, by contestant."""
    return [
        replace(TEXT, question=str(i), contestant=name, tokens_per_s=rate)
        for name, each in rates.items()
        for i, rate in enumerate(each)
    ]


def test_the_best_single_setting_is_chosen_on_the_other_half_of_the_prompts() -> None:
    """Each setting is fast on one half, so that the choice on the other half is the slow one."""
    found = Ratios(texts({"duo": [20.0] * 4, PLAIN: [10.0] * 4, "even": [40, 5, 40, 5], "odd": [5, 40, 5, 40]}))
    assert found.singles == ["odd", "even"]
    assert [(ratio.duo, ratio.single, ratio.oracle) for ratio in found.ratios] == [(2.0, 0.5, 4.0)] * 4


def test_the_turns_of_a_question_are_in_one_half_and_count_once() -> None:
    found = texts({"duo": [20.0, 80.0], PLAIN: [10.0] * 2, "first": [40, 5], "second": [5, 40]})
    found += [replace(text, turn=2) for text in found if text.question == "0"]
    ratios = Ratios(found)
    assert [ratio.single for ratio in ratios.ratios] == [0.5] * 3
    assert "4.00" in ratios.table()[2], "of 2 and 8, not of 2, 2 and 8"


def test_times_to_the_last_token_are_of_as_many_tokens_and_over_the_quickest_setting() -> None:
    """The peer has the highest rate, but not the least time."""
    found = texts({"duo": [20.0] * 2, PLAIN: [10.0] * 2, "peer": [20.0] * 2})
    found = [replace(text, tokens=51) if text.contestant == "duo" else text for text in found]
    found = [replace(text, first_token_s=7.0) if text.contestant == "peer" else text for text in found]
    assert [ratio.time for ratio in Ratios(found).ratios] == [6.0 / 11.0] * 2


def test_prompts_that_a_contestant_lacks_and_short_texts_are_left_out() -> None:
    found = texts({"duo": [20.0] * 4, PLAIN: [10.0] * 4})
    found = [replace(text, tokens=3) if text.question == "1" else text for text in found[:-1]]
    ratios = Ratios(found)
    assert (len(ratios.ratios), ratios.n_left_out) == (2, 2)
    assert not Ratios([]).ratios
    assert [verdict.passed for verdict in Ratios([]).verdicts()] == [None] * 5


def test_a_journal_that_ends_in_half_a_line_continues(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    Journal(path).add(TEXT)
    Journal(path).add(replace(TEXT, turn=2))
    path.write_text(path.read_text()[:-20])
    journal = Journal(path)
    assert list(journal.texts.values()) == [TEXT]
    journal.add(replace(TEXT, turn=3))
    assert [text.turn for text in Journal(path).texts.values()] == [1, 3]


def test_a_series_is_compared_text_by_text() -> None:
    """Of the slowest text, the median of its series counts."""
    rates = {i: [first, 10.0, 10.0, 10.0, 12.0] for i, first in enumerate((9.0, 8.0, 20.0))}
    found = [replace(text, series=i) for i, duo in rates.items() for text in texts({"duo": duo, "other": [10.0] * 5})]
    line = by_text("duo", found, [str(i) for i in range(5)])[2]
    assert [cell.strip().split(" ")[0] for cell in line.strip("| ").split("|")] == [
        "other", "15", "1.031", "1.063", "0.90", "1",
    ]  # fmt: skip
    assert by_text("nobody", found, []) == []


def test_only_names_a_contestant_or_several_that_begin_so(tmp_path: Path) -> None:
    path = Path()
    setup = Setup("", path, path, [], 1, 8, [], path, ["duo", "llama"], tmp_path, ExitStack())
    found = [Contestant(name, cast(Any, None)) for name in ("duo", "duo off", "llama a", "llama b", "other")]
    assert [each.name for each in setup.chosen(found)] == ["duo", "llama a", "llama b"]
    assert setup.chosen(found) != (all_of_them := replace(setup, only=()).chosen(found))
    assert all_of_them == found


@pytest.mark.parametrize(("first_texts", "known"), [(False, [0, 1, 0, 1]), (True, [0, 0, 0, 0])])
def test_a_series_begins_with_an_empty_profile_and_a_first_text_has_one(
    tmp_path: Path, first_texts: bool, known: list[int]
) -> None:
    """Also that of a contestant that a journal has not had before, and under other circumstances."""
    profiles, found = tmp_path / "profiles", dict[str, list[int]]()

    def writing(name: str) -> Contestant:
        def write(_job: Job, _stop: threading.Event) -> Run:
            (profiles / name).mkdir(exist_ok=True)
            found.setdefault(name, []).append(len(list((profiles / name).iterdir())))
            (profiles / name / f"{len(found[name])}").touch()
            return Run("text", 9, 1.0, {"first_token_s": 1.0})

        return Contestant(name, write)

    target, draft = demo_pair()
    setup = Setup("pair", target, draft, [], 2, 8, [], tmp_path, (), tmp_path, ExitStack(), first_texts=first_texts)
    journal = Journal(tmp_path / "texts.jsonl")
    questions = [Question("1", "qa", ["One?"]), Question("2", "qa", ["Two?"])]
    for _ in range(2):  # the second time, nothing is missing
        assert write_all(setup, questions, [writing("duo")], journal, profiles)
    assert [(text.series, text.question) for text in journal.texts.values()] == [(1, "1"), (1, "2"), (2, "1"), (2, "2")]
    (profiles / "lookup").mkdir()
    (profiles / "lookup" / "of another series").touch()
    assert write_all(setup, questions, [writing("duo"), writing("lookup")], journal, profiles)
    assert found == {"duo": known, "lookup": known}
    assert write_all(replace(setup, bursts=True), questions, [writing("duo")], journal, profiles)
    assert found["duo"] == known * 2


def test_the_token_that_ends_a_text_of_llama_server_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted, but has no text: without its time, a text of 15 tokens would be 7 % faster."""
    seconds = iter([0.0, 1.0, 2.0, 3.0])
    timings = {"predicted_n": 3, "prompt_per_second": 1.0}
    events: list[dict[str, Any]] = [{"content": "a"}, {"content": "b"}, {"content": "", "timings": timings}]

    def streamed(*_: object) -> Iterator[dict[str, Any]]:
        yield from events

    monkeypatch.setattr(servers, "streamed", streamed)
    monkeypatch.setattr("benchmarks.servers.time.monotonic", lambda: next(seconds))
    job = Job(Path("target"), None, "", Path("prompt"), 8, 512, may_end=True)
    run = LlamaServer(cast(Setup, None), [], url="http://server")(job, threading.Event())
    assert (run.tokens, run.tokens_per_s, run.figures["first_token_s"]) == (3, 1.0, 1.0)
