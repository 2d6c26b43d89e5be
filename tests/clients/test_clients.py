"""Real clients with a real lead. The settings and programs of docs/lead.md are run as they are there."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.clients.conftest import Run
from tests.documents.documents import LEAD, blocks
from tests.serving import LeadProcess

PROGRAMS = dict(blocks(LEAD, "python"))
QUESTION = "What is the capital of France?"


@pytest.mark.parametrize("client", ["openai", "langchain", "instructor", "litellm"])
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
