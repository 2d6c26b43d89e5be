"""`duo check`: whether the draft changes what the target writes, on the user's own models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from duo.cli.load import loaded
from duo.cli.options.check import CheckOptions
from duo.cli.options.drafting import ScheduleChoice
from duo.cli.options.prompt import read_argument
from duo.cli.options.sampling import RANDOM_SEED
from duo.cli.prompts import PROMPTS
from duo.cli.terminal.console import progress_bar, say
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.log import send_log
from duo.config import GenerationConfig
from duo.diagnose.check import Checker, Comparison, Divergence
from duo.engine.engine import Engine
from duo.engine.slot import schedules_of
from duo.errors import PromptError, UsageError
from duo.llama.model import Model
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule

_N_CTX = 2048


def check(options: CheckOptions) -> int:
    """Compare, and print a verdict. Returns 0, or 1 if the draft changes the text. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file)
    config = options.generation_config()
    if config.is_rejection:
        raise UsageError("rejection sampling writes another text with a draft, so there is nothing to compare")
    if options.schedule is ScheduleChoice.OFF or options.draft == 0:
        raise UsageError("nothing to check where nothing is drafted: leave out --schedule off and --draft 0")
    if options.seed == RANDOM_SEED:
        say(f"duo: seed {config.sampling.seed}")
    if not options.has_draft:
        raise UsageError("nothing to check without a draft: name one with -md or -hfd")
    with loaded(options) as engine, progress_bar() as show:
        texts = [read_argument(text, "-p", escape=True) for text in options.prompts or ()]
        prompts = [engine.tokenize(text) for text in texts or PROMPTS]
        _reserve(engine, prompts, options.predict)
        found = []
        stop = threading.Event()

        def interrupt_text() -> None:
            stop.set()
            engine.interrupt()

        with on_interrupt(interrupt_text) as interrupt:
            for result in _results(engine, config, prompts, show, stop):
                if interrupt.signal:
                    break
                found.append(result)
                print(f"prompt {len(found)}: {_describe(result, engine.slot.target)}", flush=True)  # noqa: T201 - asked for
    if interrupt.signal:
        return interrupt.status
    status, verdict = judge(found)
    print(verdict)  # noqa: T201
    return status


def judge(found: Sequence[Comparison]) -> tuple[int, str]:
    """The exit status and what it means, in plain words."""
    if not sum(result.n_verified for result in found):
        return 1, "No candidate was verified, so nothing was checked: force it with --schedule sync."
    differences = [result.difference for result in found if result.difference]
    wrong = [difference for difference in differences if not difference.is_near_tie]
    if wrong:
        return 1, f"{len(wrong)} of {len(found)} texts differ where they must not: please report this."
    if differences:
        return 0, (
            f"{len(differences)} of {len(found)} texts differ, each from a near-tie on: the target's own scores for "
            "the two tokens differ by less than they do between batches of one row and of several. With --exact even "
            "these come out the same (F32, F16, Q4_0, Q4_1, Q8_0)."
        )
    return 0, f"All {len(found)} texts are identical: the draft changes nothing but the speed."


def _results(
    engine: Engine,
    config: GenerationConfig,
    prompts: Sequence[Sequence[int]],
    show: Callable[[str, float], None],
    stop: threading.Event,
) -> Iterator[Comparison]:
    slot = engine.slot
    checker = Checker(engine, config, stop)
    # Where the draft does not pay, the target alone would be chosen, and nothing checked.
    choices = [schedule for schedule in schedules_of(slot.drafting) if schedule is not Schedule.OFF]
    for i, prompt in enumerate(prompts):
        show(f"prompt {i + 1} of {len(prompts)}", i / len(prompts))
        policy = Policy(slot.drafting.n_max, slot.drafting.n_ahead, choices, slot.threads.draft)
        yield checker.compare(prompt, config.sampling.seed + i, policy)


def _reserve(engine: Engine, prompts: Sequence[Sequence[int]], n_predict: int) -> None:
    """Make contexts for the longest prompt. Raises PromptError, or UsageError if nothing could be drafted."""
    slot = engine.slot
    models = filter(None, (slot.target, slot.draft_model))
    n_ctx = min(_N_CTX, *(model.n_ctx_train for model in models))
    longest = max(map(len, prompts))
    if not all(prompts):
        raise PromptError("a prompt has no tokens")
    if longest + n_predict > n_ctx:
        raise PromptError(f"a prompt of {longest} tokens and {n_predict} more do not fit {n_ctx}: take a smaller -n")
    engine.call(lambda slot: slot.reserve(longest, n_predict))
    if slot.draft is None:
        raise UsageError("one of these models cannot take tokens back, so that nothing is drafted: nothing to check")


def _describe(result: Comparison, target: Model) -> str:
    if result.difference is None:
        return f"identical, {result.n_tokens} tokens, {result.n_accepted} of them the draft's guesses"
    return _difference(result.difference, target)


def _difference(difference: Divergence, target: Model) -> str:
    words = [
        "the end" if token < 0 else repr(target.piece(token).decode("utf-8", "replace"))
        for token in (difference.alone, difference.drafted)
    ]
    kind = "a near-tie" if difference.is_near_tie else "no near-tie"
    return (
        f"differs from token {difference.index + 1} on: {words[0]} without the draft, {words[1]} with it; the two best "
        f"are {difference.gap:.4f} apart, batches of one row and of several differ by {difference.kernels:.4f}: {kind}"
    )
