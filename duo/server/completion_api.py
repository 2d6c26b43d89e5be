"""llama-server's own API for a text, POST /completion: its body, and an answer as its JSON and its events."""

from collections.abc import Iterator, Sequence
from typing import Any

from duo.chat.conversation import Json
from duo.config import GenerationConfig
from duo.config.option import declared
from duo.engine.text import CONTEXT_FULL, END_OF_TEXT, GRAMMAR_END, LIMIT, STOP_STRING
from duo.server.api import CompletionBody
from duo.server.chat_formatter import LogprobsFormatter
from duo.server.formatter import Event, Formatter
from duo.speculation.types import Step

_STOPS = {END_OF_TEXT: "eos", GRAMMAR_END: "eos", STOP_STRING: "word", LIMIT: "limit", CONTEXT_FULL: "limit"}


class LlamaBody(CompletionBody):
    """POST /completion."""

    return_tokens: bool | None = None
    timings_per_token: bool | None = None


def settings_of(config: GenerationConfig) -> Json:
    """The options of a text as llama-server names them."""
    found = {one.name: one.default for one in declared(config)}
    biases = [{"token": token, "bias": bias} for token, bias in config.sampling.logit_bias]
    names: Json = {"n_predict": found["max_tokens"], "n_probs": found.pop("logprobs") or 0, "logit_bias": biases}
    return found | names | {"grammar": config.grammar or ""}


class LlamaFormatter(Formatter):
    """See Formatter. Each event has what a step adds, the last one all of whole() but the text."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self.wanted.body, LlamaBody)
        self._body = self.wanted.body
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
        more: Json = {"completion_probabilities": probabilities} if self.wanted.config.n_logprobs else {}
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
            "index": self.wanted.index, "content": text, "tokens": tokens, "id_slot": self.text.slot,
            "tokens_predicted": self._n_tokens, "tokens_evaluated": len(self.text.prompt),
        }  # fmt: skip

    def _last(self, text: str, tokens: Sequence[int], more: Json) -> Json:
        stop, prompt = self.text.metrics.stop, self.text.prompt
        return self._head(text, tokens) | {
            "stop": True,
            "model": self.model_name,
            "generation_settings": settings_of(self.wanted.config),
            "prompt": self.model.spelling(prompt).decode("utf-8", "replace"),
            "has_new_line": self._has_line,
            "truncated": stop == CONTEXT_FULL,
            "stop_type": _STOPS.get(stop, "none"),
            "stopping_word": self.text.stopped_by or "",
            "tokens_cached": len(prompt) + max(0, self._n_tokens - 1),  # in the KV cache; the last token is not
            "timings": self.timings(),
            **more,
        }
