"""Who writes the texts: duo's modes in one engine with shared contexts, and llama.cpp's programs as processes."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from duo.bench.rounds import Contestant, Job, ParseError, Run
from duo.config import DraftConfig, GenerationConfig, ModelConfig, StopConfig
from duo.diagnose.measure import Interrupted
from duo.engine.cores import ON_CPU
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.request import Request
from duo.engine.statistics import INTERRUPTED, StepRecord
from duo.engine.stream import Completion
from duo.errors import DecodeError
from duo.llama.context_params import flash_attention
from duo.llama.devices import gpus
from duo.llama.model import Model

MODES = ("plain", "off", "lookup", "sync", "async", "auto")
ALONE = ("plain", "off", "lookup")  # modes without a draft
SPECULATIVE = "llama-speculative-simple"
_TYPES = {
    "EAGLE-3": "draft-eagle3",
    "MTP": "draft-mtp",
    "": "draft-simple",
    "DFlash": "draft-dflash",
    "DFlash2": "draft-dflash",
    "DSpark": "draft-dspark",
}  # fmt: skip - --spec-type, by the kind of head
_DEFAULT_N_MAX = 3  # llama.cpp's default, for limits that are auto
_VERSION_S = 10.0  # for --version
_LOOK_S = 0.1  # polling interval
_ECHOED = 500  # bytes of the prompt that llama-cli echoes: llama.cpp, tools/cli/cli-ui.h
_SHOWN = 200  # characters of unparsable output in error messages
# A chat template that returns the message unchanged, so that llama-cli's prompt is raw.
_RAW = "{% for message in messages %}{{ message.content }}{% endfor %}"
_FLAGS = {
    "llama-completion": ("-no-cnv", "--no-display-prompt"),
    "llama-cli": ("-st", "--jinja", "--chat-template", _RAW, "-np", "1", "--simple-io", "--color", "off"),
    SPECULATIVE: (),
}
PROGRAMS = tuple(_FLAGS)
# The figures in what a program prints on stdout and then on stderr.
_FIGURES = {
    # llama-completion evaluates the first token with the prompt.
    "llama-completion": r"prompt eval time = +(?P<prompt_ms>[\d.]+) ms .*?,"
    r" +(?P<prompt_tokens_per_s>[\d.]+) tokens per second"
    r"(?s:.*) eval time = .*/ +(?P<tokens>\d+) runs +\( *(?P<target_ms_per_decode>[\d.]+) ms per token,"
    r" +(?P<tokens_per_s>[\d.]+) tokens per second",
    "llama-cli": r"\n\[ Prompt: (?P<prompt_tokens_per_s>[\d.]+) t/s \| Generation: (?P<tokens_per_s>[\d.]+) t/s \]",
    # It may decode a few more tokens than requested.
    SPECULATIVE: r"encoded +\d+ tokens in +(?P<prompt_s>[\d.]+) seconds, speed: +(?P<prompt_tokens_per_s>[\d.]+) t/s"
    r"(?s:.*)decoded +(?P<tokens>\d+) tokens in .*speed: +(?P<tokens_per_s>[\d.]+) t/s"
    r"(?s:.*)n_drafted += +(?P<verified>\d+)(?s:.*)n_accept += +(?P<accepted>\d+)",
}
# Kills the process group at EOF on standard input, a pipe that closes when this process exits.
_GUARD = 'read -r _; kill -s KILL -- "-$0"'
Ended = subprocess.CompletedProcess
AnyEnded = TypeVar("AnyEnded", bound="Ended[str]")


def greedy(n_tokens: int, *, may_end: bool = True) -> GenerationConfig:
    """The settings of a greedy text of at most `n_tokens`; `may_end`: the model may end the text earlier."""
    return GenerationConfig(stop=StopConfig(n_tokens, (), not may_end))


def write(
    engine: Engine, prompt: Sequence[int], config: GenerationConfig, proposers: Proposers
) -> tuple[Completion, Sequence[StepRecord]]:
    """Write a text for which only `proposers` propose candidates. Returns the text and its steps.

    Raises Interrupted if the engine is interrupted, and DecodeError if the draft fails.
    """
    with engine.start(Request(prompt, config, proposers=proposers)) as stream:
        found = stream.completion()
    if found.stop_reason == INTERRUPTED:
        raise Interrupted
    if (error := stream.request.metrics.draft_error) is not None:
        raise DecodeError(f"the draft failed ({error}): nothing can be compared")
    return found, stream.request.metrics.steps


def write_here(engine: Engine, proposers: Proposers, job: Job, stop: threading.Event) -> Run:
    """Write a text, beginning with an empty KV cache. `proposers` keep what they have learned."""
    if stop.is_set():
        raise Interrupted
    engine.call(lambda slot: slot.forget())
    config = greedy(job.n_tokens, may_end=job.may_end)
    text, _ = write(engine, engine.tokenize(job.prompt), config, proposers)
    return Run.of(text.text, text.statistics)


def own_modes(engine: Engine, modes: Sequence[str], limits: Mapping[str, DraftConfig]) -> list[Contestant]:
    """duo's modes that these models support, those with a draft with every limit (by name: a number or auto)."""
    slot, threads, found = engine.slot, engine.slot.threads, []
    sequential = f"{threads.target}/{'–'.join(map(str, threads.draft))}"  # – if the controller chooses
    concurrent = f"{threads.concurrent[0]}+{threads.concurrent[1]}"
    used = {"sync": sequential, "async": concurrent, "auto": f"{sequential} or {concurrent}"}
    for mode in modes:
        drafts = mode not in ALONE and slot.draft_model is not None
        if (
            (mode == "async" and slot.in_turns)
            or (drafts and slot.draft is None)
            or (mode == "lookup" and slot.lookup is None)
        ):
            continue
        for name, limit in limits.items() if drafts else [(None, None)]:
            looks_up = mode in ("lookup", "auto")
            if limit is None:
                proposers = slot.proposers(drafts=False, remote=False, lookup=looks_up)
            else:
                proposers = slot.limited(replace(limit, schedule=mode), lookup=looks_up, knows=False)
            write, drafts = partial(write_here, engine, proposers), limit is not None
            where = _devices(slot.target, slot.draft_model if drafts else None)
            found.append(Contestant(mode, write, used[mode] if drafts else str(threads.target), where, name))
    return found or own_modes(engine, ["plain"], limits)


def _devices(*models: Model | None) -> str:
    return "+".join(",".join(sorted(model.places)) for model in models if model is not None)


def run_process(command: Sequence[str], stop: threading.Event) -> Ended[str]:
    """The result of a command without LLAMA_* variables, which ends with this process. Raises OSError, Interrupted."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")}
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=nowhere, stdout=pipe, stderr=pipe, env=kept, text=True, errors="replace",
        start_new_session=True,  # Ctrl-C reaches only this process, which stops the child
    ) as process:  # fmt: skip
        guard = ["/bin/sh", "-c", _GUARD, str(process.pid)]
        with subprocess.Popen(guard, stdin=pipe, stdout=nowhere, stderr=nowhere, start_new_session=True) as guarding:
            try:
                while not stop.is_set():
                    with suppress(subprocess.TimeoutExpired):
                        output = process.communicate(timeout=_LOOK_S)
                        return Ended(command, process.returncode, *output)
                raise Interrupted
            finally:
                with suppress(ProcessLookupError):  # the command may be a script, whose children remain
                    os.killpg(process.pid, signal.SIGKILL)
                guarding.kill()


def version(program: Path) -> str | None:
    """The version and build that a program reports, or None."""
    try:
        command = [str(program), "--version"]
        ended = subprocess.run(command, capture_output=True, timeout=_VERSION_S, errors="replace", check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"^version: *(.+)$", ended.stderr + ended.stdout, re.MULTILINE)
    return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Program:
    """One of llama.cpp's programs. `more`: options; {draft} is replaced by the draft."""

    name: str
    path: Path
    threads: int
    more: Sequence[str] = ()

    def __call__(self, job: Job, stop: threading.Event) -> Run:
        """Write a text: see Contestant. Raises ParseError if it fails, stops early or its output cannot be parsed."""
        start = partial(run_process, self.command(job), stop)
        return checked(self.name, job.n_least, start, partial(self.parse, job))

    def command(self, job: Job) -> list[str]:
        """The command line."""
        shared = ["--no-escape", *_FLAGS[self.name], "-t", str(self.threads)]
        more = [str(job.draft) if word == "{draft}" else word for word in self.more]
        return [str(self.path), *text_options(job), *shared, *more]

    def parse(self, job: Job, ended: Ended[str]) -> Run:
        """Parse its output. Raises ParseError."""
        output = ended.stdout + ended.stderr
        found = re.search(_FIGURES[self.name], output)
        if found is None:
            raise ParseError(f"no figures in: …{output[-_SHOWN:]!r}")
        figures = {name: float(value) for name, value in found.groupdict().items()}
        n, rate, text = figures.pop("tokens", None), figures.pop("tokens_per_s"), ended.stdout[: found.start()]
        n_tokens = None if n is None else int(n) + (self.name == "llama-completion")
        if self.name == "llama-completion":
            figures["first_token_s"] = figures.pop("prompt_ms") / 1000
            return Run(text.strip("\n").removesuffix(" [end of text]"), n_tokens, rate, figures)
        if self.name == SPECULATIVE:
            figures["first_token_s"] = figures.pop("prompt_s") + 1 / rate
        data = job.prompt.encode()
        if self.name == "llama-cli" and len(data) > _ECHOED:
            data = data[:_ECHOED] + b" ... (truncated)"
        # Whitespace may differ: TinyLlama prints a space after each special token.
        echo = re.search(r"\s*".join(map(re.escape, data.decode("utf-8", "replace").split())), text)
        if echo is None:
            raise ParseError(f"no prompt in: {text[:_SHOWN]!r}…")
        return Run(text[echo.end() :].strip("\n"), n_tokens, rate, figures)


def text_options(job: Job) -> list[str]:
    """The options of a job that all programs and duo share."""
    files = ["-m", str(job.target), "-f", str(job.prompt_file)]
    sampling = ["--temp", f"{job.temperature:g}", "--seed", "1", *([] if job.may_end else ["--ignore-eos"])]
    return [*files, "-n", str(job.n_tokens), "-c", str(job.n_ctx), *sampling]


def checked(name: str, n_tokens: int, start: Callable[[], AnyEnded], read: Callable[[AnyEnded], Run]) -> Run:
    """The run of a command that is asked for `n_tokens`. Raises ParseError."""
    try:
        ended = start()
    except OSError as error:
        raise ParseError(f"{name}: cannot run {error.filename}: {error.strerror}") from None
    if ended.returncode != 0:
        raise ParseError(f"{name} exited with {ended.returncode}: {last_line(ended.stderr)}")
    try:
        run = read(ended)
    except (KeyError, TypeError, ValueError, OSError, ParseError) as error:
        raise ParseError(f"{name}: cannot read its output: {error}") from None
    if run.tokens is not None and run.tokens < n_tokens:  # its rate is not comparable
        raise ParseError(f"{name} stopped after {run.tokens} of {n_tokens} tokens")
    return run


def last_line(text: str) -> str:
    """The last non-empty line."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def other_programs(paths: Mapping[str, Path], n_max: Sequence[int | None], engine: Engine) -> list[Contestant]:
    """llama.cpp's programs with the same models and threads; one that drafts runs once for each value of `n_max`."""
    slot, draft = engine.slot, engine.slot.draft_model
    n_target, n_draft = slot.threads.target, slot.threads.draft
    # A single draft thread count is passed on; otherwise the draft uses as many threads as the target.
    td = n_draft[0] if len(n_draft) == 1 else n_target
    flash_attn = flash_attention(slot.target, slot.config.context(slot.n_ctx, 1, 1, 0))
    shared = ["-fa", flash_attn, "-ctk", slot.config.type_k, "-ctv", slot.config.type_v]
    shared += _placement(slot.target.config, "-ngl", "-dev")
    found = []
    for name, path in paths.items():
        models, more = [slot.target], list[str]()
        limits: list[int | None] = [None]
        if name == SPECULATIVE:
            if draft is None or slot.translation is not None:  # llama.cpp translates no longer
                continue
            is_layer = draft is slot.target
            models, limits = [slot.target, draft], list(dict.fromkeys(n or _DEFAULT_N_MAX for n in n_max))
            more = [*_placement(draft.config, "-ngld", "-devd"), *([] if is_layer else ["-md", "{draft}"])]
            more += ["--spec-type", _TYPES["MTP" if is_layer else draft.head_kind], "-td", str(td)]
        threads = str(n_target) + (f"/{td}" if more else "")
        # Programs do not report devices other than the CPU.
        where = _devices(*models) if all(model.places == ON_CPU for model in models) else ""
        for n in limits:
            k = None if n is None else str(n)
            options = [*shared, *more, *(["--spec-draft-n-max", k, "--spec-draft-p-min", "0"] if k else [])]
            program = Program(name, path, n_target, options)
            found.append(Contestant(name, program, threads, where, k, may_fail=True))
    return found


def _placement(config: ModelConfig, layers: str, names: str) -> list[str]:
    """The options that place a model as duo does: on the CPU only, even if the programs were built for GPUs."""
    if not gpus():
        return [names, "none"]
    found = [layers, "all" if config.n_gpu_layers < 0 else str(config.n_gpu_layers)]
    if config.devices is not None:
        found += [names, ",".join(config.devices) or "none"]
    draft = "d" if names == "-devd" else ""
    found += [f"-ot{draft}", ",".join(text for _, text in config.overrides)] if config.overrides else []
    if names == "-dev":  # the programs split the draft as the target
        found += ["-sm", config.split_mode, "-mg", str(config.main_gpu)]
        found += ["-ts", ",".join(f"{share:g}" for share in config.tensor_split)] if config.tensor_split else []
    return found
