"""Formatter: a text as the JSON of an API, whole or as the events of a stream."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from duo.chat.conversation import Json
from duo.chat.parser import AnswerParser, Part
from duo.engine.recorder import Totals
from duo.engine.request import AS_USUAL, TextRequest
from duo.engine.text import CONTEXT_FULL, LIMIT
from duo.errors import ApiError
from duo.llama.model import Model
from duo.server.generation_request import GenerationRequest
from duo.server.requests import openai_error
from duo.speculation.types import Step

Event = tuple[str, Json]  # the name of a server-sent event, or an empty one, and its data


class Formatter:
    """Formats one text, as whole() or as what begin(), push() and end() yield."""

    last = b""  # what ends a stream

    def __init__(self, wanted: GenerationRequest, text: TextRequest, model: Model, model_name: str) -> None:
        self.wanted, self.text, self.model, self.model_name = wanted, text, model, model_name
        self.parser = AnswerParser(wanted.format)
        self._starts: list[int] = []  # of each token of an answer that may have a thought: the characters before it
        self._n_characters = 0
        self._thought = (0, 0)  # its first character, and the one after its last
        self._progress = Totals(text.metrics)

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
        yield "", openai_error(error)

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
        for piece in step.pieces if self.wanted.format.has_thoughts else ():
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
        if self.wanted.drafting == AS_USUAL:
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
