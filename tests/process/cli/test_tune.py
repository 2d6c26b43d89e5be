"""`duo tune`: what it measures of a pair, says about it, and keeps for later runs."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.command import ONE_CORE, Argument, assert_refused, duo, models
from tests.process.cli.terminal import CTRL_C, Terminal
from tests.unit.cli.table import table

# Code for `before`: says on stdout what is measured.
ANNOUNCE = f"""{ONE_CORE}
from duo.diagnose.measure import Meter
begin = Meter._begin
def announce(self, what):
    print("now: " + what, flush=True)
    begin(self, what)
Meter._begin = announce
"""
# Code for `before`: the draft is slow.
SLOW_DRAFT = f"""{ONE_CORE}
import time
from duo.llama.context import Context
init, decode = Context.__init__, Context.decode
def remember(self, model, config):
    init(self, model, config)
    self.delay_s = 0.01 if model.path.name == "draft.gguf" else 0
def slowly(self, *arguments, **more):
    time.sleep(self.delay_s)
    return decode(self, *arguments, **more)
Context.__init__, Context.decode = remember, slowly
"""
PHASES = ("the draft on 1 ", "the target on 1 ", "both on 1 + 1 ", "how often the draft")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"DUO_CONFIG": str(tmp_path / "config")}


def kept(env: dict[str, str]) -> list[Path]:
    return [path for path in Path(env["DUO_CONFIG"]).rglob("*") if path.is_file()]


@pytest.mark.usefixtures("demo_pair")
def test_it_advises_and_keeps_what_plain_duo_then_finds(tmp_path: Path, env: dict[str, str]) -> None:
    run = duo("tune", before=ONE_CORE, env=env)
    assert (run.status, run.stderr.count("\n")) == (0, 1), run.stderr
    assert "no model was named" in run.stderr
    measured, predictions, advice = run.text.split("\n\n")
    for words in ("ms for so many tokens at once", "target, 1 thread", "draft, 1 thread", "guesses were right"):
        assert words in measured
    rows, best = table(predictions)
    assert rows["plain"].rate > 0
    said, flags, where = advice.splitlines()
    gain = max(rows["taking turns"].rate, rows["overlapped"].rate) / rows["plain"].rate
    if gain > 1.03:
        assert said.startswith("This draft helps here: about ")
        assert flags.startswith(f"Flags: {best.split('; ')[0][len('best: ') :]} (with 1 and 1 threads")
    if gain < 1.01:
        assert said.startswith("This draft does not help here: ")
        assert flags.startswith("Flags: --schedule off")
    (profile,) = kept(env)
    # On a busy machine a larger batch may look cheaper than a single token: what costs more than that is not believed.
    times = [value for value, _ in json.loads(profile.read_text())["policy"]["alone"]["target_s"].values()]
    assert rows["plain"].rate == pytest.approx(1 / times[0], rel=0.01), "what is predicted is what is kept"
    assert where == f"This is kept in {profile}; duo begins with it (--no-profile leaves it out)."

    report = tmp_path / "run.json"
    found = duo("-p", "A clock ticks", "-n", "1", "--json", report, before=ONE_CORE, env=env)
    assert (found.status, found.warnings) == (0, [])
    curve = json.loads(report.read_text())["policy"]["curve_ms"]["alone"]
    assert curve[0] == pytest.approx(1000 * min(times), rel=0.01), "and what it begins with"
    assert len(set(curve)) > 3, "many sizes were measured, none is known from this run"
    assert kept(env) == [profile]


def test_the_threads_that_it_finds_are_those_of_plain_duo(tiny: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """Two cores in the profile, whatever the machine has: what was kept there is what is used."""
    two = "import duo.engine.cores as cores; cores.usable_cores = lambda: 2"
    for module in ("duo.engine.threads", "duo.loading", "duo.cli.commands.tune"):
        two += f"; import {module}; {module}.usable_cores = lambda: 2"
    arguments = (*models(tiny, tiny), "-p", "the cat", "-n", "8", "--ignore-eos")
    report = tmp_path / "run.json"
    assert duo(*arguments, before=two, env=env).status == 0
    (profile,) = kept(env)
    document = json.loads(profile.read_text())
    profile.write_text(json.dumps(document | {"threads": {"target": 1, "draft": 2, "beside": [2, 2]}}))
    assert duo(*arguments, "--json", report, before=two, env=env).status == 0
    threads = json.loads(report.read_text())["threads"]
    assert (threads["target"], threads["draft"], threads["beside"]) == (1, [2], [2, 2])
    assert json.loads(profile.read_text())["threads"] == {"target": 1, "draft": 2, "beside": [2, 2]}, "and kept"


def test_a_slow_draft_is_no_help_however_right_it_is(tiny: Path, tmp_path: Path, env: dict[str, str]) -> None:
    draft = Path(shutil.copy(tiny, tmp_path / "draft.gguf"))
    run = duo("tune", *models(tiny, draft), before=SLOW_DRAFT, env=env)
    assert (run.status, run.stderr) == (0, "")
    assert "100 % of the draft's guesses were right" in run.text
    assert "This draft does not help here: " in run.text
    assert "Flags: --schedule off, or leave out -md" in run.text


def test_models_that_cannot_be_verified_ahead(tiny: Path, recurrent: Path, env: dict[str, str]) -> None:
    for target, draft in ((tiny, recurrent), (recurrent, tiny)):
        run = duo("tune", *models(target, draft), before=ONE_CORE, env=env)
        assert (run.status, run.stdout) == (0, b"")
        assert run.stderr.count("\n") == 1
        assert "a draft is of no use" in run.stderr
    assert kept(env) == []


def test_a_directory_that_cannot_be_written(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    run = duo("tune", *models(tiny, tiny), before=ONE_CORE, env={"DUO_CONFIG": f"{tmp_path}/file/config"})
    assert run.status == 1
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith(f"duo: error: the profile {tmp_path}/file/config")


# What cannot be meant


def test_nothing_to_tune(tiny: Path) -> None:
    assert_refused(duo("tune", "-m", tiny), "nothing to tune without a draft: name one with -md or -hfd", status=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune", "-md", "draft.gguf"], "a draft without a target"),
        (["tune", "-m", "a.gguf", "-hf", "user/repo", "-md", "b.gguf"], "-m and -hf both name the target"),
        (["tune", "-fa", "maybe"], "'maybe' is not one of"),
        (["tune", "-n", "7"], "No such option: -n"),
        (["tune", "nonsense"], "nonsense"),
        (["-m", "a.gguf", "-md", "b.gguf", "tune"], "options of `duo tune` stand after `tune`"),
    ],
)
def test_options_that_cannot_be_meant(arguments: list[Argument], said: str) -> None:
    assert_refused(duo(*arguments), said, status=2)


def test_models_that_are_not_there(tiny: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    assert_refused(duo("tune", "-m", tiny, "-md", missing), f"{missing}: no such file")


def test_a_typed_model_wins_over_the_environment(tiny: Path, tmp_path: Path) -> None:
    run = duo("tune", "-m", tiny, "-md", tmp_path / "missing.gguf", env={"LLAMA_ARG_HF_REPO": "user/repo"})
    assert_refused(run, "missing.gguf: no such file")


# Interruptions


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_ends_it_in_every_phase(tiny: Path, env: dict[str, str], phase: str) -> None:
    with Terminal("tune", *models(tiny, tiny), before=ANNOUNCE, env=env) as terminal:
        terminal.read_until(b"now: " + phase.encode())
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
        assert terminal.stderr == "duo: interrupted: nothing was kept\n"
    assert all(line.startswith(b"now: ") for line in terminal.shown.splitlines())
    assert kept(env) == []


def test_sigterm_ends_it_too(tiny: Path, env: dict[str, str]) -> None:
    with Terminal("tune", *models(tiny, tiny), before=ANNOUNCE, env=env) as terminal:
        terminal.read_until(b"now: both")
        terminal.process.terminate()
        assert terminal.finish() == 128 + signal.SIGTERM
        assert terminal.stderr == "duo: interrupted: nothing was kept\n"
    assert kept(env) == []


def test_progress_is_shown_on_a_terminal_only(tiny: Path, env: dict[str, str]) -> None:
    with Terminal("tune", *models(tiny, tiny), before=ONE_CORE, stderr_too=True, env=env) as terminal:
        terminal.read_until(b"the target on 1 threads")
        terminal.type(CTRL_C)
        assert terminal.finish() == 130
    assert b"duo: interrupted: nothing was kept" in terminal.shown.rpartition(b"\x1b[2K")[2], "the bar is wiped out"
