"""The contexts of a slot: they are warm before the first text, whatever becomes of the warm-up."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import llama_cpp
import pytest

from duo.config import EngineConfig, GenerationConfig, ModelConfig, StopConfig
from duo.engine import cores
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request
from duo.engine.scheduler import Scheduler
from duo.engine.statistics import INTERRUPTED, LIMIT
from duo.llama.context import Context
from duo.llama.model import Model
from duo.speculation.types import Logits
from tests.gguf_files import tiny_llama
from tests.unit.engine.helpers import until

N = 12
Make = Callable[..., ModelPair]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", seed=2, depth=0.02)


@pytest.fixture
def make(tiny: Path) -> Iterator[Make]:
    """Makes slots; by default of one model that is target and draft."""
    with ExitStack() as stack:

        def make(
            *paths: Path, places: frozenset[str] | None = None, n_threads: int | None = 1, **options: object
        ) -> ModelPair:
            models = [stack.enter_context(closing(Model(ModelConfig(path)))) for path in paths or (tiny, tiny)]
            for model in models:
                model.places = places or model.places
            config = EngineConfig(n_threads=n_threads, draft_n_threads=n_threads, **options)  # type: ignore[arg-type]
            return stack.enter_context(closing(ModelPair(models[0], models[1] if len(models) > 1 else None, config)))

        yield make


class Decodes:
    """The batches that were decoded, as (whether by the target, tokens); `during` is called in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[tuple[int, int]] = []
        self.contexts: list[Context] = []
        self.teams: set[int] = set()  # the numbers of threads
        self.during: Callable[[], object] = lambda: None
        decode = Context.decode

        def recorded(context: Context, tokens: Sequence[int], n_rows: int = 1) -> Logits:
            if context not in self.contexts:
                self.contexts.append(context)
            self.all.append((self.contexts.index(context), len(tokens)))
            n_threads = llama_cpp.llama_n_threads_batch if len(tokens) > 1 else llama_cpp.llama_n_threads
            self.teams.add(n_threads(context.pointer))
            self.during()
            return decode(context, tokens, n_rows)

        monkeypatch.setattr(Context, "decode", recorded)
        monkeypatch.setattr(Context, "probe_rollback", lambda _: True)  # decodes, too


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> Decodes:
    return Decodes(monkeypatch)


def write(slot: ModelPair) -> tuple[list[int], Request]:
    tokens: list[int] = []
    config = GenerationConfig(stop=StopConfig(N, (), ignore_eos=True))
    request = Request(slot.target.tokenize("the cat"), config, lambda step: tokens.extend(step.tokens))
    run(Scheduler(slot), request)
    return tokens, request


def run(scheduler: Scheduler, request: Request) -> None:
    """Until the text has ended."""
    ends: list[BaseException | None] = []
    request.end = ends.append
    scheduler.submit(request)
    until(lambda: ends)
    assert ends == [None]


def test_new_contexts_are_warmed_up_once(make: Make, decodes: Decodes) -> None:
    slot = make(schedule="off")
    slot.reserve(10, N)
    assert decodes.all == [(0, 2), (1, 2), (1, 1), (1, 1)], "the target, the draft, and twice its token"
    assert slot.estimates is not None
    assert slot.estimates.costs.knows(1)
    contexts = [cache and cache.context for cache in (slot.target_cache, slot.draft_cache)]
    assert contexts == decodes.contexts
    assert [context and context.n_past for context in contexts] == [0, 0]
    assert slot.reserve(10, N) == 0
    assert len(decodes.all) == 4
    slot.reserve(10, 200)
    assert decodes.all[4:] == [(2, 2), (3, 2)], "larger ones; the draft's time is known"


@pytest.mark.parametrize("n_draft", [0, 1])
def test_on_devices_each_size_that_will_be_used_is_decoded(
    make: Make, decodes: Decodes, tiny: Path, n_draft: int
) -> None:
    slot = make(*[tiny] * (1 + n_draft), places=frozenset({"GPU0"}), draft_n_max=4)
    slot.reserve(10, N)
    sizes = [[n for i, n in decodes.all if i == which] for which in (0, 1)]
    assert sizes == ([[1, 1, 2, 3, 4, 5], [1, 1, 2, *8 * [1]]] if n_draft else [[1, 1, 2], []])


@pytest.mark.parametrize("n_before", [1, 2, 3], ids=["target", "draft", "measuring"])
def test_a_request_can_be_cancelled_during_the_warm_up(make: Make, decodes: Decodes, n_before: int) -> None:
    slot = make(schedule="sync")
    scheduler = Scheduler(slot)
    request = Request([1, 2, 3], GenerationConfig(stop=StopConfig(N)), lambda _: None)

    def cancel() -> None:
        if len(decodes.all) == n_before:
            thread = threading.Thread(target=scheduler.cancel, args=(request,))
            thread.start()
            thread.join()

    decodes.during = cancel
    run(scheduler, request)
    assert request.metrics.stop == INTERRUPTED
    assert not request.metrics.steps
    assert slot.estimates is not None
    assert not slot.estimates.costs.knows(1), "nothing more was computed"
    tokens, after = write(slot)
    assert (len(tokens), after.metrics.stop, after.metrics.draft_error) == (N, LIMIT, None)


def test_a_warm_up_without_a_request_can_be_interrupted(make: Make, decodes: Decodes) -> None:
    slot = make(places=frozenset({"GPU0"}), draft_n_max=4)
    decodes.during = Scheduler(slot).interrupt
    slot.reserve(10, N)
    assert [n for i, n in decodes.all if i == 0] == [1]
    decodes.during = lambda: None
    assert len(write(slot)[0]) == N


@pytest.mark.parametrize(("n_threads", "teams"), [(None, {1}), (2, {2})], ids=["auto", "given"])
def test_threads_that_nobody_has_chosen_leave_other_programs_their_cores_from_the_warm_up_on(
    make: Make, decodes: Decodes, monkeypatch: pytest.MonkeyPatch, n_threads: int | None, teams: set[int]
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    times = (cores.CpuTimes(10.0 * i, 0.0, 0.0) for i in count())
    monkeypatch.setattr(cores, "cpu_times", lambda: next(times))
    monkeypatch.setattr(cores, "cpu_limit", lambda: None)
    monkeypatch.setattr(cores, "other_cpu_use", lambda *_: 1.0)
    monkeypatch.setattr(cores, "_n_ready", lambda: 1)
    slot = make(n_threads=n_threads, schedule="off")
    assert len(write(slot)[0]) == N
    assert decodes.teams == teams
    assert slot.cores.fewest == 1


@pytest.mark.parametrize("warmup", [True, False])
def test_a_kept_time_of_a_clock_that_had_jumped_is_found_out(make: Make, warmup: bool) -> None:
    slot = make(warmup=warmup)
    state, target = slot.controller.target.state(), slot.controller.target
    assert slot.controller.target.restore(state | {"costs": {"0": {"1": [640.0, 0.1]}}})
    slot.reserve(10, N)
    write(slot)
    assert target.alone.time(1).value < 1
