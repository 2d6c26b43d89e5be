"""Identity on the demo pair, in short: tests/proof/test_identity.py has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from duo.config import SamplingConfig
from tests.prompts import PROMPTS
from tests.proof.pair import ONE, TWO, opened, policies


@pytest.mark.parametrize(("kind", "temp"), [("code", 0.0), ("story", 0.8)])
def test_the_exact_text_is_the_targets_own_in_every_schedule(
    demo_pair: tuple[Path, Path], kind: str, temp: float
) -> None:
    with opened(*demo_pair, n=10) as pair:
        plain = pair.begin(PROMPTS[kind], SamplingConfig(temp=temp, seed=5))
        logprobs = pair.logprobs
        assert len(plain) == len(logprobs) == 10
        for i, (name, policy) in enumerate(policies().items()):
            assert pair.write(pair.draft, policy, (ONE, TWO)[i % 2]) == plain, name
            assert pair.logprobs == logprobs, f"{name}: to the last bit"
