"""Clients that ask for much: others are answered after a few turns, and nothing that was asked for is lost."""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from duo import Engine, load
from duo.engine.request import Request
from duo.engine.stream import AsyncSteps
from duo.http.listener import Limits
from duo.server.lead_server import Lead
from duo.speculation.types import Step
from tests.gguf_files import tiny_llama
from tests.raw_http import connect, read_answer, read_to_the_end, request
from tests.serving import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

N_STREAMS, N, N_TOGETHER = 60, 64, 4


def asked(n: int, prompt: str = "the cat", key: str = "", **fields: Any) -> bytes:
    more = f"Authorization: Bearer {key}\r\n" if key else ""
    fields = {"prompt": prompt, "max_tokens": n, "ignore_eos": True, **fields}
    return request("/v1/completions", json.dumps(fields).encode(), more=more)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")
    with load(path, n_ctx=2048, profile=False, n_threads=1, lookup="off") as engine:
        yield engine


class Counting(Lead):
    """A lead that counts the tokens that it writes, and writes none while `go_on` is not set."""

    n_written = 0

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.n_meanwhile: dict[int, int] = {}  # tokens of all texts from a request to its end, by its `max_tokens`
        super().__init__(engine, port=0, on_step=self._count, on_text=self._end, **options)
        self._before: dict[Request, int] = {}
        self._begin_text = self._service.begin
        self._service.begin = self._begin  # type: ignore[method-assign]

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def _begin(self, text: Request, *, is_first: bool) -> AsyncSteps:
        self._before[text] = self.n_written
        return self._begin_text(text, is_first=is_first)

    def _count(self, step: Step) -> None:
        self.go_on.wait()
        self.n_written += len(step.tokens)

    def _end(self, text: Request) -> None:
        self.n_meanwhile[text.config.stop.n_predict] = self.n_written - self._before[text]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n_before", [0, 640, 1920])
def test_a_short_request_beside_streams_that_nobody_reads(engine: Engine, n_before: int, *, stream: bool) -> None:
    with Counting(engine) as lead, ExitStack() as stack:
        links = [stack.enter_context(connect(lead, asked(N, stream=True))) for _ in range(N_STREAMS)]
        wait_until(lambda: lead.n_texts + lead.n_written // N >= N_STREAMS - 1 and lead.n_written >= n_before)
        with connect(lead, asked(4, stream=stream)) as short:
            assert short.recv(9) == b"HTTP/1.1 "
            wait_until(lambda: 4 in lead.n_meanwhile)
            assert lead.n_meanwhile[4] <= 3 * N * N_TOGETHER + 4, "three turns of those in a batch, and its own"
        for link in links:
            link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = read_to_the_end(link)
            assert answer.count(b'"text":') >= N / 4, "nothing is lost"
            assert b"[DONE]" in answer


@pytest.mark.parametrize("all_began", [False, True])
def test_who_has_filled_the_queue_makes_room_for_others(engine: Engine, *, all_began: bool) -> None:
    n_queue = 0 if all_began else 8
    n_most = n_queue + engine.slot.n_together
    with Counting(engine, api_keys=["one", "two"], n_queue=n_queue) as lead, ExitStack() as stack:
        stack.callback(lead.go_on.set)
        if not all_began:
            lead.go_on.clear()
        hog = [stack.enter_context(connect(lead, asked(1500, key="one"))) for _ in range(n_most)]
        wait_until(lambda: lead.n_texts == n_most)
        if all_began:
            wait_until(lambda: all(text.began for text in lead._service.unfinished))
            lead.go_on.clear()
        with connect(lead, asked(4, key="one")) as more:
            assert read_answer(more)[0] == 503
        with connect(lead, asked(4, key="two")) as other:
            n_now = n_most + all_began
            wait_until(lambda: lead.n_texts == n_now and "two" in {t.client for t in lead._service.unfinished})
            lead.go_on.set()
            assert read_answer(other)[0] == 200
        assert lead.n_meanwhile[4] <= 3 * N * N_TOGETHER + 4
        ended = [link for link in hog if select.select([link], [], [], 0)[0]]
        assert [read_answer(link)[0] for link in ended] == ([] if all_began else [503]), "the last of those that wait"


def test_a_long_text_that_nobody_reads_ends(engine: Engine) -> None:
    """The system would keep all of it for the client."""
    with Counting(engine, limits=Limits(read_s=0.2)) as lead, connect(lead, asked(2000, stream=True)) as link:
        wait_until(lambda: lead.n_written > N)
        wait_until(lambda: not lead._listener._server.server_state.connections)
        assert b"[DONE]" not in read_to_the_end(link)
        wait_until(lambda: lead.n_texts == 0)
