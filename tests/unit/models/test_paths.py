"""Files that the user named."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.errors import ModelError
from duo.models.paths import check_gguf


def test_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"GGUF\x03\0\0\0")
    assert check_gguf(tmp_path / "model") == tmp_path / "model"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"PK\3\4 a zip", "not a GGUF file"), (b"GG", "not a GGUF file"), (b"", "an empty file")],
)
def test_another_kind_of_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        check_gguf(path)
    assert str(caught.value) == f"{path}: {said}"


def test_nothing_a_directory_and_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"GGUF")
    for path, said in (
        (tmp_path / "none.gguf", "no such file"),
        (tmp_path, "a directory, not a GGUF file"),
        (tmp_path / "file" / "model.gguf", "Not a directory"),
    ):
        with pytest.raises(ModelError) as caught:
            check_gguf(path)
        assert str(caught.value) == f"{path}: {said}"
