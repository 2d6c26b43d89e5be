"""With --exact, text and logprobs are the target's own, bit for bit, whatever the draft, the schedule and the threads.

Logprobs are compared as they are: two floats are equal only if all their bits are.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.config import SamplingConfig
from duo.llama.library import quantize
from tests.fakes import Eager
from tests.process.llama.test_exact import FILE_TYPES
from tests.prompts import PROMPTS
from tests.proof.pair import N_CTX, ONE, TWO, Pair, opened, policies
from tests.unit.engine.helpers import until

N = 24


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
                time.sleep(0.1)

    n_accepted = n_verified = n_hits = 0
    for kind in ("code", "story", "german"):
        plain = pair.begin(PROMPTS[kind], SamplingConfig(temp=0.8, seed=7))
        assert pair.write(pair.draft, policies()[name], before=wait) == plain
        found = pair.metrics.statistics().draft
        assert found is not None
        n_accepted, n_verified = n_accepted + found.accepted, n_verified + found.verified
        n_hits += found.branches.hits if found.branches is not None else 0
    assert 0 < n_accepted < n_verified, "some were accepted and some rejected"
    assert (n_hits > 0) is (name == "outcomes prepared")
