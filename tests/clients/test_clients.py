"""Real clients with a real lead. The settings and programs of docs/lead.md are run as they are there."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chat_templates import HERMES
from tests.command import ROOT, Argument
from tests.documents.documents import LEAD, blocks
from tests.gguf_head import Head
from tests.serving import PATIENCE_S, LeadProcess

PROGRAMS = dict(blocks(LEAD, "python"))
QUESTION = "What is the capital of France?"
BIN = ROOT / "build" / "clients" / "venv" / "bin"  # `make test-slow` makes it

Run = Callable[..., str]


@pytest.fixture(scope="session")
def lead(demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeadProcess]:
    """A lead with the demo pair, whose target has a chat template with tools."""
    target, draft = demo_pair
    folder = tmp_path_factory.mktemp("target")
    copy = Head.read(target).set("tokenizer.chat_template", HERMES.encode()).write(folder / "main.gguf")
    with LeadProcess(copy, "-md", draft, "-td", "1", "-c", "2048") as lead:
        yield lead
        assert lead.process.poll() is None, lead.lines[-5:]
        warnings = [line for line in lead.lines if "warning" in line or "error" in line]
        assert not warnings, "a client's fields were misspelt, or the lead failed"
    shutil.rmtree(folder)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program of the clients' environment, which reaches this machine only. Its standard output."""
    if not (BIN.parent / "ready").exists():
        pytest.skip(f"{BIN.parent.relative_to(ROOT)} is not installed: make test-slow does that")
    nowhere = "http://127.0.0.1:9"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LLM_USER_PATH": str(tmp_path),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # litellm fetches prices otherwise
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        "no_proxy": "127.0.0.1,localhost",
    }

    def run(program: str, *arguments: Argument) -> str:
        done = subprocess.run(
            [BIN / program, *arguments],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run


@pytest.mark.parametrize("client", ["openai", "langchain", "langchain_agents", "instructor", "litellm", "llamacpp"])
def test_client(run: Run, lead: LeadProcess, client: str) -> None:
    run("python", Path(__file__).with_name("programs.py"), client, lead.url)


@pytest.mark.parametrize("place", PROGRAMS)
def test_the_programs_of_the_document(run: Run, lead: LeadProcess, place: str) -> None:
    text = PROGRAMS[place].replace("localhost:5555", f"127.0.0.1:{lead.port}")
    assert text != PROGRAMS[place]
    assert run("python", "-c", text).strip()


def test_llm(run: Run, lead: LeadProcess, tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```yaml\n(- model_id: .*?)^```", LEAD.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "extra-openai-models.yaml").write_text(settings.replace("5555", str(lead.port)), encoding="utf-8")
    options = ("-m", "duo", "-o", "temperature", "0", "-o", "max_tokens", "64")
    streamed = run("llm", *options, QUESTION)
    assert "Paris" in streamed
    assert run("llm", *options, "--no-stream", QUESTION) == streamed
    fruit = json.loads(run("llm", *options, "--schema", "name, ripe bool", "Name a fruit."))
    assert (type(fruit["name"]), type(fruit["ripe"])) == (str, bool)
    assert run("llm", *options, "-T", "llm_time", "What time is it?").strip()
    commands = re.findall(r"^(llm -m duo .*)$", LEAD.read_text(encoding="utf-8"), re.M)
    assert len(commands) == 2
    for command in commands:
        assert run(*shlex.split(command)).strip()
