"""The page's files: headers, keys, caching, a lead without them; small, with nothing inline or from outside."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

from starlette.testclient import TestClient

from duo.server.lead import Lead
from tests.serving import assert_error
from tests.unit.server.conftest import client_of

MakeLead = Callable[..., Lead]
ASSETS = {file.name: file.read_bytes() for file in (files("duo.server") / "assets").iterdir()}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MOST_BYTES = 150_000
CONTENTS = {name: content.decode() for name, content in ASSETS.items()}


def paths() -> list[str]:
    return ["/", *(f"/page/{name}" for name in ASSETS if name != "index.html")]


def test_all_files_are_served_with_their_types(client: TestClient) -> None:
    for path in paths():
        answer = client.get(path)
        name = path.removeprefix("/page/") if path != "/" else "index.html"
        assert (answer.status_code, answer.content) == (200, ASSETS[name])
        assert answer.headers["content-type"].split(";")[0] == TYPES[name.rpartition(".")[2]]
        head = client.head(path)
        assert (head.status_code, head.headers["content-length"]) == (200, str(len(ASSETS[name])))


def test_a_browser_may_use_nothing_from_elsewhere(client: TestClient) -> None:
    for path in paths():
        headers = client.get(path).headers
        rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert rules.pop("img-src") == "'self' data:"
        assert {"script-src", "style-src", "connect-src"} == {name for name in rules if rules[name] == "'self'"}
        nothing = {"default-src", "base-uri", "form-action", "frame-ancestors"}
        assert nothing == {name for name in rules if rules[name] == "'none'"}
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert "set-cookie" not in headers


def test_a_file_that_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    for path in paths():
        first = client.get(path)
        assert first.headers["cache-control"] == "no-cache"
        etag = first.headers["etag"]
        for known in (etag, f"W/{etag}", f'"other", {etag}'):
            again = client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_the_page_needs_no_key_and_nothing_else_prefers_target_alone(make_lead: MakeLead) -> None:
    client = client_of(make_lead(api_keys=["sk-one"]))
    for path in paths():
        assert client.get(path).status_code == 200
        assert client.head(path).status_code == 200
        assert_error(client.post(path), 401)
    for path in ("/pages", "/page/../v1/models", "/v1/models"):
        assert_error(client.get(path), 401)


def test_no_other_file_is_served(client: TestClient) -> None:
    for path in (
        "/page/lead.py",
        "/page/..%2flead.py",
        "/page/%2e%2e/lead.py",
        "/page/%00",
        "/page/" + "x" * 5000,
        "/page/",
    ):
        assert_error(client.get(path), 404)
    assert_error(client.post("/"), 405)


# What is in them


def test_the_page_is_small() -> None:
    assert sum(len(content.encode()) for content in CONTENTS.values()) <= MOST_BYTES


def test_nothing_comes_from_outside() -> None:
    for name, content in CONTENTS.items():
        outside = set(re.findall(r"https?://[\w.]+", content)) - {"http://www.w3.org"}
        assert not outside, name
        assert "import(" not in content, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.(write|cookie)|eval\(", content), name
