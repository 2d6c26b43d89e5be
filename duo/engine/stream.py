"""How the steps of a text reach the program that asked for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from duo.engine.background import PAUSE_S, Items
from duo.engine.metrics import Statistics
from duo.engine.slot import TextRequest
from duo.spec.types import Step


@dataclass(frozen=True, slots=True)
class Completion:
    """A text that has ended."""

    text: str
    tokens: tuple[int, ...]
    stop_reason: str  # end of text, token limit, stop string, context full, interrupted …
    statistics: Statistics


class Stream:
    """The steps of a text while it is written: iterate over it once.

    The text ends early at close(), at the end of `with`, and when nothing refers to the stream any more.
    """

    request: TextRequest

    def __init__(self, cancel: Callable[[TextRequest], None]) -> None:
        self.items: Items[Step] = Items()
        self._cancel = cancel
        self._steps = iter(self.items)

    def __iter__(self) -> Iterator[Step]:
        """The stream itself."""
        return self

    def __next__(self) -> Step:
        """The next step, as soon as it is there. Raises DecodeError, or what else the text failed of."""
        return next(self._steps)

    def __enter__(self) -> Stream:
        """The stream itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """See close()."""
        self.close()

    def __del__(self) -> None:
        """End the text after its present step."""
        if hasattr(self, "request"):
            self.request.cancelled.set()  # no more: this may run anywhere, under any lock

    def close(self) -> None:
        """End the text, if it has not ended, from any thread. What is written already can still be iterated over."""
        self._cancel(self.request)

    @property
    def statistics(self) -> Statistics:
        """The figures so far; all of them once the loop is over."""
        return self.request.metrics.statistics()

    def completion(self) -> Completion:
        """The text when it has ended. Raises what iterating raises."""
        steps = list(self)
        tokens = tuple(token for step in steps for token in step.tokens)
        pieces = b"".join(piece for step in steps for piece in step.pieces)
        return Completion(
            pieces.decode("utf-8", "replace"), tokens, self.request.metrics.stop, self.request.metrics.statistics()
        )


class AsyncSteps:
    """The same for asyncio: steps from the engine's thread to an event loop.

    The loop is woken for the first step and the end. In between it looks now and then: to be woken for every token it
    would take the interpreter from the engine's thread just when that is between two decodes.
    """

    def __init__(self) -> None:
        """Belongs to the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._steps: deque[Step] = deque()
        self._wake = asyncio.Event()
        self._begun = False
        self._ended = False
        self._error: BaseException | None = None

    def put(self, step: Step) -> None:
        """The next step. From any thread."""
        self._steps.append(step)
        if not self._begun:
            self._begun = True
            self.wake()

    def end(self, error: BaseException | None) -> None:
        """There are no more. From any thread."""
        self._error = error
        self._ended = self._begun = True
        self.wake()

    def wake(self) -> None:
        """Let next() look around. From any thread."""
        with suppress(RuntimeError):  # when the loop has ended
            self._loop.call_soon_threadsafe(self._wake.set)

    async def next(self, gone: Callable[[], bool] = lambda: False) -> list[Step] | None:
        """The next steps, at least one; None at the end, or when it is woken and nobody wants them any more (`gone`).

        Raises what the text failed of.
        """
        while not self._steps:
            if gone():
                return None
            if self._ended and not self._steps:
                if self._error is not None:
                    raise self._error
                return None
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), PAUSE_S if self._begun else None)
            self._wake.clear()
        return [self._steps.popleft() for _ in range(len(self._steps))]
