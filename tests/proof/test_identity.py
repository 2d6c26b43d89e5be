"""With --exact, text and logprobs are the target's own, bit for bit, whatever the draft, the schedule and the threads.

Logprobs are compared as they are: two floats are equal only if all their bits are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import duo
from duo.config import ModelConfig, SamplingConfig
from duo.errors import DecodeError
from duo.llama.library import quantize
from duo.llama.model import Model
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from tests.fakes import Eager, FakeContext, Preparing
from tests.process.llama.test_exact import FILE_TYPES, assert_bit_equal
from tests.prompts import PROMPTS
from tests.proof.pair import N_CTX, ONE, TWO, Before, Pair, opened, policies
from tests.unit.engine.helpers import until

N = 24
N_LOGPROBS = 50  # tokens
TEXT = "Once upon a time there was a lighthouse keeper who had never seen the sea, because the fog never lifted. "


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_logits_are_bit_equal_for_any_batch_size_and_thread_count(
    demo_pair: tuple[Path, Path], tmp_path: Path, file_type: str
) -> None:
    path = tmp_path / "model.gguf"
    quantize(demo_pair[0], path, FILE_TYPES[file_type])
    with closing(Model(ModelConfig(path))) as model:
        tokens = model.tokenize(30 * TEXT)
        # From 512 cells on, llama.cpp splits the attention of a single row by thread count.
        for n_past in (1, 520):
            assert_bit_equal(model, tokens, n_past)
    path.unlink()


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
        ("F16", "code", 0.0),
        ("F16", "chat", 0.8),
        ("Q8_0", "story", 0.0),
        ("Q8_0", "german", 0.8),
        ("Q8_0", "one token", 1.2),
        ("Q8_0", "long", 0.3),
        ("Q4_0", "json", 0.0),
        ("Q4_0", "emoji", 0.8),
        ("Q4_1", "russian", 1.0),
    ],
    indirect=["pair"],
)
def test_the_text_is_the_same_in_every_schedule_and_with_other_threads(pair: Pair, kind: str, temp: float) -> None:
    plain, logprobs = pair.begin(PROMPTS[kind][:3000], SamplingConfig(temp=temp, seed=5)), pair.logprobs
    assert 0 < len(plain) == len(logprobs) <= N
    assert kind != "long" or pair.target.n_batch < len(pair.prompt) < N_CTX
    assert kind != "one token" or len(pair.prompt) == 1
    assert pair.write(None, Eager(1, 1), TWO) == plain
    for i, (name, policy) in enumerate(policies().items()):
        assert pair.write(pair.draft, policy, (ONE, TWO)[i % 2]) == plain, name
        assert pair.logprobs == logprobs, name


def certain(pair: Pair, policy: Callable[[], Policy], before: Callable[[], object] | None) -> Iterator[Any]:
    """The statistics of texts where the draft certainly takes part, however busy the machine."""
    for kind in ("code", "story", "german"):
        plain = pair.begin(PROMPTS[kind], SamplingConfig(temp=0.8, seed=7))
        assert pair.write(pair.draft, policy(), before=before) == plain
        yield pair.metrics.statistics().draft


@Q8_0
@pytest.mark.parametrize("schedule", [Schedule.ASYNC, Schedule.SYNC])
def test_the_text_is_the_same_where_candidates_are_certainly_used(pair: Pair, schedule: Schedule) -> None:
    def drafted() -> bool:
        return pair.metrics.n_pending >= 2 or pair.target.n_past < len(pair.prompt)

    before = (lambda: until(drafted)) if schedule is Schedule.ASYNC else None
    found = list(certain(pair, lambda: Eager(8, 16, schedule), before))
    accepted, verified = sum(each.accepted for each in found), sum(each.verified for each in found)
    assert 0 < accepted < verified, "some were accepted and some rejected"


@Q8_0
def test_the_text_is_the_same_where_prepared_outcomes_certainly_come_true(pair: Pair) -> None:
    def prepare() -> None:
        """Let the draft decode branches while the target verifies, unless it has decoded all that it may."""
        records = pair.metrics.events  # the target's last one is older
        n = -1
        while n < len(records):
            n = len(records)
            time.sleep(0.1)

    assert sum(each.branches.hits for each in certain(pair, lambda: Preparing(4, 8, 8), prepare)) > 0


def dies_at(n: int) -> Callable[[], None]:
    decodes = count()

    def check() -> None:
        if next(decodes) >= n:
            raise DecodeError(f"dead after {n} decodes")

    return check


@Q8_0
def test_the_text_is_the_same_with_any_draft(pair: Pair) -> None:
    """Another number of candidates, the real policies, drafts that are useless, and drafts that fail."""
    plain, dice = pair.begin(PROMPTS["code"]), random.Random(1)

    def fake(choose: Callable[[Sequence[int]], int]) -> FakeContext:
        return FakeContext(choose, n_ctx=N_CTX, n_batch=512, n_vocab=pair.model.n_vocab)

    for name, draft, policy, error in (
        ("one candidate", pair.draft, Eager(1, 2), None),
        ("four candidates", pair.draft, Eager(4, 8, Schedule.SYNC), None),
        ("the concurrent policy", pair.draft, Policy(16, 32, (Schedule.ASYNC,)), None),
        ("the sequential policy", pair.draft, Policy(16, 32, (Schedule.SYNC,)), None),
        ("random", fake(lambda _: dice.randrange(pair.model.n_vocab)), Eager(16, 32), None),
        ("constant", fake(lambda _: 7), Eager(16, 32, Schedule.SYNC), None),
        ("fails at once", Before(pair.draft, dies_at(0)), Eager(16, 32), "dead after 0 decodes"),
        ("fails later", Before(pair.draft, dies_at(9)), Eager(16, 32, Schedule.SYNC), "dead after 9 decodes"),
    ):
        assert pair.write(draft, policy) == plain, name
        assert pair.metrics.draft_error == error, name


# Of engines

GREEDY: dict[str, Any] = {}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}
ENGINES: dict[str, dict[str, Any]] = {  # what each has besides the target
    "lookup": {"draft": False},
    "sync": {"schedule": "sync"},
    "async": {"schedule": "async"},
    "auto": {"n_threads": 2, "draft_n_threads": 2},
}


def library(demo_pair: tuple[Path, Path], *, draft: bool = True, **options: Any) -> list[Any]:
    """The logprobs of a greedy text and a sampled one, each twice: the second time with most of the prompt cached."""
    models = demo_pair if draft else demo_pair[:1]
    with duo.load(*models, exact=True, profile=False, **options) as engine:
        return [
            engine.generate(PROMPTS["code"], max_tokens=N_LOGPROBS, ignore_eos=True, logprobs=5, **sampling).logprobs
            for sampling in (GREEDY, SAMPLED, GREEDY, SAMPLED)
        ]


@pytest.fixture(scope="module")
def alone(demo_pair: tuple[Path, Path]) -> list[Any]:
    return library(demo_pair, draft=False, lookup="off", n_threads=1)


@pytest.mark.parametrize("name", ENGINES)
def test_the_logprobs_of_an_engine(demo_pair: tuple[Path, Path], alone: list[Any], name: str) -> None:
    assert [len(each) for each in alone] == [N_LOGPROBS] * 4
    assert library(demo_pair, **ENGINES[name]) == alone
