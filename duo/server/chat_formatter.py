"""ChatFormatter: a text as the JSON of OpenAI's chats and completions, whole or in the chunks of a stream."""

import codecs
import math
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from duo.chat.conversation import Json
from duo.chat.parser import Part, ToolCall
from duo.engine.request import TextRequest
from duo.llama.model import Model
from duo.server.api import ChatBody, DuoOptions
from duo.server.formatter import Event, Formatter
from duo.server.generation_request import GenerationRequest
from duo.speculation.types import Step, TokenLogprobs

_MIN_LOGPROB = -9999.0  # what OpenAI's API has for -inf, which JSON cannot express


class ChatFormatter(Formatter):
    """See Formatter."""

    last = b"data: [DONE]\n\n"

    def __init__(self, wanted: GenerationRequest, text: TextRequest, model: Model, model_name: str) -> None:
        super().__init__(wanted, text, model, model_name)
        self._body = wanted.options
        self._is_chat = isinstance(wanted.body, ChatBody)
        self._head: Json = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": model_name,
        }
        self._logprobs = LogprobsFormatter(model, chat=self._is_chat)
        self._sources: list[str] = []  # of each character: the draft, the lookup, or the target itself
        self._n_tokens = 0  # since the last chunk
        self._n_calls = 0
        self._before = 0, 0, 0, 0  # counts of the choices before this one
        self._echoes = bool(self._body.echo)
        duo = wanted.options.duo
        self._marks = duo.sources if isinstance(duo, DuoOptions) else bool(duo)  # whether chunks tell sources

    def follow(self, other: Formatter) -> None:
        """See Formatter."""
        assert isinstance(other, ChatFormatter)
        self._head, self._before = other._head, other._totals

    def joined(self, documents: Sequence[Json]) -> Json:
        """See Formatter."""
        if len(documents) == 1:
            return documents[0]
        choices = [choice for document in documents for choice in document["choices"]]  # type: ignore[attr-defined]
        return {name: documents[-1][name] for name in (*self._head, "object", "usage")} | {"choices": choices}

    def _echo(self) -> str:
        """The prompt, if it is part of the text."""
        if not self._echoes:
            return ""
        text = self.wanted.prompt.text
        if text is None:
            text = self.model.spelling(self.text.prompt).decode("utf-8", "replace")
        if self.text.scored is not None:
            self._logprobs.echo(self.text.prompt, self.text.scored, text)
        return text

    def whole(self, steps: Sequence[Step]) -> Json:
        """The answer as one document."""
        echo = self._echo()
        for step in steps:
            self._logprobs.push(step)
        parts = self.parts(steps)
        calls = [self._call(part.call) for part in parts if part.call is not None]
        reasoning = "".join(part.text for part in parts if part.is_reasoning)
        content = "".join(part.text for part in parts if not part.is_reasoning)
        message: Json = {"role": "assistant", "content": None if calls and not content else content}
        message |= {"reasoning_content": reasoning} if reasoning else {}
        message |= {"tool_calls": calls} if calls else {}
        answer: Json = {"message": message} if self._is_chat else {"text": echo + content}
        document = self._document(answer, self._finish_reason(), kind="chat.completion")
        return document | {"usage": self._usage(), "timings": self.timings()} | self.used

    def begin(self) -> Iterator[Event]:
        """See Formatter."""
        if self._is_chat:
            yield "", self._chunk({"role": "assistant", "content": ""})
        elif echo := self._echo():
            yield "", self._chunk({"content": echo})

    def push(self, step: Step) -> Iterable[Event]:
        """See Formatter."""
        self._logprobs.push(step)
        if self._marks:
            self._n_tokens += len(step.tokens)
            n = len(step.text)
            n_drafted = min(n, len(b"".join(step.pieces[: step.n_accepted]).decode("utf-8", "replace")))
            self._sources += [step.source.value] * n_drafted + ["target"] * (n - n_drafted)
        return super().push(step)

    def add(self, parts: Iterable[Part]) -> Iterator[Event]:
        """See Formatter."""
        for part in parts:
            yield "", self._part(part)

    def end(self) -> Iterator[Event]:
        """See Formatter."""
        yield from super().end()
        yield "", self._chunk({}, self._finish_reason()) | {"timings": self.timings()} | self.used
        options = self._body.stream_options
        is_last = self.wanted.index + 1 == len(self.wanted.prompts) * self.wanted.n
        if is_last and options is not None and options.include_usage:
            yield "", self._document(None) | {"usage": self._usage()}

    def _document(self, answer: Json | None, finish: str | None = None, kind: str = "chat.completion.chunk") -> Json:
        """A whole answer, or a chunk of it with the logprobs since the last one."""
        logprobs = self._logprobs.take(all_left=self._echoes and finish is not None)
        choice = {"index": self.wanted.index, **(answer or {}), "logprobs": logprobs, "finish_reason": finish}
        kind = kind if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": [choice] if answer is not None else []}

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        return self._document({"delta": delta} if self._is_chat else {"text": delta.get("content", "")}, finish)

    def _part(self, part: Part) -> Json:
        if part.call is not None:
            chunk = self._chunk({"tool_calls": [{"index": self._n_calls, **self._call(part.call)}]})
        else:
            chunk = self._chunk({"reasoning_content" if part.is_reasoning else "content": part.text})
        if self._marks:
            runs = groupby(self._sources[part.start : part.start + len(part.text)])
            chunk["duo"] = {"tokens": self._n_tokens, "sources": [(name, len([*same])) for name, same in runs]}
            self._n_tokens = 0
        return chunk

    def _call(self, call: ToolCall) -> Json:
        """OpenAI's `tool_calls` entry, with a new id."""
        self._n_calls += 1
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": call._asdict()}

    def _finish_reason(self) -> str:
        """OpenAI's `finish_reason`. As in llama-server, a limit is first."""
        if self.is_cut:
            return "length"
        return "tool_calls" if self._n_calls else "stop"

    @property
    def _totals(self) -> tuple[int, int, int, int]:
        """The counts of all choices so far, each prompt once, and the tokens of thoughts among them."""
        n_prompt, n_cached, n_text = self.counts
        is_first = not self.wanted.index % self.wanted.n
        new = is_first * n_prompt, is_first * n_cached, n_text, self.n_reasoning
        prompts, cached, texts, thoughts = map(sum, zip(self._before, new, strict=True))
        return prompts, cached, texts, thoughts

    def _usage(self) -> Json:
        n_prompt, n_cached, n_text, n_reasoning = self._totals
        details: Json = {"completion_tokens_details": {"reasoning_tokens": n_reasoning}}
        return (details if self.wanted.format.has_thoughts else {}) | {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_text,
            "total_tokens": n_prompt + n_text,
            "prompt_tokens_details": {"cached_tokens": n_cached},
        }


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
