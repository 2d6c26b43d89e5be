"""Words that users of other programs type: each says the right command."""

from __future__ import annotations

import shlex

import pytest

from duo.cli.other_words import _WORDS
from tests.command import assert_refused
from tests.unit.cli.runner import duo


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("run llama3.2", "no command 'run': `duo chat -hf USER/REPO:QUANT` (models are named as on Hugging Face"),
        ("run", "`duo chat -hf USER/REPO:QUANT`"),
        ("run user/repo:Q8_0", "`duo chat -hf user/repo:Q8_0`\n"),
        ("run hf.co/user/repo", "`duo chat -hf user/repo`\n"),
        ("run --verbose ./main.gguf", "`duo chat -m ./main.gguf`\n"),
        ("run llama3.2 'Why is the sky blue?'", "`duo -hf USER/REPO:QUANT --chat -p 'Why is the sky blue?'` ("),
        ("run a.gguf why not", "`duo -m a.gguf --chat -p 'why not'`\n"),
        ("pull llama3.2", "downloaded when they are first used: `duo chat -hf USER/REPO:QUANT` ("),
        ("pull user/repo", "downloaded when they are first used: `duo chat -hf user/repo`\n"),
        ("serve", "`duo lead -m FILE` serves a model"),
        ("ps", "no service in the background"),
        ("generate", "`duo -m FILE -p TEXT`"),
        ("main.gguf -p x", "a model follows -m: `duo chat -m main.gguf`, or `duo -m main.gguf -p TEXT`"),
        ("'my model.gguf'", "`duo chat -m 'my model.gguf'`"),
        ("http://localhost:5555", "`duo chat http://localhost:5555`"),
        ("'Why is the sky blue?'", "a prompt follows -p: `duo -m FILE -p 'Why is the sky blue?'`"),
        ("benhc", "no command 'benhc': similar: bench"),
        ("pul", "no command 'pul': models are downloaded when they are first used"),
        ("serv", "no command 'serv': `duo lead -m FILE` serves a model"),
        ("caht", "no command 'caht': similar: chat\n"),
        ("-m a.gguf -v 1", "no command '1': a switch such as -v takes no value"),
        ("suggest -m a.gguf", "no command 'suggest': `duo tune -m FILE`"),
        ("profile", "`duo tune --list`"),
        ("trace trace.json", "`duo -v` says where the time went"),
        ("devices", "`duo --list-devices`"),
        ("nonsense", "no command 'nonsense': `duo --help` lists the commands"),
        ("-m a.gguf lad", "similar: lead"),
    ],
)
def test_what_was_meant(typed: str, said: str) -> None:
    assert_refused(duo(*shlex.split(typed)), said, status=2)


@pytest.mark.parametrize("word", _WORDS)
def test_each_word_says_a_command_of_duo_or_why_there_is_none(word: str) -> None:
    assert_refused(duo(word), f"no command {word!r}: {_WORDS[word]}\n", status=2)


def test_help_and_version_as_words() -> None:
    assert duo("help").text == duo("--help").text
    assert duo("help", "lead").text == duo("lead", "--help").text
    assert duo("version").text == duo("--version").text
    assert duo("version").status == duo("help").status == 0
    assert_refused(duo("help", "nonsense"), "no command 'nonsense'", status=2)


def test_they_are_not_in_the_help() -> None:
    commands = duo("--help").text.partition("Commands")[2]
    assert not any(f"│ {word} " in commands for word in ("run", "pull", "serve", "ps"))
