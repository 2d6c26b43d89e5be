"""Where a text ends, and that the report says why. tests/unit/engine proves where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import ONE_EACH, models
from tests.unit.cli.runner import duo

N_PROMPT = 8  # tokens of "the cat" in the tiny model
TEXT = ("-p", "the cat", "--ignore-eos", "--exact", *ONE_EACH)


@pytest.mark.parametrize("drafted", [True, False])
def test_limits_of_tokens_and_of_the_context(tiny: Path, drafted: bool) -> None:
    pair = models(tiny, tiny if drafted else None)
    for n in (0, 1, 7):
        run = duo(*pair, *TEXT, "-n", str(n))
        assert (run.stopped, run.n_tokens, run.n_prompt, bool(run.stdout)) == ("token limit", n, N_PROMPT, bool(n))
        assert run.stderr.endswith(" tps: 0.000\n") == (n < 2), "one token has no rate"
    run = duo(*pair, *TEXT, "-n", "1000", "-c", "20")
    # The last token needs no cell in the context: nothing is decoded after it.
    assert (run.stopped, run.n_tokens) == ("context full", 20 - N_PROMPT + 1)


def test_stop_strings(kin: dict[str, Path]) -> None:
    arguments = (*models(kin["llama"], kin["llama"]), *TEXT, "-n", "40")
    text = duo(*arguments).stdout
    found = re.search(rb"[a-zA-Z]{2,}", text[8:])
    assert found is not None
    stop, escape = found[0].decode(), r"\x" + found[0][:1].hex()
    for given in (stop, escape + stop[1:]):
        run = duo(*arguments, "-r", "zzz", "-r", given)
        assert (run.stopped, run.stdout) == ("stop string", text[: text.index(found[0])])
    assert duo(*arguments, "-r", escape, "--no-escape").stdout == text
