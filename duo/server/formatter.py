"""Formatter: a text as the JSON of an API, whole or as the events of a stream; and the logprobs of its tokens."""

import codecs
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from duo.chat.conversation import Conversation, Json
from duo.chat.parser import AnswerFormat, AnswerParser, Part
from duo.engine.recorder import Totals
from duo.engine.request import AS_USUAL, Request
from duo.engine.statistics import CONTEXT_FULL, LIMIT
from duo.errors import ApiError
from duo.llama.model import Model
from duo.server.api import DuoOptions, TextBody
from duo.server.requests import openai_error
from duo.speculation.types import Step, TokenLogprobs

_MIN_LOGPROB = -9999.0  # what OpenAI's API has for -inf, which JSON cannot express
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

    last = b""  # what ends a stream

    def __post_init__(self) -> None:
        self.parser = AnswerParser(self.format)
        self._starts: list[int] = []  # of each token of an answer that may have a thought: the characters before it
        self._n_characters = 0
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
        self.count(step)
        return self.add(self.parser.push(step.text))

    def end(self) -> Iterator[Event]:
        """What ends the text."""
        yield from self.add(self.parser.end())

    def finish(self) -> Iterable[Event]:
        """What ends the answer, of whose choices this is the last one, once all have ended."""
        return ()

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
            self.count(step)
        for part in [*self.parser.push("".join(step.text for step in steps)), *self.parser.end()]:
            before = found[-1] if found else None
            if before is not None and part.call is before.call is None and part.is_reasoning == before.is_reasoning:
                found[-1] = before._replace(text=before.text + part.text)
            else:
                found.append(part)
        return found

    def count(self, step: Step) -> None:
        """Note the next step, before its parts."""
        for piece in step.pieces if self.format.has_thoughts else ():
            self._starts.append(self._n_characters)
            self._n_characters += len(piece.decode("utf-8", "replace"))

    @property
    def n_reasoning(self) -> int:
        """Tokens whose text begins in the thought, without its tags."""
        first, end = self.parser.thought
        return bisect_left(self._starts, end) - bisect_left(self._starts, first)

    @property
    def is_cut(self) -> bool:
        """Whether a limit has ended the text."""
        return self.text.metrics.stop in (LIMIT, CONTEXT_FULL)

    @property
    def used(self) -> Json:
        """How the text was written, for a request that says how to draft it, or has an object `duo`."""
        text = self.text
        if text.drafting == AS_USUAL and not isinstance(self.options.duo, DuoOptions):
            return {}
        found = text.metrics.statistics()
        names = {"draft": found.draft, "lookup": found.lookup}
        counts: Json = {f"{name}_n_accepted": source.accepted for name, source in names.items() if source is not None}
        counts["texts"] = round(text.n_texts / max(1, text.n_steps), 2)
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


class LogprobsFormatter:
    """The logprobs of one answer: of the tokens whose text begins in it, so not of an end token or a stop string.

    With an echo: of all tokens of the prompt and the answer.
    """

    def __init__(self, model: Model, *, chat: bool, no_bytes: list[int] | None = None) -> None:
        """`chat`: the JSON of a chat, otherwise that of a completion. `no_bytes`: those of a token without text."""
        self._model = model
        self._is_chat, self._no_bytes = chat, no_bytes
        self._waiting: deque[tuple[TokenLogprobs, bytes]] = deque()  # with what each adds to the text
        self._n_left = 0  # bytes of the text so far from the first of `waiting` on
        self._n_characters = 0  # complete characters before it
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, step: Step) -> None:
        """The next step of the text, also one that shows nothing."""
        self._waiting += [(one, self._model.piece(one.token)) for one in step.logprobs]
        self._n_left += sum(map(len, step.pieces))

    def echo(self, prompt: Sequence[int], scored: Sequence[TokenLogprobs], text: str) -> None:
        """The text begins with that of the prompt, of which all tokens but the first have logprobs."""
        pieces = [self._model.spelling([token]) for token in prompt]
        n_more = len(b"".join(pieces)) - len(text.encode())  # BOS, or a space that the tokenizer has added
        for one, piece in zip((TokenLogprobs(prompt[0], math.nan, ()), *scored), pieces, strict=False):
            self._waiting.append((one, piece[max(0, n_more) :]))
            n_more -= len(piece)
        self._n_left += len(text.encode())

    def take(self, *, all_left: bool = False) -> Json | None:
        """The `logprobs` of a choice: of the tokens since the last call whose text has begun to be shown, if any.

        `all_left`: also of those that show nothing. A completion's `text_offset` counts the characters of its text.
        """
        if not (found := self.entries(all_left=all_left)):
            return None
        if self._is_chat:
            return {"content": [one for _, one in found], "refusal": None}
        # As OpenAI has it: always with the chosen token. Of tokens with the same text, that or the likeliest.
        ascending = [[*reversed(one["top_logprobs"]), one] for _, one in found]
        return {
            "tokens": [one["token"] for _, one in found],
            "token_logprobs": [one["logprob"] for _, one in found],
            "top_logprobs": [
                {one["token"]: one["logprob"] for one in entries} if entries[-1]["logprob"] is not None else None
                for entries in ascending
            ],
            "text_offset": [offset for offset, _ in found],
        }

    def entries(self, *, all_left: bool = False) -> list[tuple[int, dict[str, Any]]]:
        """Those tokens as in a chat, with the offset of each in the characters of the answer."""
        found = []
        while self._waiting and (self._n_left > 0 or all_left):
            (token, logprob, top), piece = self._waiting.popleft()
            entry = self._entry(token, logprob) | {"top_logprobs": [self._entry(*other) for other in top]}
            found.append((self._n_characters, entry))
            self._n_left -= len(piece)
            self._n_characters += len(self._characters.decode(piece))
        return found

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._model.piece(token)
        name = piece or self._model.spelling([token])  # a special token has no bytes in a text
        return {
            "id": token,  # llama-server's
            "token": name.decode("utf-8", "replace") if self._is_chat else _name(name),
            "logprob": None if math.isnan(logprob) else max(logprob, _MIN_LOGPROB),
            "bytes": list(piece) or self._no_bytes,
        }


def _name(piece: bytes) -> str:
    """A token in a completion. As in OpenAI's API, parts of characters have names of their own, not all the same."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
