"""What is built: a wheel that works where there is no checkout, an archive, and the laboratory, benchmarks/."""

import json
import os
import sys
import sysconfig
import venv
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from duo import __version__
from duo.cli.installation import read_installation
from duo.config import ModelConfig
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from tests.command import ROOT, Argument, run
from tests.gguf_files import tiny_llama


def run_outside(folder: Path, *words: Argument) -> str:
    """What it writes to stdout, run in `folder` and with nothing of the checkout to import."""
    done = run("env", "-u", "PYTHONPATH", *words, cwd=folder)
    assert done.status == 0, done.text + done.stderr
    return done.text


def test_the_wheel_has_all_that_it_needs_and_works_anywhere(tmp_path: Path) -> None:
    """Built like a release, from the source distribution, with the tools and the dependencies of the tests."""
    dist, installed = tmp_path / "dist", tmp_path / "installed"
    run_outside(tmp_path, sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT)
    (wheel,) = dist.glob("*.whl")
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "duo").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in files if "__pycache__" not in name}

    venv.create(installed)
    python = installed / "bin" / "python"
    run_outside(tmp_path, sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    (packages,) = installed.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert run_outside(tmp_path, installed / "bin" / "duo", "--version").startswith(f"duo {__version__}\n")
    code = (
        "import duo; from duo.server.lead_server import ASSETS; from duo.bench.rounds import built_in\n"
        "print(duo.__file__, len(built_in()), *(file.name for file in ASSETS.iterdir()))"
    )
    where, n_prompts, *names = run_outside(tmp_path, python, "-c", code).split()
    assert Path(where).is_relative_to(installed)
    assert int(n_prompts) > 0
    assert {"index.html", "style.css", "app.js"} <= set(names)


# An archive of `make archive`: its program is duo, and Python too; archive/try.py tries a real one

START = ROOT / "archive" / "start.py"


def test_processes_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process believes to be one of an archive, and its program notes how it was called."""
    path, calls = tmp_path / "duo", tmp_path / "calls"
    path.write_text(f'#!/bin/sh\necho "$*" >> "{calls}"\nexec "{sys.executable}" "{START}" "$@"\n')
    path.chmod(0o755)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert "bed of an archive" in schema_grammar('{"const": "bed of an archive"}', "schema")
    tiny = tiny_llama(tmp_path / "tiny.gguf")
    with closing(Model(ModelConfig(tiny))) as model:
        constraint = Grammar(model, 'root ::= "a"')
        assert sum(constraint.allows(token) for token in range(model.n_vocab)) > 0
    assert read_installation().build.failure is None
    called = [line.split()[:2] for line in calls.read_text().splitlines()]
    modules = ("llama.json_schema:main", "llama.grammar_process:main", "cli.installation:print_build")
    assert called == [["--call", f"duo.{module}"] for module in modules]


def test_other_programs_get_the_users_environment() -> None:
    code = ("--call", "tests.process.test_packaging:print_environment", "x")
    packed = {"_PYI_ARCHIVE_FILE": "/a", "_PYI_PARENT_PROCESS_LEVEL": "1", "LD_LIBRARY_PATH": "/a/_internal"}
    for before, after in (({}, {}), ({"LD_LIBRARY_PATH_ORIG": "/mine"}, {"LD_LIBRARY_PATH": "/mine"})):
        arguments, left = json.loads(run(sys.executable, START, *code, env=packed | before).text)
        assert arguments == ["x"]
        assert {name: left[name] for name in left if name in packed | before} == after


def print_environment() -> None:
    """Runs in the process."""
    sys.stdout.write(json.dumps([sys.argv[1:], dict(os.environ)]))


# benchmarks/: that it runs; its figures are not tested


@pytest.mark.parametrize("scenario", ["link -n 8 -r 1 --only plain lead", "two-devices -n 8 -r 1 --machine FAR"])
def test_a_scenario_runs(tmp_path: Path, scenario: str) -> None:
    slow = {"target_ms": {"1": 60, "8": 80}, "draft_ms": 20, "apart": True, "delay_ms": 5}
    (tmp_path / "FAR").write_text(json.dumps({"name": "two machines", "pairs": {"far": slow}}), encoding="utf-8")
    tiny = tiny_llama(tmp_path / "tiny.gguf", seed=2, depth=0.02, chat_template="{{ messages[0].content }}")
    prompt, report = tmp_path / "prompt.txt", tmp_path / "out.json"
    prompt.write_text("the cat sat on the mat\n", encoding="utf-8")
    options = ("--models", tiny, tiny, "--prompts", prompt, "--json", report)
    words = scenario.replace("FAR", str(tmp_path / "FAR")).split()
    done = run(sys.executable, "-m", "benchmarks", *words, *options, cwd=ROOT)
    assert done.status in (0, 1), done.stderr  # 1: a bar is missed
    assert json.loads(report.read_text(encoding="utf-8"))["pairs"]["tiny"].get("complete", True)
    assert "| " in done.text or "- " in done.text
