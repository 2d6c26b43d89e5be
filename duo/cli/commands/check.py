"""`duo check`: whether the draft changes the text, on the user's own models."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from duo.cli.commands.options import CheckOptions
from duo.cli.load import loaded
from duo.cli.options import RANDOM_SEED, read_argument
from duo.cli.terminal.console import note, progress_bar, send_log
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import GenerationConfig
from duo.diagnose.divergence import Comparison, compare
from duo.engine.engine import Engine
from duo.errors import PromptError, UsageError
from duo.llama.gguf_header import GgufHeader, has_mtp
from duo.llama.model import Model
from duo.speculation.policy import Policy
from duo.speculation.schedule import Schedule, schedules_of

_N_CTX = 2048
_NO_DRAFT = "nothing to check without a draft: name one with -md or -hfd; no --schedule off or --draft 0"
# A story, a program, an explanation, a letter and a list.
_PROMPTS = (
    "The old lighthouse keeper had not seen a ship for three weeks. On the first clear morning he",
    'def median(values):\n    """The middle of the sorted values; the mean of the two middle ones."""\n',
    "Question: Why does bread rise in the oven, and what happens if it is left there too long?\nAnswer:",
    "Dear neighbours,\n\nthe bridge over the mill stream will be closed from Monday on, because",
    "Ten things to do on a rainy Sunday:\n1.",
)


def check(options: CheckOptions) -> int:
    """Compare, and print a verdict. Returns 0, or 1 if the draft changes the text. Raises DuoError."""
    send_log(options)
    config = _config(options)
    found: list[Comparison] = []
    stop = threading.Event()
    with loaded(options, options.predict) as engine, progress_bar() as show:
        texts = [read_argument(text, "-p", escape=True) for text in options.prompts or ()]
        prompts = [engine.tokenize(text) for text in texts or _PROMPTS]
        _reserve(engine, prompts, options.predict)

        def interrupt_text() -> None:
            stop.set()
            engine.interrupt()

        with on_interrupt(interrupt_text) as interrupt:
            for i, prompt in enumerate(prompts):
                show(f"prompt {i + 1} of {len(prompts)}", i / len(prompts))
                sampling = replace(config.sampling, seed=config.sampling.seed + i)
                result = compare(engine, prompt, replace(config, sampling=sampling), _policy(engine), stop)
                if interrupt.signal:
                    return interrupt.status
                found.append(result)
                print(f"prompt {i + 1}: {_describe(result, engine.slot.target)}", flush=True)  # noqa: T201
    status, verdict = judge(found)
    print(verdict)  # noqa: T201
    return status


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
    if options.has_draft:
        return True
    target = options.model_names()[0]
    if not isinstance(target, Path):
        return True
    head = GgufHeader(target) if target.is_file() else None
    return head is not None and ("split.count" in head.values or has_mtp(head))


def _policy(engine: Engine) -> Policy:
    """One that knows nothing, and that drafts."""
    slot = engine.slot
    assert slot.draft_cache is not None
    choices = [schedule for schedule in schedules_of(slot.drafting) if schedule is not Schedule.OFF]
    branches = slot.drafting.branches if slot.draft_cache.context.n_branches else 0
    limits = (slot.drafting.n_max, slot.drafting.n_ahead, choices, slot.threads.draft)
    return Policy(*limits, branches=branches, n_depths=slot.policy.n_depths, in_turns=slot.in_turns)


def _reserve(engine: Engine, prompts: Sequence[Sequence[int]], n_predict: int) -> None:
    """Create contexts for the longest prompt. Raises PromptError, or UsageError if these models cannot draft."""
    slot = engine.slot
    if slot.draft_model is None:
        raise UsageError(_NO_DRAFT)
    n_ctx = min(_N_CTX, *(model.n_ctx_train for model in (slot.target, slot.draft_model) if model))
    longest = max(map(len, prompts))
    if not all(prompts) or longest + n_predict > n_ctx:
        needed = f"at least 1, and at most {n_ctx} with the {n_predict} that follow"
        raise PromptError(f"a prompt has {longest} tokens, but needs {needed}: use a smaller -n")
    engine.call(lambda slot: slot.reserve(longest, n_predict))
    if slot.draft is None:
        raise UsageError("nothing to check: one of these models cannot roll back its cache, so there is no drafting")


def _describe(result: Comparison, target: Model) -> str:
    difference = result.difference
    if difference is None:
        prepared = f"; {result.n_prepared} outcomes prepared" if result.n_prepared else ""
        return f"identical, {result.n_tokens} tokens, of which {result.drafted.accepted} accepted candidates{prepared}"
    alone, drafted = (
        "the end" if token < 0 else repr(target.piece(token).decode("utf-8", "replace"))
        for token in (difference.alone, difference.drafted)
    )
    return (
        f"differs from token {difference.index + 1} on: {alone} without the draft, {drafted} with it; the "
        f"two best scores differ by {difference.gap:.4f}, batches of one row and several by {difference.kernels:.4f}: "
        f"{'a near-tie' if difference.is_near_tie else 'not a near-tie'}"
    )
