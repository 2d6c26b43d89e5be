"""What an archive of `make archive` does differently: its program is duo, and Python too.

`make archive` itself takes too long for a test: it ends with archive/try.py, which tries the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from duo.cli.installation import read_installation
from duo.config import ModelConfig
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from tests.command import ROOT, environment
from tests.gguf_files import tiny_llama

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
    with closing(Model(ModelConfig(tiny))) as model, closing(Grammar(model, 'root ::= "a"')) as constraint:
        assert sum(constraint.allows(token) for token in range(model.n_vocab)) > 0
    assert read_installation().build.failure is None
    called = [line.split()[:2] for line in calls.read_text().splitlines()]
    modules = ("llama.convert_schema:main", "llama.grammar_process:main", "cli.installation:print_build")
    assert called == [["--call", f"duo.{module}"] for module in modules]


def test_other_programs_get_the_users_environment() -> None:
    code = ("--call", "tests.process.test_archive:print_environment", "x")
    packed = {"_PYI_ARCHIVE_FILE": "/a", "_PYI_PARENT_PROCESS_LEVEL": "1", "LD_LIBRARY_PATH": "/a/_internal"}
    for before, after in (({}, {}), ({"LD_LIBRARY_PATH_ORIG": "/mine"}, {"LD_LIBRARY_PATH": "/mine"})):
        env = environment() | packed | before
        done = subprocess.run([sys.executable, START, *code], env=env, capture_output=True, check=True)
        arguments, left = json.loads(done.stdout)
        assert arguments == ["x"]
        assert {name: left[name] for name in left if name in packed | before} == after


def print_environment() -> None:
    """Runs in the process."""
    sys.stdout.write(json.dumps([sys.argv[1:], dict(os.environ)]))


def test_without_a_call_it_is_duo() -> None:
    done = subprocess.run([sys.executable, START, "--version"], env=environment(), capture_output=True, check=True)
    assert done.stdout.startswith(b"duo ")
