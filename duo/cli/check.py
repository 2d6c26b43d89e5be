"""`duo check`: whether the draft changes what the target writes, on the user's own models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial

from duo.cli.check_options import CheckOptions
from duo.cli.configs import (
    ON_CPU,
    context_config,
    draft_config,
    model_configs,
    schedules,
    thread_config,
    warn_of_inexact,
)
from duo.cli.interrupts import on_interrupt
from duo.cli.load import load
from duo.cli.options import RunOptions, ScheduleChoice
from duo.cli.output import progress_bar, say, send_log, warn
from duo.cli.prompt import read_argument
from duo.cli.prompts import PROMPTS
from duo.cli.sampling import choosing, is_in_order, sampling_config
from duo.cli.sampling_options import RANDOM_SEED
from duo.config import ContextConfig, DraftConfig, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.background import Background
from duo.engine.check import Checker, Comparison, Difference, Drawn
from duo.engine.pair import Pair
from duo.engine.text import Ending, TextStream
from duo.errors import PromptError, UsageError
from duo.llama.context import Context
from duo.llama.model import Model
from duo.spec.policy import Policy
from duo.spec.sampling import Chain, Guesser
from duo.spec.schedule import Schedule
from duo.spec.types import Distribution, Logits
from duo.spec.verify import Verifier

_TEMPERATURE = 0.8  # for --distribution, if none was given: at 0 there is nothing to draw
_DOUBT = 1e-6  # an honest test fails so often
_N_CTX = 2048

Result = Comparison | Drawn
Work = Callable[[Callable[[Result], None], threading.Event], None]


def check(options: CheckOptions) -> int:
    """Compare or draw, and print a verdict. Returns 0, or 1 if the draft changes the text. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file)
    if options.distribution and options.temp <= 0:
        options = replace(options, temp=_TEMPERATURE)
        say(f"duo: --distribution at temperature {_TEMPERATURE:g} (--temp)")
    shared = {field.name for field in fields(RunOptions)}
    given = {field.name: getattr(options, field.name) for field in fields(options) if field.name in shared}
    run_options = RunOptions(**given)
    sampling = sampling_config(run_options)
    if is_in_order(run_options, sampling) and not options.distribution:
        raise UsageError("rejection sampling writes another text with a draft: check it with --distribution")
    if options.schedule is ScheduleChoice.OFF or options.draft == 0:
        raise UsageError("nothing to check where nothing is drafted: leave out --schedule off and --draft 0")
    if options.seed == RANDOM_SEED:
        say(f"duo: seed {sampling.seed}")
    target, draft = model_configs(run_options)
    if draft is None:
        raise UsageError("nothing to check without a draft: name one with -md or -hfd")
    with load(target, draft) as pair, progress_bar() as show:
        texts = [read_argument(text, "-p", escape=True) for text in options.prompts or ()]
        prompts = [pair.target.tokenize(text) for text in texts or PROMPTS]
        work = _work(options, run_options, sampling, pair, prompts, show)
        checking = Background(work, "duo-check", stall_s=3600)
        with on_interrupt(checking.stop) as interrupt, checking:
            found = []
            for result in checking:
                if interrupt.signal:
                    break
                found.append(result)
                print(f"prompt {len(found)}: {_describe(result, pair.target)}", flush=True)  # noqa: T201 - asked for
    if interrupt.signal:
        return interrupt.status
    status, verdict = judge(found)
    print(verdict)  # noqa: T201
    return status


def judge(found: Sequence[Result]) -> tuple[int, str]:
    """The exit status and what it means, in plain words."""
    drawn = [result for result in found if isinstance(result, Drawn)]
    if drawn:
        bad = sum(not _is_honest(result) for result in drawn)
        if bad:
            return 1, f"The draft changes the distribution after {bad} of {len(drawn)} prompts: please report this."
        return 0, "The tokens come as often as the target says: the draft changes nothing but the speed."
    if not sum(result.n_verified for result in found if isinstance(result, Comparison)):
        return 1, "No candidate was verified, so nothing was checked: force it with --schedule sync."
    differences = [result.difference for result in found if isinstance(result, Comparison) and result.difference]
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


def _is_honest(drawn: Drawn) -> bool:
    n_draws = sum(drawn.counts.values())
    return drawn.n_verified == n_draws and drawn.variation <= drawn.bound and drawn.p_value >= _DOUBT


def _check_lengths(prompts: Sequence[Sequence[int]], n_predict: int, n_ctx: int) -> None:
    longest = max(map(len, prompts))
    if not all(prompts):
        raise PromptError("a prompt has no tokens")
    if longest + n_predict > n_ctx:
        raise PromptError(f"a prompt of {longest} tokens and {n_predict} more do not fit {n_ctx}: take a smaller -n")


def _work(
    options: CheckOptions,
    run_options: RunOptions,
    sampling: SamplingConfig,
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    show: Callable[[str, float], None],
) -> Work:
    threads = thread_config(
        run_options,
        drafting=True,
        target_on=pair.target.places,
        draft_on=pair.draft.places if pair.draft is not None else ON_CPU,
    )
    drafting = draft_config(run_options)
    _check_lengths(prompts, options.predict, _n_ctx(pair))
    context, draft_context = _contexts(run_options, threads, drafting, pair)
    in_order = is_in_order(run_options, sampling)
    # Where the draft does not pay, the target alone would be chosen, and nothing checked.
    choices = [schedule for schedule in schedules(run_options) if schedule is not Schedule.OFF]

    chain = Chain(sampling)

    def chances(row: Logits, text: Sequence[int]) -> Distribution:
        return chain.distribution(row, text[-chain.n_recent :] if chain.n_recent else ())

    def make_ending(n: int | None) -> Ending:
        stop = StopConfig(n or options.predict, ignore_eos=n is not None)
        return Ending(stop, TextStream(pair.target.piece), pair.target.is_end)

    def work(put: Callable[[Result], None], stop: threading.Event) -> None:
        def choose(seed: int) -> tuple[Verifier, Guesser]:
            return choosing(run_options, replace(sampling, seed=seed), pair.target)

        checker = Checker(context, draft_context, threads, choose, make_ending, stop)
        for i, prompt in enumerate(prompts):
            if stop.is_set():
                return
            if options.distribution:
                seeds = range(sampling.seed, sampling.seed + options.draws)
                name = f"drawing after prompt {i + 1}"
                put(checker.draw(prompt, seeds, chances, partial(_show_draws, show, name, options.draws)))
            else:
                show(f"prompt {i + 1} of {len(prompts)}", i / len(prompts))
                policy = Policy(drafting.n_max, drafting.n_ahead, choices, threads.draft, in_order=in_order)
                put(checker.compare(prompt, sampling.seed + i, policy, 1 / (sampling.temp or 1.0)))

    return work


def _n_ctx(pair: Pair) -> int:
    return min([_N_CTX, *(model.n_ctx_train for model in (pair.target, pair.draft) if model is not None)])


def _contexts(options: RunOptions, threads: ThreadConfig, drafting: DraftConfig, pair: Pair) -> tuple[Context, Context]:
    config = replace(context_config(options, threads, drafting.n_max), n_ctx=_n_ctx(pair) + options.exact)
    draft_side = ContextConfig(
        _n_ctx(pair) + drafting.n_ahead,
        1,
        threads.target,
        config.n_batch,
        config.n_ubatch,
        n_outputs_max=Policy.PROBE_TOKENS,
    )
    context, draft_context = pair.contexts(config, draft_side, warn)
    if draft_context is None:
        raise UsageError("one of these models cannot take tokens back, so that nothing is drafted: nothing to check")
    if options.exact:
        warn_of_inexact(pair.target)
    return context, draft_context


def _show_draws(show: Callable[[str, float], None], name: str, n_draws: int, n: int) -> None:
    show(name, n / n_draws)


def _describe(result: Result, target: Model) -> str:
    if isinstance(result, Drawn):
        n = sum(result.counts.values())
        return (
            f"{n} draws, {result.n_verified} with a candidate, {100 * result.n_accepted / n:.0f} % of them accepted; "
            f"total variation {result.variation:.4f} (at most {result.bound:.4f} if all is well), "
            f"chi-square p = {result.p_value:.2g}"
        )
    if result.difference is None:
        return f"identical, {result.n_tokens} tokens, {result.n_accepted} of them the draft's guesses"
    return _difference(result.difference, target)


def _difference(difference: Difference, target: Model) -> str:
    words = [
        "the end" if token < 0 else repr(target.piece(token).decode("utf-8", "replace"))
        for token in (difference.alone, difference.drafted)
    ]
    kind = "a near-tie" if difference.is_near_tie else "no near-tie"
    return (
        f"differs from token {difference.index + 1} on: {words[0]} without the draft, {words[1]} with it; the two best "
        f"are {difference.gap:.4f} apart, batches of one row and of several differ by {difference.kernels:.4f}: {kind}"
    )
