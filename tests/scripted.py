"""An engine that writes what a test says, without a model: the real Engine over a scripted slot."""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from duo.config import EngineConfig
from duo.engine.engine import Engine
from duo.engine.memories import Memories
from duo.engine.model_pair import ModelPair
from duo.engine.request import Ending, Request
from duo.engine.statistics import CONTEXT_FULL, LIMIT, StepRecord
from duo.llama.chat_template import ChatTemplate, Messages, Tools, begun
from duo.remote.drafts import RemoteDrafts
from duo.speculation.controller import Controller
from duo.speculation.modes import Schedule
from duo.speculation.types import Step, TokenLogprobs, common_prefix

BOS, EOS, FIRST_BYTE = 1, 2, 3
N_VOCAB = FIRST_BYTE + 256
N_CTX = 512
TEXT = "Paris is the capital of France."
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
N_STEP = 3  # tokens of a step; all but the last were candidates


def tokens_of(text: str) -> list[int]:
    """One token for each byte."""
    return [FIRST_BYTE + byte for byte in text.encode()]


class ScriptedModel:
    """What the server asks of a Model. Its tokens are bytes."""

    chat_template = tool_template = ChatTemplate(TEMPLATE)
    path = Path("scripted.gguf")
    n_vocab = N_VOCAB
    n_ctx_train = 2048
    n_params = 12345
    n_bytes = 67890
    vocab_type = 2
    longest_token = 1
    quantisation = "F16"
    description = "scripted 12K F16"
    bos, eos = BOS, -1
    header = SimpleNamespace(tokens=[b"<%d>" % token for token in range(N_VOCAB)], text=lambda key: "")

    def n_unknown(self, text: str) -> int:
        return 0

    def tokenize(self, text: str, *, add_bos: bool = True, parse_special: bool = True) -> list[int]:
        return [BOS] * add_bos + tokens_of(text)

    def metadata(self, key: str) -> str | None:
        return {"tokenizer.chat_template": "{{ messages }}"}.get(key)

    def piece(self, token: int) -> bytes:
        return bytes([token - FIRST_BYTE]) if token >= FIRST_BYTE else b""

    def spelling(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.piece, tokens))

    def apply_chat_template(self, messages: Messages, tools: Tools = ()) -> str:
        return self.chat_template.render(messages, tools, None, begun(messages))


class ScriptedSlot:
    """Writes `text`, again and again where its end is to be ignored; raises `error`, if there is one, at a step."""

    @property
    def draft_name(self) -> str | None:
        return self.draft_model.path.name if self.draft_model is not None else None

    def __init__(self) -> None:
        self.target = ScriptedModel()
        self.config = EngineConfig()
        self.threads = SimpleNamespace(cores=None)
        self.recorder = self  # which watches nothing
        self.n_ctx = N_CTX
        self.draft_model: ScriptedModel | None = None
        self.translation: object = None
        self.lookup: object = None
        self.memories = Memories()
        self.controller: Controller | None = None  # of the texts
        self.remote: RemoteDrafts | None = None
        self.text = TEXT
        self.n_step = N_STEP
        self.n_together = 1
        self.kept = [0] * self.config.n_slots
        self.error: BaseException | None = None
        self.error_at = 0  # the step
        self.requests: list[Request] = []
        self._cached: list[int] = []
        self._go_on = threading.Event()
        self._n_free = math.inf

    def hold(self, n_free: int = 0) -> None:
        """Let each text wait for go_on() after so many steps."""
        self._n_free = n_free
        self._go_on.clear()

    def go_on(self) -> None:
        self._n_free = math.inf
        self._go_on.set()

    def attach(self, remote: RemoteDrafts) -> None:
        self.remote = remote

    def abort(self) -> None:
        """Its texts end when they are cancelled."""

    def reserve(self, *_: object) -> float:
        return 0.0

    def watching(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """It holds nothing."""

    def write(self, request: Request) -> bool:
        """Write a text; it never pauses."""
        metrics, prompt, stop = request.metrics, list(request.prompt), request.config.stop
        metrics.controller = self.controller
        self.requests.append(request)
        metrics.n_prompt = len(prompt)
        request.n_cached = min(common_prefix(prompt, self._cached), len(prompt) - 1)
        if request.scored is not None:
            request.scored = list(_logprobs(prompt[1:], request.config.n_logprobs))
        began = time.perf_counter()
        metrics.decoded(began, time.perf_counter(), len(prompt))
        metrics.ending = ending = Ending(stop, self.target.piece, lambda token: token == EOS)
        written: list[int] = []
        for n, tokens in enumerate(self._script(ignore_eos=stop.ignore_eos)):
            if self.error is not None and n == self.error_at:
                raise self.error
            if ending.n_room == 0:
                ending.reason = LIMIT
            elif self._is_cancelled(request, n):
                break
            else:
                n_room = self.n_ctx - len(prompt) - len(written)
                pieces = self._step(request, ending, tokens[:n_room])
                written += tokens[:n_room]
                if n_room <= len(tokens):
                    ending.reason = ending.reason or CONTEXT_FULL
                logprobs = _logprobs(tokens[: len(pieces)], request.config.n_logprobs)
                request.put(Step(tuple(tokens[: len(pieces)]), len(pieces) - 1, pieces, logprobs=logprobs))
            if ending.reason is not None:
                break
        self._cached = prompt + written[:-1]
        return True

    def _step(self, request: Request, ending: Ending, tokens: Sequence[int]) -> tuple[bytes, ...]:
        metrics = request.metrics
        start = time.perf_counter()
        pieces = ending.push(tokens)
        for _ in tokens[1:]:
            metrics.drafted(start, time.perf_counter(), 1)
        if metrics.steps:
            metrics.decoded(start, time.perf_counter(), len(tokens))
        n, n_written, now = len(tokens) - 1, len(pieces), time.perf_counter()
        metrics.steps.append(StepRecord(start, now, n, n_written - 1, n_written, Schedule.ASYNC))
        return pieces

    def _script(self, *, ignore_eos: bool) -> Iterator[list[int]]:
        tokens = tokens_of(self.text)
        for _ in count() if ignore_eos else range(1):
            yield from (tokens[i : i + self.n_step] for i in range(0, len(tokens), self.n_step))
        yield [EOS]

    def _is_cancelled(self, request: Request, n: int) -> bool:
        while n >= self._n_free and not self._go_on.wait(0.002) and not request.cancelled.is_set():
            pass
        return request.cancelled.is_set()


def _logprobs(tokens: Sequence[int], n: int | None) -> tuple[TokenLogprobs, ...]:
    """As if the tokens of the lowest ids were the likeliest."""
    if n is None:
        return ()
    top = tuple((token, -1.0 - token) for token in range(n))
    return tuple(TokenLogprobs(token, -float(token), top) for token in tokens)


def scripted_engine() -> tuple[Engine, ScriptedSlot]:
    """An engine and what is behind it."""
    slot = ScriptedSlot()
    engine = Engine(cast(ModelPair, slot))
    # A test may replace `write` later.
    engine.scheduler._generate = lambda request: slot.write(request)  # type: ignore[method-assign]  # noqa: PLW0108
    return engine, slot
