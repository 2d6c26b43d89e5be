"""What short commands print, as in tests/golden/transcript.txt (`make docs` writes it), and other usage errors."""

import socket
import sys
from pathlib import Path
from unittest import mock

import pytest

from duo.cli.commands import COMMANDS
from duo.cli.commands.options import RunOptions
from duo.config.option import declared
from tests.command import assert_refused
from tests.golden.transcript import make_files, printed, recorded
from tests.unit.cli.runner import duo

# No such model exists: the options are refused first.
MISSING = "-m missing.gguf -p x"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the transcript names."""
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    return folder


@pytest.mark.parametrize("arguments", recorded())
def test_the_transcript_is_current(files: Path, monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    monkeypatch.chdir(files)
    assert printed(arguments, recorded()[arguments]) == recorded()[arguments]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_numbers_out_of_range_are_refused_by_the_name_of_their_option(command: str) -> None:
    options = declared(COMMANDS[command].options if command else RunOptions(), command or "duo")
    for one in options:
        if one.option.bounds and one.option.flag:
            number = one.option.bounds.most + 1
            run = duo(*command.split(), one.option.flag, str(number))
            assert_refused(run, f"{one.option.flag} must be at most {one.option.bounds.most}, not {number}", status=2)


def test_a_build_without_rpc_names_the_command_that_adds_it() -> None:
    with mock.patch("duo.llama.library.supports_rpc", return_value=False):
        assert_refused(duo(*f"{MISSING} --rpc localhost:1".split()), "built without RPC; to build it with RPC: ")


@pytest.mark.parametrize("command", [["rpc-server", "-p"], ["lead", "-m", "none.gguf", "--port"]])
def test_a_port_in_use(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(duo(*command, str(port)), f"cannot listen on 127.0.0.1:{port}", status=2)


@pytest.mark.parametrize("option", ["--json", "--trace", "--log-file"])
def test_a_file_is_tried_and_left_as_it_was(tmp_path: Path, option: str) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("of a run before")
    for path in (new, old):
        assert duo(*MISSING.split(), option, path).status == 1
    assert option == "--log-file" or (not new.exists() and old.read_text() == "of a run before")


@pytest.mark.parametrize("command", ["", "chat", "check -m demo", "tune", "tune -md draft.gguf"])
def test_an_empty_prompt_is_refused_before_models_are_loaded(command: str) -> None:
    model = () if "-m " in command else ("-m", "missing.gguf")
    run = duo(*command.split(), *model, "-p", "the cat" if command in ("check", "tune") else "", "-p", "")
    assert_refused(run, "duo: error: the prompt is empty\n", status=2)


@pytest.mark.parametrize("command", ["", "chat", "lead --port 0 --api-key key"])
def test_a_memory_is_tried_before_models_are_loaded(tmp_path: Path, command: str) -> None:
    prompt = "" if "lead" in command else "-p x"
    for place, why in ((tmp_path, "Is a directory"), (tmp_path / "missing" / "a.memory", "No such file or directory")):
        run = duo(*f"{command} -m missing.gguf {prompt}".split(), "--memory", place)
        assert_refused(run, f"duo: error: --memory {place}: {why}\n", status=2)
    run = duo(*f"{command} -m missing.gguf {prompt}".split(), "--memory", "")
    assert_refused(run, "duo: error: --memory: give the name of a file\n", status=2)


@pytest.mark.parametrize("names", ["-hf user/repo", "-m {tiny} -hfd user/repo"])
def test_hugging_face_names_without_huggingface_hub(tiny: Path, names: str) -> None:
    with mock.patch.dict("sys.modules", {"huggingface_hub": None}):
        run = duo(*names.format(tiny=tiny).split(), "-p", "x")
    assert_refused(run, f"need huggingface_hub: {sys.executable} -m pip install 'huggingface_hub>=0.30'\n")


def test_an_environment_without_pip_is_changed_by_uv(tiny: Path) -> None:
    with mock.patch.dict("sys.modules", {"huggingface_hub": None, "pip": None}):
        run = duo("-hf", "user/repo", "-p", "x")
    assert_refused(run, f"need huggingface_hub: uv pip install --python {sys.executable} 'huggingface_hub>=0.30'\n")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "use a smaller context (-c), or free some"),
        (MemoryError("Unable to allocate 9 GiB"), "Unable to allocate 9 GiB"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_python_has_no_memory(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("duo.cli.commands.list_models.list_models", fail)
    assert_refused(duo("list"), f"duo: error: out of memory: {said}\n")
