"""`duo check`: whether the draft changes the text, on the user's own models: the same prompts with it and without."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from duo.bench.contestants import write
from duo.cli.commands.options import CheckOptions
from duo.cli.load import loaded
from duo.cli.options import RANDOM_SEED, read_prompts
from duo.cli.terminal.console import note, progress_bar, send_log
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import GenerationConfig
from duo.diagnose.measure import Interrupted
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.model_pair import ModelPair
from duo.engine.request import choosing
from duo.engine.statistics import Statistics
from duo.errors import PromptError, UsageError
from duo.llama.gguf_header import GgufHeader, has_mtp
from duo.llama.model import Model
from duo.speculation.modes import Schedule, schedules_of
from duo.speculation.types import common_prefix

_N_CTX = 2048
_SEVERAL = 5  # rows of batches that are compared with single rows, as are the largest: devices have kernels for those
_NO_DRAFT = "nothing to check without a draft: name one with -md or -hfd; no --schedule off or --draft 0"
# A story, a program, an explanation, a letter and a list.
_PROMPTS = (
    "The old lighthouse keeper had not seen a ship for three weeks. On the first clear morning he",
    'def median(values):\n    """The middle of the sorted values; the mean of the two middle ones."""\n',
    "Question: Why does bread rise in the oven, and what happens if it is left there too long?\nAnswer:",
    "Dear neighbours,\n\nthe bridge over the mill stream will be closed from Monday on, because",
    "Ten things to do on a rainy Sunday:\n1.",
)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two texts."""

    index: int  # of the first token that differs
    alone: int  # the token without a draft; -1: the text had ended
    drafted: int  # the token with a draft
    gap: float  # between the two best scores
    kernels: float  # largest difference of scores between batches of one row, of several and of the most
    flips: bool  # whether the target alone chooses another token in batches of several rows

    @property
    def is_near_tie(self) -> bool:
        """Whether the batch size explains the difference: by a small gap, or by what a filter keeps."""
        return self.flips or self.gap <= 2 * self.kernels

    def describe(self, target: Model) -> str:
        """The difference in words."""
        alone, drafted = (
            "the end" if token < 0 else repr(target.piece(token).decode("utf-8", "replace"))
            for token in (self.alone, self.drafted)
        )
        return (
            f"differs from token {self.index + 1} on: {alone} without the draft, {drafted} with it; the two best "
            f"scores differ by {self.gap:.4f}, batches of one row and several by {self.kernels:.4f}: "
            f"{'a near-tie' if self.is_near_tie else 'not a near-tie'}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One text, generated with a draft and without."""

    n_tokens: int
    drafted: Statistics
    difference: Divergence | None

    @property
    def n_prepared(self) -> int:
        """Outcomes, each in a branch of the draft."""
        draft = self.drafted.draft
        return draft.branches.prepared if draft is not None and draft.branches is not None else 0

    def describe(self, target: Model) -> str:
        """The result in words."""
        if self.difference is not None:
            return self.difference.describe(target)
        prepared = f"; {self.n_prepared} outcomes prepared" if self.n_prepared else ""
        return f"identical, {self.n_tokens} tokens, of which {self.drafted.accepted} accepted candidates{prepared}"


def check(options: CheckOptions) -> int:
    """Compare, and print a verdict. Returns 0, or 1 if the draft changes the text. Raises DuoError."""
    send_log(options)
    config, texts = _config(options), read_prompts(options.prompts)
    found: list[Comparison] = []
    with loaded(options, options.predict) as engine, progress_bar() as show:
        prompts = [engine.tokenize(text) for text in texts or _PROMPTS]
        _reserve(engine, prompts, options.predict)
        with on_interrupt(engine.interrupt) as interrupt:
            for i, prompt in enumerate(prompts):
                show(f"prompt {i + 1} of {len(prompts)}", i / len(prompts))
                sampling = replace(config.sampling, seed=config.sampling.seed + i)
                with suppress(Interrupted):
                    found.append(compare(engine, prompt, replace(config, sampling=sampling), _drafting(engine)))
                if interrupt.signal:
                    return interrupt.status
                print(f"prompt {i + 1}: {found[-1].describe(engine.slot.target)}", flush=True)  # noqa: T201
    status, verdict = judge(found)
    print(verdict)  # noqa: T201
    return status


def compare(engine: Engine, prompt: Sequence[int], config: GenerationConfig, proposers: Proposers) -> Comparison:
    """Generate after `prompt`, in contexts that exist, with these `proposers`, and without: see write()."""
    drafted, alone = (write(engine, prompt, config, each)[0] for each in (proposers, Proposers()))
    n_same, difference = common_prefix(alone.tokens, drafted.tokens), None
    if alone.tokens != drafted.tokens:
        text = [*prompt, *alone.tokens[:n_same]]
        margin = engine.call(lambda slot: _margin(slot, text, config))
        first, second = ([*found.tokens, -1][n_same] for found in (alone, drafted))
        difference = Divergence(n_same, first, second, *margin)
    return Comparison(len(alone.tokens), drafted.statistics, difference)


def judge(found: Sequence[Comparison]) -> tuple[int, str]:
    """The exit status, and the verdict in words."""
    if not sum(result.drafted.verified for result in found):
        return 1, "No candidate was verified, so nothing was checked: use --schedule sync."
    differences = [result.difference for result in found if result.difference]
    if wrong := [difference for difference in differences if not difference.is_near_tie]:
        return 1, f"{len(wrong)} of {len(found)} texts differ, not at a near-tie: this is a bug, please report it."
    if differences:
        return 0, (
            f"{len(differences)} of {len(found)} texts differ, each at a near-tie: the target's scores of the two "
            "tokens differ by less than scores do between batches of one row and of several. With --exact these texts "
            "are identical too (F32, F16, Q4_0, Q4_1, Q8_0)."
        )
    return 0, f"All {len(found)} texts are identical: the draft changes only the speed."


def _margin(slot: ModelPair, text: Sequence[int], config: GenerationConfig) -> tuple[float, float, bool]:
    """Divergence's gap, kernels and flips for the token after `text`."""
    assert slot.target_cache is not None
    target = slot.target_cache.context
    target.set_threads(slot.threads.target, slot.threads.target)
    _, sampler = choosing(slot.target, replace(config, grammar=None))
    recent = text[-sampler.n_recent :] if sampler.n_recent else ()
    rows = []
    for n in (1, _SEVERAL, slot.drafting.n_max + 1):
        target.rollback(0)
        for start in range(0, len(text), n):
            row = target.decode(text[start : start + n])[0]
        rows.append(row.copy())
    target.rollback(0)
    one, *others = (sampler.judge(row.copy(), len(text), recent) for row in rows)
    kernels = max(float(np.abs(rows[0] - row).max()) for row in rows[1:]) / (config.sampling.temp or 1.0)
    return one.confidence, kernels, any(other.token != one.token for other in others)


def _config(options: CheckOptions) -> GenerationConfig:
    """How the texts are generated. Raises UsageError if there is nothing to check."""
    config = options.config()
    config = replace(config, stop=replace(config.stop, n_predict=options.predict))
    if config.is_rejection:
        raise UsageError("nothing to check: with --verify rejection, the draft changes the text by design")
    if options.engine.schedule == "off" or options.engine.draft_n_max == 0 or not _may_draft(options):
        raise UsageError(_NO_DRAFT)
    if options.seed == RANDOM_SEED:
        note(f"seed {config.sampling.seed}")
    return config


def _may_draft(options: CheckOptions) -> bool:
    """Whether there is a draft or, as far as this can be known before the model is loaded, an MTP layer."""
    target = options.model_names()[0]
    if options.has_draft or not isinstance(target, Path):
        return True
    head = GgufHeader(target) if target.is_file() else None
    return head is not None and ("split.count" in head.values or has_mtp(head))


def _drafting(engine: Engine) -> Proposers:
    """Proposers that know nothing, and that draft."""
    slot = engine.slot
    schedules = [schedule for schedule in schedules_of(slot.drafting) if schedule is not Schedule.OFF]
    return slot.limited(slot.drafting, lookup=True, knows=False, schedules=schedules)


def _reserve(engine: Engine, prompts: Sequence[Sequence[int]], n_predict: int) -> None:
    """Create contexts for the longest prompt. Raises PromptError, or UsageError if these models cannot draft."""
    slot = engine.slot
    if slot.draft_model is None:
        raise UsageError(_NO_DRAFT)
    n_ctx = min(_N_CTX, *(model.n_ctx_train for model in (slot.target, slot.draft_model)))
    longest = max(map(len, prompts))
    if not all(prompts) or longest + n_predict > n_ctx:
        needed = f"at least 1, and at most {n_ctx} with the {n_predict} that follow"
        raise PromptError(f"a prompt has {longest} tokens, but needs {needed}: use a smaller -n")
    engine.call(lambda slot: slot.reserve(longest, n_predict))
    if slot.draft is None:
        raise UsageError("nothing to check: one of these models cannot roll back its cache, so there is no drafting")
