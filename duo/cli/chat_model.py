"""A chat with a model in this process."""

import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from duo.chat.parser import AnswerFormat, AnswerParser, Origins, Part
from duo.cli.commands.chat import Answer, Message, Show, limit_remark
from duo.cli.load import empty_hint
from duo.cli.terminal.console import progress_bar, prompt_bar
from duo.cli.terminal.interrupts import handling
from duo.config import MAX_SEED, GenerationConfig
from duo.engine.engine import Engine
from duo.engine.request import Request
from duo.engine.statistics import CONTEXT_FULL, LIMIT
from duo.engine.stream import Stream
from duo.errors import PromptError
from duo.speculation.types import Origin, Step

_MAX_SPACES = 16  # that SentencePiece adds after special tokens: more than between two turns


class LocalModel:
    """An engine that answers. Its KV cache keeps the conversation, so each turn processes only what is new."""

    def __init__(self, engine: Engine, config: GenerationConfig) -> None:
        """Makes the contexts, as large as the memory and the model allow. Raises DuoError, also without a template."""
        target = engine.slot.target
        if not target.header.text("tokenizer.chat_template"):
            raise PromptError(
                f"{target.path.name} has no chat template, which a chat needs: `duo -m FILE -p TEXT` continues a text"
            )
        self._engine = engine
        self._config = config
        self._text, self._tokens = "", list[int]()  # of the conversation, up to the end of the last answer
        # Contexts for a text of known length would be replaced, and their KV cache lost, at every turn.
        with progress_bar():
            engine.call(lambda slot: slot.reserve(0, -1))

    def greeting(self) -> str:
        """The models' files."""
        slot = self._engine.slot
        draft = f", draft {slot.draft_name}" if slot.draft_name else ""
        return f"{slot.target.path.name}{draft}, context of {slot.n_ctx} tokens"

    def answer(self, messages: list[Message], answer: Answer, show: Show, attempt: int = 0) -> None:
        """Generate an answer: see ChatBackend. Raises DuoError."""
        text = self._engine.apply_chat_template(messages)
        prompt, written, whole = self._tokenize(text), list[int](), ""
        form = AnswerFormat.after(text, self._engine.slot.target.chat_template.thought)
        reading = _ShownAnswer(AnswerParser(form), answer, show)
        sampling = self._config.sampling
        config = replace(self._config, sampling=replace(sampling, seed=(sampling.seed + attempt) % (MAX_SEED + 1)))
        with ExitStack() as streams, ExitStack() as bar:
            show_read = bar.enter_context(prompt_bar(len(prompt), self._engine.slot.config.n_batch))
            # An exception inside the engine would leave it with a request without a thread, or with a lock held.
            with _interrupts_wait():
                stream = self._engine.start(Request(prompt, config, on_prompt=show_read))
                streams.callback(_close, stream)
            try:
                for step in stream:
                    bar.close()
                    whole += step.text
                    written += step.tokens
                    reading.add(step)
            finally:
                reading.end()
                self._take_figures(stream, answer)
                self._remember(text, whole, [*prompt, *written], len(written))

    def _tokenize(self, text: str) -> list[int]:
        """The tokens of a conversation, which begin with those of the last turn if it continues that.

        A model may write a text in other tokens than those that the tokenizer finds, so the KV cache would not match.
        """
        tokens, target = self._engine.tokenize(text), self._engine.slot.target
        if not self._text or not text.startswith(self._text):
            return tokens
        rest = text[len(self._text) :].encode()
        n_bytes, first = 0, len(tokens)
        while first and n_bytes <= len(rest) + _MAX_SPACES:
            first -= 1
            n_bytes += len(target.spelling(tokens[first : first + 1]))
            if n_bytes >= len(rest) and rest in (target.spelling(tokens[first:]), target.prompt_text(tokens[first:])):
                return [*self._tokens, *tokens[first:]]
        return tokens

    def _remember(self, text: str, answer: str, tokens: list[int], n_written: int) -> None:
        """Keep the tokens of an answer to `text`, unless they have more text than it, such as a stop string."""
        target = self._engine.slot.target
        if n_written and target.is_end(tokens[-1]):
            tokens, n_written = tokens[:-1], n_written - 1
        written = target.spelling(tokens[len(tokens) - n_written :]).decode("utf-8", "replace")
        self._text, self._tokens = (text + answer, tokens) if written == answer else ("", [])

    def _take_figures(self, stream: Stream, answer: Answer) -> None:
        statistics = stream.statistics
        text, prompt = statistics.generation, stream.request
        seconds = text.tokens / text.tokens_per_s if text.tokens_per_s else 0.0
        answer.figures = (text.tokens, seconds, statistics.verified, statistics.accepted)
        answer.prompt = (len(prompt.prompt), prompt.n_cached)
        n_predict = self._config.stop.n_predict
        if text.stop == CONTEXT_FULL:
            answer.remark = f"the context of {self._engine.slot.n_ctx} tokens (-c) is full"
        elif not answer.text:
            answer.remark = empty_hint(text.stop, n_predict)
        elif text.stop == LIMIT:
            answer.remark = limit_remark(n_predict)


class _ShownAnswer:
    """Shows the parts of an answer: thoughts are none of its text."""

    def __init__(self, parser: AnswerParser, answer: Answer, show: Show) -> None:
        self._parser, self._answer, self._show = parser, answer, show
        self._origins = Origins()

    def add(self, step: Step) -> None:
        """Show what the next step completes."""
        self._origins.push(step)
        self._take(self._parser.push(step.text))

    def end(self) -> None:
        """Show what is left."""
        self._take(self._parser.end())

    def _take(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if part.is_reasoning:
                self._show(part.text, 0, None)
                continue
            self._answer.text += part.text
            text = part.text
            for origin, n in self._origins.runs(part):
                self._show(text[:n], 0 if origin is None else n, origin or Origin.DRAFT)
                text = text[n:]


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """SIGINT is handled at the end of the block. A signal mask would not do: another thread took it. Main thread."""
    arrived: list[int] = []
    with handling(lambda number, _: arrived.append(number), signal.SIGINT):
        yield
    if arrived:
        signal.raise_signal(signal.SIGINT)


def _close(stream: Stream) -> None:
    with _interrupts_wait():
        stream.close()
