"""Acceptance, tokens/s and cost of sampling, by temperature and verification method.

Acceptance is measured with teacher forcing: one candidate at every position of the target's text, without a policy. It
is the share of coupled or greedy candidates that equal the target's token. For rejection sampling it is the mean of
Σ min(target, draft), which is also the upper bound of all methods.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.contestants import ALONE, Setup, duo, patched
from benchmarks.models import opened
from benchmarks.runner import Comparison, Outcome, Scenario, Verdict, verdict
from duo.bench.results import markdown_table
from duo.bench.rounds import Contestant
from duo.config import ContextConfig, SamplingConfig
from duo.engine.decoder import decode_all
from duo.llama.context import Context
from duo.speculation.sampling import Chain, Coupled, Greedy
from duo.speculation.types import Distribution

_TEMPERATURES = (0.0, 0.3, 0.7, 1.0)
_WAYS = ("coupled", "rejection", "greedy draft")
_BARS = (("greedy draft", 0.7, 1.08), ("greedy draft", 1.0, 1.15), ("rejection", 0.7, 0.95), ("rejection", 1.0, 0.95))
_VOCABULARY, _ROWS, _DECODE_S = 128_256, 5, 0.020

# The draft proposes its most likely token and the target samples: common without coupling.
_GREEDY_DRAFT = """
from duo.engine import scheduler
from duo.speculation.sampling import Greedy
choosing = scheduler.choosing
scheduler.choosing = lambda *arguments: (choosing(*arguments)[0], Greedy())
"""


class Sampling(Scenario):
    """Rates of commands, and acceptance and cost of sampling in this process."""

    def run(self, setup: Setup) -> Outcome:
        columns = ("decode t/s", "speed-up", "accept %")
        rates = Comparison("", contestants=_contestants, baseline="temperature 0, coupled", columns=columns)
        results, complete = rates.measure(setup)
        accepted, cost_s = acceptance(setup), _cost_s()
        lines = [["temperature", *(f"{way} %" for way in _WAYS)]]
        lines += [[f"{t:g}", *(f"{100 * share:.1f}" for share in found.values())] for t, found in accepted.items()]
        verdicts = []
        for other, t, least in _BARS:
            ratio = accepted[t]["coupled"] / max(1e-9, accepted[t][other])
            verdicts.append(verdict(f"coupled over {other} at {t:g}", ratio, least=least))
        by_name = {contestant.name: contestant for contestant in results.contestants}
        slow, fast = (by_name.get(f"temperature {t}, coupled") for t in ("0.7", "0"))
        if slow is not None and fast is not None:
            verdicts.append(Verdict("tokens/s at 0.7 over those at 0", results.speed_up(slow, fast), 0.9))
        verdicts.append(verdict("sampling of five rows, share of 20 ms", cost_s / _DECODE_S, most=0.05))
        found = results.document() | {"complete": complete, "cost_s": cost_s}
        found |= {"acceptance": {f"{t:g}": shares for t, shares in accepted.items()}}
        return Outcome([*markdown_table(lines), "", *rates.table(results)], found, verdicts)


def _contestants(setup: Setup) -> list[Contestant]:
    """Commands by temperature and method, each with a separate profile: their acceptances differ."""
    found = []
    for t in _TEMPERATURES:
        for way in _WAYS if t else _WAYS[:1]:
            verify = "rejection" if way == "rejection" else "coupled"
            options = f"-md {{draft}} {ALONE} --temp {t:g} -s 1 --verify {verify}"
            program = patched(_GREEDY_DRAFT) if way == "greedy draft" else ()
            found.append(duo(setup, f"temperature {t:g}, {way}", options, program))
    return found


def _cost_s() -> float:
    """Median time in s to sample five rows of a large vocabulary at top-k 40, with cold caches."""
    sampler, dice, times = Coupled(SamplingConfig(temp=0.8)), np.random.default_rng(1), []
    batches = [(3 * dice.standard_normal((_ROWS, _VOCABULARY))).astype(np.float32) for _ in range(40)]
    for position, rows in enumerate(batches):
        start = time.perf_counter()
        for i, row in enumerate(rows):
            sampler.sample(row, position + i)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def acceptance(setup: Setup) -> dict[float, dict[str, float]]:
    """By temperature: the share of accepted candidates for each method."""
    found = {}
    with opened((setup.target, setup.draft), ContextConfig(1024, 2, 2)) as ((model, _), contexts):
        for temperature in _TEMPERATURES:
            counts = dict.fromkeys(_WAYS, 0.0)
            for seed, file in enumerate(setup.prompt_files):
                prompt = model.tokenize(file.read_text(encoding="utf-8"))
                _compare(contexts, prompt, setup.n_tokens, SamplingConfig(temp=temperature, seed=seed), counts)
            found[temperature] = {way: n / (setup.n_tokens * len(setup.prompt_files)) for way, n in counts.items()}
    return found


def _compare(
    contexts: Sequence[Context], prompt: list[int], n_tokens: int, config: SamplingConfig, counts: dict[str, float]
) -> None:
    sampler, greedy, chain = Coupled(config), Greedy(), Chain(config)
    rows = []
    for context in contexts:
        context.rollback(0)
        rows.append(decode_all(context, prompt)[0].copy())
    for position in range(len(prompt), len(prompt) + n_tokens):
        token = sampler.sample(rows[0], position)
        counts["coupled"] += sampler.sample(rows[1], position) == token
        counts["greedy draft"] += greedy.sample(rows[1], position) == token
        both = [chain.distribution(row, ()) for row in rows] if config.temp else []
        counts["rejection"] += _overlap(*both) if both else greedy.sample(rows[1], position) == token
        rows = [context.decode([token])[0].copy() for context in contexts]


def _overlap(target: Distribution, draft: Distribution) -> float:
    shared = np.intersect1d(target.ids, draft.ids, assume_unique=True)
    both = [side.probabilities[side.ids.searchsorted(shared)] for side in (target, draft)]
    return float(np.minimum(*both).sum())
