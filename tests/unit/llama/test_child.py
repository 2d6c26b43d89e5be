"""Processes of duo: their command lines, from Python and from an archive."""

import subprocess
import sys
from pathlib import Path

import pytest

from duo.errors import BusyError
from duo.llama import child


def test_a_function_of_a_module_gets_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('from the current directory')")
    command = child.call("json.tool", "--compact", "-", function="main")
    done = subprocess.run(command, input="[1, 2]", capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.stdout, done.stderr) == ("[1,2]\n", "")


def test_in_an_archive_the_program_is_duo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/opt/duo/duo")
    assert child.call("duo.remote.process", "{}") == ["/opt/duo/duo", "--call", "duo.remote.process:main", "{}"]
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(BusyError, match="not known where"):
        child.call("duo.remote.process")
