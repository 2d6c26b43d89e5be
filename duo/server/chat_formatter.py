"""A text as the JSON of OpenAI's chats and completions, or of llama-server's /completion; whole or as a stream."""

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from duo.chat.conversation import Json
from duo.chat.parser import Origins, Part, ToolCall
from duo.config import GenerationConfig
from duo.config.option import declared
from duo.engine.statistics import CONTEXT_FULL, END_OF_TEXT, GRAMMAR_END, LIMIT, STOP_STRING
from duo.server.api import ChatBody, DuoOptions, LlamaBody
from duo.server.formatter import Event, Formatter, LogprobsFormatter
from duo.speculation.types import Step

_STOPS = {END_OF_TEXT: "eos", GRAMMAR_END: "eos", STOP_STRING: "word", LIMIT: "limit", CONTEXT_FULL: "limit"}


class ChatFormatter(Formatter):
    """See Formatter."""

    last = b"data: [DONE]\n\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._is_chat = isinstance(self.body, ChatBody)
        self._head: Json = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": self.model_name,
        }
        self._logprobs = LogprobsFormatter(self.model, chat=self._is_chat)
        self._origins = Origins()
        self._n_tokens = 0  # since the last chunk
        self._n_calls = 0
        self._before: ChatFormatter | None = None  # of the choice before this one
        self._sums: tuple[int, int, int, int] | None = None  # see _totals, once this text and those before have ended
        self._echoes = bool(self.options.echo)
        duo = self.options.duo
        self._marks = duo.sources if isinstance(duo, DuoOptions) else bool(duo)  # whether chunks tell sources

    def follow(self, other: Formatter) -> None:
        """See Formatter."""
        assert isinstance(other, ChatFormatter)
        self._head, self._before = other._head, other

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
        text = self.prompt
        if text is None:
            text = self.model.spelling(self.text.prompt).decode("utf-8", "replace")
        if self.text.scored is not None:
            self._logprobs.echo(self.text.prompt, self.text.scored, text)
        return text

    def whole(self, steps: Sequence[Step]) -> Json:
        """The answer as one document."""
        echo, parts = self._echo(), self.parts(steps)
        calls = [self._call(part.call) for part in parts if part.call is not None]
        reasoning = "".join(part.text for part in parts if part.is_reasoning)
        content = "".join(part.text for part in parts if not part.is_reasoning)
        message: Json = {"role": "assistant", "content": None if calls and not content else content}
        message |= {"reasoning_content": reasoning} if reasoning else {}
        message |= {"tool_calls": calls} if calls else {}
        answer: Json = {"message": message} if self._is_chat else {"text": echo + content}
        self._sums = self._totals
        document = self._document(answer, self._finish_reason(), kind="chat.completion")
        return document | {"usage": self._usage(), "timings": self.timings()} | self.used

    def begin(self) -> Iterator[Event]:
        """See Formatter."""
        if self._is_chat:
            yield "", self._chunk({"role": "assistant", "content": ""})
        elif echo := self._echo():
            yield "", self._chunk({"content": echo})

    def count(self, step: Step) -> None:
        """See Formatter."""
        super().count(step)
        self._logprobs.push(step)
        if self._marks:
            self._n_tokens += len(step.tokens)
            self._origins.push(step)

    def add(self, parts: Iterable[Part]) -> Iterator[Event]:
        """See Formatter."""
        for part in parts:
            yield "", self._part(part)

    def end(self) -> Iterator[Event]:
        """See Formatter."""
        yield from super().end()
        yield "", self._chunk({}, self._finish_reason()) | {"timings": self.timings()} | self.used

    def finish(self) -> Iterator[Event]:
        """See Formatter."""
        options = self.options.stream_options
        if options is not None and options.include_usage:
            yield "", self._document(None) | {"usage": self._usage()}

    def _document(self, answer: Json | None, finish: str | None = None, kind: str = "chat.completion.chunk") -> Json:
        """A whole answer, or a chunk of it with the logprobs since the last one."""
        logprobs = self._logprobs.take(all_left=self._echoes and finish is not None)
        choice = {"index": self.index, **(answer or {}), "logprobs": logprobs, "finish_reason": finish}
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
            sources = [("target" if one is None else one.value, n) for one, n in self._origins.runs(part)]
            chunk["duo"] = {"id": self.text.number, "tokens": self._n_tokens, "sources": sources}
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
        if self._sums is not None:
            return self._sums
        n_prompt, n_cached, n_text = self.counts
        is_first = not self.index % self.n
        new = is_first * n_prompt, is_first * n_cached, n_text, self.n_reasoning
        before = self._before._totals if self._before is not None else (0, 0, 0, 0)
        prompts, cached, texts, thoughts = map(sum, zip(before, new, strict=True))
        return prompts, cached, texts, thoughts

    def _usage(self) -> Json:
        n_prompt, n_cached, n_text, n_reasoning = self._totals
        details: Json = {"completion_tokens_details": {"reasoning_tokens": n_reasoning}}
        return (details if self.format.has_thoughts else {}) | {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_text,
            "total_tokens": n_prompt + n_text,
            "prompt_tokens_details": {"cached_tokens": n_cached},
        }


def settings_of(config: GenerationConfig) -> Json:
    """The options of a text as llama-server names them."""
    found = {one.name: one.default for one in declared(config)}
    biases = [{"token": token, "bias": bias} for token, bias in config.sampling.logit_bias]
    names: Json = {"n_predict": found["max_tokens"], "n_probs": found.pop("logprobs") or 0, "logit_bias": biases}
    return found | names | {"grammar": config.grammar or ""}


class LlamaFormatter(Formatter):
    """See Formatter. Each event has what a step adds, the last one all of whole() but the text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.body, LlamaBody)
        self._body = self.body
        self._logprobs = LogprobsFormatter(self.model, chat=True, no_bytes=[])
        self._n_tokens, self._has_line = 0, False

    def joined(self, documents: Sequence[Json]) -> object:
        """See Formatter; several are an array."""
        return documents if len(documents) > 1 else documents[0]

    def whole(self, steps: Sequence[Step]) -> Json:
        """See Formatter."""
        events = [event for step in steps for _, event in self.push(step)]
        tokens = [token for event in events for token in event["tokens"]] if self._body.return_tokens else []
        probabilities = [one for event in events for one in event.get("completion_probabilities", ())]
        more: Json = {"completion_probabilities": probabilities} if self.text.config.n_logprobs else {}
        return self._last("".join(event["content"] for event in events), tokens, more)

    def push(self, step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
        """See Formatter."""
        self._logprobs.push(step)
        self._n_tokens += len(step.tokens)
        self._has_line = self._has_line or "\n" in step.text
        found, event = self._logprobs.take(all_left=True), self._head(step.text, step.tokens)
        more: Json = {"completion_probabilities": found["content"]} if found is not None else {}
        more |= {"timings": self.timings()} if self._body.timings_per_token else {}
        yield "", event | {"stop": False} | more

    def end(self) -> Iterator[Event]:
        """See Formatter."""
        yield "", self._last("", (), {})

    def _head(self, text: str, tokens: Sequence[int]) -> Json:
        return {
            "index": self.index, "content": text, "tokens": tokens, "id_slot": self.text.slot,
            "tokens_predicted": self._n_tokens, "tokens_evaluated": len(self.text.prompt),
        }  # fmt: skip

    def _last(self, text: str, tokens: Sequence[int], more: Json) -> Json:
        stop, prompt = self.text.metrics.stop, self.text.prompt
        return self._head(text, tokens) | {
            "stop": True,
            "model": self.model_name,
            "generation_settings": settings_of(self.text.config),
            "prompt": self.model.spelling(prompt).decode("utf-8", "replace"),
            "has_new_line": self._has_line,
            "truncated": stop == CONTEXT_FULL,
            "stop_type": _STOPS.get(stop, "none"),
            "stopping_word": self.text.metrics.stopped_by or "",
            "tokens_cached": len(prompt) + max(0, self._n_tokens - 1),  # in the KV cache; the last token is not
            "timings": self.timings(),
            **more,
        }
