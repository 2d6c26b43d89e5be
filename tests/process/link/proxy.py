"""A proxy between a back and its lead that is as bad as a network can be, and worse: message by message."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException

from duo.link.messages import ROUTE

Connection = ClientConnection | ServerConnection

_SPARED = 1  # messages at the beginning of each direction that nothing but delays happens to: Hello and Welcome
_SWAP_S = 0.02  # that a message is held back for others to overtake it


class Late(NamedTuple):
    """A message that has to arrive at a time of the loop's clock."""

    due: float
    message: str | bytes


class Proxy:
    """Listens on a free port of this machine, and passes on what backs and the lead at `lead_port` say.

    With `delay_s` alone it is a long wire, which benchmarks may use: each message arrives so much later, in either
    direction, in order, however many are on their way. Its loop waits in select(), which knows microseconds;
    epoll() rounds up to milliseconds.

    `bytes_per_s` makes it a thin wire too. `cut`, `twice`, `swap` and `spoil` are chances that a message ends the
    connection, comes twice, is overtaken by the next ones, or has a byte changed. `counts` tells how often that was.
    """

    def __init__(
        self,
        lead_port: int,
        *,
        delay_s: float = 0.0,
        bytes_per_s: float = math.inf,
        cut: float = 0.0,
        twice: float = 0.0,
        swap: float = 0.0,
        spoil: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._lead = f"ws://127.0.0.1:{lead_port}{ROUTE}"
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._chances = {"cut": cut, "twice": twice, "swap": swap, "spoil": spoil}
        self._seed = seed
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        async with serve(
            self._serve, "127.0.0.1", 0, compression=None, max_size=None, close_timeout=1, ping_interval=None
        ) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._listening.set()
            await self._stop.wait()

    async def _serve(self, back: ServerConnection) -> None:
        """One back, from its coming to its going."""
        n = self.counts["connections"]
        self.counts["connections"] += 1
        with suppress(OSError, WebSocketException):  # without a lead the back is sent away
            async with connect(
                self._lead, compression=None, max_size=None, close_timeout=1, ping_interval=None, proxy=None
            ) as lead:
                await asyncio.gather(
                    self._pass_on(back, lead, random.Random(f"{self._seed} {n} to lead")),
                    self._pass_on(lead, back, random.Random(f"{self._seed} {n} to back")),
                )

    async def _pass_on(self, source: Connection, sink: Connection, dice: random.Random) -> None:
        """One direction, until either end is closed."""
        wire: asyncio.Queue[Late | None] = asyncio.Queue()
        delivering = asyncio.create_task(self._deliver(wire, sink))
        fate = _Fate(self._chances, dice, self.counts)
        overtaken, free_at = [], 0.0
        with suppress(ConnectionClosed):
            async for data in source:
                happens = fate.of_next()
                message = _spoilt(data, dice) if "spoil" in happens else data
                free_at = max(free_at, self._loop.time()) + len(message) / self._bytes_per_s
                late = Late(free_at + self._delay_s, message)
                if "swap" in happens:
                    overtaken.append(asyncio.create_task(self._send(late._replace(due=late.due + _SWAP_S), sink)))
                else:
                    wire.put_nowait(late)
                if "twice" in happens:
                    wire.put_nowait(late)
                if "cut" in happens:
                    source.transport.abort()
                    sink.transport.abort()
        wire.put_nowait(None)
        await asyncio.gather(delivering, *overtaken)
        await sink.close()

    async def _deliver(self, wire: asyncio.Queue[Late | None], sink: Connection) -> None:
        while (late := await wire.get()) is not None:
            await self._send(late, sink)

    async def _send(self, late: Late, sink: Connection) -> None:
        if (left_s := late.due - self._loop.time()) > 0:
            await asyncio.sleep(left_s)
        with suppress(ConnectionClosed):
            await sink.send(late.message)


class _Fate:
    """What happens to the messages of one direction."""

    def __init__(self, chances: Mapping[str, float], dice: random.Random, counts: Counter[str]) -> None:
        self._chances = chances
        self._dice = dice
        self._counts = counts
        self._n = 0

    def of_next(self) -> set[str]:
        self._n += 1
        happens = {what for what, chance in self._chances.items() if self._dice.random() < chance}
        if self._n <= _SPARED:
            return set()
        self._counts.update(happens)
        return happens


def _spoilt(message: str | bytes, dice: random.Random) -> bytes:
    """The same with one byte changed."""
    data = bytearray(message.encode() if isinstance(message, str) else message)
    if data:
        data[dice.randrange(len(data))] ^= dice.randrange(1, 256)
    return bytes(data)
