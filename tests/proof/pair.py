"""An engine with a real target and draft, one thread each and --exact, and texts of it with any draft."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.emulated import Wrapped
from duo.config import (
    AUTO_DRAFT,
    MAX_BRANCHES,
    EngineConfig,
    GenerationConfig,
    ModelConfig,
    SamplingConfig,
    StopConfig,
    ThreadConfig,
)
from duo.engine.decoder import Cache, Decoder
from duo.engine.engine import Engine
from duo.engine.local_draft import LocalDraft
from duo.engine.metrics import Metrics
from duo.engine.slot import Slot
from duo.llama.model import Model
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.types import Logits, TokenLogprobs
from tests.fakes import Eager, Preparing, restless

ONE = ThreadConfig(1, 1, (1,), (1, 1))
TWO = ThreadConfig(2, 2, (1, 2), (1, 1))

N_CTX = 1024
N_LOGPROBS = 5


class Before(Wrapped):
    """A context that calls `before` before every decode."""

    def __init__(self, context: Decoder, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(context)
        self.before = before

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        self.before()
        return self.context.decode(tokens, n_rows)


class Pair:
    """Writes `n` tokens after a prompt, which both contexts keep for as long as it is the same."""

    def __init__(self, engine: Engine, n: int) -> None:
        self._engine, self._slot, self._n = engine, engine.slot, n
        engine.call(lambda slot: slot.reserve(1, -1))
        assert self._slot.target_cache is not None
        assert self._slot.draft_cache is not None
        self.target = self._slot.target_cache.context = Before(self._slot.target_cache.context)
        self.draft = self._slot.draft_cache.context
        self.model = self._slot.target
        self.prompt: list[int] = []
        self.sampling = SamplingConfig()
        self.metrics = Metrics()  # of the last text
        self.logprobs: list[TokenLogprobs] = []  # of its tokens

    def begin(self, text: str, sampling: SamplingConfig | None = None) -> list[int]:
        """The prompt from here on, and the text that the target writes alone."""
        self.prompt, self.sampling = self.model.tokenize(text), sampling or SamplingConfig()
        self._engine.call(Slot.forget)
        return self.write(None, Eager(1, 1))

    def write(
        self,
        draft: Decoder | None,
        policy: Policy,
        threads: ThreadConfig = ONE,
        before: Callable[[], object] = lambda: None,
    ) -> list[int]:
        """The tokens that follow the prompt; `before` is called before each decode of the target."""
        self._slot.threads, self.target.before, self.metrics = threads, before, Metrics()
        local = LocalDraft(Cache(draft), policy) if draft is not None else None
        if draft is self.draft:  # whose cache may hold the prompt
            local = self._slot.new_draft(policy)
        config = GenerationConfig(self.sampling, StopConfig(self._n), n_logprobs=N_LOGPROBS)
        sources = self._slot.sources(local)
        with self._engine.start(self.prompt, config, sources=sources, metrics=self.metrics) as stream:
            steps = list(stream)
        self.logprobs = [found for step in steps for found in step.logprobs]
        return [token for step in steps for token in step.tokens]


@contextmanager
def opened(target: Path, draft: Path, n: int) -> Iterator[Pair]:
    config = EngineConfig(n_ctx=N_CTX, n_threads=1, draft_n_threads=1, exact=True, warmup=False)
    models = (Model(ModelConfig(path)) for path in (target, draft))
    with closing(next(models)) as first, closing(next(models)) as second, Engine(Slot(first, second, config)) as engine:
        yield Pair(engine, n)


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
