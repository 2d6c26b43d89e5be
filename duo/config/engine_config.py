"""EngineConfig: how models are loaded and decode, with all that is said about its options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duo.config.model_config import ALL_LAYERS, CACHE_TYPES, EXPERTS, SPLIT_MODES, ContextConfig, ModelConfig
from duo.config.option import COUNT, MAX_INT, PORTS, TEXTS, Bounds, check, names, option, switch
from duo.errors import UsageError

AUTO_DRAFT, AUTO_LOOKUP = 16, 31  # default maximum of candidates, drafted and looked up
MAX_THREADS = 512
MAX_CANDIDATES = 64
LARGE_BATCH = 64  # tokens from which on llama.cpp computes a batch with other kernels
MAX_BRANCHES = 8
MAX_SHARE = 1e30  # single precision can add up some of them
THREAD_COUNT = Bounds(1, MAX_THREADS, "llama.cpp computes with no more threads")  # ggml.h, GGML_MAX_N_THREADS
LAYERS = COUNT._replace(least=-MAX_INT)
_DRAFT = "the time to plan for them grows with their cube"

_ALL = f"{TEXTS} bench check tune"
_DRAFTED = f"{TEXTS} check"
_AUTO = {"auto": None}
_UNLIMITED = {"-1": None}  # llama.cpp's spelling of the default


def split_endpoint(server: str) -> tuple[str, int]:
    """Split `host:port`, where the host is a name or an IPv4 address. Raises ValueError."""
    host, _, port = server.rpartition(":")
    if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{server!r} is not of the form host:port (IPv4)")
    return host, int(port)


def parse_servers(text: str) -> tuple[str, ...]:
    """Addresses of RPC servers, separated by commas; `none` is the empty list. Raises ValueError."""
    found = names(text)
    for server in found:
        split_endpoint(server)
    return found


def _shares(text: str) -> tuple[float, ...]:
    """Proportions separated by commas or slashes, as in llama.cpp."""
    try:
        return tuple(map(float, text.replace("/", ",").split(",")))
    except ValueError:
        raise ValueError(f"{text!r} is not of the form N,N,...") from None


def _object(text: str) -> Mapping[str, Any]:
    """A JSON object. Raises ValueError."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    raise ValueError(f"{text[:100]!r} is not a JSON object")


# fmt: off
SCHEDULES = ("auto", "async", "sync", "off")
SCHEDULE_NAMES: dict[str, str | None] = {"concurrent": "async", "sequential": "sync", "plain": "off"}


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How far ahead to draft and how many candidates to verify at once."""

    n_max: int  # maximum candidates in one target batch; 0: no drafting
    n_ahead: int  # maximum drafted tokens awaiting verification
    schedule: str = "auto"  # one of SCHEDULES; auto: the fastest, found while running
    branches: int | None = None  # likely outcomes of a verification that the draft prepares; None: as many as pay
    n_lookup: int = 0  # maximum candidates from the text itself, if they are more

    @property
    def n_most(self) -> int:
        """Maximum candidates in one target batch, from all sources."""
        return max(self.n_max, self.n_lookup)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How models are loaded and decode. What is None or "auto" is chosen for the models and this machine."""

    draft_n_max: int | None = option(
        None,
        "--draft --draft-max --draft-n --spec-draft-n-max N|auto (auto) $LLAMA_ARG_SPEC_DRAFT_N_MAX "
        "$LLAMA_ARG_DRAFT_MAX", "Main options",
        "Most candidates to verify per decode; 0: no drafting; auto: 16, or 31 from the text itself.",
        who=_DRAFTED, spellings=_AUTO, bounds=Bounds(0, MAX_CANDIDATES, _DRAFT))
    back_port: int | None = option(
        None, "--back-port N", "Remote drafts", "Port to accept remote drafts on (duo back).", who="duo", bounds=PORTS)
    back_host: str = option(
        "127.0.0.1", "--back-host ADDRESS", "Remote drafts",
        "Address for --back-port. A token is required unless it is a loopback address.", who="duo")
    back_token: str | None = option(
        None, "--back-token TOKEN $DUO_BACK_TOKEN", "Remote drafts", "Token that remote drafts must send.",
        who="duo lead")
    offline: bool = option(
        False, "--offline $LLAMA_ARG_OFFLINE", "Models", "Use only cached models, without network access.")
    use_mlock: bool = option(
        False, "--mlock $LLAMA_ARG_MLOCK", "Models", "Keep the weights in memory, never swapped.", who=f"{TEXTS} back")
    use_mmap: bool = option(
        True, "--mmap/--no-mmap $LLAMA_ARG_MMAP", "Models", "Memory-map the weights, or read them all at the start.",
        who=f"{TEXTS} back")
    chat_template: str | None = option(
        None, "--chat-template JINJA (that of the model) $LLAMA_ARG_CHAT_TEMPLATE", "Prompt and text",
        "Chat template, in Jinja.", who=TEXTS, excludes="chat_template_file")
    chat_template_kwargs: Mapping[str, Any] | None = option(
        None, "--chat-template-kwargs JSON $LLAMA_ARG_CHAT_TEMPLATE_KWARGS", "Prompt and text",
        "Variables of the chat template, such as {\"enable_thinking\": false}; those of a request are added.",
        who=TEXTS, parse=_object, accepts="Mapping[str, object] | None")
    reasoning: str = option(
        "auto", "--reasoning -rea --reasoning-budget $LLAMA_ARG_REASONING $LLAMA_ARG_THINK_BUDGET", "Prompt and text",
        "Whether the model thinks before it answers, if its chat template has the variable enable_thinking or begins "
        "the thought; auto: as the template has it. 0 is off, -1 auto; a thought is not cut after a number of tokens.",
        who=TEXTS, choices=("auto", "on", "off"),
        spellings={name: value for name, value in switch("auto", "on", "off").items() if name != "1"})
    draft_n_ahead: int | None = option(
        None, "--draft-ahead N|auto (auto)", "Drafting",
        "Maximum number of tokens that the draft may be ahead of the target; planning with large numbers takes time.",
        who=_DRAFTED, spellings=_AUTO, bounds=Bounds(1, 128, _DRAFT))
    schedule: str = option(
        "auto", "--schedule", "Drafting",
        "async: both models concurrently, each with its own threads; sync: sequentially, each with all threads; off: "
        "the target alone; auto: the fastest, measured during the run. Other names: concurrent, sequential, plain.",
        who=_DRAFTED, choices=SCHEDULES, spellings=SCHEDULE_NAMES)
    branches: int | None = option(
        None, "--branches N|auto (auto)", "Drafting",
        "Number of likely outcomes of a verification that the draft prepares while the target verifies (schedule "
        "async), each in a branch: a sequence of its own in the draft's KV cache. It helps a draft on hardware of its "
        "own, also on another machine (duo back); auto: as many as pay, often none. There are none for RPC drafts, "
        "heads and drafts with another vocabulary, and with --verify rejection.", who=_DRAFTED, spellings=_AUTO,
        bounds=Bounds(0, MAX_BRANCHES, "each is one more token of every decode of the draft"))
    lookup: str = option(
        "auto", "--lookup", "Drafting",
        "auto: where it is faster, propose the tokens that followed an earlier occurrence of the last ones in the "
        "prompt or text, with or without a draft model. --schedule off and --draft 0 turn it off, too.", who=_DRAFTED,
        choices=("auto", "off"))
    memory: str | None = option(
        None, "--memory FILE|off (off; of a lead: in memory only)", "Drafting",
        "File with what the target has written in earlier texts, which is looked up beside the text itself, and to "
        "which each text is added. A lead keeps the texts of each API key apart, and has a file only for one key.",
        who=TEXTS)
    heads: str = option(
        "auto", "--heads", "Drafting",
        "auto: a model that has a layer for multi-token prediction (MTP) drafts with it where that is faster than the "
        "target alone, or than another draft, and so does one that has a block draft beside it (dflash-*.gguf, "
        "dspark-*.gguf) with that, unless a schedule is forced on a draft model; off: neither is loaded. A head in a "
        "file of its own is given as the draft.",
        who=_DRAFTED,
        choices=("auto", "off"))
    profile: bool = option(
        True, "--profile/--no-profile", "Drafting",
        "Load the measurements of earlier runs and of duo tune for these models on this machine, and save those of "
        "this run.", who=TEXTS)
    exact: bool = option(
        False, "--exact", "Drafting",
        "Compute bit-identical logits for any draft, batch size and thread count (F32, F16, Q4_0, Q4_1, Q8_0), so "
        "that the text is the same even where two tokens are almost equally likely. To decode one token then takes as "
        "long as to decode two.", who=_ALL)
    n_threads: int | None = option(
        None, "-t --threads N (auto) $LLAMA_ARG_THREADS", "Threads", "Number of threads of the target.",
        spellings=_UNLIMITED, bounds=THREAD_COUNT)
    draft_n_threads: int | None = option(
        None, "-td --threads-draft N (auto)", "Threads",
        "Number of threads of the draft; -t and -td together should not exceed the number of cores.", who=_ALL,
        spellings=_UNLIMITED, bounds=THREAD_COUNT)
    n_threads_batch: int | None = option(
        None, "-tb --threads-batch N (as for decoding)", "Threads",
        "Number of threads of the target for prompt processing.", who=TEXTS, spellings=_UNLIMITED, bounds=THREAD_COUNT)
    cpu_range: str | None = option(
        None, "-Cr --cpu-range LO-HI", "Threads",
        "Range of cores for the target, and for the draft with --schedule sync.", who=TEXTS)
    draft_cpu_range: str | None = option(
        None, "-Crd --cpu-range-draft LO-HI", "Threads", "Range of cores for the draft with --schedule async.",
        who=TEXTS)
    n_gpu_layers: int | str = option(
        "auto", "-ngl --gpu-layers --n-gpu-layers N|all|auto (auto) $LLAMA_ARG_N_GPU_LAYERS", "Devices",
        "Target layers to offload to its devices; auto: as many as fit, with the draft.",
        choices=("auto", "all"), bounds=LAYERS)
    draft_n_gpu_layers: int | str = option(
        "auto", "-ngld --gpu-layers-draft --n-gpu-layers-draft N|all|auto (auto) $LLAMA_ARG_N_GPU_LAYERS_DRAFT",
        "Devices", "Draft layers to offload to its devices.", who=_ALL, choices=("auto", "all"),
        bounds=LAYERS)
    devices: Sequence[str] | None = option(
        None, "-dev --device NAME,...|none (all GPUs) $LLAMA_ARG_DEVICE", "Devices",
        "Devices of the target, named as by --list-devices; none: do not offload.", parse=names)
    draft_devices: Sequence[str] | None = option(
        None, "-devd --device-draft --spec-draft-device NAME,...|none (all GPUs)", "Devices", "Devices of the draft.",
        who=_ALL, parse=names)
    split_mode: str = option(
        "layer", "-sm --split-mode $LLAMA_ARG_SPLIT_MODE", "Devices",
        "How to split the target across several devices, as in llama.cpp.", who=_ALL, choices=SPLIT_MODES)
    tensor_split: Sequence[float] = option(
        (), "-ts --tensor-split N,N,... (by free memory) $LLAMA_ARG_TENSOR_SPLIT", "Devices",
        "Fraction of the target for each device: a list of proportions, such as 3,1.", who=_ALL, parse=_shares)
    main_gpu: int = option(
        0, "-mg --main-gpu I $LLAMA_ARG_MAIN_GPU", "Devices", "Index of the device that the target uses with -sm none.",
        who=_ALL, bounds=COUNT)
    override_tensor: list[str] | None = option(
        None, "-ot --override-tensor PATTERN=TYPE,... $LLAMA_ARG_OVERRIDE_TENSOR", "Devices",
        "Buffer type of tensors whose names match a regular expression: CPU, or that of a device of the model; may be "
        "repeated. The first match counts, before -ncmoe and -cmoe.", who=f"{_ALL} back")
    cpu_moe: bool = option(
        False, "-cmoe --cpu-moe $LLAMA_ARG_CPU_MOE", "Devices",
        "Keep all experts on the CPU, and the rest of each layer where -ngl says.", who=f"{_ALL} back")
    n_cpu_moe: int = option(
        0, "-ncmoe --n-cpu-moe N $LLAMA_ARG_N_CPU_MOE", "Devices", "Keep the experts of the first N layers on the CPU.",
        who=f"{_ALL} back", bounds=COUNT)
    draft_override_tensor: list[str] | None = option(
        None, "-otd --override-tensor-draft --spec-draft-override-tensor PATTERN=TYPE,...", "Devices",
        "Buffer type of tensors of the draft: as -ot.", who=_ALL)
    draft_cpu_moe: bool = option(
        False, "-cmoed --cpu-moe-draft --spec-draft-cpu-moe $LLAMA_ARG_SPEC_DRAFT_CPU_MOE", "Devices",
        "Keep the draft's experts on the CPU.", who=_ALL)
    draft_n_cpu_moe: int = option(
        0, "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe N $LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
        "Devices", "Keep the experts of the draft's first N layers on the CPU.", who=_ALL, bounds=COUNT)
    rpc_servers: Sequence[str] = option(
        (), "--rpc HOST:PORT,... $LLAMA_ARG_RPC", "Devices",
        "RPC servers (duo rpc-server, or llama.cpp's) for the draft; with --rpcd, or without a draft, for the target.",
        who=TEXTS, parse=parse_servers)
    draft_rpc_servers: Sequence[str] | None = option(
        None, "--rpcd --rpc-draft HOST:PORT,...|none", "Devices",
        "RPC servers for the draft; --rpc is then for the target. none: the draft is on this machine.", who=TEXTS,
        parse=parse_servers)
    rpc_timeout_s: float = option(
        8.0, "--rpc-timeout SECONDS", "Devices", "Time after which an RPC server that does not respond counts as lost.",
        who=f"{TEXTS} back", bounds=Bounds(1, 86_400, "a server that is silent for a day is lost"))
    n_ctx: int = option(
        0, "-c --ctx-size N $LLAMA_ARG_CTX_SIZE", "Context",
        "Size of the context in tokens; 0: as the prompt and -n need.", who=f"{TEXTS} bench", bounds=COUNT)
    n_batch: int = option(
        2048, "-b --batch-size N $LLAMA_ARG_BATCH", "Context",
        "Logical batch size: maximum number of prompt tokens per decode.", who=TEXTS, bounds=COUNT._replace(least=1))
    n_ubatch: int = option(
        512, "-ub --ubatch-size N $LLAMA_ARG_UBATCH", "Context",
        "Physical batch size: maximum number of tokens computed together.", who=TEXTS,
        bounds=Bounds(1, 65_536, "the buffers for a batch are allocated in full"))
    flash_attn: str = option(
        "auto", "-fa --flash-attn $LLAMA_ARG_FLASH_ATTN", "Context",
        "Flash attention; auto: on a CPU, off if it is measured to be slow there. For several long texts at once, on "
        "is faster.", choices=("auto", "on", "off"),
        spellings=switch("auto", "on", "off") | {"": "on"})
    type_k: str = option(
        "f16", "-ctk --cache-type-k TYPE $LLAMA_ARG_CACHE_TYPE_K", "Context",
        "KV cache data type for K; with two models, that of the target.", choices=tuple(CACHE_TYPES))
    type_v: str = option(
        "f16", "-ctv --cache-type-v TYPE $LLAMA_ARG_CACHE_TYPE_V", "Context",
        "KV cache data type for V; with two models, that of the target.", choices=tuple(CACHE_TYPES))
    n_slots: int = option(
        4, "-np --parallel N $LLAMA_ARG_N_PARALLEL", "Context",
        "Number of texts that are written together, and of conversations whose KV caches are kept; a request continues "
        "the one that it has most in common with. With --exact, and by models whose state cannot be rolled back, texts "
        "are written one at a time.",
        who="lead batch", spellings={"-1": None}, bounds=Bounds(1, 256, "each may take as much memory as the context"))
    cache_ram: int = option(
        8192, "-cram --cache-ram MIB $LLAMA_ARG_CACHE_RAM", "Context",
        "Most memory for conversations that are kept beside the context's, in MiB; -1: no limit.",
        who="lead batch",
        bounds=Bounds(-1, 2**24, "more than any machine has"))
    turn_tokens: int = option(
        64, "--turn-tokens N", "Context",
        "Number of tokens after which a text pauses where other requests have to wait, because -np texts are being "
        "written or one at a time; 0: each text is written to its end.", who="lead", bounds=COUNT)
    warmup: bool = option(
        True, "--warmup/--no-warmup $LLAMA_ARG_WARMUP", "Context",
        "Decode a few tokens before the first text, which reads all weights into memory and lets devices compile. Not "
        "included in the statistics.")
    n_predict: int = option(
        -1, help="Expected number of tokens of a text, for which memory of devices is reserved; -1: unknown.",
        bounds=COUNT._replace(least=-1))
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        shares = self.tensor_split
        if shares and not (all(0 <= share <= MAX_SHARE for share in shares) and max(shares) >= 1 / MAX_SHARE):
            message = f"tensor_split: proportions must be from 0 to {MAX_SHARE:g}, and not all 0"
            raise UsageError(message, "tensor_split")
        if self.chat_template is not None and "{" not in self.chat_template:
            message = f"chat_template: {self.chat_template[:40]!r} is not Jinja, and names of templates are not known"
            raise UsageError(f"{message}: without it, the model's own is used", "chat_template")
        if self.exact and self.flash_attn == "off":
            raise UsageError("exact needs flash attention: it cannot be off", "exact")

    def target_model(self, path: Path, *, has_draft: bool, has_head: bool = False) -> ModelConfig:
        """The target's weights and layers. `has_head`: the draft is a head, beside which no MTP layer is used."""
        # If the target is on RPC servers and the draft is local, the GPUs are reserved for the draft.
        uses_gpus = not (self.rpc_servers and has_draft and not self.draft_rpc_servers)
        # A schedule is forced on the draft that was given.
        is_wanted = not has_draft or not (self.schedule != "auto" or has_head or self.draft_rpc_servers)
        heads = is_wanted and self.draft_n_max != 0 and "off" not in (self.heads, self.schedule)
        thinking = {} if self.reasoning == "auto" else {"enable_thinking": self.reasoning == "on"}
        variables = {**thinking, **(self.chat_template_kwargs or {})}
        return self._model(
            path, "", uses_gpus=uses_gpus, split_mode=self.split_mode, tensor_split=tuple(self.tensor_split),
            main_gpu=self.main_gpu, heads=heads, chat_template=self.chat_template, template_variables=variables,
        )  # fmt: skip

    def draft_model(self, path: Path) -> ModelConfig:
        """The draft's weights and layers."""
        return self._model(path, "draft_", uses_gpus=not self.draft_rpc_servers)

    def _model(self, path: Path, prefix: str, **more: Any) -> ModelConfig:
        names = ("n_gpu_layers", "rpc_servers", "devices")
        layers, servers, devices = (getattr(self, f"{prefix}{name}") for name in names)
        more |= {"devices": None if devices is None else tuple(devices), "rpc_servers": tuple(servers or ())}
        texts, n, every = (getattr(self, f"{prefix}{name}") for name in ("override_tensor", "n_cpu_moe", "cpu_moe"))
        # The first that matches counts; in llama.cpp, the order of the options decides which that is.
        patterns = [("override_tensor", one) for text in texts or () for one in text.split(",")]
        first = "|".join(map(str, range(min(n, 512))))  # llama.cpp knows no more layers
        patterns += [("n_cpu_moe", rf"blk\.({first}){EXPERTS}=CPU")] * (n > 0) + [("cpu_moe", f"{EXPERTS}=CPU")] * every
        more |= {"overrides": tuple(patterns)}
        more |= {"use_mmap": self.use_mmap, "use_mlock": self.use_mlock, "rpc_timeout_s": self.rpc_timeout_s}
        n_layers = ALL_LAYERS if isinstance(layers, str) else layers
        return ModelConfig(path, n_layers, layers == "auto", prefix=prefix, **more)

    def drafting(self) -> DraftConfig:
        """The limits of drafting and its schedule."""
        n_max = AUTO_DRAFT if self.draft_n_max is None else self.draft_n_max
        # Candidates are verified in one batch together with the last accepted token.
        most = max(2, min(self.n_batch, self.n_ubatch)) - 1
        n_max = min(n_max, most, LARGE_BATCH - 2 if self.exact else n_max)
        n_ahead = 2 * n_max if self.draft_n_ahead is None else self.draft_n_ahead
        n_lookup = min(AUTO_LOOKUP, most) if self.draft_n_max is None else 0
        return DraftConfig(n_max, n_ahead, self.schedule, self.branches, n_lookup)

    def context(self, n_ctx: int, n_threads: int, n_threads_batch: int, n_max: int) -> ContextConfig:
        """The target's context, for at most `n_max` candidates."""
        n_ctx += self.exact  # exact decodes need a spare cell
        size = (n_ctx, n_threads, n_threads_batch, self.n_batch, self.n_ubatch, n_max + 1)
        return ContextConfig(*size, self.flash_attn, self.type_k, self.type_v, self.exact)
