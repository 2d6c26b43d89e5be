"""Whatever the draft does, every three tokens are as frequent as the target says: chi-square tests of the whole loop.

Each case writes 6,000 short texts of known probability. tests/mutations.txt has verifiers that are wrong by a little.
"""

import random
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest

from duo.config import SamplingConfig, StopConfig, ThreadConfig
from duo.engine.generation import Generation, Proposers
from duo.engine.kv_store import Cache
from duo.engine.local_draft import LocalDraft
from duo.engine.proposers import LookupProposer, RunningText
from duo.engine.recorder import Recorder
from duo.engine.request import Ending
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.filters import Tokens
from duo.speculation.modes import Schedule
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.sampling import CandidateSampler, Chain, Coupled
from duo.speculation.types import Logits, SizedResult, StepCost
from duo.speculation.verify import DraftSampler, Matching, Rejection, Verifier
from tests.fakes import Eager, EagerController, restless
from tests.goodness import chi_square, chi_square_tail
from tests.proof.model import DRAFTS, LENGTH, N_VOCAB, SEQUENCES, TARGET, TableContext, chances
from tests.unit.engine.helpers import Unthreaded

PROMPT = [0, 0, 0]
THREADS = ThreadConfig(target=1, target_batch=1, draft=(1,), concurrent=(1, 1))


class Priced(Controller):
    """The real one with fixed costs at which drafting always pays."""

    def learn(self, results: Sequence[SizedResult], cost: StepCost | None) -> None:
        seconds = self.priced_s(cost.n_candidates) if cost is not None else 0.0
        super().learn(results, cost and cost._replace(decode_s=seconds, total_s=seconds))

    @staticmethod
    def priced_s(n_candidates: int) -> float:
        return 1e-3 + 2e-5 * n_candidates**2


class Stepped(Priced):
    """One candidate costs as much as four: whether the first is worth it depends on those that follow."""

    @staticmethod
    def priced_s(n_candidates: int) -> float:
        return 1.8e-3 if n_candidates else 1e-3


class PricedDraft(DraftEstimates):
    """Of a draft whose tokens cost as good as nothing."""

    def learn_draft(self, n_tokens: int, seconds: float, n_sequences: int = 1) -> None:
        super().learn_draft(n_tokens, 1e-6 * n_tokens, n_sequences)


@dataclass(frozen=True)
class Case:
    """One way to write."""

    verify: str  # coupled or rejection
    draft: str  # of DRAFTS, or absent
    schedule: str  # async, sync or restless
    config: SamplingConfig
    eager: bool = False  # verify whatever is ready, instead of what the controller finds best
    threads: bool = False
    n_sequences: int = 6000
    controller: type[Priced] = Priced
    lookup: bool = False  # candidates from the text itself, too
    branches: int = 0  # likely outcomes that the draft prepares

    def __str__(self) -> str:
        plain, ways = asdict(SamplingConfig()), ("eager", "threads", "lookup", "branches")
        changed = {key: value for key, value in asdict(self.config).items() if key != "seed" and value != plain[key]}
        return " ".join([self.verify, self.draft, self.schedule, *filter(self.__getattribute__, ways), str(changed)])


class Looked(Chain):
    """The same chain, which computes each of the model's few rows once: filters have other tests."""

    found: dict[tuple[bytes, tuple[int, ...]], Tokens]

    def __call__(self, logits: Logits, recent: Sequence[int]) -> Tokens:
        found, key = self.found, (logits.tobytes(), tuple(recent))
        if key not in found:
            found[key] = super().__call__(logits, recent)
        ids, left = found[key]
        return ids, left.copy()


def p_value(case: Case) -> float:
    """The probability of the texts of a case, or of less likely ones, if they have the target's distribution."""
    text, n_verified = write(case)
    assert case.draft not in DRAFTS or n_verified > len(text) / 20, f"{n_verified} candidates verified: {case}"
    expected = chances(case.config)
    tokens = np.array(text[: len(text) // LENGTH * LENGTH]).reshape(-1, LENGTH)
    before = np.concatenate(([PROMPT[-1]], tokens[:-1, -1]))
    index = (tokens * N_VOCAB ** np.arange(LENGTH - 1, -1, -1)).sum(axis=1)
    counts = np.zeros((N_VOCAB, len(SEQUENCES)), np.int64)
    np.add.at(counts, (before, index), 1)
    if (expected == expected[0]).all():  # what was before makes no difference
        return chi_square(counts.sum(axis=0), expected[0])
    # Fisher's method for independent tests: -2 log p is a chi-square number of two degrees of freedom.
    parts = [chi_square(counts[i], expected[i]) for i in range(N_VOCAB) if counts[i].sum() > 600]
    return chi_square_tail(-2 * sum(np.log(max(p, 1e-300)) for p in parts), 2 * len(parts))


def write(case: Case) -> tuple[list[int], int]:
    """The text that a case writes, and the number of candidates that were verified."""
    config, n_tokens, is_rejection = case.config, LENGTH * case.n_sequences, case.verify == "rejection"
    coupled = Coupled(config, n_alternatives=3 if case.branches else 0)
    verifier: Verifier = Rejection(config) if is_rejection else Matching(coupled)
    sampler: CandidateSampler = DraftSampler(config) if is_rejection else coupled
    for chooser in (verifier, sampler, *vars(verifier).values()):
        if isinstance(chain := getattr(chooser, "_chain", None), Chain):
            chain.__class__ = Looked
            vars(chain)["found"] = {}
    ending = Ending(StopConfig(n_tokens), lambda _: b"", lambda _: False)
    target, metrics, (controller, estimates) = TableContext(TARGET), Recorder(), make_pair(case)
    running = RunningText(
        list(PROMPT), ending, metrics, verifier, sampler, config, N_VOCAB, mode=case.verify,
        judges_all=not is_rejection,
    )  # fmt: skip
    local: LocalDraft | None = None
    if case.draft in DRAFTS:
        cache = Cache(TableContext(DRAFTS[case.draft], case.branches))
        local = (LocalDraft if case.threads else Unthreaded)(cache, estimates)
    if isinstance(local, Unthreaded):
        drafting, dice = local, random.Random(5)

        def draft_some() -> None:
            for _ in range(dice.randrange(4)):
                if estimates.schedule is Schedule.ASYNC and drafting.queue._allows():
                    drafting.drafter.step()

        target.during = draft_some
    others = [LookupProposer(PromptLookup(), 4)] if case.lookup else []
    proposers = Proposers(controller, [local], others=others) if local else Proposers(Priced(4), others=others)
    tokens: list[int] = []
    Generation(target, running, THREADS, proposers).run(lambda step: tokens.extend(step.tokens), threading.Event())
    assert metrics.draft_error is None
    statistics = metrics.statistics()
    branches = statistics.draft and statistics.draft.branches
    assert bool(branches) == (case.branches > 0 and not is_rejection)
    # With threads, what the draft has time for depends on the machine.
    assert not branches or case.threads or branches.hits > n_tokens / 100, "too few to see a bias"
    assert statistics.lookup or not case.lookup or local
    return tokens, sum(step.n_candidates for step in metrics.steps)


def make_pair(case: Case) -> tuple[Controller, DraftEstimates]:
    if case.schedule == "restless" or case.eager:
        is_eager = case.schedule != "restless"
        estimates = Eager(4, 6, Schedule(case.schedule)) if is_eager else restless(case.config.seed)
        return EagerController(estimates.target), estimates
    controller = case.controller(4 if case.lookup else 0)
    return controller, PricedDraft(controller.target, 4, 6, (Schedule(case.schedule),), branches=case.branches)


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
    Case("rejection", "bad", "async", TOP_K, eager=True),
    Case("rejection", "bad", "sync", TOP_P),
    Case("rejection", "adversarial", "restless", MIN_P),
    Case("rejection", "identical", "sync", TYPICAL),
    Case("rejection", "identical", "restless", ORDERED),
    Case("rejection", "good", "restless", PENALISED),
    Case("rejection", "good", "sync", ALL, eager=True),
    Case("rejection", "good", "sync", PLAIN, controller=Stepped),
    Case("coupled", "good", "async", PLAIN),
    Case("coupled", "bad", "sync", COLD),
    Case("coupled", "adversarial", "async", TOP_K, eager=True),
    Case("coupled", "identical", "restless", MIN_P),
    Case("coupled", "bad", "restless", PENALISED),
    Case("coupled", "absent", "sync", ALL),
    Case("rejection", "absent", "sync", PLAIN, lookup=True),
    Case("rejection", "bad", "sync", COLD, lookup=True),
    Case("coupled", "absent", "sync", TOP_P, lookup=True),
    Case("coupled", "good", "async", PLAIN, branches=4),
    Case("coupled", "bad", "async", TOP_P, branches=8),
    Case("coupled", "good", "async", PENALISED, branches=2),
    Case("coupled", "bad", "async", HOT, branches=4, threads=True),
    Case("rejection", "bad", "async", PLAIN, branches=4, n_sequences=1000),
    Case("rejection", "good", "async", PLAIN, threads=True),
    Case("rejection", "adversarial", "restless", HOT, threads=True),
    Case("rejection", "identical", "sync", MIN_P, threads=True),
    Case("coupled", "good", "async", TOP_P, threads=True),
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
