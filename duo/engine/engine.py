"""Engine: generates text with a target and its drafts. The API for programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from operator import index
from typing import TYPE_CHECKING, TypeVar, cast

from duo.config import GenerationConfig
from duo.engine.contexts import check_length
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request, generation_config
from duo.engine.scheduler import Scheduler
from duo.engine.statistics import Statistics
from duo.engine.stream import AsyncSteps, Completion, InterruptibleQueue, Stream
from duo.errors import ClosedError, DecodeAborted, PromptError
from duo.llama import lifeline
from duo.llama.chat_template import Messages, Tools
from duo.llama.limits import trim
from duo.speculation.types import Step, TokenLogprobs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from duo.config.settings import TextOptions

T = TypeVar("T")


class Engine:
    """Generates with a target and its drafts; made by duo.load(). A context manager.

    Any thread may call it. Requests are processed on the engine's own thread, which exists only while there are any: up
    to `n_slots` together, in the order in which clients take turns. The KV cache keeps the last texts, so a prompt with
    the same beginning is not decoded again. The engine prints nothing, until llama.cpp aborts; it logs to `duo`.
    """

    def __init__(self, slot: ModelPair, resources: ExitStack | None = None) -> None:
        """Takes ownership of `slot` and `resources`: close() closes them."""
        self._slot = slot
        self._resources = resources or ExitStack()
        self.scheduler = Scheduler(slot)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all requests, then free the contexts and models. From now on, other methods raise ClosedError."""
        if self.scheduler.close() and not lifeline.is_lost():
            self._slot.close()
            self._resources.close()
            trim()

    # Generation

    def stream(self, prompt: str | Sequence[int], **options: Unpack[TextOptions]) -> Stream:
        """Generate after `prompt` (text or token ids); returns an iterator of Steps. For `options` see TextOptions.

        Dropping the stream cancels the generation. Raises ClosedError, PromptError or UsageError; iterating raises
        ModelError if llama.cpp fails, DeviceError, or MemoryLimitError or PromptError if the prompt does not fit.
        """
        return self.start(Request(self.prompt_tokens(prompt), generation_config(**options)))

    def generate(self, prompt: str | Sequence[int], **options: Unpack[TextOptions]) -> Completion:
        """Generate the whole text after `prompt`. Takes and raises what stream() does."""
        return self.stream(prompt, **options).completion()

    def generate_many(self, prompts: Sequence[str | Sequence[int]], **options: Unpack[TextOptions]) -> list[Completion]:
        """Generate the whole texts after several prompts, up to `n_slots` of them together. As generate()."""
        if isinstance(prompts, str):
            raise PromptError("generate_many() takes a list of prompts, not one string")
        client = object()  # its texts do not pause for each other
        requests = [
            Request(self.prompt_tokens(prompt), generation_config(**options), client=client) for prompt in prompts
        ]
        streams = self._start(requests)
        try:
            return [stream.completion() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def stream_chat(self, messages: str | Sequence[Mapping[str, str]], **options: Unpack[TextOptions]) -> Stream:
        """Generate the answer to `messages` (`role`, `content`; a string is one of the user's): see stream().

        If the last message is the assistant's, it begins the answer, and what follows it is generated.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.stream(self.apply_chat_template(messages), **options)

    def chat(self, messages: str | Sequence[Mapping[str, str]], **options: Unpack[TextOptions]) -> Completion:
        """Generate the whole answer to `messages`: see stream_chat()."""
        return self.stream_chat(messages, **options).completion()

    def astream(self, prompt: str | Sequence[int], **options: Unpack[TextOptions]) -> AsyncIterator[Step]:
        """stream() for asyncio: `async for step in engine.astream(...)`."""
        return self._asteps(self.prompt_tokens(prompt), generation_config(**options))

    async def _asteps(self, prompt: Sequence[int], config: GenerationConfig) -> AsyncIterator[Step]:
        steps = AsyncSteps()
        request = Request(prompt, config, steps.put, steps.end)
        self.scheduler.submit(request)
        try:
            while (found := await steps.next()) is not None:
                for step in found:
                    yield step
        finally:
            self.scheduler.cancel(request)

    def score(self, prompt: str | Sequence[int], logprobs: int = 0) -> tuple[TokenLogprobs, ...]:
        """The logprob of each token of `prompt` after the first, given those before it.

        `logprobs`: how many of the most likely tokens in its place come with each, 0 to 20. Their sum is the text's
        log-likelihood. Raises what generate() does, and DecodeAborted if it is interrupted.
        """
        tokens = self.prompt_tokens(prompt)
        request = Request(tokens, generation_config(max_tokens=0, logprobs=logprobs), scored=[])
        self.start(request).completion()
        found = tuple(request.scored or ())
        if len(found) < len(tokens) - 1:
            raise DecodeAborted("the prompt was not read to its end: score() was interrupted")
        return found

    def interrupt(self) -> None:
        """End the texts that are being written, but not those in the queue. From any thread."""
        self.scheduler.interrupt()

    @property
    def statistics(self) -> Statistics | None:
        """Statistics of the last request; None before the first."""
        last = self.scheduler.last
        return last.metrics.statistics() if last is not None else None

    # Tokens

    def tokenize(self, text: str, *, add_bos: bool = True) -> list[int]:
        """The token ids of `text`, special tokens parsed; `add_bos`: with BOS first if the vocabulary requires it."""
        return self.slot.target.tokenize(text, add_bos=add_bos)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special tokens included; U+FFFD for bytes that are not UTF-8."""
        return self.slot.target.spelling(tokens).decode("utf-8", "replace")

    def apply_chat_template(self, messages: Messages, tools: Tools = ()) -> str:
        """The prompt for `messages`, up to the start of the assistant's answer. Raises PromptError if this fails.

        A last message of the assistant is the beginning of the answer, and stays open. As long as nothing changes the
        prompt, texts in it that spell special tokens are tokenised as texts, unless the template wrote them.
        `messages` and `tools` are OpenAI's, except that contents are texts, and the arguments of calls objects.
        """
        try:
            given = [dict(message) for message in messages]
        except (TypeError, ValueError):
            raise PromptError(f"messages are dicts in a list, or a text, not {messages!r:.80}") from None
        return self.slot.target.apply_chat_template(given, tools)

    # For duo's own commands

    @property
    def slot(self) -> ModelPair:
        """The contexts, to be used on the engine's thread. Raises ClosedError."""
        if self.scheduler.is_closing:
            raise ClosedError("the engine is closed")
        return self._slot

    def prompt_tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt. Raises PromptError for those that no context has room for, and for unknown tokens."""
        model = self.slot.target
        if isinstance(prompt, str):
            check_length(model, self.slot.config, prompt)
            return model.tokenize(prompt)
        try:
            tokens = list(map(index, prompt if not isinstance(prompt, bytes) else cast("list[int]", [prompt])))
        except TypeError:
            raise PromptError(f"a prompt is a text or token ids, not {prompt!r:.80}") from None
        if wrong := [token for token in tokens if not 0 <= token < model.n_vocab]:
            raise PromptError(f"no token {wrong[0]} in a vocabulary of {model.n_vocab}")
        return tokens

    def start(self, request: Request) -> Stream:
        """Generate the text of a request, whose steps the stream gets."""
        return self._start([request])[0]

    def _start(self, requests: Sequence[Request]) -> list[Stream]:
        streams = []
        for request in requests:
            items = InterruptibleQueue[Step]()
            request.put, request.end = items.put, items.end
            streams.append(Stream(request, items, self.scheduler.cancel))
        self.scheduler.submit(*requests)
        return streams

    def call(self, work: Callable[[ModelPair], T]) -> T:
        """Run `work` on the engine's thread, between two turns, and return its result. Raises what it raises."""
        found = InterruptibleQueue[tuple[T]]()
        self.scheduler.add(partial(found.run, lambda: found.put((work(self.slot),))))
        ((result,),) = found
        return result
