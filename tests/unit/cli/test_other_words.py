"""Words that users of other programs type: each says the right command."""

from __future__ import annotations

import shlex

import pytest

from tests.command import assert_refused
from tests.unit.cli.runner import duo


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("run llama3.2", "no command 'run': `duo chat -hf USER/REPO:QUANT` or `duo -hf"),
        ("run hf.co/user/repo:Q8_0", "`duo chat -hf user/repo:Q8_0` or"),
        ("run --verbose ./main.gguf", "`duo chat -m ./main.gguf` or"),
        ("pul user/repo", "no command 'pul': `duo chat -hf user/repo` or"),
        ("serv", "no command 'serv': `duo lead -m FILE` serves a model"),
        ("ps", "no service in the background"),
        ("'my model.gguf' -p x", "a model follows -m: `duo chat -m 'my model.gguf'`, or `duo -m"),
        ("http://localhost:5555", "`duo chat http://localhost:5555`"),
        ("'Why is the sky blue?'", "a prompt follows -p: `duo -m FILE -p 'Why is the sky blue?'`"),
        ("benhc", "no command 'benhc': similar: bench\n"),
        ("-m a.gguf lad", "similar: lead\n"),
        ("-m a.gguf -v 1", "no command '1': a switch such as -v takes no value"),
        ("suggest -m a.gguf", "no command 'suggest': `duo tune -m FILE`"),
        ("profile", "`duo tune --list`"),
        ("trace trace.json", "`duo -v` says where the time went"),
        ("devices", "`duo --list-devices`"),
        ("help nonsense", "no command 'nonsense': `duo --help` lists the commands"),
    ],
)
def test_what_was_meant(typed: str, said: str) -> None:
    assert_refused(duo(*shlex.split(typed)), said, status=2)


def test_help_and_version_as_words() -> None:
    assert duo("help", "lead").text == duo("lead", "--help").text
    assert duo("version").text == duo("--version").text
