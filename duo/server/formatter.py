"""Formatter: a text as the JSON of an API, whole or as the events of a stream."""

from collections.abc import Iterable, Iterator, Sequence

from duo.engine.request import AS_USUAL, TextRequest
from duo.engine.text import CONTEXT_FULL, LIMIT
from duo.llama.model import Model
from duo.server.answer_parser import AnswerParser, Part
from duo.server.api_error import ApiError
from duo.server.conversation import Json
from duo.server.generation_request import GenerationRequest
from duo.spec.types import Step

Event = tuple[str, Json]  # the name of a server-sent event, or an empty one, and its data


class Formatter:
    """Formats one text, as whole() or as what begin(), push() and end() yield."""

    last = b""  # what ends a stream

    def __init__(self, wanted: GenerationRequest, text: TextRequest, model: Model, model_name: str) -> None:
        self.wanted, self.text, self.model, self.model_name = wanted, text, model, model_name
        self.parser = AnswerParser(wanted.format)

    def follow(self, other: "Formatter") -> None:
        """Format the next choice of the same answer."""
        raise NotImplementedError

    def joined(self, documents: Sequence[Json]) -> Json:
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
        return self.add(self.parser.push(step.text))

    def end(self) -> Iterator[Event]:
        """What ends the text."""
        yield from self.add(self.parser.end())

    def fail(self, error: ApiError) -> Iterable[Event]:
        """What ends it instead if the generation fails."""
        yield "", error.body()

    def add(self, parts: Iterable[Part]) -> Iterator[Event]:
        """The events of these parts."""
        raise NotImplementedError

    def parts(self, steps: Sequence[Step]) -> list[Part]:
        """All parts of a whole answer, neighbours of a kind joined."""
        found: list[Part] = []
        for part in [*self.parser.push("".join(step.text for step in steps)), *self.parser.end()]:
            before = found[-1] if found else None
            if before is not None and part.call is before.call is None and part.is_reasoning == before.is_reasoning:
                found[-1] = before._replace(text=before.text + part.text)
            else:
                found.append(part)
        return found

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
