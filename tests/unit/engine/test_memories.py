"""What a memory would have brought: from texts that are replayed with and without it, while nothing is proposed."""

import random
from collections.abc import Sequence

import pytest

from duo.engine.memories import Memories
from duo.engine.proposers import LookupProposer
from duo.speculation.memory import Memory
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.target_costs import TargetCosts

PROMPT = range(1000, 1040)
CARD = {1: 0.025, 2: 0.026, 4: 0.029, 8: 0.038}


def target(times: dict[int, float] = CARD) -> TargetCosts:
    costs = TargetCosts()
    for n, seconds in times.items():
        for _ in range(3):
            costs.alone.add(n, seconds)
    return costs


def write(costs: TargetCosts, texts: Sequence[Sequence[int]], memories: Memories | None = None) -> list[float]:
    """The gain after each text."""
    memories, lookup, gains = memories or Memories(target=costs), PromptLookup(), []
    for text in texts:
        (proposer,) = memories.proposers(lookup, 4)
        assert proposer._memory is memories.kept
        assert proposer._shadow is not None
        lookup.begin([*PROMPT, *text])
        proposer._shadow.compare([*PROMPT, *text], len(PROMPT), lookup)
        proposer._shadow.learn(text)
        gains.append(costs.memory_gain.value)
    return gains


def alike(dice: random.Random, n: int) -> list[list[int]]:
    """Texts of common phrases, in any order."""
    phrases = [dice.choices(range(900), k=12) for _ in range(20)]
    return [[token for _ in range(30) for token in dice.choice(phrases)] for _ in range(n)]


def test_the_fourth_text_and_each_eighth_after_it_say_what_those_before_would_have_brought() -> None:
    gains = write(target(), alike(random.Random(1), 13))
    assert gains[:3] == [0, 0, 0]
    assert gains[3] > 1.05
    assert [i for i in range(1, 13) if gains[i] != gains[i - 1]] == [3, 11]


def test_where_texts_have_nothing_in_common_or_candidates_are_dear_there_is_no_gain() -> None:
    dice = random.Random(2)
    different = [dice.sample(range(9000), 300) for _ in range(4)]
    assert write(target(), different)[-1] == pytest.approx(1, abs=0.02)
    assert write(target({1: 0.02, 2: 0.04, 4: 0.08, 8: 0.16}), alike(dice, 4))[-1] == pytest.approx(1, abs=0.02)


def test_a_text_that_is_written_again_says_nothing_and_without_times_nothing_is_said() -> None:
    assert write(target(), 12 * alike(random.Random(3), 1)) == 12 * [0]
    assert write(TargetCosts(), alike(random.Random(3), 4)) == 4 * [0]


def test_it_is_kept_in_the_profile_of_the_target() -> None:
    costs, later = target(), TargetCosts()
    write(costs, alike(random.Random(4), 4))
    state = costs.state()
    assert later.restore(state)
    assert later.memory_gain.value == costs.memory_gain.value > 1
    before = {name: value for name, value in state.items() if name != "memory_gain"}  # of an earlier profile
    assert later.restore(before)  # type: ignore[arg-type]
    assert later.memory_gain.n == 0


def test_nothing_is_compared_in_a_lead_or_beside_a_memory() -> None:
    lead, lookup = Memories(target=target()), PromptLookup()
    lead.in_ram = True
    for memories in (lead, Memories(Memory())):
        (proposer,) = memories.proposers(lookup, 4)
        assert isinstance(proposer, LookupProposer)
        assert proposer._shadow is None
        assert memories.gain is None
    assert Memories().gain == 0
