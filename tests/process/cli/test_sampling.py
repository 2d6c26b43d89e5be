"""Sampling from the command line: seeds, penalties, biases and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import ONE_EACH, Argument, assert_refused, duo, models

PROMPT = ("-p", "Once upon a time", "-n", "24", "--ignore-eos", *ONE_EACH)


def text(*arguments: Argument) -> bytes:
    run = duo(*PROMPT, *arguments)
    assert (run.status, run.warnings) == (0, []), run.stderr
    return run.stdout


def test_the_seed_decides_the_text_and_the_draft_does_not(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    sampled = ("-m", target, "--exact", "--temp", "0.9", "-s")
    alone = text(*sampled, "7")
    assert alone != text(*sampled, "8")
    for more in (("--draft", "2"), ("--schedule", "async"), ("--schedule", "sync", "--draft", "6")):
        assert text(*sampled, "7", "-md", draft, *more) == alone


def test_a_seed_that_was_not_asked_for_is_told_and_gives_the_same_text_again(tiny: Path, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    hot = ("-m", tiny, "--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0")
    first = text(*hot, "--json", report)
    sampling = json.loads(report.read_text())["sampling"]
    assert sampling["temperature"] == 3
    assert text(*hot, "-s", str(sampling["seed"])) == first
    assert text(*hot) != first, "each run has a seed of its own"
    assert f"seed {sampling['seed']}" not in duo("-m", tiny, *PROMPT).stderr, "greedy text needs none"


def test_rejection_sampling_writes_and_says_so(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    report = tmp_path / "run.json"
    arguments = ("-m", target, "-md", draft, "--temp", "0.9", "-s", "3", "--verify", "rejection", "--schedule", "sync")
    run = duo(*PROMPT, *arguments, "--draft", "4", "--json", report)
    assert (run.status, run.n_tokens) == (0, 24)
    assert "temperature 0.9, seed 3, rejection" in run.stderr
    assert json.loads(report.read_text())["draft"]["accepted"] > 0


def test_at_temperature_0_both_ways_of_verifying_are_the_same(tiny: Path) -> None:
    assert text(*models(tiny, tiny), "--verify", "rejection") == text("-m", tiny)


def test_bias_and_penalties_change_the_text_and_the_draft_follows(tiny: Path) -> None:
    plain = text("-m", tiny)
    for change in (("--repeat-penalty", "2"), ("--presence-penalty", "9"), ("--frequency-penalty", "5")):
        changed = text("-m", tiny, *change)
        assert changed != plain
        assert text(*models(tiny, tiny), *change) == changed
        assert text("-m", tiny, *change, "--repeat-last-n", "0") == plain


def test_a_banned_token_does_not_come(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    first = text("-m", target, "-n", "1")
    from duo.config import ModelConfig
    from duo.llama.model import Model

    model = Model(ModelConfig(target))
    (token,) = model.tokenize(first.decode())
    model.close()
    assert text("-m", target, "-md", draft, "-n", "1", "-l", f"{token}-inf") != first
    assert text("-m", target, "-md", draft, "-n", "3", "-l", f"{token}+100") == first * 3


def test_a_token_that_the_vocabulary_does_not_have(tiny: Path) -> None:
    run = duo("-m", tiny, "-p", "the", "-n", "1", "-l", "999999+1")
    assert_refused(run, "--logit-bias: no token 999999 in a vocabulary of", status=2)


def test_the_environment_sets_the_temperature(tiny: Path) -> None:
    hot = {"LLAMA_ARG_TEMPERATURE": "2.5"}
    run = duo("-m", tiny, "-p", "the", "-n", "4", "-t", "1", "-s", "5", env=hot)
    assert "temperature 2.5, seed 5, coupled" in run.stderr


# Grammars


DATE = 'root ::= [0-9] [0-9] "." [0-9] [0-9] "." [0-9] [0-9] [0-9] [0-9]'


@pytest.mark.parametrize("temperature", ["0", "1.3"])
@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_a_grammar_is_obeyed_to_its_end(demo_pair: tuple[Path, Path], temperature: str, verify: str) -> None:
    import re

    target, draft = demo_pair
    arguments = ("-m", target, "-p", "The war ended on", "-n", "40", *ONE_EACH, "--temp", temperature, "-s", "4")
    alone = duo(*arguments, "--grammar", DATE, "--exact")
    run = duo(*arguments, "-md", draft, "--grammar", DATE, "--verify", verify, "--exact", "--schedule", "sync")
    assert (run.status, alone.status) == (0, 0)
    assert re.fullmatch(r"\d\d\.\d\d\.\d{4}", run.text)
    if verify == "coupled" or temperature == "0":
        assert run.text == alone.text


def test_json_of_a_schema_always_parses(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    target, draft = demo_pair
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
    }
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    for seed in ("1", "2", "3"):
        arguments = ("-p", "A person: ", "-n", "120", *ONE_EACH, "--temp", "0.9", "-s", seed, "--exact")
        run = duo("-m", target, "-md", draft, *arguments, "-jf", file)
        found = json.loads(run.text)
        assert set(found) == {"name", "age"}
        assert isinstance(found["age"], int)
        assert duo("-m", target, *arguments, "-j", json.dumps(schema)).text == run.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--grammar", "root := nonsense"), "the grammar cannot be used: "),
        (("--grammar", 'line ::= "a"'), "the grammar cannot be used: "),
        (("--grammar", " "), "the grammar cannot be used: it is empty"),
        (("-j", "{"), "-j is no JSON: "),
        (("-j", '{"type": "nonsense"}'), "-j is no JSON schema that can be used: "),
    ],
)
def test_a_grammar_that_is_none(tiny: Path, arguments: tuple[str, ...], said: str) -> None:
    assert_refused(duo("-m", tiny, "-p", "the", "-n", "1", *arguments), said, status=2)


def test_a_text_whose_grammar_is_at_its_end_is_kept(demo_pair: tuple[Path, Path]) -> None:
    """The model may not end its text, and the grammar allows no more: with a draft the same is written as without."""
    target, draft = demo_pair
    arguments = ("-m", target, "-p", "The war ended on", "-n", "40", *ONE_EACH, "--grammar", DATE, "--exact")
    alone = duo(*arguments, "--ignore-eos")
    assert (alone.status, len(alone.text)) == (0, len("01.01.1900"))
    assert "stopped: the grammar allows nothing more" in alone.stderr
    assert duo(*arguments, "--ignore-eos", "-md", draft, "--schedule", "sync", "--draft", "6").text == alone.text


def test_bytes_that_are_no_text(tiny: Path) -> None:
    run = duo("-m", tiny, "-p", "the", "-n", "1", "--grammar", b'root ::= "\xff"')
    assert_refused(run, "--grammar is not valid UTF-8: byte 0xff", status=1)


def test_samplers_that_only_llama_cpp_has_are_left_out(tiny: Path) -> None:
    theirs = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    run = duo("-m", tiny, *PROMPT, "--samplers", theirs, "--temp", "0.9", "-s", "1")
    assert run.stdout == text("-m", tiny, "--temp", "0.9", "-s", "1")
    assert [line.split("duo has no ")[1].split(";")[0] for line in run.warnings] == ["dry", "top_n_sigma", "xtc"]


def test_the_report_is_json_that_anybody_can_read(tiny: Path, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    text("-m", tiny, "-l", "5-inf", "--json", report)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    json.loads(report.read_text(), parse_constant=refuse)


def test_what_each_way_of_sampling_learns_is_kept_apart(tiny: Path, tmp_path: Path) -> None:
    env = {"DUO_CONFIG": str(tmp_path)}
    for more in ((), ("--temp", "0.8"), ("--temp", "0.8", "--verify", "rejection")):
        assert duo(*models(tiny, tiny), *PROMPT, *more, env=env).status == 0
    (profile,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert set(json.loads(profile.read_text())["policy"]["acceptance"]) == {"greedy", "coupled", "rejection"}


def test_a_grammar_file_that_is_not_there(tiny: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no.gbnf"
    run = duo("-m", tiny, "-p", "the", "-n", "1", "--grammar-file", missing)
    assert_refused(run, f"{missing}: no such file", status=1)
