"""Formatter: a text as the JSON of an API, whole or as the events of a stream, and the response that has it."""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from duo.chat.parser import AnswerFormat, AnswerParser, Part
from duo.engine.recorder import Totals
from duo.engine.request import AS_USUAL, Request
from duo.engine.statistics import CONTEXT_FULL, LIMIT
from duo.engine.stream import AsyncSteps
from duo.http.guard import CLIENT
from duo.llama.model import Model
from duo.server.api import TextBody
from duo.server.api_error import ApiError, json_response
from duo.server.conversation import Conversation, Json
from duo.server.generation_service import GenerationService
from duo.speculation.types import Step

Event = tuple[str, Json]  # the name of a server-sent event, or an empty one, and its data


class Body(Protocol):
    """The body of a request for a text, of any API."""

    @property
    def stream(self) -> bool | None: ...  # noqa: D102

    def options(self) -> TextBody:
        """How the text is written."""

    def conversation(self) -> Conversation:
        """What it asks to continue; empty: a prompt. Raises ApiError."""


@dataclass(eq=False)
class Formatter:
    """Formats one text, as whole() or as what begin(), push() and end() yield: a choice of an answer."""

    text: Request
    body: Body
    options: TextBody
    format: AnswerFormat  # what the text may have besides content
    model: Model
    model_name: str
    prompt: str | None  # as it was sent; None: as tokens
    index: int  # of this choice
    n: int  # choices for each prompt
    n_choices: int  # of the answer

    last = b""  # what ends a stream

    def __post_init__(self) -> None:
        self.parser = AnswerParser(self.format)
        self._starts: list[int] = []  # of each token of an answer that may have a thought: the characters before it
        self._n_characters = 0
        self._thought = (0, 0)  # its first character, and the one after its last
        self._progress = Totals(self.text.metrics)

    def follow(self, other: "Formatter") -> None:
        """Format the next choice of the same answer, after that of `other`."""

    def joined(self, documents: Sequence[Json]) -> object:
        """The document of all choices, of which this is the last."""
        return documents[-1]

    def whole(self, steps: Sequence[Step]) -> Json:
        """The answer as one document."""
        raise NotImplementedError

    def begin(self) -> Iterable[Event]:
        """What comes before the text."""
        return ()

    def push(self, step: Step) -> Iterable[Event]:
        """What the next step adds."""
        self._count(step)
        return self.add(self._seen(self.parser.push(step.text)))

    def end(self) -> Iterator[Event]:
        """What ends the text."""
        yield from self.add(self._seen(self.parser.end()))

    def fail(self, error: ApiError) -> Iterable[Event]:
        """What ends it instead if the generation fails."""
        yield "", error.body()

    def add(self, parts: Iterable[Part]) -> Iterator[Event]:
        """The events of these parts."""
        raise NotImplementedError

    def parts(self, steps: Sequence[Step]) -> list[Part]:
        """All parts of a whole answer, neighbours of a kind joined."""
        found: list[Part] = []
        for step in steps:
            self._count(step)
        for part in self._seen([*self.parser.push("".join(step.text for step in steps)), *self.parser.end()]):
            before = found[-1] if found else None
            if before is not None and part.call is before.call is None and part.is_reasoning == before.is_reasoning:
                found[-1] = before._replace(text=before.text + part.text)
            else:
                found.append(part)
        return found

    def _count(self, step: Step) -> None:
        for piece in step.pieces if self.format.has_thoughts else ():
            self._starts.append(self._n_characters)
            self._n_characters += len(piece.decode("utf-8", "replace"))

    def _seen(self, parts: list[Part]) -> list[Part]:
        for part in parts:
            if part.is_reasoning:
                first = self._thought[0] if self._thought[1] else part.start
                self._thought = first, part.start + len(part.text)
        return parts

    @property
    def n_reasoning(self) -> int:
        """Tokens whose text begins in the thought, without its tags."""
        first, end = self._thought
        return bisect_left(self._starts, end) - bisect_left(self._starts, first)

    @property
    def is_cut(self) -> bool:
        """Whether a limit has ended the text."""
        return self.text.metrics.stop in (LIMIT, CONTEXT_FULL)

    @property
    def used(self) -> Json:
        """What was used to draft, for a request that says how."""
        if self.text.drafting == AS_USUAL:
            return {}
        found = self.text.metrics.statistics()
        names = {"draft": found.draft, "lookup": found.lookup}
        counts = {f"{name}_n_accepted": source.accepted for name, source in names.items() if source is not None}
        return {"duo": {"tokens_by_schedule": found.generation.tokens_by_schedule, **counts}}

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tokens of the prompt, of those that were in a cache, and of the text."""
        return len(self.text.prompt), self.text.n_cached, self.text.metrics.statistics().generation.tokens

    def timings(self) -> Json:
        """llama-server's, so far. A call costs no more as the text gets longer."""
        self._progress.update()
        text, n_cached = self._progress, self.text.n_cached
        prompt_s, n_read = text.time_by_activity["prompt"].seconds, len(self.text.prompt) - n_cached
        timings: Json = {
            "cache_n": n_cached,
            "prompt_n": n_read,
            "prompt_ms": 1000 * prompt_s,
            "prompt_per_token_ms": 1000 * prompt_s / n_read,
            "prompt_per_second": n_read / prompt_s if prompt_s else None,
            "predicted_n": text.n_tokens,
            "predicted_ms": 1000 * text.seconds,
            "predicted_per_token_ms": 1000 / text.tokens_per_s if text.tokens_per_s else None,
            "predicted_per_second": text.tokens_per_s,
        }
        sources = (text.draft, text.lookup)
        if n_verified := sum(source.verified for source in sources):
            timings |= {"draft_n": n_verified, "draft_n_accepted": sum(source.accepted for source in sources)}
        return timings


async def respond(service: GenerationService, request: HttpRequest, choices: Sequence[Formatter]) -> Response:
    """Generate the texts of all choices. Raises ApiError or DuoError before the response has begun."""
    client = request.scope.get(CLIENT)
    for choice in choices:
        choice.text.client = client
    service.make_room(client)
    answer = _Answer(service, choices)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        answer.cancel()

    watching = asyncio.create_task(watch())
    try:
        if not choices[0].body.stream:
            return await answer.whole()
        first = await _collect(answer.steps, only_first=True)
    except BaseException:
        answer.cancel()
        raise
    finally:
        watching.cancel()
    return EventStream(answer.stream(first), answer.cancel)


class _Answer:
    """The choices of an answer, written one after the other: each waits for its turn behind other clients' texts."""

    def __init__(self, service: GenerationService, choices: Sequence[Formatter]) -> None:
        """Puts the first one into the queue. Raises DuoError."""
        self._scheduler, self._begin = service.engine.scheduler, service.begin
        self._formatter, *rest = choices
        self._rest = deque(rest)
        self.steps = self._begin(self._formatter.text)

    def _begin_next(self) -> bool:
        """Put the next one into the queue, if there is one. Raises DuoError."""
        if not self._rest:
            return False
        before, self._formatter = self._formatter, self._rest.popleft()
        self._formatter.follow(before)
        self.steps = self._begin(self._formatter.text)
        return True

    def cancel(self) -> None:
        """End all of them."""
        self._rest.clear()
        self._scheduler.cancel(self._formatter.text)

    async def whole(self) -> Response:
        """The response. Raises ApiError."""
        documents, more = list[Json](), True
        while more:
            found = await _collect(self.steps, only_first=False)
            # There may be much to format.
            documents.append(await anyio.to_thread.run_sync(self._formatter.whole, found))
            more = self._begin_next()
        return await anyio.to_thread.run_sync(json_response, self._formatter.joined(documents))

    async def stream(self, new: list[Step] | None) -> AsyncIterator[bytes]:
        """The response as server-sent events, from the first steps of the first choice."""
        more = True
        while more:
            formatter = self._formatter
            yield encoded(formatter.begin())
            try:
                while new:
                    if data := b"".join(encoded(formatter.push(step)) for step in new):
                        yield data
                    new = await self.steps.next()
                yield encoded(formatter.end())
                if more := self._begin_next():
                    new = await self.steps.next()
            except Exception as error:  # of the generation: the status has been sent already
                yield encoded(formatter.fail(ApiError.of(error)))
                more = False
        yield self._formatter.last


class EventStream(StreamingResponse):
    """Server-sent events. `close` is always called at the end, even if the response never began."""

    def __init__(self, pieces: AsyncIterable[bytes], close: Callable[[], None]) -> None:
        # The last header turns off buffering in nginx.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _collect(steps: AsyncSteps, *, only_first: bool) -> list[Step]:
    """All steps, or those that come first. Raises ApiError if the text fails."""
    found: list[Step] = []
    try:
        while (new := await steps.next()) is not None:
            found += new
            if only_first:
                break
    except Exception as error:
        raise ApiError.of(error) from None
    return found


def encoded(events: Iterable[Event]) -> bytes:
    """Server-sent events."""
    return b"".join(event(document, name) for name, document in events)


def event(document: object, name: str = "") -> bytes:
    """A server-sent event of JSON."""
    return b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", msgspec.json.encode(document))
