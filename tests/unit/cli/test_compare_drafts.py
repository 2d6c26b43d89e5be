"""`duo tune` without -md: which drafts it finds and leaves out, and what it prints."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duo.diagnose.measure import SIZES
from duo.engine.statistics import StepRecord
from duo.speculation.modes import Schedule
from tests.command import Argument, Run
from tests.gguf_files import tiny_hybrid, tiny_llama
from tests.unit.cli.runner import duo

ANNOUNCED = r"duo: measuring takes about \d+ s for the target and as much for each draft, at most \d+ s each"


@pytest.fixture(autouse=True)
def no_downloads(instant: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tiny model in a large file."""
    path = tiny_llama(tmp_path / "large target.gguf", seed=2)
    path.write_bytes(path.read_bytes() + bytes(4 * path.stat().st_size))
    return path


@pytest.fixture
def run(tmp_path: Path, large: Path) -> Callable[..., Run]:
    """Runs the command with empty caches."""

    def run(*arguments: Argument, model: Path = large) -> Run:
        env = {"DUO_CACHE": str(tmp_path / "cache")}
        found = duo("tune", "-m", model, "-n", "8", "-p", "the cat sat", *arguments, env=env)
        said, _, rest = found.stderr.partition("\n")
        if re.fullmatch(ANNOUNCED, said):
            found = replace(found, stderr=rest)
        return found

    return run


def table(text: str) -> dict[str, list[str]]:
    """The cells of each row of the table, by the name of the draft."""
    rows = [line.split() for line in text.partition("\n\n")[0].splitlines()[1:]]
    assert [row[0] for row in rows] == [str(i + 1) for i in range(len(rows))]
    return {row[1]: row[2:] for row in rows}


def test_a_table_of_drafts_and_the_command_to_use(run: Callable[..., Run], tmp_path: Path, large: Path) -> None:
    (tmp_path / "drafts").mkdir()
    zebra = tiny_llama(tmp_path / "drafts" / "zebra.gguf", seed=2)
    tiny_llama(tmp_path / "drafts" / "other.gguf", words=("▁cat", "▁the", "▁", "a", "b", "c"))
    report = tmp_path / "figures.json"
    found = run(tmp_path / "drafts", "--json", report)
    assert (found.status, found.stderr) == (0, "")
    rows = table(found.text)
    assert rows.keys() == {"zebra.gguf", "other.gguf", "lookup", "none"}
    assert next(iter(rows)) == "zebra.gguf"
    assert rows["zebra.gguf"][2:4] == ["shared", "5.00"]
    assert rows["zebra.gguf"][-3] == "async"
    assert "translated" in rows["other.gguf"]
    assert rows["none"] == ["off", "10.00", "1.00×"]
    assert found.text.endswith(f"Fastest: duo -m {shlex.quote(str(large))} -md {zebra}\n")

    figures = json.loads(report.read_text())
    assert figures["target_ms"] == pytest.approx([100.0] * len(SIZES))
    assert (figures["texts"][0]["tokens"] <= 8, figures["skipped"]) == (True, [])
    ranking: list[dict[str, Any]] = figures["ranking"]
    assert [row["name"] for row in ranking] == list(rows)
    assert [row["gain"] for row in ranking] == sorted((row["gain"] for row in ranking), reverse=True)
    assert (ranking[0]["path"], ranking[0]["vocabulary"], ranking[0]["acceptance"]) == (str(zebra), "shared", 1.0)
    assert ranking[0]["forecast_tokens_per_s"]["off"] == pytest.approx(10)


def test_what_is_no_draft_is_left_out_with_the_reason(
    run: Callable[..., Run], tmp_path: Path, tiny: Path, recurrent: Path, large: Path
) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny.read_bytes()[:-1000])
    missing, big = tmp_path / "missing.gguf", tiny_llama(tmp_path / "big.gguf", padding=2000)
    report = tmp_path / "figures.json"
    found = run(tmp_path / "notes.txt", missing, damaged, big, recurrent, tiny, "--json", report)
    assert found.status == 0
    assert table(found.text).keys() == {"tiny.gguf", "lookup", "none"}
    skipped = json.loads(report.read_text())["skipped"]
    assert found.stderr.splitlines() == [f"duo: {one['path']} is left out: {one['reason']}" for one in skipped]
    expected = {
        tmp_path / "notes.txt": "not a GGUF file",
        missing: "no such file",
        damaged: "truncated",
        big: "more than half of the target's",
        recurrent: "cannot roll back",
    }
    assert [one["path"] for one in skipped] == [str(path) for path in expected]
    assert all(words in one["reason"] for one, words in zip(skipped, expected.values(), strict=True))


def test_without_a_draft_the_text_itself_is_compared(run: Callable[..., Run], large: Path) -> None:
    found = run()
    assert found.status == 0
    assert found.stderr == "duo: there is no draft to compare: name GGUF files, or folders with some\n"
    assert table(found.text).keys() == {"lookup", "none"}
    assert f"Fastest: duo -m {shlex.quote(str(large))} (" in found.text


def test_a_text_that_repeats_itself_is_said(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lookups are worth what the decodes of their batches cost, here as much as any."""
    steps = [StepRecord(0, 0, n - 1, n - 1, n, Schedule.OFF) for n in (1, 4, 2)]
    text = SimpleNamespace(tokens=[262, 263] * 32, statistics=SimpleNamespace(verified=4, accepted=4))
    monkeypatch.setattr("duo.cli.commands.compare_drafts.write", lambda *_: (text, steps))
    found = run("-p", "a dog")
    assert "duo: 2 of 2 texts repeat themselves" in found.stderr
    assert table(found.text)["lookup"] == ["100", "%", "off", "30.00", "3.00×"]


def test_a_hybrid_target_verifies_no_more_than_it_can_roll_back(run: Callable[..., Run], tmp_path: Path) -> None:
    target, draft = tiny_hybrid(tmp_path / "hybrid.gguf"), tiny_llama(tmp_path / "draft.gguf")
    target.write_bytes(target.read_bytes() + bytes(4 * draft.stat().st_size))
    assert table(run(draft, model=target).text).keys() == {"draft.gguf", "lookup", "none"}


# The table


def test_a_draft_of_the_family_is_named_where_none_pays(
    run: Callable[..., Run], instant: dict[str, float], tiny: Path, large: Path
) -> None:
    instant["draft"] = 0.2
    target = large.rename(large.with_name("Qwen3-8B-Q4_K_M.gguf"))
    said = run(model=target).text.splitlines()[-1]
    assert said.startswith("For Qwen3, a draft with the same vocabulary is Qwen/Qwen3-0.6B-GGUF:Q8_0 on Hugging Face.")
    assert said.endswith(f" To compare it: duo tune -m {target} -hfd Qwen/Qwen3-0.6B-GGUF:Q8_0")
    tried = tiny.with_name("Qwen3-0.6B-Q8_0.gguf")
    tried.symlink_to(tiny)
    assert run(tried, model=target).text.splitlines()[-1].startswith("Fastest: ")
    oss = target.rename(target.with_name("gpt-oss-20b.gguf"))
    assert run(model=oss).text.splitlines()[-1].endswith("no small model has its vocabulary.")
