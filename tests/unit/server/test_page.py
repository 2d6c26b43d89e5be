"""The page's files: headers, keys, caching, a lead without them; small, with nothing inline or from outside."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest
from starlette.testclient import TestClient

from duo.server.lead_server import Lead
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

MakeLead = Callable[..., Lead]
ASSETS = {file.name: file.read_bytes() for file in (files("duo.server") / "assets").iterdir()}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MOST_BYTES = 150_000


def test_all_files_are_served_without_a_key_and_cached_and_use_nothing_from_elsewhere(make_lead: MakeLead) -> None:
    client = client_of(make_lead(api_keys=["sk-one"]))
    assert_error(client.get("/page/../v1/models"), 401)
    for name, content in ASSETS.items():
        path = f"/page/{name}" if name != "index.html" else "/"
        answer = client.get(path)
        assert (answer.status_code, answer.content) == (200, content)
        headers = answer.headers
        assert headers["content-type"].split(";")[0] == TYPES[name.rpartition(".")[2]]
        assert client.head(path).headers["content-length"] == str(len(content))
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules.pop("img-src") == "'self' data:"
        assert {"script-src", "style-src", "connect-src"} == {name for name in rules if rules[name] == "'self'"}
        nothing = {"default-src", "base-uri", "form-action", "frame-ancestors"}
        assert nothing == {name for name in rules if rules[name] == "'none'"}
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert ("set-cookie" in headers, headers["cache-control"]) == (False, "no-cache")
        for known, status in ((headers["etag"], 304), ('"other"', 200)):
            assert client.get(path, headers={"If-None-Match": known}).status_code == status


@pytest.mark.parametrize("name", ["lead.py", "..%2flead.py", "%2e%2e/lead.py", "%00", "x" * 5000, ""])
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    assert_error(client.get(f"/page/{name}"), 404)


def test_the_files_are_small_and_have_nothing_from_outside() -> None:
    assert sum(map(len, ASSETS.values())) <= MOST_BYTES
    for name, data in ASSETS.items():
        content = data.decode()
        assert {"http://www.w3.org"} >= set(re.findall(r"https?://[\w.]+", content)), name
        assert "import(" not in content, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.(write|cookie)|eval\(", content), name
