"""A real target and draft with one exact context each, and generations over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.emulated import Wrapped
from duo.config import AUTO_DRAFT, MAX_BRANCHES, ContextConfig, ModelConfig, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.background import background
from duo.engine.decoder import Cache, Decoder, decode_all
from duo.engine.draft import DraftRequest
from duo.engine.generation import Generation, Sources
from duo.engine.local_draft import LocalDraft
from duo.engine.metrics import Metrics
from duo.engine.text import Ending
from duo.llama.context import Context
from duo.llama.model import Model
from duo.spec.constants import DEFAULT
from duo.spec.policy import Policy
from duo.spec.sampling import chooser
from duo.spec.schedule import Schedule
from duo.spec.session import Session
from duo.spec.types import Logits, TokenLogprobs
from duo.spec.verify import Matching
from tests.fakes import RANKS, Eager, Preparing, restless

ONE = ThreadConfig(1, 1, (1,), (1, 1))
TWO = ThreadConfig(2, 2, (1, 2), (1, 1))

N_CTX = 1024
N_LOGPROBS = 5


class Pair:
    """Writes `n` tokens after a prompt, which both contexts keep for as long as it is the same."""

    def __init__(self, target: Model, draft: Model, n: int) -> None:
        self.model = target
        self.n = n
        config = ContextConfig(N_CTX, 1, 1, n_outputs_max=DEFAULT.probe_tokens, exact=True)
        self.target = Context(target, config)
        self.draft = Context(draft, replace(config, n_branches=MAX_BRANCHES))
        self.prompt: list[int] = []
        self.sampling = SamplingConfig()
        self.metrics = Metrics()  # of the last text
        self.logprobs: list[TokenLogprobs] = []  # of its tokens

    def close(self) -> None:
        self.target.close()
        self.draft.close()

    def begin(self, text: str, sampling: SamplingConfig | None = None) -> list[int]:
        """The prompt from here on, and the text that the target writes alone."""
        self.prompt = self.model.tokenize(text)
        self.sampling = sampling or SamplingConfig()
        for context in (self.target, self.draft):
            context.rollback(0)
        if self.prompt[:-1]:  # as in every later text: batches of many rows have other kernels
            decode_all(self.target, self.prompt[:-1])
        return self.write(None, Eager(1, 1))

    def write(
        self,
        draft: Decoder | None,
        policy: Policy,
        threads: ThreadConfig = ONE,
        before: Callable[[], object] | None = None,
    ) -> list[int]:
        """The tokens that follow the prompt; `before` is called before each decode of the target."""
        for context in (self.target, self.draft):
            context.rollback(min(context.n_past, len(self.prompt) - 1))
            context.set_threads(threads.target_batch, threads.target_batch)
        n_vocab, sampler = self.model.n_vocab, chooser(self.sampling, n_alternatives=len(RANKS))
        self.metrics = Metrics()
        request = DraftRequest(
            Session(self.prompt, n_vocab),
            Ending(StopConfig(self.n), self.model.piece, self.model.is_end),
            self.metrics,
            sampler,
            self.sampling,
            mode="greedy" if self.sampling.is_plain else "coupled",
        )
        local = None
        if draft is not None:
            cache = Cache(draft)
            cache.end(self.prompt)  # as much of it as is there
            local = LocalDraft(cache, policy)
        target = self.target if before is None else Before(self.target, before)
        generation = Generation(target, request, Matching(sampler), threads, Sources(local), n_logprobs=N_LOGPROBS)
        with background(generation.run, "test") as running:  # a thread of its own: its OpenMP threads end with it
            steps = list(running)
        self.logprobs = [found for step in steps for found in step.logprobs]
        return [token for step in steps for token in step.tokens]


@contextmanager
def opened(target: Path, draft: Path, n: int) -> Iterator[Pair]:
    models = (Model(ModelConfig(path)) for path in (target, draft))
    with closing(next(models)) as first, closing(next(models)) as second, closing(Pair(first, second, n)) as made:
        yield made


class Before(Wrapped):
    """A context that calls `before` before every decode."""

    def __init__(self, context: Context, before: Callable[[], object]) -> None:
        super().__init__(context)
        self._before = before

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        self._before()
        return self.context.decode(tokens, n_rows)


def policies() -> dict[str, Policy]:
    """One of each schedule; most verify whatever is ready, so that much is accepted and much rejected."""
    return {
        "async": Eager(AUTO_DRAFT, 2 * AUTO_DRAFT),
        "outcomes prepared": Preparing(4, 8, MAX_BRANCHES),
        "sync": Eager(AUTO_DRAFT, 2 * AUTO_DRAFT, Schedule.SYNC),
        "off": Policy(AUTO_DRAFT, 2 * AUTO_DRAFT, (Schedule.OFF,)),
        "auto": Policy(AUTO_DRAFT, 2 * AUTO_DRAFT),
        "changes at random": restless(1, 16, 32),
    }
