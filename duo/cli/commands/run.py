"""`duo` without a subcommand: generates one text."""

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
from duo.spec.policy import Policy
from duo.spec.simulate import predict


def run(options: RunOptions) -> int:
    """Generate one text. Returns the exit status. Raises DuoError."""
    # Without --back-port, link messages are about a draft process of this command.
    hidden = () if options.back_port is not None else ("duo.link",)
    send_log(verbose=options.verbose, file=options.log_file, hidden=hidden)
    check_writable(options.json, "--json")
    check_writable(options.trace, "--trace")
    if options.json and options.trace and options.json.absolute() == options.trace.absolute():
        raise UsageError(f"--json and --trace both write {options.json}: use a different file for each")
    check_usage(options)
    config = options.generation_config(escape=options.escape)
    prompt = read_prompt(options.prompt, options.file, escape=options.escape)
    if prompt is None and not options.is_demo:
        raise UsageError("no prompt: add -p or -f (-f - reads standard input)")
    if config.is_rejection and (options.back_port is not None or rpc_servers(options).draft):
        raise UsageError("--verify rejection needs the draft's probabilities, which remote and RPC drafts do not send")
    with loaded(options) as engine:
        text = _prompt_text(options, prompt, engine)
        metrics = Metrics()
        trace = _trace(options, metrics, engine.slot)
        stream, status = _write(options, engine, text, config, Watch(metrics, _live(options, metrics), trace))
        policy = stream.request.policy or (engine.slot.policy if engine.slot.draft is not None else None)
        statistics = _statistics(stream, config, policy)
        facts = report.facts(engine.slot, asdict(options)) if options.json else {}
    finish_notices()  # so that the statistics come last
    say(report.render_verbose(statistics) if options.verbose else report.render(statistics))
    if options.json:
        if policy is not None:
            statistics["policy"]["predicted_tokens_per_s"] = predict(policy)
        with blame("--json", options.json):
            report.write_json(options.json, statistics | facts)
    if options.trace and trace is not None and trace.error is not None:
        with blame("--trace", options.trace):
            raise trace.error
    return status


def _prompt_text(options: RunOptions, prompt: str | None, engine: Engine) -> str:
    """The prompt, in the chat template if one is to be used."""
    system = options.system_prompt
    if system is not None:
        system = read_argument(system, "-sys", escape=options.escape)
    if prompt is None:
        prompt, system = DEMO_QUESTION, system or DEMO_SYSTEM
        say(f"duo: no prompt given (-p, -f): using {prompt!r}")
    elif not options.chat and system is None:
        return prompt
    messages = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return engine.apply_chat_template(messages)


def _write(
    options: RunOptions, engine: Engine, text: str, config: GenerationConfig, watch: Watch
) -> tuple[Stream, int]:
    """Print the text while it is generated. Returns its stream and the exit status.

    Raises BrokenPipeError or DuoError.
    """
    writer = TextWriter(marks=marks_tokens(options.color), stream=watch.live)
    tokens = engine.tokenize(text)
    bar = ExitStack()
    started: list[Stream] = []

    def on_prompt(n: int) -> None:
        if show is not None:
            show("processing the prompt", n, len(tokens))

    def stop() -> None:
        for stream in started:
            stream.close()

    with on_interrupt(stop) as interrupt:
        show = bar.enter_context(progress_bar()) if len(tokens) > min(options.batch_size, options.ubatch_size) else None
        try:
            with bar, watch, engine.start(tokens, config, metrics=watch.metrics, on_prompt=on_prompt) as stream:
                started.append(stream)
                if interrupt.signal:  # before there was a stream to stop
                    stop()
                stream.items.on_stall, stream.items.stall_s = watch.on_pause, watch.pause_s
                if options.display_prompt:
                    writer.prompt(text)
                for step in stream:
                    bar.close()
                    writer.step(step)
                    watch.on_step()
        finally:
            writer.end()
    return stream, interrupt.status


def _statistics(stream: Stream, config: GenerationConfig, policy: Policy | None) -> dict[str, Any]:
    """All statistics of a text, as JSON types."""
    statistics = asdict(stream.statistics) | {"memory": {"peak_bytes": peak_bytes()}}
    sampling = config.sampling
    statistics["sampling"] = {"temperature": sampling.temp, "seed": sampling.seed, "mode": config.mode}
    return statistics | ({"policy": policy.statistics()} if policy is not None else {})


def _live(options: RunOptions, metrics: Metrics) -> Live | None:
    """The display of --live, if the terminal supports it."""
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
