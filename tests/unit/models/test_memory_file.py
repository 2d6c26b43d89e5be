"""The file of a memory: what is written is read, what is damaged is begun anew, and what is another's stays."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from duo.config import ModelConfig
from duo.engine.memories import KeptMemory
from duo.errors import ModelError, UsageError
from duo.llama.model import Model
from duo.models import memory_file as module
from duo.models.memory_file import MemoryFile, check_place, summary
from duo.speculation import memory as memory_module
from duo.speculation.memory import END
from tests.gguf_files import tiny_llama

TEXTS = [(5, 6, 7), (8, 9)]
SAVED = [END, 5, 6, 7, END, 8, 9]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    with closing(Model(ModelConfig(tiny_llama(tmp_path / "tiny.gguf")), vocabulary_only=True)) as model:
        yield model


@pytest.fixture
def path(tmp_path: Path, model: Model) -> Path:
    """A file with texts."""
    found = tmp_path / "mine.memory"
    MemoryFile(found, model).add(TEXTS)
    return found


def test_what_is_written_is_read(path: Path, model: Model) -> None:
    before = path.read_bytes()
    file = MemoryFile(path, model)
    assert file.texts.tolist() == SAVED
    assert path.read_bytes() == before
    assert summary(path) == (file.model, 5)
    file.add([(4,)])
    assert MemoryFile(path, model).texts.tolist() == [*SAVED, END, 4]
    assert [*path.parent.glob(".*")] == [], "no temporary file is left"
    assert path.stat().st_mode & 0o077 == 0, "texts are the user's own"


def test_a_model_whose_file_is_named_in_no_encoding_has_a_memory(path: Path, model: Model) -> None:
    model.path = model.path.with_name(os.fsdecode(b"\xffa.gguf"))
    model.header.values.pop("general.name", None)
    own = path.with_name("own.memory")
    assert MemoryFile(own, model).model == "?a"
    assert MemoryFile(own, model).add([(4,)]).tolist() == [END, 4]


def test_a_model_has_one_memory_in_whatever_quantisation(path: Path, model: Model) -> None:
    model.header.values.pop("general.name", None)
    own, first = path.with_name("own.memory"), model.path
    for name in ("x-Q4_0.gguf", "x-F16.gguf", "x-UD-Q4_K_XL-00001-of-00002.gguf", "x.Q8_0.gguf", "x.gguf"):
        model.path = first.with_name(name)
        assert MemoryFile(own, model).model == "x"
    for name, called in (("x-2.gguf", "x-2"), ("x-instruct.Q8_0.gguf", "x-instruct"), ("Q4_0.gguf", "Q4_0")):
        model.path = first.with_name(name)
        with pytest.raises(ModelError, match=f"another model, x: name another file for {called}$"):
            MemoryFile(own, model)


def test_texts_of_a_killed_process_do_not_stay(path: Path, model: Model) -> None:
    (mine, *others) = (path.with_name(f".duo-memory-{name}-abc_defg") for name in (path.name, "mine", "my.memory", "x"))
    for part in (mine, *others):
        part.write_text("half of the texts")
    MemoryFile(path, model)
    assert {*path.parent.glob(".duo-memory-*")} == {*others}, "those may be in use"


def test_a_link_to_a_file_stays_one(path: Path, model: Model) -> None:
    link = path.with_name("link.memory")
    link.symlink_to(path)
    MemoryFile(link, model).add([(4,)])
    assert link.is_symlink()
    assert MemoryFile(path, model).texts.tolist() == [*SAVED, END, 4]


def test_nothing_is_written_through_what_lies_beside_the_file(path: Path, model: Model) -> None:
    victim = path.with_name("victim")
    victim.write_text("precious")
    path.with_name(f".{path.name}.part").symlink_to(victim)
    MemoryFile(path, model).add([(4,)])
    assert victim.read_text() == "precious"


def test_a_memory_has_a_name() -> None:
    with pytest.raises(UsageError, match=r"^memory: give the name of a file"):
        check_place(Path())


def test_a_memory_without_texts_is_one(path: Path, model: Model) -> None:
    path.unlink(missing_ok=True)
    MemoryFile(path, model)
    assert summary(path) == (MemoryFile(path, model).model, 0)


def damaged(data: bytes) -> Iterator[bytes]:
    yield data[:5]
    yield data[:20]
    yield from (data[:-n] for n in range(1, 32))
    yield data + b"\0\0\0\0"
    for i in range(1, 33):
        yield data[:-i] + bytes([data[-i] ^ 4]) + data[len(data) - i + 1 :]


def test_a_damaged_one_is_begun_anew(path: Path, model: Model, caplog: pytest.LogCaptureFixture) -> None:
    for i, data in enumerate(damaged(path.read_bytes()), 1):
        path.write_bytes(data)
        file = MemoryFile(path, model)
        assert file.texts.tolist() == []
        assert [record.getMessage() for record in caplog.records] == [
            f"{path} is damaged: the memory is begun anew"
        ] * i
        file.add(TEXTS)
        assert MemoryFile(path, model).texts.tolist() == SAVED
    assert i > 60


def test_tokens_that_the_vocabulary_lacks_are_damage(path: Path, model: Model) -> None:
    MemoryFile(path, model).add([(model.n_vocab,)])  # with the right checksum
    assert MemoryFile(path, model).texts.tolist() == []


def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path, model: Model) -> None:
    path, other = tmp_path / "notes.txt", tiny_llama(tmp_path / "other.gguf")
    for data in (b"dear diary", b"duo memory 2\n", other.read_bytes()):
        path.write_bytes(data)
        with pytest.raises(ModelError, match="no memory, and is not overwritten: name another file"):
            MemoryFile(path, model)
        assert path.read_bytes() == data
        with pytest.raises(ValueError, match=r"^$"):
            summary(path)


@pytest.mark.parametrize(("name", "padding", "said"), [
    ("other.gguf", 0, "is a memory of another model, tiny: name another file for other"),
    ("tiny.gguf", 300, "is a memory of another vocabulary: name another file for tiny"),
])  # fmt: skip
def test_another_model_keeps_its_file(path: Path, name: str, padding: int, said: str, tmp_path: Path) -> None:
    before = path.read_bytes()
    (tmp_path / "more").mkdir()
    other = tiny_llama(tmp_path / "more" / name, padding=padding)
    with closing(Model(ModelConfig(other), vocabulary_only=True)) as found, pytest.raises(ModelError, match=said):
        MemoryFile(path, found)
    assert path.read_bytes() == before


def test_places_where_no_file_can_be(tmp_path: Path, model: Model) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "missing" / "x.memory", "No such file"),
        (tmp_path / "pipe", "not a regular file"),
        (Path("/sys/x.memory"), "Permission denied|Read-only"),  # also for root
    ):
        with pytest.raises(ModelError, match=f"no memory can be kept there: .*({why})"):
            MemoryFile(place, model)
        with pytest.raises(UsageError, match=f"^memory {place}: .*({why})"):
            check_place(place)


def test_a_place_is_left_as_it_was(path: Path) -> None:
    before = {file: file.read_bytes() for file in path.parent.glob("*.memory")}
    for place in (path, path.with_name("new.memory")):
        check_place(place)
    assert {file: file.read_bytes() for file in path.parent.glob("*.memory")} == before


def test_a_memory_that_can_no_longer_be_written_goes_on_without_file(
    path: Path, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    memory = KeptMemory(MemoryFile(path, model))
    path.unlink()
    path.mkdir()
    for token in (1, 2):
        memory.learn([token])
        memory.write()
    assert memory.log.tolist() == [*SAVED, END, 1, END, 2]
    (said,) = caplog.records
    assert "no memory can be kept there" in said.getMessage()


def test_a_text_is_written_with_others_or_at_the_end(path: Path, model: Model) -> None:
    memory, before = KeptMemory(MemoryFile(path, model)), path.read_bytes()
    memory.learn([4])
    assert path.read_bytes() == before
    memory.learn(4096 * [1])
    assert MemoryFile(path, model).texts.tolist() == [*SAVED, END, 4, END, *4096 * [1]]
    memory.learn([5])
    memory.write()
    memory.write()
    assert MemoryFile(path, model).texts.tolist()[-3:] == [1, END, 5]


def test_the_oldest_texts_are_dropped(path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (module, memory_module):
        monkeypatch.setattr(each, "MAX_TOKENS", 40)
    file = MemoryFile(path, model)
    for i in range(30):
        found = file.add([(i, i + 1, i + 2)])
        assert len(found) <= 40
    assert np.array_equal(found[-8:], [END, 28, 29, 30, END, 29, 30, 31])
    assert MemoryFile(path, model).texts.tolist() == found.tolist()
    assert 0 not in found
    assert found[0] == END
