"""The events of a real lead: real backs that join and are killed, keys, limits, and the end of the lead."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.command import SLOW_TARGET
from tests.serving import PATIENCE_S, BackProcess, LeadProcess, assert_error, wait_until

PATH = "/v1/duo/events"
PROMPT = "Once upon a time, in a small village by the sea,"
N = 96
CONTEXT = ("-c", "512")


class EventReader:
    """Receives the events of a lead on a thread, until the lead ends them or the end of `with`."""

    def __init__(self, lead: LeadProcess, **headers: str) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.has_ended = False
        self._client = httpx.Client(timeout=httpx.Timeout(PATIENCE_S))
        request = self._client.build_request("GET", lead.url + PATH, headers=headers)
        self.response = self._client.send(request, stream=True)
        self._leaves = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def __enter__(self) -> EventReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._leaves = True
        with suppress(OSError):  # the lead may have closed it
            self.response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._client.close()

    def _read(self) -> None:
        name = ""
        with suppress(httpx.TransportError):
            for line in self.response.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self.events.append((name, json.loads(line[6:])))
            self.has_ended = not self._leaves

    def named(self, name: str) -> list[dict[str, Any]]:
        return [document for known, document in self.events if known == name]

    @property
    def backs(self) -> list[dict[str, Any]]:
        """The remote drafts, as said last."""
        states = self.named("state")
        return list(states[-1]["backs"]) if states else []


@pytest.fixture(scope="module")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    with LeadProcess(demo_pair[0], "--schedule", "async", *CONTEXT, before=SLOW_TARGET) as lead:
        yield lead
        assert lead.process.poll() is None
        assert not any("Traceback" in line for line in lead.lines)


def test_backs_that_join_and_are_killed_while_a_text_is_written(
    lead: LeadProcess, demo_pair: tuple[Path, Path]
) -> None:
    with EventReader(lead) as reader, ExitStack() as stack:
        wait_until(lambda: reader.named("state"))
        assert reader.backs == []
        stream = lead.stream(PROMPT, N)
        stream.wait_for_pieces(2)
        first, second = (stack.enter_context(BackProcess(demo_pair[1], lead.port)) for _ in range(2))
        wait_until(lambda: len(reader.backs) == 2)
        assert all(back["model"] == demo_pair[1].stem and back["model"] in back["name"] for back in reader.backs)
        stream.finish()
        texts = [stream]
        while not any(back["accepted"] for back in reader.backs):  # they may not have been ready in time
            texts.append(lead.stream(PROMPT, N))
            texts[-1].finish()
            wait_until(lambda: len(reader.named("text")) == 2 * len(texts))
        (used,) = (back for back in reader.backs if back["accepted"])
        assert used["accepted"] <= used["verified"]
        assert used["round_trip_ms"] > 0

        stream = lead.stream(PROMPT, N)
        stream.wait_for_pieces(2)
        wait_until(lambda: any(back["in_use"] for back in reader.backs))
        for back in (first, second):
            back.send(signal.SIGKILL)
        wait_until(lambda: reader.backs == [])
        stream.finish()
        wait_until(lambda: len(reader.named("text")) == 2 * len(texts) + 2)
        progress, texts_said = reader.named("progress")[-1], reader.named("text")
        assert [text["state"] for text in texts_said] == ["begins", "ends"] * (len(texts) + 1)
        assert (texts_said[-1]["tokens"], texts_said[-1]["stop"]) == (N, "token limit")
        assert (progress["id"], progress["tokens"]) == (texts_said[-1]["id"], N)
        assert progress["tokens_per_s"] > 0
        lanes = {span["lane"] for event in reader.named("spans") for span in event["spans"]}
        assert lanes == {"target", "remote draft"}
        assert not reader.has_ended


def test_a_key_is_needed_and_the_streams_end_with_the_lead(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], *CONTEXT, "--api-key", "sk-one", before=SLOW_TARGET) as lead:
        assert_error(httpx.get(lead.url + PATH, timeout=PATIENCE_S), 401)
        with EventReader(lead, Authorization="Bearer sk-one") as reader:
            wait_until(lambda: reader.named("state"))
            assert reader.named("state")[0]["model"]["name"] == demo_pair[1].stem
            lead.send(signal.SIGTERM)
            assert lead.finish() == 0
            wait_until(lambda: reader.has_ended)
