"""What a fresh process does before any model is loaded: fast commands import no llama.cpp, and bash completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import environment

# Each is run by main() in one fresh process, which ends by telling what was imported.
IMPORTS = """
import os, sys
from duo.cli.main import main
for arguments in (["--help"], ["plan", "--help"], ["-n", "x"], ["tune", "--x"], ["chat", "ftp://a"]):
    sys.argv = ["duo", *arguments]
    try:
        main()
    except SystemExit:
        pass
os.environ |= {"_DUO_COMPLETE": "complete_bash", "COMP_WORDS": "duo -ng", "COMP_CWORD": "1"}
sys.argv = ["duo"]
try:
    main()
except SystemExit:
    print(sorted({"llama_cpp", "huggingface_hub", "matplotlib", "uvicorn"} & set(sys.modules)), file=sys.stderr)
"""

# What bash does when Tab is pressed in the last of these words.
BASH = """
eval "$(_DUO_COMPLETE=source_bash duo)"
for words in "$@"; do
    IFS='|' read -r -a COMP_WORDS <<< "$words|"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _duo_completion duo
    echo "${COMPREPLY[@]}"
done
"""


def test_help_usage_errors_and_completion_do_not_import_llama_cpp() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environment(), capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.endswith("-ngl\n-ngld\n")
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_choices_and_leaves_files_to_itself() -> None:
    expected = {
        "duo|be": "bench",
        "duo|bench|--mo": "--model --model-draft --modes",
        r"duo|-m|some\ model.gguf|--schedule|a": "auto async",
        "duo|tune|-sm|": "none layer row tensor",
        "duo|-m|ma": "",
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", *expected],
        env=environment({"PATH": path}), capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert done.stderr == ""
    assert dict(zip(expected, done.stdout.split("\n"), strict=False)) == expected
