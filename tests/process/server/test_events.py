"""The events of a real lead: a real back that joins and is killed while texts are written."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.command import SLOW_TARGET
from tests.serving import PATIENCE_S, BackProcess, LeadProcess

PROMPT = "Once upon a time, in a small village by the sea,"
N = 96


def events_of(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Each event as it comes: its name and its data."""
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_back_that_joins_and_is_killed(demo_pair: tuple[Path, Path]) -> None:
    with (
        LeadProcess(demo_pair[0], "--schedule", "async", "-c", "512", before=SLOW_TARGET) as lead,
        httpx.stream("GET", f"{lead.url}/v1/duo/events", timeout=PATIENCE_S) as response,
        BackProcess(demo_pair[1], lead.port) as process,
    ):
        events = events_of(response)
        backs: list[dict[str, Any]] = []
        lanes: set[str] = set()
        while not any(back["accepted"] for back in backs):  # it may not have been ready in time
            lead.write(PROMPT, N)
            for name, document in events:
                if name == "state":
                    backs = document["backs"]
                if name == "spans":
                    lanes |= {span["lane"] for span in document["spans"]}
                if document.get("state") == "ends":
                    break
        (back,) = backs
        assert back["model"] == demo_pair[1].stem in back["name"]
        assert 0 < back["accepted"] <= back["verified"]
        assert back["round_trip_ms"] > 0
        assert lanes == {"target", "remote draft"}
        stream = lead.stream(PROMPT, N)
        stream.wait_for_pieces(2)
        process.send(signal.SIGKILL)
        assert next(document for _, document in events if document.get("backs") == [])
        stream.finish()
        ends = next(document for _, document in events if document.get("state") == "ends")
        assert (ends["tokens"], ends["stop"]) == (N, "token limit")
