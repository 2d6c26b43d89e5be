"""`duo` without a subcommand: one text."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

from duo.cli import report
from duo.cli.configs import (
    check_usage,
    draft_config,
    is_demo,
    model_configs,
    schedules,
    stop_config,
)
from duo.cli.contexts import make_contexts, threads_for
from duo.cli.interrupts import on_interrupt
from duo.cli.load import load
from duo.cli.options import RunOptions
from duo.cli.output import (
    TextWriter,
    blame,
    check_writable,
    marks_tokens,
    progress_bar,
    say,
    send_log,
    show_notices,
    warn,
)
from duo.cli.profile import keep, wanted_profile
from duo.cli.prompt import DEMO_QUESTION, DEMO_SYSTEM, read_argument, read_prompt
from duo.cli.sampling import check_grammar, choosing, is_in_order, sampling_config, sampling_mode
from duo.config import SamplingConfig, ThreadConfig
from duo.engine.background import Background
from duo.engine.generation import Generation
from duo.engine.metrics import Metrics
from duo.engine.pair import Pair
from duo.engine.text import Ending, TextStream
from duo.errors import PromptError, UsageError
from duo.llama.context import Context
from duo.llama.memory import peak_bytes
from duo.llama.model import Model
from duo.models.profiles import remembered, restore
from duo.spec.policy import Policy
from duo.spec.simulate import predict

if TYPE_CHECKING:
    from duo.cli.serving import BackPort


def run(options: RunOptions) -> int:
    """Generate one text. Returns the exit status. Raises DuoError."""
    send_log(verbose=options.verbose, file=options.log_file)
    check_writable(options.json, "--json")
    check_writable(options.trace, "--trace")
    check_usage(options)
    check_grammar(options)
    sampling = sampling_config(options)
    prompt = read_prompt(options.prompt, options.file, escape=options.escape)
    if prompt is None and not is_demo(options):
        raise UsageError("no prompt: give one with -p or -f (-f - reads standard input)")
    back_port = _back_port(options, sampling)
    metrics = Metrics()
    target, draft = model_configs(options)
    with back_port.listener if back_port is not None else nullcontext(), load(target, draft) as pair:
        profile = wanted_profile(options, target, draft)
        kept = profile.load() if profile is not None else {}
        threads = threads_for(options, pair, kept)
        text = _prompt_text(options, prompt, pair.target)
        generation = _generation(options, sampling, pair, threads, text, metrics)
        if back_port is not None:
            _take_help(generation, back_port, options, sampling, pair)
        mode = sampling_mode(options, sampling)
        restore(generation.policy, kept, mode)
        writer = TextWriter(marks=marks_tokens(options.color))
        if options.display_prompt:
            writer.prompt(text)
        status = _stream(generation, writer)
        if profile is not None and generation.draft is not None:
            keep(profile, remembered(generation.policy, kept, mode))
        statistics = metrics.statistics() | {"memory": {"peak_bytes": peak_bytes()}}
        statistics["sampling"] = {"temperature": sampling.temp, "seed": sampling.seed, "mode": mode}
        if generation.draft is not None or statistics["draft"] is not None:
            statistics["policy"] = (generation.used_policy or generation.policy).statistics()
        say(report.render(statistics))
        if options.json:
            facts = report.facts(pair, asdict(threads), generation.target.n_ctx, asdict(options))
            if "policy" in statistics:
                statistics["policy"]["predicted_tokens_per_s"] = predict(generation.policy)
            with blame("--json", options.json):
                report.write_json(options.json, statistics | facts)
        if options.trace:
            with blame("--trace", options.trace):
                metrics.write_trace(options.trace)
    return status


def _prompt_text(options: RunOptions, prompt: str | None, target: Model) -> str:
    """The text before the first token, in the chat template if one was asked for."""
    system = options.system_prompt
    if system is not None:
        system = read_argument(system, "-sys", escape=options.escape)
    if prompt is None:
        prompt, system = DEMO_QUESTION, system or DEMO_SYSTEM
        say(f"duo: no prompt was given (-p, -f): {prompt}")
    elif not options.chat and system is None:
        return prompt
    messages = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return target.apply_chat_template(messages)


def _generation(
    options: RunOptions, sampling: SamplingConfig, pair: Pair, threads: ThreadConfig, text: str, metrics: Metrics
) -> Generation:
    """Tokenise the prompt and make contexts that hold it. Raises DuoError."""
    target = pair.target
    prompt = target.tokenize(text)
    if not prompt:
        raise PromptError("the prompt has no tokens")
    drafting, stop = draft_config(options), stop_config(options)
    verifier, guesser = choosing(options, sampling, target)
    context, draft_context = make_contexts(options, pair, threads, len(prompt), options.predict)
    return Generation(
        target=context,
        draft=draft_context,
        prompt=prompt,
        verifier=verifier,
        guesser=guesser,
        ending=Ending(stop, TextStream(target.piece, stop.stop_strings), target.is_end),
        policy=Policy(
            drafting.n_max, drafting.n_ahead, schedules(options), threads.draft, in_order=is_in_order(options, sampling)
        ),
        threads=threads,
        metrics=metrics,
    )


def _back_port(options: RunOptions, sampling: SamplingConfig) -> BackPort | None:
    """Where drafts on other machines connect, if they may. Raises UsageError."""
    if options.back_port is None:
        return None
    if is_in_order(options, sampling):
        raise UsageError("--verify rejection needs to know the draft's chances, which backs do not send")
    from duo.cli.serving import BackPort  # noqa: PLC0415 - only who listens waits for the server's libraries

    show_notices("duo.link")
    return BackPort(options)


def _take_help(
    generation: Generation, back_port: BackPort, options: RunOptions, sampling: SamplingConfig, pair: Pair
) -> None:
    from duo.cli.serving import as_target, brief  # noqa: PLC0415

    assert isinstance(generation.target, Context)
    if generation.draft is not None or pair.can_be_helped(generation.target, warn):
        back_port.backs.target = as_target(pair.target, generation.target)
        generation.helpers = back_port.backs.help_with(brief(options, sampling, pair.target))


def _stream(generation: Generation, writer: TextWriter) -> int:
    """Write the text while it is generated. Returns the exit status. Raises BrokenPipeError or DecodeError."""
    metrics = generation.metrics
    stalls = 0

    def on_stall() -> None:
        nonlocal stalls
        stalls += 1
        if metrics.steps and stalls == 1:  # a long prompt has a progress bar
            warn("no token for 30 seconds: the model is very slow or its device hangs; Ctrl-C stops")

    running = Background(generation.run, "duo-target", on_stall)

    def stop() -> None:
        running.stop()
        generation.interrupt()

    with on_interrupt(stop) as interrupt, ExitStack() as bar:
        if len(generation.prompt) > generation.target.n_batch:
            show = bar.enter_context(progress_bar())
            generation.on_prompt = lambda n: show("reading the prompt", n, len(generation.prompt))
        with running:
            told = False
            for step in running:
                bar.close()
                writer.step(step)
                told = told or _warn_of_dead_draft(metrics)
            writer.end()
    if not told:
        _warn_of_dead_draft(metrics)
    return interrupt.status


def _warn_of_dead_draft(metrics: Metrics) -> bool:
    if metrics.draft_error is not None:
        warn(f"the draft failed ({metrics.draft_error}): the target goes on alone")
    return metrics.draft_error is not None
