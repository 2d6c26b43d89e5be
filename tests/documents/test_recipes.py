"""What the recipes quote: predictions, the lines of a lead, and settings of clients.

`python -m tests.documents.test_recipes` writes the predictions anew. test_documents.py runs the commands.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT, environment
from tests.documents.documents import programs
from tests.serving import PATIENCE_S, LeadProcess
from tests.unit.cli.runner import duo

RECIPES = ROOT / "docs" / "recipes.md"
_PLAN = re.compile(r"(?<=^    )(duo plan [^\n]*)\n\n```text\n(.*?)```$", re.MULTILINE | re.DOTALL)
_MACHINES = 6  # sections about hardware


def _text() -> str:
    return RECIPES.read_text(encoding="utf-8")


def _predicted(command: str) -> str:
    run = duo(*shlex.split(command)[1:])
    assert run.status == 0, run.stderr
    return run.text


def _block(kind: str, holds: str) -> str:
    """The block of code of this kind that has `holds`."""
    (found,) = (block for block in re.findall(rf"^```{kind}\n(.*?)^```", _text(), re.M | re.S) if holds in block)
    return str(found)


@pytest.mark.parametrize(("command", "quoted"), _PLAN.findall(_text()))
def test_predictions_are_quoted_as_duo_makes_them(command: str, quoted: str) -> None:
    assert _predicted(command) == quoted


def test_every_machine_has_a_figure_with_its_source() -> None:
    head, *sections = _text().split("\n## ")
    assert re.search(r"\*\*Untested: .* no recipe has been run on its\s+hardware\.\*\*", head)
    machines = [section for section in sections if "*Expect*" in section]
    assert len(machines) == _MACHINES
    for section in machines:
        expected = section.partition("*Expect*")[2]
        assert re.search(r"\]\(\s*(https://|comparison\.md)", expected), section[:40]
        assert re.search(r"^    duo (-m|chat -m|lead -m)", section, re.MULTILINE)
        assert re.search(r"^\| target \| .* \| .* \|$", section, re.MULTILINE)


def test_a_lead_says_what_is_quoted(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    quoted = _block("text", "listening").splitlines()
    quoted[0] = quoted[0].replace("model main, draft draft", f"model {target.stem}, draft {draft.stem}")
    with LeadProcess(target, "-md", draft, "-c", "8192") as lead:
        # At the usual port, the address for `duo chat` is left out.
        said = [line.removesuffix(f" {lead.url}").replace(str(lead.port), "5555") for line in lead.lines[-3:]]
        assert said == quoted


def test_clients_are_told_the_address_of_a_lead() -> None:
    address = _block("text", "listening").partition("listening on ")[2].split()[0]
    named = address.replace("127.0.0.1", "localhost")
    assert f"apiBase: {named}/v1\n" in _block("yaml", "provider: openai")
    assert f"api_base: {named}/v1\n" in _block("yaml", "model_id: duo")
    assert f'base_url="{named}/v1"' in _block("python", "langchain_openai")
    assert f"OPENAI_API_BASE_URL={address}/v1 " in _block("text", "--network=host")
    assert _block("text", "-p 3000").count(f"http://host.docker.internal:{address.rpartition(':')[2]}/v1 ") == 1


def _installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


@_installed("langchain_openai")
def test_langchain(demo_pair: tuple[Path, Path]) -> None:
    ((_, program),) = programs(RECIPES)
    with LeadProcess(demo_pair[0], "-n", "32") as lead:
        text = program.replace("5555", str(lead.port)).replace("temperature=0.7", "temperature=0")
        done = _run([sys.executable, "-c", text])
    assert "Paris" in done.stdout


@_installed("llm")
def test_llm(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    with LeadProcess(demo_pair[0], "-n", "32") as lead:
        settings = _block("yaml", "model_id: duo").replace("5555", str(lead.port))
        (tmp_path / "extra-openai-models.yaml").write_text(settings, encoding="utf-8")
        (command,) = re.findall(r"`(llm -m duo [^`]*)`", _text())
        done = _run([sys.executable, "-m", *shlex.split(command)], LLM_USER_PATH=str(tmp_path))
    assert "Paris" in done.stdout


def _run(command: list[str], **own: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment(own), timeout=PATIENCE_S)


if __name__ == "__main__":
    RECIPES.write_text(
        _PLAN.sub(lambda found: f"{found[1]}\n\n```text\n{_predicted(found[1])}```", _text()), encoding="utf-8"
    )
