"""The bugs that `python -m tests.mutations` makes can still be made."""

from tests.mutations import ROOT, read_mutations


def test_each_is_in_its_file_once() -> None:
    counts = {one.name: (ROOT / one.file).read_text(encoding="utf-8").count(one.old) for one in read_mutations()}
    assert {name: n for name, n in counts.items() if n != 1} == {}
    assert all((ROOT / path).exists() for one in read_mutations() for path in one.tests)
