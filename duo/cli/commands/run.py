"""`duo` without a subcommand: one text."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from duo import __version__
from duo.cli.devices import rpc_servers
from duo.cli.load import check_usage, loaded
from duo.cli.options.prompt import DEMO_QUESTION, DEMO_SYSTEM, read_argument, read_prompt
from duo.cli.options.run import RunOptions
from duo.cli.terminal import report
from duo.cli.terminal.console import progress_bar, say, warn
from duo.cli.terminal.files import blame, check_writable
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.live import Live, can_be_shown
from duo.cli.terminal.log import finish_notices, send_log
from duo.cli.terminal.watch import Watch
from duo.cli.terminal.writer import TextWriter, marks_tokens
from duo.config import GenerationConfig
from duo.diagnose.trace import TraceFile
from duo.engine.engine import Engine
from duo.engine.metrics import Metrics
from duo.engine.slot import Slot
from duo.engine.stream import Stream
from duo.errors import UsageError
from duo.llama.memory import peak_bytes
from duo.spec.simulate import predict


def run(options: RunOptions) -> int:
    """Generate one text. Returns the exit status. Raises DuoError."""
    # A draft of this command's own that comes and goes is no news.
    hidden = () if options.back_port is not None else ("duo.link",)
    send_log(verbose=options.verbose, file=options.log_file, hidden=hidden)
    check_writable(options.json, "--json")
    check_writable(options.trace, "--trace")
    if options.json and options.trace and options.json.absolute() == options.trace.absolute():
        raise UsageError(f"--json and --trace both write {options.json}: give each a file of its own")
    check_usage(options)
    config = options.generation_config(escape=options.escape)
    prompt = read_prompt(options.prompt, options.file, escape=options.escape)
    if prompt is None and not options.is_demo:
        raise UsageError("no prompt: give one with -p or -f (-f - reads standard input)")
    _check_remote(options, config)
    with loaded(options) as engine:
        text = _prompt_text(options, prompt, engine)
        metrics = Metrics()
        trace = _trace(options, metrics, engine.slot)
        live = _live(options, metrics)
        writer = TextWriter(marks=marks_tokens(options.color), stream=live)
        shown = text if options.display_prompt else None
        stream, status = _write(options, engine, text, config, writer, Watch(metrics, live, trace), shown)
        statistics = _statistics(engine, stream, config)
        facts = _facts(options, engine.slot, stream, statistics) if options.json else {}
    finish_notices()  # the last lines are the statistics
    say(report.render_verbose(statistics) if options.verbose else report.render(statistics))
    if options.json:
        with blame("--json", options.json):
            report.write_json(options.json, statistics | facts)
    if options.trace and trace is not None and trace.error is not None:
        with blame("--trace", options.trace):
            raise trace.error
    return status


def _check_remote(options: RunOptions, config: GenerationConfig) -> None:
    """Raise UsageError for drafts outside this process that could not take part."""
    if config.is_rejection and (options.back_port is not None or rpc_servers(options).draft):
        raise UsageError("--verify rejection needs to know the draft's chances, which backs and RPC drafts do not send")


def _prompt_text(options: RunOptions, prompt: str | None, engine: Engine) -> str:
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
    return engine.apply_chat_template(messages)


def _write(
    options: RunOptions,
    engine: Engine,
    text: str,
    config: GenerationConfig,
    writer: TextWriter,
    watch: Watch,
    prompt: str | None,
) -> tuple[Stream, int]:
    """Write the text, after `prompt`, while it is generated. Returns its stream and the exit status.

    Raises BrokenPipeError or DuoError.
    """
    tokens = engine.tokenize(text)
    bar = ExitStack()

    def on_prompt(n: int) -> None:
        if show is not None:
            show("reading the prompt", n, len(tokens))

    show = bar.enter_context(progress_bar()) if len(tokens) > min(options.batch_size, options.ubatch_size) else None
    try:
        with bar, watch, engine.start(tokens, config, metrics=watch.metrics, on_prompt=on_prompt) as stream:
            stream.items.on_stall, stream.items.stall_s = watch.on_pause, watch.pause_s
            with on_interrupt(stream.close) as interrupt:
                if prompt is not None:
                    writer.prompt(prompt)
                for step in stream:
                    bar.close()
                    writer.step(step)
                    watch.on_step()
    finally:
        writer.end()
    return stream, interrupt.status


def _statistics(engine: Engine, stream: Stream, config: GenerationConfig) -> dict[str, Any]:
    """All figures of a text, in JSON's types."""
    statistics = asdict(stream.statistics) | {"memory": {"peak_bytes": peak_bytes()}}
    sampling = config.sampling
    statistics["sampling"] = {"temperature": sampling.temp, "seed": sampling.seed, "mode": config.mode}
    policy = stream.request.policy or (engine.slot.policy if engine.slot.draft is not None else None)
    if policy is not None:
        statistics["policy"] = policy.statistics()
    return statistics


def _facts(options: RunOptions, slot: Slot, stream: Stream, statistics: dict[str, Any]) -> dict[str, Any]:
    """What --json has besides the statistics."""
    facts = report.facts(slot, asdict(options))
    if "policy" in statistics:
        policy = stream.request.policy or slot.policy
        facts["policy"] = statistics["policy"] | {"predicted_tokens_per_s": predict(policy)}
    return facts


def _live(options: RunOptions, metrics: Metrics) -> Live | None:
    """--live, where it can be shown."""
    if options.live and not can_be_shown():
        warn("--live needs a terminal on stdout, and not TERM=dumb")
        return None
    return Live(metrics, marks=marks_tokens(options.color)) if options.live else None


def _trace(options: RunOptions, metrics: Metrics, slot: Slot) -> TraceFile | None:
    """The file of --trace. Raises DuoError."""
    if options.trace is None:
        return None
    about = {
        "duo": __version__,
        "target": slot.target.path.name,
        "draft": slot.draft_model.path.name if slot.draft_model is not None else None,
    }
    with blame("--trace", options.trace):
        return TraceFile(options.trace, metrics, about)
