"""What the recipes quote: predictions.

`python -m tests.documents.test_recipes` writes the predictions anew. test_documents.py runs the commands.
"""

from __future__ import annotations

import re
import shlex

import pytest

from tests.command import ROOT
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


if __name__ == "__main__":
    RECIPES.write_text(
        _PLAN.sub(lambda found: f"{found[1]}\n\n```text\n{_predicted(found[1])}```", _text()), encoding="utf-8"
    )
