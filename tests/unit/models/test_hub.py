"""Names from the hub, through the real huggingface_hub in a process of its own, against a hub of our own."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.models.fake_hub import TOKEN, FakeHub, FakeRepo, fake_hub

pytest.importorskip("huggingface_hub")

ROOT = Path(__file__).parents[3]

RESOLVE = """
import logging, sys
{before}
logging.basicConfig(format="%(message)s")
from duo.errors import DuoError
from duo.models.hub import resolve_hub
try:
    print(resolve_hub(sys.argv[1], offline="offline" in sys.argv[2:]))
except DuoError as error:
    print(type(error).__name__, error, sep=": ")
"""

REPOS = {
    "maker/small": FakeRepo(
        {
            "README.md": b"no model",
            "mmproj-small-Q4_K_M.gguf": b"GGUF eyes",
            "small-BF16.gguf": b"GGUF bf16",
            "small-F16.gguf": b"GGUF f16",
            "small-Q4_K_M.gguf": b"GGUF q4_k_m",
            "small-Q8_0.gguf": b"GGUF q8_0",
        }
    ),
    "maker/eight": FakeRepo({"eight-F16.gguf": b"GGUF f16", "eight-Q8_0.gguf": b"GGUF q8_0"}),
    "maker/odd": FakeRepo({"mmproj.gguf": b"GGUF eyes", "zoo.gguf": b"GGUF zoo", "odd.gguf": b"GGUF odd"}),
    "maker/split": FakeRepo(
        {f"Q4_0/big-Q4_0-{i:05}-of-00003.gguf": b"GGUF part %d" % i for i in (1, 2, 3)}
        | {"big-Q2_K-00001-of-00002.gguf": b"GGUF half"}
    ),
    "maker/none": FakeRepo({"README.md": b"", "mmproj-F16.gguf": b"GGUF eyes"}),
    "maker/private": FakeRepo({"secret-Q4_K_M.gguf": b"GGUF secret"}, private=True),
    "maker/gated": FakeRepo({"gated-Q4_K_M.gguf": b"GGUF gated"}, gated=True),
    "maker/forbidden": FakeRepo({"forbidden-Q4_K_M.gguf": b"GGUF"}, forbidden=True),
    "maker/moving": FakeRepo({f"m-{i:05}-of-00002.gguf": b"GGUF %d" % i for i in (1, 2)}, moves=True),
}


@dataclass
class User:
    """Somebody with a home of their own who asks for models."""

    hub: FakeHub
    home: Path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_"))}
        return kept | {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "PYTHONPATH": str(ROOT)} | more

    def command(self, *arguments: str, before: str = "") -> list[str]:
        return [sys.executable, "-W", "error", "-c", RESOLVE.format(before=before), *arguments]

    def resolve(self, *arguments: str, before: str = "", **env: str) -> tuple[str, str]:
        """What came out: stdout and stderr."""
        done = subprocess.run(
            self.command(*arguments, before=before),
            env=self.environment(**env),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    def path(self, *arguments: str, **env: str) -> Path:
        out, err = self.resolve(*arguments, **env)
        assert err == ""
        assert Path(out).is_file(), out
        return Path(out)

    def complaint(self, *arguments: str, before: str = "", **env: str) -> str:
        out, _ = self.resolve(*arguments, before=before, **env)
        assert len(out.splitlines()) == 1
        return out


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with fake_hub(REPOS) as hub:
        yield hub


@pytest.fixture
def user(hub: FakeHub, tmp_path: Path) -> Iterator[User]:
    hub.asked.clear()
    hub.sent.clear()
    yield User(hub, tmp_path)
    hub.status = None


@pytest.mark.parametrize(
    ("spec", "content"),
    [
        ("maker/small", b"GGUF q4_k_m"),
        ("maker/small:q8_0", b"GGUF q8_0"),
        ("maker/small:F16", b"GGUF f16"),
        ("maker/small:BF16", b"GGUF bf16"),
        ("maker/eight", b"GGUF q8_0"),
        ("maker/odd", b"GGUF odd"),
    ],
)
def test_finds_the_quantisation(user: User, spec: str, content: bytes) -> None:
    assert user.path(spec).read_bytes() == content


def test_it_lies_in_the_cache_of_huggingface_hub_and_is_fetched_once(user: User) -> None:
    first = user.path("maker/small")
    assert first.is_relative_to(user.home / "hub" / "models--maker--small" / "snapshots")
    assert user.path("maker/small") == first
    assert len(user.hub.sent) == 1


def test_a_split_model_comes_whole(user: User) -> None:
    first = user.path("maker/split:q4_0")
    assert first.name == "big-Q4_0-00001-of-00003.gguf"
    assert [file.read_bytes() for file in sorted(first.parent.iterdir())] == [
        b"GGUF part 1",
        b"GGUF part 2",
        b"GGUF part 3",
    ]


def test_offline_takes_what_is_there_and_asks_nobody(user: User) -> None:
    fetched = user.path("maker/small:q8_0")
    user.hub.asked.clear()
    assert user.path("maker/small:q8_0", "offline") == fetched
    assert user.path("maker/small", "offline") == fetched  # the only one there
    assert user.path("maker/small", HF_HUB_OFFLINE="1") == fetched
    assert user.hub.asked == []


def assert_not_offline(user: User, spec: str) -> None:
    user.hub.asked.clear()
    said = user.complaint(spec, "offline")
    assert said == f"DownloadError: {spec} is not in {user.home / 'hub'}, and duo is offline"
    assert user.hub.asked == []


def test_offline_what_is_not_there_is_not_fetched(user: User) -> None:
    assert_not_offline(user, "maker/small")
    user.path("maker/small:Q8_0")
    assert_not_offline(user, "maker/small:Q4_K_M")


def test_offline_half_a_model_is_none(user: User) -> None:
    user.path("maker/split:Q4_0").with_name("big-Q4_0-00002-of-00003.gguf").unlink()
    assert_not_offline(user, "maker/split:Q4_0")
    user.path("maker/small").resolve().unlink()  # the blob that the name in the snapshot points to
    assert_not_offline(user, "maker/small")


def test_the_token_opens_a_private_repository(user: User) -> None:
    for wrong in ({}, {"HF_TOKEN": "hf_wrong"}):
        said = user.complaint("maker/private", **wrong)
        assert said.startswith(f"DownloadError: {user.hub.url} has no maker/private, or it is private and HF_TOKEN")
    assert user.path("maker/private", HF_TOKEN=TOKEN).read_bytes() == b"GGUF secret"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("maker/gated", "maker/gated is gated: ask for access on its page, then set HF_TOKEN"),
        ("maker/none", "maker/none has no GGUF model"),
        ("maker/small:Q9_9", "maker/small has no Q9_9; it has BF16, F16, Q4_K_M, Q8_0"),
        ("maker/odd:Q9_9", "maker/odd has no Q9_9; it has odd.gguf, zoo.gguf"),
        ("maker/split:Q2_K", "maker/split has 1 of the 2 parts of big-Q2_K-00001-of-00002.gguf"),
        ("maker/moving", "maker/moving changed while it was fetched: run again"),
    ],
)
def test_says_why_not(user: User, spec: str, said: str) -> None:
    assert user.complaint(spec, HF_TOKEN=TOKEN) == f"DownloadError: {said}"


def test_an_unknown_repository(user: User) -> None:
    assert f"DownloadError: {user.hub.url} has no maker/nothing, or" in user.complaint("maker/nothing")


def test_another_form_is_a_usage_error(user: User) -> None:
    assert user.complaint("small").startswith("UsageError: a Hugging Face name has the form user/repo[:quant]")
    assert user.hub.asked == []


def test_a_hub_in_trouble_and_one_that_refuses_the_token(user: User) -> None:
    user.hub.status = 500
    assert user.complaint("maker/small") == f"DownloadError: cannot fetch maker/small: {user.hub.url} answered 500"
    user.hub.status = 401
    said = user.complaint("maker/small", HF_TOKEN="hf_wrong")
    assert said == f"DownloadError: cannot fetch maker/small: {user.hub.url} answered 401 (refused HF_TOKEN?)"


def test_a_file_that_is_listed_but_refused(user: User) -> None:
    said = user.complaint("maker/forbidden")
    assert said == f"DownloadError: cannot fetch maker/forbidden: {user.hub.url} answered 403 (refused HF_TOKEN?)"


def test_no_hub_there(user: User) -> None:
    nobody = "http://127.0.0.1:9"
    said = user.complaint("maker/small", HF_ENDPOINT=nobody)
    assert said == f"DownloadError: cannot fetch maker/small from {nobody}: Connection refused"


def test_what_is_cached_serves_when_the_hub_does_not(user: User) -> None:
    fetched = user.path("maker/small")
    out, err = user.resolve("maker/small", HF_ENDPOINT="http://127.0.0.1:9")
    assert out == str(fetched)
    assert "Connection refused; taking maker/small from the cache" in err


def test_without_huggingface_hub_it_says_how_to_install_it(user: User) -> None:
    said = user.complaint("maker/small", before="sys.modules['huggingface_hub'] = None")
    assert said == "DownloadError: models of Hugging Face need huggingface_hub: pip install huggingface_hub"


def test_progress_shows_on_a_terminal_only(user: User) -> None:
    user.path("maker/small")  # asserts that stderr is empty
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    try:
        command = user.command("maker/small:Q8_0")
        subprocess.run(command, env=user.environment(), stdout=subprocess.PIPE, stderr=end, check=True)
        assert b"100%" in os.read(terminal, 10_000)
    finally:
        os.close(terminal)
        os.close(end)
