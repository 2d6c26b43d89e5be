"""Whatever the draft does, every three tokens are as frequent as the target says: chi-square tests of the whole loop.

Each case writes 10,000 short texts of known probability. tests/mutations.txt has verifiers that are wrong by a little.
"""

from dataclasses import replace

import pytest

from duo.config import SamplingConfig
from tests.proof.loop import Case, Stepped, p_value, write
from tests.proof.model import DRAFTS

FALSE_ALARMS = 0.001  # probability that any of CASES fails by chance

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
PLAIN = SamplingConfig(temp=1.0, **OFF)  # type: ignore[arg-type]
COLD, HOT = replace(PLAIN, temp=0.4), replace(PLAIN, temp=1.7)
TOP_K, TOP_P = replace(PLAIN, top_k=3), replace(PLAIN, top_p=0.8, temp=1.3)
MIN_P, TYPICAL = replace(PLAIN, min_p=0.2, temp=1.2), replace(PLAIN, typical=0.7)
PENALISED = replace(PLAIN, repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, repeat_last_n=1)
ORDERED = replace(PLAIN, top_k=4, top_p=0.9, min_p=0.1, temp=0.8, samplers=("temperature", "min_p", "top_p", "top_k"))
ALL = SamplingConfig(temp=0.8, top_k=4, logit_bias=((1, 0.7), (3, -0.4)))

# Each filter, temperature, draft and schedule with each way of verifying, not all combinations.
CASES = [
    Case("rejection", "good", "async", PLAIN),
    Case("rejection", "good", "sync", COLD),
    Case("rejection", "bad", "restless", HOT),
    Case("rejection", "bad", "async", TOP_K, eager=True),
    Case("rejection", "bad", "sync", TOP_P),
    Case("rejection", "adversarial", "async", PLAIN, eager=True),
    Case("rejection", "adversarial", "restless", MIN_P),
    Case("rejection", "identical", "sync", TYPICAL),
    Case("rejection", "identical", "restless", ORDERED),
    Case("rejection", "good", "restless", PENALISED),
    Case("rejection", "good", "sync", ALL, eager=True),
    Case("rejection", "good", "sync", PLAIN, policy=Stepped),
    Case("rejection", "absent", "sync", PLAIN),
    Case("coupled", "good", "async", PLAIN),
    Case("coupled", "good", "restless", TOP_P),
    Case("coupled", "bad", "sync", COLD),
    Case("coupled", "adversarial", "async", TOP_K, eager=True),
    Case("coupled", "identical", "sync", HOT),
    Case("coupled", "identical", "restless", MIN_P),
    Case("coupled", "good", "sync", TYPICAL),
    Case("coupled", "bad", "restless", PENALISED),
    Case("coupled", "good", "restless", ORDERED),
    Case("coupled", "absent", "sync", ALL),
    Case("rejection", "absent", "sync", PLAIN, lookup=True),
    Case("rejection", "bad", "sync", COLD, lookup=True),
    Case("rejection", "bad", "async", TOP_K, lookup=True),
    Case("coupled", "absent", "sync", TOP_P, lookup=True),
    Case("coupled", "good", "async", PLAIN, branches=4),
    Case("coupled", "bad", "async", TOP_P, branches=8),
    Case("coupled", "good", "async", PENALISED, branches=2),
    Case("coupled", "bad", "async", HOT, branches=4, threads=True),
    Case("rejection", "bad", "async", PLAIN, branches=4),
    Case("rejection", "good", "async", PLAIN, threads=True),
    Case("rejection", "bad", "async", TOP_K, threads=True),
    Case("rejection", "adversarial", "restless", HOT, threads=True),
    Case("rejection", "identical", "sync", MIN_P, threads=True),
    Case("coupled", "good", "async", TOP_P, threads=True),
    Case("coupled", "bad", "restless", PLAIN, threads=True),
]
LIMIT = FALSE_ALARMS / len(CASES)


@pytest.mark.parametrize("i", range(len(CASES)), ids=map(str, CASES))
def test_the_text_has_the_distribution_of_the_target(i: int) -> None:
    case = CASES[i]
    assert p_value(replace(case, config=replace(case.config, seed=100 + i))) > LIMIT


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("config", [PLAIN, COLD, HOT, ORDERED], ids=["plain", "cold", "hot", "ordered"])
def test_coupled_text_is_the_same_with_any_draft_and_schedule(config: SamplingConfig, draft: str) -> None:
    """Also with threads, which run in any order."""
    alone, _ = write(Case("coupled", "absent", "sync", config, n_sequences=100))
    for schedule in ("async", "sync", "restless"):
        for threads in (False, True):
            case = Case("coupled", draft, schedule, config, threads=threads, eager=draft == "good", n_sequences=100)
            assert write(case)[0] == alone, case
    looked_up = Case("coupled", draft, "sync", config, n_sequences=100, lookup=True)
    assert write(looked_up)[0] == alone
