"""Every command line of the documents is run as far as that can be done here, and every link leads somewhere.

A new line either runs as it is, with the names below standing for models, machines and ports, or goes into one of the
two tables of what is not run.
"""

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest

from duo.config import EngineConfig, GenerationConfig
from duo.config.option import declared
from duo.llama.library import supports_rpc
from tests.chat_templates import HERMES
from tests.command import ROOT, environment
from tests.documents import documents
from tests.documents.documents import LEAD, PYTHON, README, RECIPES, Command, blocks, commands, inline_commands
from tests.gguf_files import tiny_block, tiny_eagle3, tiny_glm, tiny_llama, tiny_mixture
from tests.golden.configuration import whole_command
from tests.serving import PATIENCE_S, LeadProcess, RpcServer, Served, free_port
from tests.unit.cli import runner

# What takes other hardware or another machine; the section has to say that it was not run.
NEEDS_HARDWARE = {
    r"-dev CUDA": "a card",
    r"^duo (tune|bench) .* -ngl ": "a Mac",
    r"^duo .* wss://": "a proxy with TLS",
    r"^ssh ": "a second machine",
}
SAID = re.compile(r"not\s+(been\s+)?run|[Nn]one of this has been run|untested|such\s+hardware")
# What is not run for another reason.
NOT_RUN = {
    r"^duo -hf ": "fetches models of made-up names",
    r"--peers llama-completion=/opt": "names a program of the reader's own",
    r"^(\. \.venv|D=|eval |_DUO_COMPLETE=)": "is for the reader's shell: tests/process/cli/test_startup.py",
    r"^python -m pytest": "would run all tests from one of them",
    r"^(CMAKE_ARGS=\S+ )?(pipx|uv tool) install ": "compiles llama.cpp; `make dist` installs the wheel",
    r"^PYTHON=.* benchmarks/peers\.sh": "compiles for eight minutes",
    r"^(pip install torch|python -m benchmarks\.train_head)": "needs PyTorch, and minutes on a GPU",
    r"^PATH=.* duo bench": "needs what that has built",
}

SHORTLY = {"bench": "-n 4 -r 1 --peers none", "check": "-n 4"}
BUSY = "try again when"  # the machine is idle
MACHINES = r"(?<=//)host\b|\blocalhost\b|\b10\.0\.0\.1\b|\b192\.168\.1\.1\d\b|\b[abc](?=:20002)"

PROGRAMS = dict([*blocks(PYTHON, "python"), *blocks(README, "python")])

COMMANDS = list({command.text: command for command in reversed(commands())}.values())[::-1]


def _is_run(command: Command) -> bool:
    return not any(re.search(pattern, command.text) for pattern in (*NEEDS_HARDWARE, *NOT_RUN))


def _lines(pattern: str) -> pytest.MarkDecorator:
    """The commands that begin like this, each a test of its own."""
    chosen = [command for command in COMMANDS if re.match(pattern, command.text) and _is_run(command)]
    return pytest.mark.parametrize("command", chosen, ids=lambda command: command.place)


# What is there for the commands


@pytest.fixture(scope="module")
def names(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the files that the documents name."""
    folder = tmp_path_factory.mktemp("documents")
    ((_, machine),) = blocks(ROOT / "docs" / "benchmarking.md", "json")
    texts = {
        "prompt.txt": "Once upon a time",
        "notes.txt": "Once upon a time",
        "keys": "sk-1\n",
        "requests.jsonl": '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"the"}}\n',
        "token": "secret\n",
        "machine.json": machine,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    tiny = tiny_llama(folder / "tiny.gguf", n_layer=2, chat_template=HERMES)
    models = {"main.gguf": tiny, "draft.gguf": tiny, "eagle3.gguf": tiny_eagle3(folder / "eagle3.gguf")}
    models |= {"mtp.gguf": tiny_glm(folder / "mtp.gguf"), "mixture.gguf": tiny_mixture(folder / "mixture.gguf")}
    models |= {"dflash-main.gguf": tiny_block(folder / "block.gguf")}  # no name that any other command finds
    files = models | {name: folder / name for name in texts}
    return {name: str(path) for name, path in files.items()} | {"$D": str(demo_pair[0].parent)}


def _here(command: Command, names: dict[str, str]) -> str:
    """The command with what there is here, and shorter."""
    words = "|".join(map(re.escape, names))
    text = re.sub(rf" ({words})(?![\w.])", lambda found: f" {names[found[1]]}", command.text)
    text = re.sub(MACHINES, "127.0.0.1", re.sub(r" -n \d+", " -n 4", re.sub(r" -r \d+", " -r 1", text)))
    return re.sub(r"^duo (\w[\w-]*)", lambda found: f"{found[0]} {SHORTLY.get(found[1], '')}", text)


def _run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = environment({"PATH": path, "PYTHON": sys.executable, **variables})
    return subprocess.run(  # what a tiny model writes may not be UTF-8
        command,
        cwd=folder,
        env=env,
        input="Hello\n",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )


def _shell(text: str, folder: Path) -> None:
    """Run it in bash and expect that it ends well."""
    done = _run(["bash", "-c", text], folder, LLAMA_ARG_N_PREDICT="4")
    _assert_well(text, done.returncode, done.stderr)


def _assert_well(text: str, status: int, stderr: str) -> None:
    # duo doctor says with 1 that something is wrong with this machine; tune, that it is busy.
    may_fail = text.startswith("duo doctor") or BUSY in stderr
    assert status in ((0, 1) if may_fail else (0,)), f"{text}\n{stderr}"


@pytest.fixture(scope="module")
def done() -> set[str]:
    """The commands that were run."""
    return set()


@pytest.fixture(scope="module")
def lead(names: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeadProcess]:
    folder = tmp_path_factory.mktemp("slots")
    with LeadProcess(Path(names["main.gguf"]), "-n", "4", "--slot-save-path", folder) as running:
        running.write("Once upon a time, in a village by the sea,", 4)
        running.post("/slots/0?action=save", filename="prompt.kv")
        yield running


# What is run


@_lines(r"duo (?!(lead|back|rpc-server|chat) )")
def test_what_duo_writes(
    command: Command, names: dict[str, str], done: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--rpc " in command.text and not supports_rpc():
        pytest.skip("this build has no RPC")
    text = _here(command, names)
    if text in done:
        return  # another line that differs only in what stands for a name, or in a length
    done.add(text)
    text = text.replace("5556", str(free_port()))
    with ExitStack() as stack:
        while "127.0.0.1:20002" in text:
            text = text.replace("127.0.0.1:20002", stack.enter_context(RpcServer()).name, 1)
        if re.search(r"--rpc|[<>|&$]", text):  # a lost server ends its process
            _shell(text, tmp_path)
            return
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("duo.diagnose.measure.other_cpu_use", lambda _: 0.0)  # or measuring is repeated
        run = runner.duo(*shlex.split(text)[1:], stdin=b"Hello\n", env={"LLAMA_ARG_N_PREDICT": "4"})
        _assert_well(text, run.status, run.stderr)


@_lines(r"duo (lead|back|rpc-server) ")
def test_a_server(command: Command, names: dict[str, str], lead: LeadProcess) -> None:
    """It is started, waited for until it is at work, and stopped as Ctrl-C does."""
    text = _here(command, names)
    if text.startswith("duo lead"):
        text, said = f"{text} --port 0", "duo: listening on "
    elif text.startswith("duo back"):
        text = text if "--lead" in text else f"{text} --lead ws://127.0.0.1:5555"
        text, said = re.sub(r":555[56]\b", f":{lead.port}", text), "connected to the lead"
    elif not supports_rpc():
        pytest.skip("this build has no RPC")
    else:
        text, said = text.replace("20002", str(free_port())), "duo: serving "
    with Served(*shlex.split(text)[1:]) as served:
        served.wait_for(said)
        served.send(signal.SIGINT)
        assert served.finish() == 0, served.lines


@_lines(r"duo chat |curl ")
def test_talking_to_a_lead(command: Command, names: dict[str, str], lead: LeadProcess, tmp_path: Path) -> None:
    if command.text.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("there is no curl")
    text = _here(command, names).replace("5555", str(lead.port))
    text = re.sub(r"^curl ", f"curl -sS --fail -m {PATIENCE_S} ", text)
    if " -N " in text:  # a stream without an end, at which nobody waits for curl
        text = f"grep -m 1 . <({text} 2>/dev/null)"
    _shell(text, tmp_path)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@_lines(r"make ")
def test_make_knows_the_target(command: Command) -> None:
    # -n: what make would run; that itself takes minutes.
    _shell(re.sub(r"\bmake\b", "make -n", command.text), ROOT)


@cache
def _help(*words: str) -> str:
    return _run([sys.executable, *words, "--help"], ROOT).stdout


@_lines(r"python -m benchmarks")
def test_a_benchmark_takes_these_options(command: Command) -> None:
    # What it does takes from minutes to hours; its help says whether it would.
    words = shlex.split(command.text)
    known = re.findall(r"--?\w[\w-]*", _help(*words[1:3]))
    assert [word for word in words[3:] if word.startswith("-") and word not in known] == []


@_lines(r"benchmarks/")
def test_a_script_is_there(command: Command) -> None:
    name, *options = shlex.split(command.text)
    script = ROOT / name
    assert os.access(script, os.X_OK)
    assert name.endswith("gpu.sh") or options == []
    if options:
        done = _run([str(script), *options, "--dry-run"], ROOT)
        assert all(option in done.stdout for option in options if option != "--dry-run"), done.stderr


# Python


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program(program: str, names: dict[str, str], tmp_path: Path) -> None:
    for name in ("main.gguf", "draft.gguf"):
        (tmp_path / name).symlink_to(names[name])
    text = re.sub(r"max_tokens=\d+", "max_tokens=4", program.replace("port=5555", "port=0"))
    text = text.replace("lead.wait()", 'print(__import__("httpx").get(f"{lead.url}/health").raise_for_status().text)')
    done = _run([sys.executable, "-c", text], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_parameter_is_in_the_document_for_python() -> None:
    text = PYTHON.read_text(encoding="utf-8")
    names = ["json_schema", *(one.name for one in (*declared(EngineConfig()), *declared(GenerationConfig())))]
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []


# What holds for all


def test_every_command_is_run_or_has_a_reason() -> None:
    """So that a line that nobody has thought of is noticed. Where hardware is needed, the document says "not run"."""
    assert documents.strangers() == []
    kinds = r"duo |make |python -m benchmarks|benchmarks/|curl "
    assert [c.place for c in COMMANDS if _is_run(c) and not re.match(kinds, c.text)] == []
    patterns = (*NEEDS_HARDWARE, *NOT_RUN)
    assert [each for each in patterns if not any(re.search(each, command.text) for command in COMMANDS)] == []
    needs = [c for c in commands() if any(re.search(pattern, c.text) for pattern in NEEDS_HARDWARE)]
    assert [command.place for command in needs if not SAID.search(command.section)] == []


def test_every_option_of_duo_in_a_document_exists() -> None:
    root = whole_command()
    for command in (*commands(), *inline_commands()):
        if not command.text.startswith("duo "):
            continue
        words = shlex.split(command.text, comments=True)[1:]
        takes = root.commands.get(words[0], root) if words else root
        known = {name for option in takes.params for name in (*option.opts, *option.secondary_opts)}
        unknown = [word for word in words if re.match(r"--?[a-zA-Z]", word) and word.partition("=")[0] not in known]
        assert unknown == [], f"{command.place}: {command.text}"


def test_every_message_in_troubleshooting_is_in_the_code() -> None:
    document = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [text for row in document.splitlines() for text in re.findall(r'"([^"]+)"', row.split(" | ")[0])]
    parts = {part.strip() for text in quoted for part in re.split(r"…|\d+|\b[NM]\b|--\w+", text)}
    nodes = [node for path in (ROOT / "duo").rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(quoted) > 10
    assert [part for part in sorted(parts) if not any(part in text for text in texts)] == []


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    assert len(named) > 20
    assert [name for name in sorted(named) if not any((ROOT / top / name).exists() for top in ("", "duo"))] == []


def test_every_link_leads_somewhere() -> None:
    assert documents.broken_links() == []


def test_lines_have_at_most_120_characters() -> None:
    for path in (*documents.DOCUMENTS, ROOT / "CHANGELOG.md"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if len(line) > 120] == [], path.name


# docs/lead.md to clients; tests/clients runs its programs


def test_a_lead_says_what_is_quoted(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    (block,) = (block for _, block in blocks(LEAD, "text") if "listening" in block)
    quoted = block.replace("model main, draft draft", f"model {target.stem}, draft {draft.stem}").splitlines()
    with LeadProcess(target, "-md", draft, "-c", "8192") as lead:
        said = [line.replace(str(lead.port), "5555") for line in lead.lines]
        assert said[-len(quoted) :] == quoted


# docs/recipes.md; its commands are run above


def test_predictions_are_quoted_as_duo_makes_them() -> None:
    text = RECIPES.read_text(encoding="utf-8")
    assert text == documents.with_predictions(text)


def test_extras_that_a_document_installs_exist() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    named = {name for text in texts for found in re.findall(r"'\.\[([\w,]+)\]'", text) for name in found.split(",")}
    assert named
    assert named <= set(distribution("duo-llm").metadata.get_all("Provides-Extra") or ())
