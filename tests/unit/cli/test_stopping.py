"""Where a text ends, and that the report says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import ONE_EACH, models
from tests.unit.cli.runner import duo

N_PROMPT = 8  # tokens of "the cat" in the tiny model
TEXT = ("-p", "the cat", "--ignore-eos", "--exact", *ONE_EACH)


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_the_token_limit(tiny: Path, n: int, drafted: bool) -> None:
    run = duo(*models(tiny, tiny if drafted else None), *TEXT, "-n", str(n))
    assert (run.stopped, run.n_tokens, run.n_prompt) == ("token limit", n, N_PROMPT)
    assert bool(run.stdout) == bool(n)
    assert run.stderr.endswith(" tps: 0.000\n") == (n < 2), "one token has no rate"


@pytest.mark.parametrize("drafted", [True, False])
def test_stop_strings(kin: dict[str, Path], drafted: bool) -> None:
    arguments = (*models(kin["llama"], kin["llama"] if drafted else None), *TEXT, "-n", "40")
    text = duo(*arguments).stdout
    stop, *_, early = (
        match[0].decode() for match in (re.search(rb"[a-zA-Z]{2,}", text[8:]), re.search(rb"[a-zA-Z]", text)) if match
    )
    expected = text[: text.index(stop.encode())]
    for stops in ([stop], ["zzz", stop], [stop, "zzz"], [r"\x" + stop[0].encode().hex() + stop[1:]]):
        run = duo(*arguments, *(word for stop in stops for word in ("-r", stop)))
        assert (run.stopped, run.stdout) == ("stop string", expected)
    first = duo(*arguments, "-r", stop, "-r", early)
    assert first.stdout == text[: text.index(early.encode())] != expected, "the first of several in the text"
    escaped = duo(*arguments, "-r", r"\x" + stop[0].encode().hex(), "--no-escape")
    assert (escaped.stopped, escaped.stdout) == ("token limit", text)


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("exact", [(), ("--exact",)])
@pytest.mark.parametrize("n_ctx", [20, 256])
def test_a_full_context(tiny: Path, drafted: bool, exact: tuple[str, ...], n_ctx: int) -> None:
    text = ("-p", "the cat", "-n", "1000", "-c", str(n_ctx), "--ignore-eos", *exact, *ONE_EACH)
    run = duo(*models(tiny, tiny if drafted else None), *text)
    # The last token needs no cell in the context: nothing is decoded after it.
    assert (run.stopped, run.n_tokens) == ("context full", n_ctx - N_PROMPT + 1)
