"""The options of each command. This imports no llama.cpp, so that --help is fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from duo.cli.options import EngineOptions, GenerationOptions, LogOptions, PromptOptions
from duo.config import AUTO_DRAFT, DEMO, EngineConfig, SamplingConfig, StopConfig
from duo.config.engine_config import LAYERS, THREAD_COUNT, parse_servers
from duo.config.option import COUNT, PORTS, PROBABILITY, Bounds, declared, names, option

MAX_DRAFT = 16  # of `duo plan`
LATENCY = Bounds(0, 1e9, "it is a time in ms")
# What `duo chat` sends to a server with each request, and what else concerns one.
_SENT = {"max_tokens", "seed", "stop", *(one.name for one in declared(SamplingConfig(), "chat"))}
_NOT_SENT = {"url", "model", "api_key", "api_key_file", "prompt", "file", "system_prompt", "escape", "color"}


# fmt: off
@dataclass(frozen=True)
class RunOptions(GenerationOptions, PromptOptions, EngineOptions):
    """The options of `duo` without a subcommand."""

    chat: bool = option(
        False, "--chat", "Prompt and text", "Put the prompt into the model's chat template.")
    display_prompt: bool = option(
        False, "--display-prompt/--no-display-prompt", "Prompt and text", "Print the prompt before the text.")
    conversation: bool | None = option(
        None, "-cnv/-no-cnv --conversation/--no-conversation -i --interactive", "Prompt and text",
        "Chat on the terminal, as duo chat does; -p or -f is the first message.")
    single_turn: bool = option(
        False, "-st --single-turn", "Prompt and text", "One answer in the chat template, then exit: as --chat.")
    live: bool = option(
        False, "--live", "Output", "Show a status below the text: rates, load of both models, candidates ahead.")
    json: Path | None = option(None, "--json FILE", "Output", "Write all statistics to a file, as JSON.")
    trace: Path | None = option(
        None, "--trace FILE", "Output", "Write a timeline of both models as Chrome trace JSON, for Perfetto.")
    version: bool = option(
        False, "--version", "Output", "Show versions and exit; with -v, also the licence and third-party notices.")
    list_devices: bool = option(False, "--list-devices", "Output", "List the available devices and exit.")


@dataclass(frozen=True)
class DemoOptions(PromptOptions):
    """The options of `duo demo`: `duo -m demo` has all others."""

    stop: StopConfig = StopConfig(n_predict=256)

    def as_run(self) -> RunOptions:
        """The same as options of `duo`."""
        run = RunOptions(model=Path(DEMO), prompt=self.prompt, file=self.file)
        return replace(run, generation=replace(run.generation, stop=self.stop))


@dataclass(frozen=True)
class ChatOptions(GenerationOptions, PromptOptions, EngineOptions):
    """The options of `duo chat`: those of a run, or of a request to a server."""

    url: str | None = option(
        None, "URL", "",
        "Address of an OpenAI-compatible server, with or without /v1; -m is the name of its model then. Without a URL "
        "and a model: a lead at http://127.0.0.1:5555 if there is one, otherwise the demo pair.")
    api_key: str | None = option(
        None, "--api-key KEY $LLAMA_API_KEY $OPENAI_API_KEY", "Server",
        "API key; safer in $LLAMA_API_KEY or $OPENAI_API_KEY, which other users cannot see.")
    api_key_file: Path | None = option(
        None, "--api-key-file FILE", "Server", "File whose first non-empty line is the API key; overrides --api-key.")
    given: frozenset[str] = frozenset()  # names of the options on the command line
    # fmt: on

    def settings(self) -> dict[str, Any]:
        """What is sent with each request to a server, which decides what is not given."""
        return {one.name: one.default for one in declared(self, "chat") if one.name in self.given & _SENT}

    def only_local(self) -> list[str]:
        """The flags of the given options that a server is not told."""
        unknown = self.given - _SENT - _NOT_SENT
        return sorted(one.option.flag for one in declared(self, "chat") if one.name in unknown)


# fmt: off
@dataclass(frozen=True)
class LeadOptions(GenerationOptions, EngineOptions):
    """The options of `duo lead`: those of a server, and those of a run as defaults for requests."""

    host: str = option("127.0.0.1", "--host ADDRESS $LLAMA_ARG_HOST", "Server", "Address to listen on.")
    port: int = option(
        5555, "--port N $LLAMA_ARG_PORT", "Server", "Port to listen on; 0: any free port, which is printed.",
        bounds=PORTS)
    api_key: list[str] | None = option(
        None, "--api-key KEY $LLAMA_API_KEY", "Server",
        "API key that clients must send; may be repeated. Required unless --host is a loopback address.")
    api_key_file: Path | None = option(
        None, "--api-key-file FILE $LLAMA_ARG_API_KEY_FILE", "Server", "File with API keys, one per line.")
    queue: int = option(
        64, "--queue N", "Server",
        "Maximum number of waiting requests, which are kept in memory; further ones are rejected.",
        bounds=Bounds(0, 10_000, "each is kept in memory"))
    alias: str | None = option(
        None, "-a --alias NAME (the file's name) $LLAMA_ARG_ALIAS", "Server", "Name of the model in the API.")
    print: str = option(
        "none", "--print", "Server",
        "Print clients' texts on stdout. accepted: the texts, with accepted candidates coloured in a terminal; all: "
        "also the rejected candidates.", choices=("none", "accepted", "all"))
    allowed_host: list[str] | None = option(
        None, "--allowed-host NAME", "Server",
        "Further host name that clients use for this server, such as that of a proxy; may be repeated.")
    cors_origin: list[str] | None = option(
        None, "--cors-origin ORIGIN", "Server",
        "Web site whose pages may send requests, such as https://chat.example; may be repeated.")
    slot_save_path: Path | None = option(
        None, "--slot-save-path DIR", "Server",
        "Folder for conversations that clients save and restore (POST /slots/ID?action=save).")
    slots: bool = option(
        True, "--slots/--no-slots $LLAMA_ARG_ENDPOINT_SLOTS", "Server",
        "Serve GET /slots. --slots N means -np N.")
    props: bool = option(
        False, "--props $LLAMA_ARG_ENDPOINT_PROPS", "Server",
        "Serve POST /props, which changes nothing, as in llama-server.")
    page: bool = option(
        True, "--page/--no-page $LLAMA_ARG_UI $LLAMA_ARG_WEBUI", "Server", "Serve a page for browsers, at /.")


@dataclass(frozen=True)
class BatchOptions(GenerationOptions, EngineOptions):
    """The options of `duo batch`: those of a run as defaults for requests."""

    requests: Path | None = option(
        None, "REQUESTS", "", "File of requests: a JSON object with custom_id, method, url and body in each line.")
    output: Path | None = option(
        None, "-o --output FILE", "Main options",
        "File for the answers, one in each line. Those that it has are kept, and not asked for again.")
    # No client waits, and several texts share the cells of a context.
    engine: EngineConfig = EngineConfig(turn_tokens=0, flash_attn="on")


@dataclass(frozen=True)
class BackConfig(EngineConfig):
    """How the draft of `duo back` decodes: the only model of its process."""

    rpc_servers: Sequence[str] = option(
        (), "--rpc --rpcd HOST:PORT,... $LLAMA_ARG_RPC", "Devices",
        "RPC servers (duo rpc-server, or llama.cpp's) for the draft.", parse=parse_servers)
    n_threads: int | None = option(
        None, "-t -td --threads N (all cores) $LLAMA_ARG_THREADS", "Threads", "Number of threads.", bounds=THREAD_COUNT)
    n_gpu_layers: int | str = option(
        "auto", "-ngl -ngld --gpu-layers N|all|auto $LLAMA_ARG_N_GPU_LAYERS", "Devices",
        "Number of draft layers to offload to its devices; auto: as many as fit.", choices=("auto", "all"),
        bounds=LAYERS)
    devices: Sequence[str] | None = option(
        None, "-dev -devd --device --device-draft NAME,...|none (all GPUs) $LLAMA_ARG_DEVICE", "Devices",
        "Devices of the draft, named as by duo --list-devices; none: do not offload.", parse=names)
    override_tensor: list[str] | None = option(
        None, "-ot -otd --override-tensor --override-tensor-draft --spec-draft-override-tensor PATTERN=TYPE,...",
        "Devices",
        "Buffer type of tensors whose names match a regular expression: as -ot of duo; may be repeated.")
    cpu_moe: bool = option(
        False, "-cmoe -cmoed --cpu-moe --cpu-moe-draft --spec-draft-cpu-moe $LLAMA_ARG_SPEC_DRAFT_CPU_MOE", "Devices",
        "Keep all experts on the CPU, and the rest of each layer where -ngl says.")
    n_cpu_moe: int = option(
        0, "-ncmoe -ncmoed --n-cpu-moe --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe N "
        "$LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE", "Devices",
        "Keep the experts of the first N layers on the CPU.", bounds=COUNT)
    n_ctx: int = option(
        0, "-c --ctx-size N $LLAMA_ARG_CTX_SIZE", "Context",
        "Size of the context in tokens; 0: as the lead's texts need, up to the size that the draft was trained with.",
        bounds=COUNT)


@dataclass(frozen=True)
class BackOptions(LogOptions):
    """The options of `duo back`."""

    model: Path | None = option(
        None, "-m --model -md --model-draft GGUF $LLAMA_ARG_SPEC_DRAFT_MODEL $LLAMA_ARG_MODEL_DRAFT", "Main options",
        "Draft model: small. Default: that of the demo pair.", excludes="hf_repo")
    vocab: Path | None = option(
        None, "--vocab GGUF", "Main options",
        "File with the vocabulary of the lead's target, if the draft has another one: the target itself, or a file "
        "with the vocabulary only.")
    lead: str = option(
        "ws://localhost:5555", "--lead URL", "Main options", "Address of the lead: ws:// or wss://, host and port.")
    token: str | None = option(
        None, "--token --back-token TOKEN (none) $DUO_BACK_TOKEN", "Remote drafts",
        "Token that the lead requires (its --back-token).")
    token_file: Path | None = option(
        None, "--token-file --back-token-file FILE", "Remote drafts", "File with the token.")
    hf_repo: str | None = option(
        None, "-hf -hfd --hf-repo --hf-repo-draft USER/REPO[:QUANT] $LLAMA_ARG_SPEC_DRAFT_HF_REPO", "Models",
        "Hugging Face repository of the draft.", excludes="model")
    n_texts: int = option(
        1, "-np --parallel N", "Remote drafts",
        "Number of the lead's texts to draft for at once (its -np), each through a connection and in a context of its "
        "own, in turns on the device.", bounds=Bounds(1, 16, "a lead takes no more drafts"))
    engine: BackConfig = BackConfig()


@dataclass(frozen=True)
class RpcServerOptions(LogOptions):
    """The options of `duo rpc-server`."""

    port: int = option(50052, "-p --port N", "Server", "Port to listen on.", bounds=PORTS._replace(least=1))
    host: str = option("127.0.0.1", "-H --host ADDRESS", "Server", "Address to listen on (IPv4).")
    insecure_bind: bool = option(
        False, "--insecure-bind", "Server",
        "Allow an address that other machines can reach. Each of them can then read and write the memory of this "
        "process: use it in a trusted network only.")
    device: Sequence[str] | None = option(
        None, "-d -dev --device NAME,... (all GPUs, or the CPU)", "Server",
        "Devices to serve, named as by duo --list-devices.", parse=names, name="devices")
    threads: int | None = option(
        None, "-t --threads N (all cores)", "Server", "Number of CPU threads.", bounds=THREAD_COUNT)
    cache: bool = option(
        False, "-c --cache", "Server", "Cache large tensors in files, so that a model loads faster the next time.")


@dataclass(frozen=True)
class CheckOptions(GenerationOptions, EngineOptions):
    """The options of `duo check`: those of a run that decide what is written."""

    prompts: list[str] | None = option(
        None, "-p --prompt TEXT", "Main options", "Prompt to use instead of the built-in ones; may be repeated.")
    predict: int = option(
        64, "-n --predict N", "Main options", "Number of tokens to generate per prompt.",
        bounds=COUNT._replace(least=1))
    seed: int = field(default=1, metadata=GenerationOptions.__dataclass_fields__["seed"].metadata)
    engine: EngineConfig = EngineConfig(profile=False)


@dataclass(frozen=True)
class TuneOptions(EngineOptions):
    """The options of `duo tune`: what is measured, or what becomes of the results."""

    names: list[str] | None = option(
        None, "DRAFT|NAME", "",
        "Without a draft (-md): drafts to compare besides those in the caches of duo and Hugging Face, files or all in "
        "a folder. With --list or --reset: names of results.")
    lists: bool = option(
        False, "--list", "Main options", "List the results of this machine, or show those of these names in full.")
    reset: bool = option(
        False, "--reset", "Main options", "Forget the results of these names, or all for the name all.")
    prompts: list[str] | None = option(
        None, "-p --prompt TEXT", "Main options",
        "Prompt to use instead of the built-in ones, such as a typical task of yours; may be repeated.")
    predict: int = option(
        64, "-n --predict N", "Main options", "Number of tokens to generate per prompt.",
        bounds=COUNT._replace(least=8))
    raw: bool = option(False, "--raw", "Main options", "Use the prompts without the model's chat template.")
    latency_ms: float | None = option(
        None, "--latency-ms MS", "Main options",
        "With -md: also predict the draft on another machine like this one, with this round trip.", bounds=LATENCY)
    json: Path | None = option(None, "--json FILE", "Output", "Write all figures to a file, as JSON.")


@dataclass(frozen=True)
class BenchOptions(EngineOptions):
    """The options of `duo bench`: what is measured, and what affects the cost of a decode."""

    modes: str | None = option(
        None, "--modes LIST (plain,sync,async,auto)", "What is measured",
        "Modes to measure. plain or off: the target alone; lookup: with candidates from the text itself; sync: "
        "sequential drafting; async: concurrent drafting; auto: the schedule that duo chooses, and lookup.")
    limits: str = option(
        "auto", "--draft --draft-max --spec-draft-n-max LIST", "What is measured",
        "Maximum number of candidates per batch: numbers and auto, such as 2,4,8,auto. Each is measured.")
    predict: int = option(
        256, "-n --predict N", "What is measured", "Number of tokens per text.", bounds=COUNT._replace(least=2))
    repetitions: int = option(
        5, "-r --repetitions N", "What is measured",
        "Number of rounds. Each measures every mode and program once, on a prompt of the next category.",
        bounds=Bounds(1, 1000, "more make the result no more certain"))
    prompts: str | None = option(
        None, "--prompts FILE (built in)", "What is measured",
        r"File with one prompt per line (\n: line break); a line \[name] starts a category.")
    categories: str | None = option(
        None, "--categories LIST (all)", "What is measured",
        "Categories of prompts to use. Built in: chat, code, story, summary, translation, list, JSON, reasoning.")
    raw: bool = option(False, "--raw", "What is measured", "Use the prompts without the model's chat template.")
    peers: str | None = option(
        None, "--peers NAME=PATH,… (those on the PATH)", "What is measured",
        "Programs to compare with: llama-completion, llama-cli, llama-speculative-simple; or none.")
    output: str = option(
        "md", "-o --output", "Output", "Output format. md: a table; json: also every run, and the hardware.",
        choices=("md", "json"))
    json: Path | None = option(None, "--json FILE", "Output", "Write what -o json prints to a file, besides.")
    engine: EngineConfig = EngineConfig(profile=False)


@dataclass(frozen=True)
class PlanOptions:
    """The options of `duo plan`."""

    target_ms: str | None = option(
        None, "--target-ms MS|N:MS,…", "", "Milliseconds per decode of the target: of any size, or a list of size:ms.")
    draft_ms: str | None = option(
        None, "--draft-ms MS|N:MS,…", "",
        "Milliseconds per decode of the draft: of one token, or a list of N:MS for one token in each of N sequences, "
        "to predict what prepared outcomes gain (--branches).")
    draft_pair_ms: float | None = option(
        None, "--draft-pair-ms MS", "",
        "Milliseconds per decode of the draft of two tokens, as which it reads the last two after all candidates were "
        "accepted. Default: 1.3 times that of one, and the output says that it is assumed.",
        bounds=Bounds(1e-6, 10**9, "it is a time in ms"))
    machine: str | None = option(
        None, "--machine FILE[:PAIR]", "",
        "Machine file with all times, instead of --target-ms and --draft-ms: see docs/benchmarking.md.")
    latency_ms: float | None = option(
        None, "--latency-ms MS", "", "Round trip to a draft on another machine.", bounds=LATENCY)
    accept: float | None = option(
        None, "--accept SHARE", "", "Probability that a candidate is accepted if all before it are.",
        bounds=PROBABILITY)
    table: Path | None = option(
        None, "--table FILE", "", "File with the decode times of the target: batch size and ms in each line.")
    stats: Path | None = option(
        None, "--json FILE", "", "File that a run has written with --json, for all values that are not given here.")
    draft: int = option(
        AUTO_DRAFT, "--draft N", "", "Maximum number of candidates to verify per decode.",
        bounds=Bounds(1, MAX_DRAFT, "a forecast knows no more"))
    block: int = option(
        0, "--block N", "",
        "A block draft (DFlash, DSpark), which makes up to N candidates in one decode: --draft-ms is then N:MS.",
        bounds=Bounds(0, MAX_DRAFT, "a forecast knows no more"))


@dataclass(frozen=True)
class ListOptions:
    """The options of `duo list`."""

    paths: list[Path] | None = option(None, "FILE|FOLDER", "", "More GGUF files, or folders that contain some.")
    json: bool = option(False, "--json", "", "Print the result as JSON.")


@dataclass(frozen=True)
class MemoryOptions:
    """The options of `duo memory`."""

    words: list[str] | None = option(
        None, "build|FILE|TEXTFILE", "", "The word build, the file of the memory, and texts to add to it, in UTF-8.")
    model: str | None = option(
        None, "-m --model GGUF", "", "Model whose memory it is, by its vocabulary: a file, USER/REPO:QUANT or demo.")


@dataclass(frozen=True)
class DoctorOptions:
    """The options of `duo doctor`."""

    json: bool = option(False, "--json", "", "Print the result as JSON.")
