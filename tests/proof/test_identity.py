"""With --exact the text is the target's own, token for token, whatever the draft, the schedule and the threads."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from duo.config import SamplingConfig
from duo.errors import DecodeError
from duo.llama.library import quantize
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from tests.fakes import Eager, FakeContext, Preparing
from tests.prompts import PROMPTS
from tests.proof.pair import N_CTX, ONE, TWO, Before, Pair, opened, policies
from tests.unit.engine.helpers import until

N = 24
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}  # llama.h, enum llama_ftype


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, demo_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """The demo pair, its target in the quantisation of the parameter."""
    target, draft = demo_pair
    if request.param != "F16":
        target = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
        quantize(demo_pair[0], target, FILE_TYPES[request.param])
    with opened(target, draft, N) as made:
        yield made
    if target != demo_pair[0]:
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
    text = PROMPTS[kind][:3000]
    plain = pair.begin(text, SamplingConfig(temp=temp, seed=5))
    assert 0 < len(plain) <= N
    assert kind != "long" or pair.target.n_batch < len(pair.prompt) < N_CTX
    assert kind != "one token" or len(pair.prompt) == 1
    assert pair.write(None, Eager(1, 1), TWO) == plain
    for i, (name, policy) in enumerate(policies().items()):
        assert pair.write(pair.draft, policy, (ONE, TWO)[i % 2]) == plain, name


@Q8_0
@pytest.mark.parametrize("schedule", [Schedule.ASYNC, Schedule.SYNC])
def test_the_text_is_the_same_where_candidates_are_certainly_used(pair: Pair, schedule: Schedule) -> None:
    """So that the identity above is not that of a draft that never took part, however busy the machine."""

    def drafted() -> bool:
        return pair.metrics.n_pending >= 2 or pair.target.n_past < len(pair.prompt)

    accepted = verified = 0
    for kind in ("code", "story", "german"):
        plain = pair.begin(PROMPTS[kind], SamplingConfig(temp=0.8, seed=7))
        before = (lambda: until(drafted)) if schedule is Schedule.ASYNC else None
        assert pair.write(pair.draft, Eager(8, 16, schedule), before=before) == plain
        statistics = pair.metrics.statistics().draft
        assert statistics is not None
        accepted, verified = accepted + statistics.accepted, verified + statistics.verified
    assert 0 < accepted < verified, "some were accepted and some rejected"


@Q8_0
def test_the_text_is_the_same_where_prepared_outcomes_certainly_come_true(pair: Pair) -> None:
    def prepare() -> None:
        """Let the draft decode branches while the target verifies, unless it has decoded all that it may."""
        records = pair.metrics.draft_events
        n = -1
        while n < len(records):
            n = len(records)
            time.sleep(0.1)

    n_hits = 0
    for kind in ("code", "story", "german"):
        plain = pair.begin(PROMPTS[kind], SamplingConfig(temp=0.8, seed=7))
        assert pair.write(pair.draft, Preparing(4, 8, 8), before=prepare) == plain
        statistics = pair.metrics.statistics().draft
        assert statistics is not None
        assert statistics.branches is not None
        n_hits += statistics.branches.hits
    assert n_hits > 0


def dies_at(n: int) -> Callable[[], None]:
    countdown = iter(range(n))

    def check() -> None:
        if next(countdown, None) is None:
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
