"""With --exact, text and logprobs are the target's own, bit for bit, whatever the draft, the schedule and the threads.

Logprobs are compared as they are: two floats are equal only if all their bits are.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

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
from duo.engine.decoder import Decoder
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.kv_store import Cache
from duo.engine.local_draft import LocalDraft
from duo.engine.model_pair import ModelPair
from duo.engine.recorder import Recorder
from duo.engine.request import Request
from duo.llama.library import quantize
from duo.llama.model import Model
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.modes import Schedule
from duo.speculation.target_costs import TargetCosts
from duo.speculation.types import Logits, TokenLogprobs
from tests.fakes import Eager, Preparing, eager, restless
from tests.process.llama.test_exact import FILE_TYPES
from tests.prompts import PROMPTS
from tests.unit.engine.helpers import until

N = 24


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
        self.metrics = Recorder()  # of the last text
        self.logprobs: list[TokenLogprobs] = []  # of its tokens

    def begin(self, text: str, sampling: SamplingConfig | None = None) -> list[int]:
        """The prompt from here on, and the text that the target writes alone."""
        self.prompt, self.sampling = self.model.tokenize(text), sampling or SamplingConfig()
        self._engine.call(ModelPair.forget)
        return self.write(None)

    def write(
        self,
        draft: Decoder | None,
        estimates: DraftEstimates | None = None,
        threads: ThreadConfig = ONE,
        before: Callable[[], object] = lambda: None,
    ) -> list[int]:
        """The tokens that follow the prompt; `before` is called before each decode of the target."""
        self._slot.threads, self.target.before, self.metrics = threads, before, Recorder()
        sources = Proposers()
        if draft is not None and estimates is not None:
            # The cache of the pair's own may hold the prompt.
            local = self._slot.new_draft(estimates) if draft is self.draft else LocalDraft(Cache(draft), estimates)
            sources = eager(local)
            if not isinstance(estimates, Eager):
                sources = Proposers(Controller(target=estimates.target), [local])
        config = GenerationConfig(self.sampling, StopConfig(self._n), n_logprobs=N_LOGPROBS)
        with self._engine.start(Request(self.prompt, config, proposers=sources, metrics=self.metrics)) as stream:
            steps = list(stream)
        self.logprobs = [found for step in steps for found in step.logprobs]
        return [token for step in steps for token in step.tokens]


@contextmanager
def opened(target: Path, draft: Path, n: int) -> Iterator[Pair]:
    config = EngineConfig(n_ctx=N_CTX, n_threads=1, draft_n_threads=1, exact=True, warmup=False)
    models = (Model(ModelConfig(path)) for path in (target, draft))
    with (
        closing(next(models)) as first,
        closing(next(models)) as second,
        Engine(ModelPair(first, second, config)) as engine,
    ):
        yield Pair(engine, n)


def drafts() -> dict[str, DraftEstimates]:
    """One of each schedule; most verify whatever is ready, so that much is accepted and much rejected."""
    return {
        "async": Eager(AUTO_DRAFT, 2 * AUTO_DRAFT),
        "outcomes prepared": Preparing(4, 8, MAX_BRANCHES),
        "sync": Eager(AUTO_DRAFT, 2 * AUTO_DRAFT, Schedule.SYNC),
        "off": DraftEstimates(TargetCosts(), AUTO_DRAFT, 2 * AUTO_DRAFT, (Schedule.OFF,)),
        "auto": DraftEstimates(TargetCosts(), AUTO_DRAFT, 2 * AUTO_DRAFT),
        "changes at random": restless(1, 16, 32),
    }


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """The demo pair, its target in the quantisation of the parameter."""
    target = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    quantize(demo_pair[0], target, FILE_TYPES[request.param])
    with opened(target, demo_pair[1], N) as made:
        yield made
    target.unlink()


Q8_0 = pytest.mark.parametrize("pair", ["Q8_0"], indirect=True)


@pytest.mark.parametrize(
    ("pair", "kind", "temp"),
    [
        ("F16", "chat", 0.8),
        ("Q8_0", "story", 0.0),
        ("Q8_0", "german", 0.8),
        ("Q8_0", "one token", 1.2),
        ("Q8_0", "long", 0.3),
        ("Q4_0", "emoji", 1.0),
    ],
    indirect=["pair"],
)
def test_the_text_is_the_same_in_every_schedule_and_with_other_threads(pair: Pair, kind: str, temp: float) -> None:
    plain, logprobs = pair.begin(PROMPTS[kind][:3000], SamplingConfig(temp=temp, seed=5)), pair.logprobs
    assert 0 < len(plain) == len(logprobs) <= N
    assert kind != "long" or pair.target.n_batch < len(pair.prompt) < N_CTX
    assert kind != "one token" or len(pair.prompt) == 1
    assert pair.write(None, threads=TWO) == plain
    for i, (name, estimates) in enumerate(drafts().items()):
        assert pair.write(pair.draft, estimates, (ONE, TWO)[i % 2]) == plain, name
        assert pair.logprobs == logprobs, name


@Q8_0
@pytest.mark.parametrize("name", ["async", "sync", "outcomes prepared"])
def test_the_text_is_the_same_where_the_draft_certainly_takes_part(pair: Pair, name: str) -> None:
    """However busy the machine."""

    def wait() -> None:
        if name == "async":
            until(lambda: pair.metrics.n_pending >= 2 or pair.target.n_past < len(pair.prompt))
        elif name == "outcomes prepared":  # until the draft has decoded all that it may
            n, records = -1, pair.metrics.events
            while n < len(records):
                n = len(records)
                time.sleep(0.5)

    n_accepted = n_verified = n_hits = 0
    for kind in ("code", "story"):
        plain = pair.begin(PROMPTS[kind], SamplingConfig(temp=0.8, seed=7))
        assert pair.write(pair.draft, drafts()[name], before=wait) == plain
        found = pair.metrics.statistics().draft
        assert found is not None
        n_accepted, n_verified = n_accepted + found.accepted, n_verified + found.verified
        n_hits += found.branches.hits if found.branches is not None else 0
    assert 0 < n_accepted < n_verified, "some were accepted and some rejected"
    assert (n_hits > 0) is (name == "outcomes prepared")
