"""duo over llama.cpp per kind of text: over plain decoding, over the best single setting, and over an oracle.

The best single setting is what a patient user would have chosen: the fastest on one half of the prompts, compared on
the other half, because the maximum of noisy runs flatters itself. The oracle uses the fastest setting of each prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from benchmarks.runner import Verdict
from duo.bench.results import Range, markdown_table, speed_up, spread

PLAIN, DUO, LOOKUP = "llama-completion", "duo", "duo without a draft"
REPEATS, DISTINCT = "not repeating", 0.6  # at least this share of distinct 4-grams
_LEVEL = 0.97  # a text below is slower
_LEAST_TOKENS = 8  # shorter texts have no rate
_LONG = ("summarization", "rag")  # the categories with long prompts


@dataclass(frozen=True, slots=True)
class Text:
    """One generated text: a line of the journal."""

    pair: str
    question: str
    category: str
    turn: int  # from 1
    temperature: float
    contestant: str
    tokens: int
    tokens_per_s: float  # after the first token
    first_token_s: float  # with the prompt, without loading
    distinct: float  # see distinct_share()
    text: str
    n_most: int = 0  # tokens at which it would have been ended
    wall_s: float = 0.0  # of the whole run, with loading where that is part of it
    commit: str = ""  # of duo's working tree
    series: int = 1  # of texts that began with an empty profile
    under: str = ""  # such as "bursts": see Setup.under

    @property
    def settings(self) -> tuple[Any, ...]:
        """What the texts of a series have in common."""
        return self.pair, self.n_most, self.series, self.under

    @property
    def prompt(self) -> tuple[Any, ...]:
        """What the contestants have in common."""
        return *self.settings, self.question, self.turn, self.temperature

    @property
    def key(self) -> tuple[Any, ...]:
        """Of this text."""
        return (*self.prompt, self.contestant)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One prompt. Rates are tokens/s over those of plain decoding."""

    question: str
    category: str
    distinct: float  # share of the distinct 4-grams of the least distinct text of plain, duo and the single setting
    duo: float
    single: float
    oracle: float
    time: float  # duo's to the last token, prompt included, over that of the single setting with the least
    lookup: float | None = None  # duo's without a draft


Figure = Callable[[Ratio], float | None]
FIGURES: dict[str, Figure] = {
    "over plain": lambda ratio: ratio.duo,
    "over the best single setting": lambda ratio: ratio.duo / ratio.single,
    "over the oracle": lambda ratio: ratio.duo / ratio.oracle,
    "time to the last token": lambda ratio: ratio.time,
    "over lookup alone": lambda ratio: ratio.lookup and ratio.duo / ratio.lookup,
}
OVER_PLAIN, OVER_SINGLE, OVER_ORACLE, TIME, OVER_LOOKUP = FIGURES


class Ratios:
    """The ratios of the prompts that all contestants have answered, and the best setting of each half of them."""

    def __init__(self, texts: Iterable[Text]) -> None:
        prompts: dict[tuple[Any, ...], dict[str, Text]] = {}
        for text in texts:
            prompts.setdefault(text.prompt, {})[text.contestant] = text
        names = {name for found in prompts.values() for name in found}
        known = [found for found in prompts.values() if found.keys() == names and _has_rates(found)]
        self.n_left_out = len(prompts) - len(known)
        self.ratios, self.singles, self.quickest = list[Ratio](), list[str](), list[str]()
        if DUO not in names or not known or not any(name.startswith(PLAIN) for name in names):
            return
        peers = sorted(name for name in names if not name.startswith(DUO))
        plain = _fastest([name for name in peers if name.startswith(PLAIN)], known)
        halves = _halves(known, plain)
        for half, other in zip(halves, reversed(halves), strict=True):
            single, quickest = _fastest(peers, other or half), _quickest(peers, other or half, plain)
            self.singles.append(single)
            self.quickest.append(quickest)
            self.ratios += [_ratio(found, plain, single, quickest, peers) for found in half]

    def groups(self) -> dict[str, list[Ratio]]:
        """By category, then all, and those whose text does not repeat itself."""
        found: dict[str, list[Ratio]] = {}
        for ratio in sorted(self.ratios, key=lambda ratio: ratio.category):
            found.setdefault(ratio.category, []).append(ratio)
        return found | {"all": self.ratios, REPEATS: [each for each in self.ratios if each.distinct >= DISTINCT]}

    def table(self) -> list[str]:
        """A row for each group, with 95 % intervals over its prompts."""
        lines = [["", "prompts", *FIGURES]]
        for name, ratios in self.groups().items():
            cells = [spread(_mean(figure, ratios), 2) for figure in FIGURES]
            lines.append([name, str(len(ratios)), *cells])
        found = [*markdown_table(lines), "", f"Best single setting of each half: {', '.join(self.singles)}."]
        found.append(f"With the least time to the last token: {', '.join(self.quickest)}.")
        return found + ([f"Prompts left out, for lack of a text: {self.n_left_out}."] if self.n_left_out else [])

    def verdicts(self) -> list[Verdict]:
        """The bars of each pair."""
        groups = self.groups()
        long = [ratio for name in _LONG for ratio in groups.get(name, [])]
        kinds = {name: found for name, found in groups.items() if name not in ("all", REPEATS)}
        worst = min(kinds, key=lambda name: _mean(OVER_PLAIN, kinds[name]) or Range(0.0), default="")
        return [
            Verdict(f"{DUO} {OVER_SINGLE}", _mean(OVER_SINGLE, self.ratios), least=1.0),
            Verdict(f"{DUO} {OVER_ORACLE}", _mean(OVER_ORACLE, self.ratios), least=0.95),
            Verdict(f"{DUO} {OVER_PLAIN}, {worst} (worst)", _mean(OVER_PLAIN, kinds.get(worst, [])), least=0.97),
            Verdict(f"{DUO} {OVER_SINGLE}, {REPEATS}", _mean(OVER_SINGLE, groups[REPEATS]), least=1.0),
            Verdict(f"{TIME}, long prompts", _mean(TIME, long), most=1.0),
        ]

    def bars(self) -> tuple[list[str], dict[str, list[float]]]:
        """The series of a chart, and their rates over plain decoding in each group."""
        series: dict[str, Callable[[Ratio], float]] = {
            DUO: lambda ratio: ratio.duo, "best single setting": lambda ratio: ratio.single,
            "best setting of each prompt": lambda ratio: ratio.oracle,
        }  # fmt: skip
        groups = {name: found for name, found in self.groups().items() if found}
        return list(series), {
            name: [geometric_mean(map(rate, found)) for rate in series.values()] for name, found in groups.items()
        }


def by_text(name: str, texts: Iterable[Text], questions: Sequence[str]) -> list[str]:
    """A table of `name` over each other contestant: its first four questions, all, and its slowest text (a median).

    `questions` are those of a series, in order.
    """
    prompts: dict[tuple[Any, ...], dict[str, Text]] = {}
    for text in texts:
        if text.tokens >= _LEAST_TOKENS:
            prompts.setdefault(text.prompt, {})[text.contestant] = text
    found = [(questions.index(each[name].question), each) for each in prompts.values() if name in each]
    lines = [[f"{name} over", "texts", "the first four questions", "all", "slowest text", f"texts below {_LEVEL:g}"]]
    for other in dict.fromkeys(other for _, each in found for other in each if other != name):
        both = [(i, each[name].tokens_per_s / each[other].tokens_per_s) for i, each in found if other in each]
        medians = [median(ratio for j, ratio in both if j == i) for i in {i for i, _ in both}]
        first, all_texts = (speed_up([ratio for i, ratio in both if i < most]) for most in (4, len(questions)))
        below = str(sum(each < _LEVEL for each in medians))
        lines.append([other, str(len(both)), spread(first, 3), spread(all_texts, 3), f"{min(medians):.2f}", below])
    return markdown_table(lines) if len(lines) > 1 else []


def _mean(name: str, ratios: Sequence[Ratio]) -> Range | None:
    """Of the questions, each of which counts once, whatever the number of its turns."""
    questions: dict[str, list[float]] = {}
    for ratio in ratios:
        if (value := FIGURES[name](ratio)) is not None:
            questions.setdefault(ratio.question, []).append(value)
    return speed_up(list(map(geometric_mean, questions.values())))


def _has_rates(found: Mapping[str, Text]) -> bool:
    return all(text.tokens >= _LEAST_TOKENS and text.tokens_per_s > 0 for text in found.values())


def _halves(prompts: Sequence[dict[str, Text]], plain: str) -> tuple[list[dict[str, Text]], list[dict[str, Text]]]:
    """Every other question of each category, with all of its turns; the first of every other category."""
    halves: tuple[list[dict[str, Text]], list[dict[str, Text]]] = ([], [])
    n_seen: dict[str, int] = {}
    chosen: dict[str, int] = {}
    for found in prompts:
        question, category = found[plain].question, found[plain].category
        if question not in chosen:
            n_seen[category] = n_seen.get(category, len(n_seen) - 1) + 1
            chosen[question] = n_seen[category] % 2
        halves[chosen[question]].append(found)
    return halves


def _fastest(names: Sequence[str], prompts: Sequence[Mapping[str, Text]]) -> str:
    return max(names, key=lambda name: geometric_mean([found[name].tokens_per_s for found in prompts]))


def _quickest(names: Sequence[str], prompts: Sequence[Mapping[str, Text]], plain: str) -> str:
    return min(names, key=lambda name: geometric_mean([_last_s(found, plain, name) for found in prompts]))


def _last_s(found: Mapping[str, Text], plain: str, name: str) -> float:
    """Seconds to the last token. Near-ties end texts at different places: of as many tokens as plain decoding wrote."""
    return found[name].first_token_s + (found[plain].tokens - 1) / found[name].tokens_per_s


def _ratio(found: Mapping[str, Text], plain: str, single: str, quickest: str, peers: Sequence[str]) -> Ratio:
    base = found[plain]
    rates = {name: text.tokens_per_s / base.tokens_per_s for name, text in found.items()}
    oracle, distinct = max(rates[name] for name in peers), min(found[name].distinct for name in (plain, DUO, single))
    time = _last_s(found, plain, DUO) / _last_s(found, plain, quickest)
    return Ratio(base.question, base.category, distinct, rates[DUO], rates[single], oracle, time, rates.get(LOOKUP))
