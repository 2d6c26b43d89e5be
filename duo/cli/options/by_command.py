"""The options of each command. This imports no llama.cpp, so that --help is fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from duo.cli.options.groups import (
    DRAFT_VARIABLES,
    BackTokenFile,
    CheckedOptions,
    ColorOption,
    EngineOptions,
    GenerationOptions,
    LogOptions,
    PromptOptions,
)
from duo.config import AUTO_DRAFT, DEMO, MAX_INT, MAX_THREADS, EngineConfig, SamplingConfig, StopConfig
from duo.config.engine_config import parse_servers
from duo.config.option import (
    BACK,
    BACKS,
    CONTEXT,
    DEVICES,
    INT,
    MAIN,
    MEASURED,
    MODELS,
    OUTPUT,
    PORT,
    PROMPT,
    SERVER,
    THREADS,
    declared,
    names,
    option,
)
from duo.errors import UsageError

MAX_DRAFT = 16  # of `duo plan`
_TOO_MANY = "each is kept in memory"


# fmt: off
@dataclass(frozen=True)
class RunOptions(ColorOption, BackTokenFile, GenerationOptions, PromptOptions, EngineOptions):
    """The options of `duo` without a subcommand."""

    chat: bool = option(
        False, "--chat", PROMPT, "Format the prompt with the model's chat template.", is_main=True)
    display_prompt: bool = option(
        False, "--display-prompt/--no-display-prompt", PROMPT, "Print the prompt before the text.")
    conversation: bool | None = option(
        None, "-cnv/-no-cnv --conversation/--no-conversation -i --interactive", PROMPT,
        "Chat on the terminal, as duo chat does; -p or -f is the first message.")
    single_turn: bool = option(
        False, "-st --single-turn", PROMPT, "One answer in the chat template, then exit: as --chat.")
    live: bool = option(
        False, "--live", OUTPUT, "Show a status below the text: rates, load of both models, candidates ahead.")
    json: Path | None = option(None, "--json", OUTPUT, "Write all statistics to a file, as JSON.", metavar="FILE")
    trace: Path | None = option(
        None, "--trace", OUTPUT, "Write a timeline of both models as Chrome trace JSON, for Perfetto.", metavar="FILE")
    version: bool = option(
        False, "--version", OUTPUT,
        "Show versions and exit; with -v, also the licence and third-party notices.", is_eager=True)
    list_devices: bool = option(
        False, "--list-devices", OUTPUT, "List the available devices and exit.", is_eager=True)


@dataclass(frozen=True)
class DemoOptions(PromptOptions):
    """The options of `duo demo`: `duo -m demo` has all others."""

    stop: StopConfig = StopConfig(n_predict=256)

    def as_run(self) -> RunOptions:
        """The same as options of `duo`."""
        run = RunOptions(model=Path(DEMO), prompt=self.prompt, file=self.file)
        return replace(run, generation=replace(run.generation, stop=self.stop))


@dataclass(frozen=True)
class ChatOptions(ColorOption, GenerationOptions, PromptOptions, EngineOptions):
    """The options of `duo chat`: those of a run, or of a request to a server."""

    url: str | None = option(
        None, "", "",
        "Address of an OpenAI-compatible server, with or without /v1; -m is the name of its model then. Without a URL "
        "and a model: a lead at http://127.0.0.1:5555 if there is one, otherwise the demo pair.", metavar="URL",
        is_argument=True)
    api_key: str | None = option(
        None, "--api-key", SERVER,
        "API key; safer in $LLAMA_API_KEY or $OPENAI_API_KEY, which other users cannot see.", metavar="KEY",
        env=("LLAMA_API_KEY", "OPENAI_API_KEY"))
    api_key_file: Path | None = option(
        None, "--api-key-file", SERVER, "File whose first non-empty line is the API key; overrides --api-key.",
        metavar="FILE")
    given: frozenset[str] = frozenset()  # names of the options on the command line
    # fmt: on

    @property
    def has_engine_options(self) -> bool:
        """Whether an option is given that a server would not be told."""
        return bool(self._only_here())

    def check_server(self) -> None:
        """Raises UsageError for options that a server would not be told."""
        if flags := self._only_here():
            raise UsageError(f"{flags[0]} is for a model in this process: it has no effect on a server")

    def check_engine(self) -> None:
        """Raises UsageError for options that only a server is told."""
        if names := sorted(self.given & {"api_key", "api_key_file"}):
            raise UsageError(f"--{names[0].replace('_', '-')} is for a server: add its URL, or leave it out")

    def settings(self) -> dict[str, Any]:
        """What is sent with each request to a server, which decides what is not given."""
        values = {one.name: one.default for one in declared(self, "chat") if one.owner in (SamplingConfig, StopConfig)}
        values |= {"seed": self.seed, "stop": self.reverse_prompt}
        return {name: value for name, value in values.items() if name in self.given and name != "ignore_eos"}

    def _only_here(self) -> list[str]:
        """The flags of the given options that a server is not told."""
        told = (SamplingConfig, PromptOptions, ColorOption)
        names = {"max_tokens", "seed", "stop", "url", "model", "api_key", "api_key_file"}
        names |= {one.name for group in told for one in declared(group())}
        return sorted(one.option.flag for one in declared(self, "chat") if one.name in self.given - names)


# fmt: off
@dataclass(frozen=True)
class LeadOptions(ColorOption, BackTokenFile, GenerationOptions, EngineOptions):
    """The options of `duo lead`: those of a server, and those of a run as defaults for requests."""

    host: str = option(
        "127.0.0.1", "--host", SERVER, "Address to listen on.", metavar="ADDRESS", env=("LLAMA_ARG_HOST",))
    port: int = option(
        5555, "--port", SERVER, "Port to listen on; 0: any free port, which is printed.", metavar="N",
        env=("LLAMA_ARG_PORT",), least=0, most=65_535, why=PORT)
    api_key: list[str] | None = option(
        None, "--api-key", SERVER,
        "API key that clients must send; may be repeated. Required unless --host is a loopback address.",
        metavar="KEY", env=("LLAMA_API_KEY",))
    api_key_file: Path | None = option(
        None, "--api-key-file", SERVER, "File with API keys, one per line.", metavar="FILE")
    queue: int = option(
        64, "--queue", SERVER,
        "Maximum number of waiting requests, which are kept in memory; further ones are rejected.", metavar="N",
        least=0, most=10_000, why=_TOO_MANY)
    alias: str | None = option(
        None, "-a --alias", SERVER, "Name of the model in the API.", metavar="NAME", env=("LLAMA_ARG_ALIAS",),
        default_text="the file's name")
    print: str = option(
        "none", "--print", SERVER,
        "Print clients' texts on stdout. accepted: the texts, with accepted candidates coloured in a terminal; all: "
        "also the rejected candidates.", choices=("none", "accepted", "all"))
    allowed_host: list[str] | None = option(
        None, "--allowed-host", SERVER,
        "Further host name that clients use for this server, such as that of a proxy; may be repeated.",
        metavar="NAME")
    cors_origin: list[str] | None = option(
        None, "--cors-origin", SERVER,
        "Web site whose pages may send requests, such as https://chat.example; may be repeated.", metavar="ORIGIN")
    page: bool = option(
        True, "--page/--no-page", SERVER, "Serve a page for browsers, at /.",
        env=("LLAMA_ARG_UI", "LLAMA_ARG_WEBUI"))


@dataclass(frozen=True)
class BackConfig(EngineConfig):
    """How the draft of `duo back` decodes: the only model of its process."""

    rpc_servers: Sequence[str] = option(
        (), "--rpc --rpcd", DEVICES, "RPC servers (duo rpc-server, or llama.cpp's) for the draft.", who=BACK,
        metavar="HOST:PORT,...", parse=parse_servers, env=("LLAMA_ARG_RPC",))
    n_threads: int | None = option(
        None, "-t -td --threads", THREADS, "Number of threads.", who=BACK, metavar="N", default_text="all cores",
        env=("LLAMA_ARG_THREADS",), least=1, most=MAX_THREADS, why="llama.cpp computes with no more threads")
    n_gpu_layers: int | str = option(
        "auto", "-ngl -ngld --gpu-layers", DEVICES,
        "Number of draft layers to offload to its devices; auto: as many as fit.", who=BACK, metavar="N|all|auto",
        choices=("auto", "all"), env=("LLAMA_ARG_N_GPU_LAYERS",), least=-MAX_INT, most=MAX_INT, why=INT)
    devices: Sequence[str] | None = option(
        None, "-dev -devd --device --device-draft", DEVICES,
        "Devices of the draft, named as by duo --list-devices; none: do not offload.", who=BACK,
        metavar="NAME,...|none", default_text="all GPUs", parse=names, env=("LLAMA_ARG_DEVICE",))
    n_ctx: int = option(
        0, "-c --ctx-size", CONTEXT,
        "Size of the context in tokens; 0: as the lead's texts need, up to the size that the draft was trained with.",
        who=BACK, metavar="N", env=("LLAMA_ARG_CTX_SIZE",), least=0, most=MAX_INT, why=INT)


@dataclass(frozen=True)
class BackOptions(LogOptions):
    """The options of `duo back`."""

    model: Path | None = option(
        None, "-m --model -md --model-draft", MAIN, "Draft model: small. Default: that of the demo pair.",
        metavar="GGUF", env=DRAFT_VARIABLES, excludes="hf_repo")
    vocab: Path | None = option(
        None, "--vocab", MAIN,
        "File with the vocabulary of the lead's target, if the draft has another one: the target itself, or a file "
        "with the vocabulary only.", metavar="GGUF")
    lead: str = option(
        "ws://localhost:5555", "--lead", MAIN, "Address of the lead: ws:// or wss://, host and port.", metavar="URL")
    token: str | None = option(
        None, "--token --back-token", BACKS, "Token that the lead requires (its --back-token).", metavar="TOKEN",
        env=("DUO_BACK_TOKEN",), default_text="none")
    token_file: Path | None = option(
        None, "--token-file --back-token-file", BACKS, "File with the token.", metavar="FILE")
    hf_repo: str | None = option(
        None, "-hf -hfd --hf-repo --hf-repo-draft", MODELS, "Hugging Face repository of the draft.",
        metavar="USER/REPO[:QUANT]", env=("LLAMA_ARG_SPEC_DRAFT_HF_REPO",), excludes="model")
    engine: BackConfig = BackConfig()
    until_eof: bool = option(False, "--until-eof", "", "Exit when standard input is closed.", hidden=True)


@dataclass(frozen=True)
class RpcServerOptions(LogOptions):
    """The options of `duo rpc-server`."""

    port: int = option(
        50052, "-p --port", SERVER, "Port to listen on.", metavar="N", least=1, most=65_535, why=PORT)
    host: str = option("127.0.0.1", "-H --host", SERVER, "Address to listen on (IPv4).", metavar="ADDRESS")
    insecure_bind: bool = option(
        False, "--insecure-bind", SERVER,
        "Allow an address that other machines can reach. Each of them can then read and write the memory of this "
        "process: use it in a trusted network only.")
    device: Sequence[str] | None = option(
        None, "-d -dev --device", SERVER, "Devices to serve, named as by duo --list-devices.", metavar="NAME,...",
        parse=names, default_text="all GPUs, or the CPU")
    threads: int | None = option(
        None, "-t --threads", SERVER, "Number of CPU threads.", metavar="N", default_text="all cores", least=1,
        most=MAX_THREADS, why="llama.cpp computes with no more threads")
    cache: bool = option(
        False, "-c --cache", SERVER, "Cache large tensors in files, so that a model loads faster the next time.")
    until_eof: bool = option(False, "--until-eof", "", "Exit when standard input is closed.", hidden=True)


@dataclass(frozen=True)
class CheckOptions(GenerationOptions, EngineOptions):
    """The options of `duo check`: those of a run that decide what is written."""

    prompts: list[str] | None = option(
        None, "-p --prompt", MAIN, "Prompt to use instead of the built-in ones; may be repeated.", metavar="TEXT")
    predict: int = option(
        64, "-n --predict", MAIN, "Number of tokens to generate per prompt.", metavar="N", least=1, most=MAX_INT,
        why=INT)
    seed: int = field(default=1, metadata=GenerationOptions.__dataclass_fields__["seed"].metadata)
    engine: EngineConfig = EngineConfig(profile=False)


@dataclass(frozen=True)
class TuneOptions(EngineOptions):
    """The options of `duo tune`: what is measured, or what becomes of the results."""

    names: list[str] | None = option(
        None, "", "",
        "Without a draft (-md): drafts to compare besides those in the caches of duo and Hugging Face, files or all in "
        "a folder. With --list or --reset: names of results.", metavar="DRAFT|NAME", is_argument=True)
    lists: bool = option(
        False, "--list", MAIN, "List the results of this machine, or show those of these names in full.")
    reset: bool = option(
        False, "--reset", MAIN, "Forget the results of these names, or all for the name all.")
    prompts: list[str] | None = option(
        None, "-p --prompt", MAIN,
        "Prompt to use instead of the built-in ones, such as a typical task of yours; may be repeated.",
        metavar="TEXT")
    predict: int = option(
        64, "-n --predict", MAIN, "Number of tokens to generate per prompt.", metavar="N", least=8, most=MAX_INT,
        why=INT)
    raw: bool = option(False, "--raw", MAIN, "Use the prompts without the model's chat template.")
    json: Path | None = option(None, "--json", OUTPUT, "Write all figures to a file, as JSON.", metavar="FILE")


@dataclass(frozen=True)
class BenchOptions(EngineOptions):
    """The options of `duo bench`: what is measured, and what affects the cost of a decode."""

    modes: str | None = option(
        None, "--modes", MEASURED,
        "Modes to measure. plain or off: the target alone; lookup: with candidates from the text itself; sync: "
        "sequential drafting; async: concurrent drafting; auto: the schedule that duo chooses, and lookup.",
        metavar="LIST", default_text="plain,sync,async,auto")
    limits: str = option(
        "auto", "--draft --draft-max --spec-draft-n-max", MEASURED,
        "Maximum number of candidates per batch: numbers and auto, such as 2,4,8,auto. Each is measured.",
        metavar="LIST")
    predict: int = option(
        256, "-n --predict", MEASURED, "Number of tokens per text.", metavar="N", least=2, most=MAX_INT, why=INT)
    repetitions: int = option(
        5, "-r --repetitions", MEASURED,
        "Number of rounds. Each measures every mode and program once, on a prompt of the next category.", metavar="N",
        least=1, most=1000, why="more make the result no more certain")
    prompts: str | None = option(
        None, "--prompts", MEASURED,
        r"File with one prompt per line (\n: line break); a line \[name] starts a category.", metavar="FILE",
        default_text="built in")
    categories: str | None = option(
        None, "--categories", MEASURED,
        "Categories of prompts to use. Built in: chat, code, story, summary, translation, list, JSON, reasoning.",
        metavar="LIST", default_text="all")
    raw: bool = option(False, "--raw", MEASURED, "Use the prompts without the model's chat template.")
    peers: str | None = option(
        None, "--peers", MEASURED,
        "Programs to compare with: llama-completion, llama-cli, llama-speculative-simple; or none.",
        metavar="NAME=PATH,…", default_text="those on the PATH")
    output: str = option(
        "md", "-o --output", OUTPUT, "Output format. md: a table; json: also every run.", choices=("md", "json"))
    engine: EngineConfig = EngineConfig(profile=False)


@dataclass(frozen=True)
class PlanOptions(CheckedOptions):
    """The options of `duo plan`."""

    target_ms: str | None = option(
        None, "--target-ms", "",
        "Milliseconds per decode of the target: one number for all batch sizes, or a list of size:ms.",
        metavar="MS|N:MS,…")
    draft_ms: str | None = option(
        None, "--draft-ms", "",
        "Milliseconds per decode of the draft: of one token, or a list of N:MS for one token in each of N sequences, "
        "to predict what prepared outcomes gain (--branches).", metavar="MS|N:MS,…")
    draft_pair_ms: float | None = option(
        None, "--draft-pair-ms", "",
        "Milliseconds per decode of the draft of two tokens, as which it reads the last two after all candidates were "
        "accepted. Default: 1.3 times that of one, and the output says that it is assumed.", metavar="MS")
    machine: str | None = option(
        None, "--machine", "",
        "Machine file with all times, instead of --target-ms and --draft-ms: see docs/benchmarking.md.",
        metavar="FILE[:PAIR]")
    latency_ms: float | None = option(
        None, "--latency-ms", "", "Round trip to a draft on another machine.", metavar="MS")
    accept: float | None = option(
        None, "--accept", "", "Probability that a candidate is accepted if all before it are, 0 to 1.",
        metavar="SHARE")
    table: Path | None = option(
        None, "--table", "", "File with the decode times of the target: batch size and ms in each line.",
        metavar="FILE")
    stats: Path | None = option(
        None, "--json", "", "File that a run has written with --json, for all values that are not given here.",
        metavar="FILE")
    draft: int = option(
        AUTO_DRAFT, "--draft", "", "Maximum number of candidates to verify per decode.", metavar="N", least=1,
        most=MAX_DRAFT, why="a forecast knows no more")


@dataclass(frozen=True)
class ListOptions(CheckedOptions):
    """The options of `duo list`."""

    paths: list[Path] | None = option(
        None, "", "", "More GGUF files, or folders that contain some.", metavar="FILE|FOLDER", is_argument=True)
    json: bool = option(False, "--json", "", "Print the result as JSON.")


@dataclass(frozen=True)
class DoctorOptions(CheckedOptions):
    """The options of `duo doctor`."""

    json: bool = option(False, "--json", "", "Print the result as JSON.")
