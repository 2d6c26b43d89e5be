"""`duo lead`: an OpenAI-compatible server."""

from collections.abc import Iterator
from contextlib import suppress
from socket import gethostname

from duo.cli.commands.options import LeadOptions
from duo.cli.load import loaded, say_if_fewer_at_once
from duo.cli.options import RANDOM_SEED, api_keys, back_token
from duo.cli.terminal.console import finish_notices, note, progress_bar, say, send_log
from duo.cli.terminal.interrupts import on_interrupt
from duo.cli.terminal.writer import TextWriter, marks_tokens
from duo.engine.engine import Engine
from duo.engine.request import Request
from duo.engine.stream import InterruptibleQueue
from duo.errors import UsageError
from duo.http.guard import is_loopback
from duo.llama import lifeline
from duo.llama.grammar import Grammar
from duo.server.lead_server import Lead, check_memory
from duo.speculation.types import Step

_MAX_QUEUED = 4096  # steps that wait to be printed


def lead(options: LeadOptions) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status. Raises DuoError."""
    send_log(options)
    keys = api_keys(options.api_key, options.api_key_file)
    if not keys and not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host}: other machines can reach this address, so clients must send an API key: "
            "add --api-key KEY (or --api-key-file, LLAMA_API_KEY)"
        )
    check_memory(options.engine.memory, keys)
    shown: InterruptibleQueue[Step | Request] = InterruptibleQueue()

    def show(event: Step | Request) -> None:
        # A terminal may be stopped: then steps are dropped.
        is_shown = options.print != "none" or isinstance(event, Request)
        if is_shown and shown.n_waiting < _MAX_QUEUED:
            shown.put(event)

    config = options.config()
    # The server listens while the models are loaded: /health reports it.
    with Lead(
        host=options.host,
        port=options.port,
        api_keys=keys,
        allowed_host=options.allowed_host or (),
        cors_origins=options.cors_origin or (),
        back_token=back_token(options.engine.back_token, options.back_token_file),
        n_queue=options.queue,
        alias=options.alias,
        defaults=config,
        random_seed=options.seed == RANDOM_SEED,
        page=options.page,
        slot_save_path=options.slot_save_path,
        slots=options.slots,
        props=options.props,
        on_step=show,
        on_text=show,
    ) as server, loaded(options, options.generation.stop.n_predict, remote_drafts=server.drafts) as engine:  # fmt: skip
        if config.grammar is not None:
            Grammar(engine.slot.target, config.grammar)  # an invalid one fails now, and not with each text

        def stop() -> None:
            server.stop()
            shown.end()

        with on_interrupt(engine.interrupt) as interrupt, lifeline.notifying(shown.end), progress_bar():
            server.load(engine)
        if interrupt.signal:
            return interrupt.status
        with on_interrupt(stop), lifeline.notifying(shown.end):
            finish_notices()
            say_if_fewer_at_once(engine.slot)
            for line in _introduction(server, engine, options, needs_key=bool(keys)):
                note(line)
            rejected = engine.slot.target.piece if options.print == "all" else None
            _show(shown, TextWriter(marks=marks_tokens(options.color), rejected=rejected))
        server.close()  # before the models are freed: requests may use them
    return 0


def _introduction(server: Lead, engine: Engine, options: LeadOptions, *, needs_key: bool) -> Iterator[str]:
    """What is served, what clients have to be told, and where the page is."""
    slot, temp = engine.slot, options.generation.sampling.temp
    if not server.takes_drafts:
        yield "remote drafts are disabled: to accept them, add --back-token"
    draft = f", draft {slot.draft_name.removesuffix('.gguf')}" if slot.draft_name else ""
    yield f"model {server.model_name}{draft}; context {slot.n_ctx} tokens; temperature {temp:g} by default"
    url, elsewhere = addresses(server.url, gethostname())
    key, chat_key = ("API key required", " --api-key KEY") if needs_key else ("no API key needed", "")
    yield f"OpenAI base URL {url}/v1{elsewhere}, {key}; to chat: duo chat {url}{chat_key}"
    if options.page:
        yield f"page {url}/"
    yield f"listening on {server.url} (Ctrl-C to stop)"


def addresses(url: str, machine: str) -> tuple[str, str]:
    """The URL for clients on this machine, and what to say to those on others, if it is one of all addresses."""
    for every, this in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        if every in url:
            return url.replace(every, this), f" (other machines: {url.replace(every, f'//{machine}:')}/v1)"
    return url, ""


def _show(shown: InterruptibleQueue[Step | Request], writer: TextWriter) -> None:
    """Print texts until the first signal."""
    for event in shown:
        with suppress(OSError):  # stdout was closed; clients are served all the same
            if isinstance(event, Step):
                writer.step(event)
            else:
                writer.end()
                say(_summary(event))


def _summary(request: Request) -> str:
    """Two lines about one text; the last has the form of the last line of `duo`."""
    statistics = request.metrics.statistics()
    prompt, text = statistics.prompt, statistics.generation
    n_read = len(request.prompt) - request.n_cached
    lines = f"prompt: {n_read} tokens in {prompt.seconds:.2f} s, {request.n_cached} cached; stopped: {text.stop}"
    for name, source in (("draft's", statistics.draft), ("lookup's", statistics.lookup)):
        if source is not None and source.verified:
            lines += f"; {source.accepted} of {source.verified} of the {name} candidates accepted"
    return f"{lines}\ntokens: {text.tokens} tps: {text.tokens_per_s or 0:.3f}"
