"""Relay: a link with a delay."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import deque
from contextlib import closing, suppress


class Relay:
    """A TCP proxy to a local port, with a delay in each direction, which may be changed at any time."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._to, self.delay_s = port, delay_s
        # select() has a resolution of microseconds; epoll() rounds up to milliseconds.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._listen(),))
        self.port = 0

    def __enter__(self) -> Relay:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # let closed connections finish

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Python 3.11 prints the end of a cancelled task.
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
            with closing(to_writer):
                await asyncio.gather(self._pump(reader, to_writer), self._pump(to_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at, pieces = 0.0, deque[bytes]()  # in order, also when the delay has become shorter
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                at = max(at, self._loop.time() + self.delay_s)
                pieces.append(data)
                self._loop.call_at(at, lambda: writer.write(pieces.popleft()))
        await asyncio.sleep(max(0.0, at - self._loop.time()))
        writer.close()
