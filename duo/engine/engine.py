"""Engine: a target and its drafts, as a program uses them."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from duo.config import SAMPLERS, GenerationConfig, SamplingConfig, StopConfig
from duo.engine.metrics import Metrics, Statistics
from duo.engine.slot import Drafts, Slot, TextRequest
from duo.engine.stream import AsyncSteps, Completion, Stream
from duo.engine.text import INTERRUPTED
from duo.engine.worker import Worker
from duo.errors import BusyError, ClosedError, DuoError, PromptError
from duo.llama import lifeline
from duo.llama.grammar import schema_grammar
from duo.llama.memory import trim
from duo.spec.types import Step

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class TextOptions(TypedDict, total=False):
        """What stream(), generate(), chat(), stream_chat() and astream() take: see generation_config()."""

        max_tokens: int | None
        temperature: float
        top_p: float
        top_k: int
        min_p: float
        typical_p: float
        repeat_penalty: float
        repeat_last_n: int
        presence_penalty: float
        frequency_penalty: float
        logit_bias: Mapping[int, float] | None
        samplers: Sequence[str]
        seed: int | None
        stop: str | Sequence[str]
        ignore_eos: bool
        grammar: str | None
        json_schema: str | None
        verify: str


log = logging.getLogger("duo.engine")

CLOSING = "the engine is closing"
_FIELDS = {"temperature": "temp", "typical_p": "typical"}  # of SamplingConfig
T = TypeVar("T")


def generation_config(**options: Unpack[TextOptions]) -> GenerationConfig:
    """How one text is written, by the names of OpenAI and llama-cpp-python. Raises UsageError, TypeError.

    `max_tokens` None, the default: to the end of the text or the context. `temperature` 0, the default: always the most
    likely token. `seed` None: a new one for each text. `grammar` is GBNF, `json_schema` the text of a JSON schema. For
    the others see SamplingConfig.
    """
    given: dict[str, Any] = dict(options)
    if wrong := given.keys() & _FIELDS.values():
        raise TypeError(f"unexpected keyword argument: {', '.join(wrong)}")
    stop, seed, schema = given.pop("stop", ()), given.pop("seed", None), given.pop("json_schema", None)
    n_predict, ignore_eos = given.pop("max_tokens", None), given.pop("ignore_eos", False)
    grammar, verify = given.pop("grammar", None), given.pop("verify", "coupled")
    if schema is not None:
        grammar = schema_grammar(schema, "json_schema")
    return GenerationConfig(
        SamplingConfig(
            logit_bias=tuple((given.pop("logit_bias", None) or {}).items()),
            samplers=tuple(given.pop("samplers", SAMPLERS)),
            seed=secrets.randbits(32) if seed is None else seed % 2**64,
            **{_FIELDS.get(name, name): value for name, value in given.items()},
        ),
        StopConfig(
            -1 if n_predict is None else n_predict, (stop,) if isinstance(stop, str) else tuple(stop), ignore_eos
        ),
        grammar,
        verify,
    )


@dataclass(frozen=True, slots=True)
class _Text:
    """What an engine keeps of a text until that has ended."""

    job: Callable[[], None]
    end: Callable[[BaseException | None], None]


class Engine:
    """Writes one text after the other with a target and its drafts; duo.load() makes one.

    Any thread may call it. Texts are written in the order in which they are asked for, on a thread of the engine's own
    that there is only while there is something to write, and each keeps in the KV cache what the next may begin with.
    Nothing is printed: the logger `duo` has what is worth knowing. Leaving `with` closes it.
    """

    def __init__(self, slot: Slot, resources: ExitStack | None = None) -> None:
        """Takes over `slot` and `resources`, which are closed after its texts have ended."""
        self._slot = slot
        self._resources = resources or ExitStack()
        self._worker = Worker("duo-target")
        self._lock = threading.Lock()  # for the fields below
        self._texts: dict[TextRequest, _Text] = {}  # that have not ended
        self._last: TextRequest | None = None
        self._closing = False
        self.fault: str | None = None  # what the last text failed of, if that is an error of duo's own

    def __enter__(self) -> Engine:
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """See close()."""
        self.close()

    def close(self) -> None:
        """End all texts, then free the contexts and the models. A second call does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            texts = list(self._texts)
        for request in texts:
            self.cancel(request)
        self._worker.join()
        if not lifeline.is_lost():
            self._slot.close()
            self._resources.close()
            trim()

    # Texts

    def stream(self, prompt: str | Sequence[int], **options: Unpack[TextOptions]) -> Stream:
        """Write a text after `prompt`, a str or tokens: iterate over its steps. See generation_config() for `options`.

        Leaving the loop early ends the text. Raises PromptError or UsageError; iterating raises DecodeError.
        """
        return self.start(self._tokens(prompt), generation_config(**options))

    def generate(self, prompt: str | Sequence[int], **options: Unpack[TextOptions]) -> Completion:
        """The same, all at once."""
        return self.stream(prompt, **options).completion()

    def stream_chat(self, messages: Sequence[Mapping[str, str]], **options: Unpack[TextOptions]) -> Stream:
        """Write the answer to `messages` (`role` and `content`), in the model's chat template: see stream()."""
        return self.stream(self.apply_chat_template(messages), **options)

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Unpack[TextOptions]) -> Completion:
        """The same, all at once."""
        return self.stream_chat(messages, **options).completion()

    def astream(self, prompt: str | Sequence[int], **options: Unpack[TextOptions]) -> AsyncIterator[Step]:
        """As stream(), for asyncio: `async for step in engine.astream(...)`."""
        return self._asteps(self._tokens(prompt), generation_config(**options))

    def interrupt(self) -> None:
        """Let the text that is being written end soon, from any thread; those that wait are not touched."""
        self._slot.interrupt()

    @property
    def statistics(self) -> Statistics | None:
        """Of the text that was begun last; None before the first."""
        return self._last.metrics.statistics() if self._last is not None else None

    # Tokens

    def tokenize(self, text: str, *, add_bos: bool = True) -> list[int]:
        """The tokens of `text`, special ones parsed, BOS in front if the vocabulary asks for it and `add_bos`."""
        return self.slot.target.tokenize(text, add_bos=add_bos)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special ones written out; U+FFFD for bytes that are no UTF-8."""
        return self.slot.target.spelling(tokens).decode("utf-8", "replace")

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt for `messages`, ready for the assistant's answer. Raises PromptError if that cannot be."""
        return self.slot.target.apply_chat_template([dict(message) for message in messages])

    # For duo's own commands

    @property
    def slot(self) -> Slot:
        """The contexts, for jobs on the engine's thread. Raises ClosedError."""
        if self._closing:
            raise ClosedError("the engine is closed")
        return self._slot

    def start(
        self,
        prompt: Sequence[int],
        config: GenerationConfig,
        *,
        drafts: Drafts | None = None,
        metrics: Metrics | None = None,
        on_prompt: Callable[[int], None] = lambda _: None,
    ) -> Stream:
        """Write a text after tokens: see submit()."""
        stream = Stream(self.cancel)
        request = TextRequest(prompt, config, stream.items.put, on_prompt, metrics or Metrics())
        self.submit(request, stream.items.end, drafts)
        stream.request = request
        return stream

    def submit(
        self, request: TextRequest, end: Callable[[BaseException | None], None], drafts: Drafts | None = None
    ) -> None:
        """Write a text when its turn comes, with `drafts` instead of the engine's own.

        When it has ended, `end` is told what it failed of, or None, on the engine's thread, or on that which ended it
        before. Raises PromptError for no tokens, BusyError while the engine is closing.
        """
        if not request.prompt:
            raise PromptError("the prompt has no tokens")

        def job() -> None:
            self._write(request, drafts)

        with self._lock:
            if self._closing:
                raise BusyError(CLOSING)
            self._texts[request] = _Text(job, end)
            self._last = request
        self._worker.submit(job)

    def cancel(self, request: TextRequest) -> None:
        """End a text soon; one that waits ends now, and is never begun. From any thread."""
        self._slot.cancel(request)
        with self._lock:
            text = self._texts.get(request)
        if text is not None and self._worker.drop(text.job):
            request.metrics.stop = INTERRUPTED
            self._end(request, None)

    @property
    def n_texts(self) -> int:
        """Texts that are being written or wait for it."""
        return len(self._texts)

    def fail(self, error: BaseException, requests: Collection[TextRequest] | None = None) -> None:
        """End these texts, by default all, with this error, from any thread."""
        with self._lock:
            texts = [request for request in self._texts if requests is None or request in requests]
        for request in texts:
            self._end(request, error)
            self.cancel(request)

    def call(self, work: Callable[[Slot], T]) -> T:
        """Do `work` on the engine's thread when its turn comes, and wait for it. Raises what it raises."""
        done = threading.Event()
        result: list[T] = []
        errors: list[BaseException] = []

        def job() -> None:
            try:
                result.append(work(self.slot))
            except BaseException as error:  # raised where it is waited for
                errors.append(error)
            done.set()

        self._worker.submit(job)
        done.wait()
        if errors:
            raise errors[0]
        return result[0]

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        model = self.slot.target
        if isinstance(prompt, str):
            return model.tokenize(prompt)
        if wrong := [token for token in prompt if not 0 <= token < model.n_vocab]:
            raise PromptError(f"there is no token {wrong[0]} in a vocabulary of {model.n_vocab}")
        return list(prompt)

    async def _asteps(self, prompt: Sequence[int], config: GenerationConfig) -> AsyncIterator[Step]:
        steps = AsyncSteps()
        request = TextRequest(prompt, config, steps.put)
        self.submit(request, steps.end)
        try:
            while (found := await steps.next()) is not None:
                for step in found:
                    yield step
        finally:
            self.cancel(request)

    def _write(self, request: TextRequest, drafts: Drafts | None) -> None:
        error: BaseException | None = None
        try:
            with lifeline.told(self.fail):
                self._slot.write(request, drafts)
            self.fault = None
        except DuoError as raised:
            error = raised
        except BaseException as raised:  # raised where the steps are iterated over
            log.exception("a text failed")
            self.fault = repr(raised)
            error = raised
        self._end(request, error)

    def _end(self, request: TextRequest, error: BaseException | None) -> None:
        with self._lock:
            text = self._texts.pop(request, None)
        if text is not None:
            try:
                text.end(error)
            except Exception:  # the next text may work
                log.exception("the end of a text could not be told")
