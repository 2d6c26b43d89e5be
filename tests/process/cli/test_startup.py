"""What a fresh process does before any model is loaded: it imports little, Ctrl-C ends it, and bash completes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import command, duo, environment

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
    print(sorted({"llama_cpp", "huggingface_hub", "uvicorn"} & set(sys.modules)), file=sys.stderr)
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


def test_little_is_imported_before_ctrl_c_ends_the_process_quietly() -> None:
    """Until main() is called, Python answers it with a traceback."""
    code = "import sys; before = set(sys.modules); import duo.cli.main; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__future__", "_signal", "duo", "duo.cli", "duo.cli.main"}


def test_help_usage_errors_and_completion_do_not_import_llama_cpp() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environment(), capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.endswith("-ngl\n-ngld\n")
    assert done.stderr.splitlines()[-1] == "[]"


# What takes long to import, and is not needed to print versions or help.
SLOW = {
    "llama_cpp", "numpy", "pydantic", "jinja2", "httpx", "uvicorn", "websockets", "asyncio", "huggingface_hub",
    "prompt_toolkit", "packaging", "logging.handlers",
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import duo", {"logging", "typing", "enum"}),
        ("import duo.cli.main", {"logging", "typing", "enum", "signal", "typer"}),
        ("import duo.cli.app", SLOW | {"rich", "secrets"}),
        ("import duo.cli.commands.run", {"asyncio", "uvicorn", "starlette", "websockets", "httpx", "packaging"}),
        ("main()", SLOW | {"typer", "rich", "duo.config"}),
        ("main('--version')", SLOW | {"typer", "rich", "duo.config"}),
        ("main('--help')", SLOW),
        ("main('plan', '--help')", SLOW - {"pydantic"}),
    ],
)
def test_what_is_not_imported(code: str, unwanted: set[str]) -> None:
    begin = "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    begin += "def main(*words):\n import duo.cli.main; sys.argv = ['duo', *words]; duo.cli.main.main()\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + code], env=environment(), capture_output=True, text=True, check=True, timeout=300
    )
    imported = set(done.stderr.split())
    assert "duo" in imported
    assert unwanted & imported == set()


# Ctrl-C before a model is loaded, and after a command has ended

ENDED = (-signal.SIGINT, 128 + signal.SIGINT)  # a shell makes the second of the first

# SIGINT comes when a module is about to be imported.
IN_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "name",
    [
        "duo.cli.app", "typer", "duo.cli.options.by_command", "pydantic", "duo.cli.commands.run",
        "numpy", "llama_cpp", "duo.engine.engine", "rich.console",
    ],
)  # fmt: skip
def test_ctrl_c_while_a_module_is_imported(tiny: Path, name: str) -> None:
    run = duo("-m", tiny, "-t", "1", before=IN_IMPORT.format(name=name))
    assert run.status in ENDED
    assert (run.stdout, run.stderr) == (b"", "")


@pytest.mark.parametrize(
    "before",
    [
        "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT)",
        "import os, signal, threading, time\n"
        "def interrupt(): threading.main_thread().join(); os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
        "threading.Thread(target=interrupt).start()",
    ],
    ids=["atexit", "threads"],
)
def test_ctrl_c_while_the_interpreter_exits(tiny: Path, before: str) -> None:
    run = duo("-m", tiny, "-p", "x", "-n", "4", "-t", "1", before=before)
    assert run.status in ENDED
    assert run.n_tokens == 4
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("delay_s", [0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 1.6, 2.0])
def test_ctrl_c_at_any_moment(tiny: Path, delay_s: float) -> None:
    """The sleep is the time of the signal, since main() began: Python's own start-up is not in our hands."""
    begin = "import os, duo.cli.main; os.write(1, b'!')"
    arguments = command("-m", tiny, "-p", "x", "-n", "-1", "--ignore-eos", "-t", "1", before=begin)
    with subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == "!"
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode in (*ENDED, 0)
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert said == "" or said.endswith("\n"), "no half line"


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
