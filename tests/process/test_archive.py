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
from duo.errors import UsageError
from duo.llama import child
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from tests.command import ROOT, environment
from tests.gguf_files import tiny_llama

START = ROOT / "archive" / "start.py"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program like that of an archive; this process believes to be one of its processes."""
    path = tmp_path / "duo"
    calls = tmp_path / "calls"
    path.write_text(f'#!/bin/sh\necho "$*" >> "{calls}"\nexec "{sys.executable}" "{START}" "$@"\n')
    path.chmod(0o755)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return calls


def test_processes_of_a_program(program: Path, tmp_path: Path) -> None:
    tiny = tiny_llama(tmp_path / "tiny.gguf")
    grammar = schema_grammar('{"const": "bed of an archive"}', "schema")
    assert "bed of an archive" in grammar
    with pytest.raises(UsageError, match="schema is not valid JSON"):
        schema_grammar('{"archive": ', "schema")
    with closing(Model(ModelConfig(tiny))) as model, closing(Grammar(model, 'root ::= "a"')) as constraint:
        assert sum(constraint.allows(token) for token in range(model.n_vocab)) > 0
    assert read_installation().build.failure is None
    called = [line.split()[:2] for line in program.read_text().splitlines()]
    modules = ("llama.convert_schema:main",) * 2 + ("llama.grammar_process:main", "cli.installation:print_build")
    assert called == [["--call", f"duo.{module}"] for module in modules]


def test_other_programs_get_the_users_environment() -> None:
    code = ("--call", "tests.process.test_archive:print_environment", "x")
    packed = {"_PYI_ARCHIVE_FILE": "/a", "_PYI_PARENT_PROCESS_LEVEL": "1", "LD_LIBRARY_PATH": "/a/_internal"}
    for before in ({}, {"LD_LIBRARY_PATH_ORIG": "/mine"}):
        done = subprocess.run(
            [sys.executable, START, *code], env=environment() | packed | before, capture_output=True, check=True
        )
        arguments, left = json.loads(done.stdout)
        assert arguments == ["x"]
        assert {name: left[name] for name in left if name in packed | before} == (
            {"LD_LIBRARY_PATH": "/mine"} if before else {}
        )


def print_environment() -> None:
    """Runs in the process."""
    sys.stdout.write(json.dumps([sys.argv[1:], dict(os.environ)]))


def test_without_a_call_it_is_duo() -> None:
    done = subprocess.run(
        [sys.executable, START, "--version"], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("duo ")
    assert child.CALL not in done.stdout
