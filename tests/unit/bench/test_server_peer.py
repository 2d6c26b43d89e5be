"""llama-server: its command line, and what is read from recorded events."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from duo.bench.contestant import ParseError, Run
from duo.bench.peers import Drafting
from duo.bench.server_peer import read_events, server_command
from tests.unit.bench.recorded import JOB, N_TOKENS, TEXT, recorded


def events() -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in recorded("server.txt").splitlines() if line]


def test_recorded_events_are_read() -> None:
    rates = {"prompt_tokens_per_s": 188.45573982339008, "first_token_s": 0.25}
    expected = Run(N_TOKENS, 60.08045556658482, TEXT, **rates, n_verified=26, n_accepted=14)  # type: ignore[arg-type]
    assert read_events(events(), 0.25) == expected


def test_without_a_draft_there_is_no_acceptance() -> None:
    found = events()
    del found[-1]["timings"]["draft_n"], found[-1]["timings"]["draft_n_accepted"]
    assert read_events(found, None).n_verified is None


def test_an_answer_without_its_last_event_is_an_error() -> None:
    with pytest.raises(ParseError, match="no timings"):
        read_events(events()[:-1], None)


def test_the_command_line() -> None:
    plain = server_command(Path("a"), replace(JOB, draft=None), 2, None, ["-fa", "on"])
    assert ("-md" in plain, "-fa" in plain, plain[plain.index("-cram") + 1]) == (False, True, "0")
    drafting = server_command(Path("a"), JOB, 2, Drafting(1, 3), [])
    wanted = {"-t": "2", "-td": "1", "-md": "draft.gguf", "--spec-draft-n-max": "3"}
    assert {option: drafting[drafting.index(option) + 1] for option in wanted} == wanted
