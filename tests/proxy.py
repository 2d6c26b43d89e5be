"""A proxy between backs and their lead that delays, drops, duplicates, reorders and corrupts messages."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, WebSocketException

from duo.link.messages import ROUTE

Connection = ClientConnection | ServerConnection

_SPARED = 1  # messages at the beginning of each direction that are only delayed: Hello and Welcome
_SWAP_S = 0.02  # delay of a message that others overtake


class Late(NamedTuple):
    """A message, and when it arrives by the loop's clock."""

    due: float
    message: str | bytes


class Proxy:
    """Listens on a free port of this machine, and passes on what backs and the lead at `lead_port` send.

    Each message arrives `delay_s` later, in either direction, in order, at most `bytes_per_s` of them. `cut`, `twice`,
    `swap` and `spoil` are the chances that a message ends the connection, arrives twice, is overtaken by the next ones,
    or has a byte changed. `counts` tells how often that was.
    """

    def __init__(
        self, lead_port: int, *, delay_s: float = 0.0, bytes_per_s: float = math.inf, seed: int = 0, **chances: float
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._lead = f"ws://127.0.0.1:{lead_port}{ROUTE}"
        self._delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._chances = chances
        self._seed = seed
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._listen()), name="proxy")

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._listening.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        async with serve(
            self._serve, "127.0.0.1", 0, compression=None, max_size=None, close_timeout=1, ping_interval=None
        ) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._listening.set()
            await self._stop.wait()

    async def _serve(self, back: ServerConnection) -> None:
        """One back, from its connection to its end."""
        n = self.counts["connections"]
        self.counts["connections"] += 1
        with suppress(OSError, WebSocketException):  # without a lead the back is disconnected
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
        overtaken, free_at, n = [], 0.0, 0
        with suppress(ConnectionClosed):
            async for data in source:
                n += 1
                happens = {what for what, chance in self._chances.items() if dice.random() < chance and n > _SPARED}
                self.counts.update(happens)
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


def _spoilt(message: str | bytes, dice: random.Random) -> bytes:
    """The same with one byte changed."""
    data = bytearray(message.encode() if isinstance(message, str) else message)
    if data:
        data[dice.randrange(len(data))] ^= dice.randrange(1, 256)
    return bytes(data)
