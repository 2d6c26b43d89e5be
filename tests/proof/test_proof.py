"""Whatever the draft does, the text is the target's own: each three tokens come as often as they should."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest

from duo.config import SamplingConfig
from duo.spec.sampling import softmax
from tests.proof import biased
from tests.proof.discoveries import false_discoveries
from tests.proof.loop import Case, Stepped, p_value, write
from tests.proof.model import DRAFTS, TARGET

FALSE_ALARMS = 0.001  # of the cases that fail, so many may do so by chance

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
PLAIN = SamplingConfig(temp=1.0, **OFF)  # type: ignore[arg-type]
COLD, HOT = replace(PLAIN, temp=0.4), replace(PLAIN, temp=1.7)
TOP_K, TOP_P = replace(PLAIN, top_k=3), replace(PLAIN, top_p=0.8, temp=1.3)
MIN_P, TYPICAL = replace(PLAIN, min_p=0.2, temp=1.2), replace(PLAIN, typical=0.7)
PENALISED = replace(PLAIN, repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, repeat_last_n=1)
ORDERED = replace(PLAIN, top_k=4, top_p=0.9, min_p=0.1, temp=0.8, samplers=("temperature", "min_p", "top_p", "top_k"))
ALL = SamplingConfig(temp=0.8, top_k=4, logit_bias=((1, 0.7), (3, -0.4)))

# Each filter, temperature, draft and schedule with each way of verifying, not all with all.
WITHOUT_THREADS = [
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
]
WITH_THREADS = [
    Case("rejection", "good", "async", PLAIN, threads=True),
    Case("rejection", "bad", "async", TOP_K, threads=True),
    Case("rejection", "adversarial", "restless", HOT, threads=True),
    Case("rejection", "identical", "sync", MIN_P, threads=True),
    Case("coupled", "good", "async", TOP_P, threads=True),
    Case("coupled", "bad", "restless", PLAIN, threads=True),
]
BIASED = {
    "one candidate in fifty too many": Case("rejection", "bad", "sync", PLAIN, verifier=biased.Generous, eager=True),
    "the residual is not renormalised": Case(
        "rejection", "bad", "sync", PLAIN, verifier=biased.Unnormalised, eager=True
    ),
    "one noise for draw and residual": Case(
        "rejection", "bad", "sync", PLAIN, verifier=biased.ResidualOfDraw, eager=True
    ),
    "one noise for draw and coin": Case("rejection", "bad", "sync", PLAIN, verifier=biased.CoinOfDraw, eager=True),
    "one noise for draw and bonus": Case("rejection", "good", "sync", PLAIN, verifier=biased.BonusOfDraw, eager=True),
    "one noise for two positions": Case("coupled", "good", "sync", PLAIN, verifier=biased.halved),
    "candidates dropped by their own probability": Case(
        "rejection", "bad", "sync", PLAIN, verifier=biased.Choosy, eager=True
    ),
    "candidates dropped by what follows": Case(
        "rejection", "bad", "sync", PLAIN, verifier=biased.FarSighted, eager=True
    ),
}


def seeded(cases: Sequence[Case], first: int) -> list[Case]:
    return [replace(case, config=replace(case.config, seed=first + i)) for i, case in enumerate(cases)]


def p_values(cases: Sequence[Case]) -> list[float]:
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        return list(pool.map(p_value, cases))


@pytest.mark.timeout(3600)
def test_the_text_is_the_targets_own() -> None:
    cases = seeded([*WITHOUT_THREADS, *WITH_THREADS], 100)
    found = p_values(cases)
    failed = false_discoveries(found, FALSE_ALARMS)
    assert not failed, [f"{cases[i]}: p = {found[i]:.2g}" for i in failed]


@pytest.mark.timeout(3600)
def test_what_is_wrong_by_a_little_is_found_out() -> None:
    cases = seeded(list(BIASED.values()), 200)
    found = dict(zip(BIASED, p_values(cases), strict=True))
    # As the rule for all cases above would judge one that fails alone.
    limit = FALSE_ALARMS / (len(WITHOUT_THREADS) + len(WITH_THREADS))
    assert not {name: p for name, p in found.items() if p > limit}


def test_the_bad_draft_is_bad_enough() -> None:
    """The share of its draws that must be rejected, without which a small bias could not be seen."""
    shared = [np.minimum(softmax(TARGET[prefix]), softmax(DRAFTS["bad"][prefix])).sum() for prefix in TARGET]
    assert 1 - np.mean(shared) >= 0.4


@pytest.mark.parametrize("config", [PLAIN, COLD, HOT, ORDERED], ids=str)
def test_coupled_text_is_the_same_with_any_draft_and_schedule(config: SamplingConfig) -> None:
    """And with threads, which come and go as they like."""
    alone, _ = write(Case("coupled", "absent", "sync", config, n_sequences=300))
    for draft in DRAFTS:
        for schedule in ("async", "sync", "restless"):
            for threads in (False, True):
                case = Case("coupled", draft, schedule, config, threads=threads, eager=draft == "good", n_sequences=300)
                assert write(case)[0] == alone, case
