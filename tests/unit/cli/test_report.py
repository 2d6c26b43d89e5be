"""What is said about a run at its end, as in the golden file (`make docs` writes it)."""

import json
from dataclasses import asdict
from pathlib import Path

from duo.bench.results import write_json
from duo.speculation.controller import Controller
from duo.speculation.report import report
from tests.golden.reports import REPORTS, reports


def test_reports_are_current() -> None:
    assert reports() == REPORTS.read_text(encoding="utf-8")


def test_json_of_dataclasses_paths_and_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, report(Controller()), {"path": Path("/x\udc80"), "cores": frozenset((3, 1))})
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {*asdict(report(Controller())), "path", "cores"}
    assert (found["schedule"], found["path"], found["cores"]) == ("off", "/x\udc80", [1, 3])
