"""A lead for clients, and a way to run them: in the environment that `make test-slow` makes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chat_templates import HERMES
from tests.command import ROOT, Argument
from tests.gguf_head import Head
from tests.serving import PATIENCE_S, LeadProcess

BIN = ROOT / "build" / "clients" / "venv" / "bin"

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
