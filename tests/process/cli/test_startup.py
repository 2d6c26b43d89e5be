"""What a fresh process does before any model is loaded: it imports little, Ctrl-C ends it, and bash completes."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.command import assert_refused, command, duo, python, run

# What takes long to import, and is not needed to print versions or help.
SLOW = {
    "llama_cpp", "numpy", "pydantic", "jinja2", "httpx", "uvicorn", "websockets", "asyncio", "huggingface_hub",
    "prompt_toolkit", "packaging", "logging.handlers",
}  # fmt: skip

# Code of a process: main() with each of several lines of words, and what was imported in the end.
MAIN = """
import sys
def main(*lines):
    import duo.cli.main
    for line in lines:
        sys.argv = ["duo", *line.split()]
        try:
            duo.cli.main.main()
        except SystemExit:
            pass
"""


def imported_by(code: str) -> set[str]:
    """The modules that `code` imports."""
    tell = "before = set(sys.modules)\n{}\nprint(*sorted(set(sys.modules) - before), file=sys.stderr)"
    return set(python(MAIN + tell.format(code)).stderr.splitlines()[-1].split())


def test_little_is_imported_before_ctrl_c_ends_the_process_quietly() -> None:
    """Until main() is called, Python answers it with a traceback."""
    assert imported_by("import duo.cli.main") <= {"__future__", "_signal", "duo", "duo.cli", "duo.cli.main"}


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import duo", SLOW | {"logging", "typing", "enum"}),
        ("import duo.cli.commands.run", {"asyncio", "uvicorn", "starlette", "websockets", "httpx", "packaging"}),
        ("main('--version')", SLOW | {"typer", "rich", "duo.config"}),
        ("main('')", {"typer", "rich", "asyncio", "httpx", "uvicorn", "websockets"}),
        ("main('--help')", SLOW),
        ("main('plan --help', '-n x', 'tune --x', 'chat ftp://a')", {"llama_cpp", "huggingface_hub", "uvicorn"}),
    ],
)
def test_what_is_not_imported(code: str, unwanted: set[str]) -> None:
    assert unwanted & imported_by(code) == set()


# Limits of the system


@pytest.mark.parametrize("words", ["-p hi", "lead", "back", "list"])
def test_a_process_that_may_open_few_files_says_so(words: str) -> None:
    limited = ["bash", "-c", 'ulimit -n 5; exec "$@"', "-"]
    assert_refused(run(*limited, *command(*words.split())), "only 5 files may be open", "ulimit -n")
    assert run(*limited, *command("--version")).status == 0


# Ctrl-C before a model is loaded, and after a command has ended

ENDED = (-signal.SIGINT, 128 + signal.SIGINT)  # a shell makes the second of the first

INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"
# When a module is about to be imported.
IN_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            {}
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("name", ["duo.cli.app", "numpy", "llama_cpp", "rich.console"])
def test_ctrl_c_while_a_module_is_imported(tiny: Path, name: str) -> None:
    done = duo("-m", tiny, "-t", "1", before=IN_IMPORT.format(name, INTERRUPT))
    assert done.status in ENDED
    assert (done.stdout, done.stderr) == (b"", "")


IN_THREADS = f"""
import os, signal, threading, time
def interrupt(): threading.main_thread().join(); {INTERRUPT}; time.sleep(60)
threading.Thread(target=interrupt).start()
"""


@pytest.mark.parametrize("before", [f"import atexit, os, signal; atexit.register(lambda: {INTERRUPT})", IN_THREADS])
def test_ctrl_c_while_the_interpreter_exits(tiny: Path, before: str) -> None:
    done = duo("-m", tiny, "-p", "x", "-n", "4", "-t", "1", before=before)
    assert done.status in ENDED
    assert done.n_tokens == 4
    assert "Traceback" not in done.stderr


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


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_choices_and_leaves_files_to_itself() -> None:
    expected = {
        "duo|be": "bench",
        "duo|bench|--mo": "--model --model-draft --modes",
        r"duo|-m|some\ model.gguf|--schedule|a": "auto async",
        "duo|tune|-sm|": "none layer row tensor",
        "duo|-m|ma": "",
    }
    env = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = run("bash", "--norc", "-c", BASH, "bash", *expected, env=env)
    assert (done.status, done.stderr) == (0, "")
    assert dict(zip(expected, done.text.split("\n"), strict=False)) == expected
