"""The file of a memory: texts of one vocabulary and model, which several processes may add to.

Two lines say what it is and of which model. After them are a checksum, and tokens as little-endian 32-bit numbers.
"""

import errno
import fcntl
import glob
import logging
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO

import numpy as np

from duo.errors import ModelError, UsageError
from duo.llama.fingerprint import Fingerprint
from duo.llama.gguf_header import GgufHeader
from duo.llama.vocabulary import Vocabulary
from duo.models.hub import stem_of
from duo.models.storage import open_own, read_at_most, replacing
from duo.speculation.memory import END, MAX_TOKENS, Log, latest

log = logging.getLogger("duo.models")

SUFFIX = ".memory"  # by which `duo list` finds them
_MAGIC = b"duo memory 1\n"
_PREFIX = ".duo-memory-"
_MAX_BYTES = 5 * MAX_TOKENS


class MemoryFile:
    """The texts in a file. What other processes add to it is known to the next one that opens it."""

    def __init__(self, path: Path, model: Vocabulary) -> None:
        """Make the file unless there is one. Raises ModelError if it cannot be used."""
        self.path, self._n_vocab = path, model.n_vocab
        self._prefix = f"{_PREFIX}{path.resolve().name}-"
        self.model = name_of(model.header, model.path)
        self._head = _MAGIC + f"{Fingerprint.of(model).hashes[-1].hex()} {self.model}\n".encode()
        self.texts = self.add(())

    def add(self, texts: Sequence[Sequence[int] | Log]) -> Log:
        """Add texts; of too many, the latest are kept. Returns all. Raises ModelError."""
        try:
            with self._locked() as file:
                new = [np.asarray(each, "<u4") for text in texts for each in ([END], text)]
                found = np.concatenate((self._read(file), *new))
                found = latest(found) if len(found) > MAX_TOKENS else found
                if texts or not os.fstat(file.fileno()).st_size:
                    with replacing(self.path.resolve(), self._prefix) as part:  # a link stays one
                        part.write(self._head + zlib.crc32(found.data).to_bytes(4, "little") + found.tobytes())
                return found
        except OSError as error:
            raise ModelError(f"{self.path}: no memory can be kept there: {error.strerror}") from None

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """The file, which no other process reads or writes meanwhile."""
        while True:
            with _opened(self.path, os.O_CREAT) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):  # nobody has replaced it meanwhile
                    for stale in self.path.resolve().parent.glob(f"{glob.escape(self._prefix)}????????"):
                        with suppress(OSError):  # one of another user
                            stale.unlink()  # of a killed process: a live one would hold the lock
                    yield file
                    return

    def _read(self, file: BinaryIO) -> Log:
        """All texts; none if the file is damaged. Raises ModelError if it is something else, or of another model."""
        data = file.read(len(_MAGIC))
        if not _MAGIC.startswith(data):
            raise ModelError(f"{self.path} is no memory, and is not overwritten: name another file")
        head, found = _parsed(data + read_at_most(file, _MAX_BYTES))
        if head not in (b"", self._head):
            name = _model(head)
            other = f"of another model, {name}" if name != self.model else "of another vocabulary"
            raise ModelError(f"{self.path} is a memory {other}: name another file for {self.model}")
        if found is None or (len(found) and (found[found != END] >= self._n_vocab).any()):
            if data:
                log.warning("%s is damaged: the memory is begun anew", self.path)
                os.truncate(file.fileno(), 0)
            return np.empty(0, np.uint32)
        return found


def name_of(header: GgufHeader, path: Path) -> str:
    """By which a memory knows the model of a file."""
    name = (header.text("general.name") or stem_of(path.name)).encode("utf-8", "replace").decode()
    return " ".join(name.split())


def check_place(path: Path) -> None:
    """Raise UsageError if no memory can be kept at `path`, as far as this can be known without its model."""
    if path == Path():
        raise UsageError("memory: give the name of a file", "memory")
    try:
        with suppress(FileNotFoundError):
            _opened(path).close()
        NamedTemporaryFile(dir=path.resolve().parent, prefix=_PREFIX).close()
    except OSError as error:
        raise UsageError(f"memory {path}: {error.strerror}", "memory") from None


def _opened(path: Path, flags: int = 0) -> BinaryIO:
    """A regular file, to read from and write to. Raises OSError."""
    flags |= os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC  # a named pipe would wait for a reader
    file = os.fdopen(os.open(path, flags, 0o600), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def summary(path: Path) -> tuple[str, int]:
    """The model and the number of tokens of a memory. Raises OSError, or ValueError for another or a damaged file."""
    with open_own(path) as file:
        data = file.read(len(_MAGIC))
        head, found = _parsed(data + read_at_most(file, _MAX_BYTES)) if data == _MAGIC else (b"", None)
    if found is None:
        raise ValueError
    return _model(head), int((found != END).sum())


def _model(head: bytes) -> str:
    return head[len(_MAGIC) :].decode("utf-8", "replace").partition(" ")[2].strip()


def _parsed(data: bytes) -> tuple[bytes, Log | None]:
    """The first two lines, empty if they are incomplete; and the texts, None if they are damaged."""
    end = data.find(b"\n", len(_MAGIC)) + 1
    body = data[end + 4 :]
    if not end or len(body) % 4 or zlib.crc32(body).to_bytes(4, "little") != data[end : end + 4]:
        return data[:end], None
    return data[:end], np.frombuffer(body, "<u4").astype(np.uint32)
