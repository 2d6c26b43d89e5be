"""Contestants, and the rounds with a prompt in which all run: slowdowns of the machine affect all of them."""

import random
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import cycle
from pathlib import Path

from duo.diagnose.measure import Interrupted
from duo.engine.statistics import Statistics
from duo.errors import DuoError, PromptError, UsageError

_WARM_UP_TOKENS = 16
_LEAST_DISTINCT = 0.30  # share of a text's 4-grams; looping text is easy to draft and inflates every speed-up
_LEAST_NEW = 0.05  # share of a text's 4-grams: with fewer that are not in the prompt, the text repeats only the prompt
RATE = "tokens_per_s"
OWN = "own"  # the category of prompts before the first heading


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its category."""

    category: str
    text: str


def built_in() -> list[Prompt]:
    """The built-in prompts, in eight categories."""
    return parse_prompts((files("duo.bench") / "prompts.txt").read_text(encoding="utf-8"))


def parse_prompts(text: str) -> list[Prompt]:
    r"""One prompt per line, with \n for a line break; a line `[name]` starts a category. Raises PromptError."""
    found, category = [], OWN
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            category = line[1:-1].strip()
        elif line:
            found.append(Prompt(category, line.replace("\\n", "\n")))
    if not found:
        raise PromptError("the prompts file is empty: write one prompt per line")
    return found


def chosen(prompts: Sequence[Prompt], categories: Sequence[str]) -> list[Prompt]:
    """The prompts of `categories`, in that order. Raises UsageError for an unknown category."""
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    if unknown := [name for name in categories if name not in known]:
        raise UsageError(f"categories: unknown category {unknown[0]!r} (available: {', '.join(known)})", "categories")
    return [prompt for name in categories for prompt in prompts if prompt.category == name]


def rounds(prompts: Sequence[Prompt], n: int) -> list[Prompt]:
    """The prompts of `n` rounds: round-robin over the categories, and over the prompts of each category."""
    names = dict.fromkeys(prompt.category for prompt in prompts)
    kinds = cycle([cycle([prompt for prompt in prompts if prompt.category == name]) for name in names])
    return [next(next(kinds)) for _ in range(n)]


class ParseError(DuoError):
    """A program failed, or its output cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One generated text, without its prompt."""

    text: str
    tokens: int | None  # None: the program does not say
    tokens_per_s: float  # of generation, without loading and prefill
    figures: Mapping[str, float | None] = field(default_factory=dict)  # what else is known, by name

    @classmethod
    def of(cls, text: str, found: Statistics, **more: float | None) -> "Run":
        """A run of duo with at least two tokens."""
        generation, draft = found.generation, found.draft
        figures: dict[str, float | None] = {
            "prompt_tokens_per_s": found.prompt.tokens_per_s,
            "first_token_s": generation.time_to_first_token_s,
            "tokens_per_decode": generation.tokens_per_decode,
            "target_ms_per_decode": generation.target_ms_per_decode,
            "verified": found.verified if draft or found.lookup else None,
            "accepted": found.accepted if draft or found.lookup else None,
            "draft_ms_per_token": draft.ms_per_token if draft else None,
            # The share of the draft's time in which the target computed, and that of drafted tokens not in the text.
            "hidden": draft.hidden if draft else None,
            "waste": draft.unused if draft else None,
        }
        return cls(text.strip("\n"), generation.tokens, generation.tokens_per_s or 0.0, figures | more)

    def figure(self, name: str) -> float | None:
        """RATE, or one of the figures; None if it is not known."""
        return self.tokens_per_s if name == RATE else self.figures.get(name)


@dataclass(frozen=True, slots=True)
class Job:
    """The request to every contestant: `n_tokens` tokens after a raw prompt."""

    target: Path
    draft: Path | None
    prompt: str
    prompt_file: Path  # the prompt and one newline, which the programs strip
    n_tokens: int
    n_ctx: int
    temperature: float = 0.0
    may_end: bool = False  # whether the text may end by itself, after two tokens or more

    @property
    def n_least(self) -> int:
        """The least number of tokens of a valid run."""
        return 2 if self.may_end else self.n_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Contestant:
    """A row of the table."""

    mode: str  # of duo, or the name of a program
    write: Callable[[Job, threading.Event], Run]  # writes one text; raises Interrupted soon after the event is set
    threads: str = ""  # of target and draft
    devices: str = ""
    n_max: str | None = None  # maximum candidates per batch, or auto; None without a draft
    may_fail: bool = False  # skip it if it fails: it was found on the PATH, not requested

    @property
    def name(self) -> str:
        """For output; unique."""
        return self.mode if self.n_max is None else f"{self.mode} k={self.n_max}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one contestant in one round."""

    contestant: Contestant
    i_round: int
    prompt: Prompt
    run: Run

    @property
    def loops(self) -> bool:
        """See loops()."""
        return loops(self.run.text, self.prompt.text)


def measure(
    contestants: Sequence[Contestant],
    prompts: Iterable[Prompt],
    job: Job,
    put: Callable[[Sample], None],
    note: Callable[[str], None],
    stop: threading.Event,
    warm_up: Prompt | None = None,
) -> None:
    """Run every contestant once per round, each time in another order, until `stop` is set. Raises DuoError.

    The orders are random with a fixed seed: in a rotation each contestant would always follow the same one. First, each
    generates a few tokens after `warm_up`, which excludes one-time costs and finds programs that cannot run. `job`
    lacks the prompts. `note` gets lines about these, and about contestants that may fail, and did.
    """
    order, draws = list(contestants), random.Random(1)  # noqa: S311 - nothing secret

    def write(contestant: Contestant, asked: Job) -> Run | None:
        try:
            return contestant.write(asked, stop)
        except ParseError as error:
            if not contestant.may_fail:
                raise
            note(f"{error}: skipped")
            order.remove(contestant)
            return None

    with tempfile.TemporaryDirectory(prefix="duo-bench-") as folder, suppress(Interrupted):
        file = Path(folder) / "prompt.txt"
        if warm_up is not None:
            asked = replace(with_prompt(job, warm_up.text, file), n_tokens=min(_WARM_UP_TOKENS, job.n_tokens))
            for contestant in contestants:
                note(f"warming up {contestant.name}")
                write(contestant, asked)
        for i_round, prompt in enumerate(prompts):
            asked = with_prompt(job, prompt.text, file)
            draws.shuffle(order)
            for contestant in order.copy():
                if (run := write(contestant, asked)) is not None:
                    put(Sample(contestant, i_round, prompt, run))


def with_prompt(job: Job, text: str, file: Path) -> Job:
    """The job with a prompt, which is written to `file`."""
    file.write_text(text + "\n", encoding="utf-8")
    return replace(job, prompt=text, prompt_file=file)


def distinct_share(text: str, prompt: str = "") -> float:
    """The share of distinct 4-grams of words and punctuation marks, among those that the prompt does not contain.

    Each in the prompt accounts for one in the text: copying the prompt once lowers nothing, copying it again and again
    does. 1 if the prompt accounts for almost all.
    """
    grams = _grams(text)
    new = grams - _grams(prompt)
    return len(new) / new.total() if new.total() >= max(1, _LEAST_NEW * grams.total()) else 1.0


def loops(text: str, prompt: str = "") -> bool:
    """Whether a text repeats itself, not its prompt, too much to be counted."""
    return distinct_share(text, prompt) < _LEAST_DISTINCT


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+|[^\w\s]", text)
    return Counter(zip(words, words[1:], words[2:], words[3:], strict=False))


def first_difference(text: str, reference: str) -> int | None:
    """The index of the first differing character; None if the shorter text is a prefix of the other.

    A text shorter than half of the reference differs at its end.
    """
    both = min(len(text.rstrip("\ufffd")), len(reference.rstrip("\ufffd")))  # the last character may be incomplete
    place = next((i for i in range(both) if text[i] != reference[i]), None)
    return len(text) if place is None and len(text) < len(reference) / 2 else place
