"""EngineConfig: how models are loaded and decode, with all that is said about its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duo.config.model_config import ALL_LAYERS, SPLIT_MODES, ContextConfig, DraftConfig, ModelConfig
from duo.config.option import (
    BACK,
    BACKS,
    CONTEXT,
    DEVICES,
    DRAFTING,
    INT,
    MAIN,
    MAX_INT,
    MEASURING,
    MODELS,
    PORT,
    RUN,
    TEXTS,
    THREADS,
    check,
    names,
    number,
    option,
)
from duo.errors import UsageError

AUTO_DRAFT = 16  # default maximum of candidates
MAX_THREADS = 512
MAX_CANDIDATES = 64
MAX_AHEAD = 128
LARGE_BATCH = 64  # tokens from which on llama.cpp computes a batch with other kernels
MAX_BRANCHES = 8
MAX_SHARE = 1e30
_THREADS = "llama.cpp computes with no more threads"  # ggml.h, GGML_MAX_N_THREADS
_DRAFT = "the time to plan for them grows with their cube"
SCHEDULES = ("auto", "async", "sync", "off")
FLASH_ATTN = ("auto", "on", "off")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")

_ALL = TEXTS | MEASURING
_DECODING = _ALL | BACK
_LAYERS = ("auto", "all")
_AUTO = {"auto": None}
_UNLIMITED = {"-1": None}  # llama.cpp's spelling of the default
_SWITCH = {"": "on", "-1": "auto"} | dict.fromkeys(("true", "enabled", "1"), "on")
_SWITCH |= dict.fromkeys(("false", "disabled", "0"), "off")  # as llama.cpp spells it


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
        return tuple(map(number, text.replace("/", ",").split(",")))
    except ValueError:
        raise ValueError(f"{text!r} is not of the form N,N,...") from None


# fmt: off
@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How models are loaded and decode. What is None or "auto" is chosen for the models and this machine."""

    draft_n_max: int | None = option(
        None, "--draft --draft-max --draft-n --spec-draft-n-max", MAIN,
        "Maximum number of candidates to verify per decode; 0: no drafting.",
        who=TEXTS | {"check"}, metavar="N|auto", default_text="auto", spellings=_AUTO, is_main=True,
        env=("LLAMA_ARG_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"), least=0, most=MAX_CANDIDATES, why=_DRAFT)
    back_port: int | None = option(
        None, "--back-port", BACKS, "Port to accept remote drafts on (duo back).", who=RUN, metavar="N",
        least=0, most=65_535, why=PORT)
    back_host: str = option(
        "127.0.0.1", "--back-host", BACKS,
        "Address for --back-port. A token is required unless it is a loopback address.", who=RUN, metavar="ADDRESS")
    back_token: str | None = option(
        None, "--back-token", BACKS, "Token that remote drafts must send.", who=RUN | {"lead"}, metavar="TOKEN",
        env=("DUO_BACK_TOKEN",))
    offline: bool = option(
        False, "--offline", MODELS, "Use only cached models, without network access.", who=_DECODING | {"demo"},
        env=("LLAMA_ARG_OFFLINE",))
    use_mlock: bool = option(
        False, "--mlock", MODELS, "Keep the weights in memory, never swapped.", who=TEXTS | BACK,
        env=("LLAMA_ARG_MLOCK",))
    use_mmap: bool = option(
        True, "--mmap/--no-mmap", MODELS, "Memory-map the weights, or read them all at the start.", who=TEXTS | BACK,
        env=("LLAMA_ARG_MMAP",))
    draft_n_ahead: int | None = option(
        None, "--draft-ahead", DRAFTING,
        "Maximum number of tokens that the draft may be ahead of the target; planning with large numbers takes time.",
        who=TEXTS | {"check"}, metavar="N|auto", default_text="auto", spellings=_AUTO, least=1, most=MAX_AHEAD,
        why=_DRAFT)
    schedule: str = option(
        "auto", "--schedule", DRAFTING,
        "async: both models concurrently, each with its own threads; sync: sequentially, each with all threads; off: "
        "the target alone; auto: the fastest, measured during the run. Other names: concurrent, sequential, plain.",
        who=TEXTS | {"check"}, choices=SCHEDULES,
        spellings={"concurrent": "async", "sequential": "sync", "plain": "off"})
    branches: int | None = option(
        None, "--branches", DRAFTING,
        "Number of likely outcomes of a verification that the draft prepares while the target verifies (schedule "
        "async), each in a branch: a sequence of its own in the draft's KV cache. It helps a draft on hardware of its "
        "own; auto: as many as pay, often none. There are none for remote and RPC drafts, for a draft with another "
        "vocabulary, and with --verify rejection.",
        who=TEXTS | {"check"}, metavar="N|auto", default_text="auto", spellings=_AUTO, least=0, most=MAX_BRANCHES,
        why="each is one more token of every decode of the draft")
    lookup: str = option(
        "auto", "--lookup", DRAFTING,
        "auto: where it is faster, propose the tokens that followed an earlier occurrence of the last ones in the "
        "prompt or text, with or without a draft model. --schedule off and --draft 0 turn it off, too.",
        who=TEXTS | {"check"}, choices=("auto", "off"))
    profile: bool = option(
        True, "--profile/--no-profile", DRAFTING,
        "Load the measurements of earlier runs and of duo tune for these models on this machine, and save those of "
        "this run.", who=TEXTS)
    exact: bool = option(
        False, "--exact", DRAFTING,
        "Compute bit-identical logits for any draft, batch size and thread count (F32, F16, Q4_0, Q4_1, Q8_0), so "
        "that the text is the same even where two tokens are almost equally likely. To decode one token then takes as "
        "long as to decode two.", who=_ALL)
    n_threads: int | None = option(
        None, "-t --threads", THREADS, "Number of threads of the target.", who=_ALL, metavar="N", default_text="auto",
        spellings=_UNLIMITED, env=("LLAMA_ARG_THREADS",), least=1, most=MAX_THREADS, why=_THREADS)
    draft_n_threads: int | None = option(
        None, "-td --threads-draft", THREADS,
        "Number of threads of the draft; -t and -td together should not exceed the number of cores.", who=_ALL,
        metavar="N", default_text="auto", spellings=_UNLIMITED, least=1, most=MAX_THREADS, why=_THREADS)
    n_threads_batch: int | None = option(
        None, "-tb --threads-batch", THREADS, "Number of threads of the target for prompt processing.", who=TEXTS,
        metavar="N", default_text="as -t", spellings=_UNLIMITED, least=1, most=MAX_THREADS, why=_THREADS)
    cpu_range: str | None = option(
        None, "-Cr --cpu-range", THREADS, "Range of cores for the target, and for the draft with --schedule sync.",
        who=TEXTS, metavar="LO-HI")
    draft_cpu_range: str | None = option(
        None, "-Crd --cpu-range-draft", THREADS, "Range of cores for the draft with --schedule async.", who=TEXTS,
        metavar="LO-HI")
    n_gpu_layers: int | str = option(
        "auto", "-ngl --gpu-layers --n-gpu-layers", DEVICES,
        "Number of target layers to offload to its devices; auto: as many as fit, with the draft.", who=_ALL,
        metavar="N|all|auto", default_text="auto", choices=_LAYERS, is_main=True, env=("LLAMA_ARG_N_GPU_LAYERS",),
        least=-MAX_INT, most=MAX_INT, why=INT)
    draft_n_gpu_layers: int | str = option(
        "auto", "-ngld --gpu-layers-draft --n-gpu-layers-draft", DEVICES,
        "Number of draft layers to offload to its devices.", who=_ALL, metavar="N|all|auto", default_text="auto",
        choices=_LAYERS, is_main=True, env=("LLAMA_ARG_N_GPU_LAYERS_DRAFT",), least=-MAX_INT, most=MAX_INT, why=INT)
    devices: Sequence[str] | None = option(
        None, "-dev --device", DEVICES,
        "Devices of the target, named as by --list-devices; none: do not offload.", who=_ALL,
        metavar="NAME,...|none", default_text="all GPUs", parse=names, env=("LLAMA_ARG_DEVICE",))
    draft_devices: Sequence[str] | None = option(
        None, "-devd --device-draft --spec-draft-device", DEVICES, "Devices of the draft.", who=_ALL,
        metavar="NAME,...|none", default_text="all GPUs", parse=names)
    split_mode: str = option(
        "layer", "-sm --split-mode", DEVICES,
        "How to split the target across several devices, as in llama.cpp.", who=_ALL, choices=SPLIT_MODES,
        env=("LLAMA_ARG_SPLIT_MODE",))
    tensor_split: Sequence[float] = option(
        (), "-ts --tensor-split", DEVICES,
        "Fraction of the target for each device: a list of proportions, such as 3,1.", who=_ALL, metavar="N,N,...",
        default_text="by free memory", parse=_shares, env=("LLAMA_ARG_TENSOR_SPLIT",))
    main_gpu: int = option(
        0, "-mg --main-gpu", DEVICES, "Index of the device that the target uses with -sm none.", who=_ALL,
        metavar="I", env=("LLAMA_ARG_MAIN_GPU",), least=0, most=MAX_INT, why=INT)
    rpc_servers: Sequence[str] = option(
        (), "--rpc", DEVICES,
        "RPC servers (duo rpc-server, or llama.cpp's) for the draft; with --rpcd, or without a draft, for the target.",
        who=TEXTS, metavar="HOST:PORT,...", parse=parse_servers, env=("LLAMA_ARG_RPC",))
    draft_rpc_servers: Sequence[str] | None = option(
        None, "--rpcd --rpc-draft", DEVICES,
        "RPC servers for the draft; --rpc is then for the target. none: the draft is on this machine.", who=TEXTS,
        metavar="HOST:PORT,...|none", parse=parse_servers)
    rpc_timeout_s: float = option(
        8.0, "--rpc-timeout", DEVICES, "Time after which an RPC server that does not respond counts as lost.",
        who=TEXTS | BACK, metavar="SECONDS", least=1, most=86_400, why="a server that is silent for a day is lost")
    n_ctx: int = option(
        0, "-c --ctx-size", CONTEXT, "Size of the context in tokens; 0: as the prompt and -n need.",
        who=TEXTS | {"bench"}, metavar="N", env=("LLAMA_ARG_CTX_SIZE",), least=0, most=MAX_INT, why=INT)
    n_batch: int = option(
        2048, "-b --batch-size", CONTEXT, "Logical batch size: maximum number of prompt tokens per decode.",
        who=TEXTS, metavar="N", env=("LLAMA_ARG_BATCH",), least=1, most=MAX_INT, why=INT)
    n_ubatch: int = option(
        512, "-ub --ubatch-size", CONTEXT, "Physical batch size: maximum number of tokens computed together.",
        who=TEXTS, metavar="N", env=("LLAMA_ARG_UBATCH",), least=1, most=65_536,
        why="the buffers for a batch are allocated in full")
    flash_attn: str = option(
        "auto", "-fa --flash-attn", CONTEXT, "Flash attention.", who=_DECODING, choices=FLASH_ATTN,
        spellings=_SWITCH, env=("LLAMA_ARG_FLASH_ATTN",))
    type_k: str = option(
        "f16", "-ctk --cache-type-k", CONTEXT, "KV cache data type for K; with two models, that of the target.",
        who=_DECODING, metavar="TYPE", choices=CACHE_TYPES, env=("LLAMA_ARG_CACHE_TYPE_K",))
    type_v: str = option(
        "f16", "-ctv --cache-type-v", CONTEXT, "KV cache data type for V; with two models, that of the target.",
        who=_DECODING, metavar="TYPE", choices=CACHE_TYPES, env=("LLAMA_ARG_CACHE_TYPE_V",))
    warmup: bool = option(
        True, "--warmup/--no-warmup", CONTEXT,
        "Decode a few tokens before the first text, which reads all weights into memory and lets devices compile. Not "
        "included in the statistics.", who=_DECODING, env=("LLAMA_ARG_WARMUP",))
    n_predict: int = option(
        -1, help="Expected number of tokens of a text, for which memory of devices is reserved; -1: unknown.",
        least=-1, most=MAX_INT, why=INT)
    # fmt: on

    def __post_init__(self) -> None:
        check(self)
        for share in self.tensor_split:
            if not 0 <= share <= MAX_SHARE:
                raise UsageError(f"tensor_split: proportions must be from 0 to {MAX_SHARE:g}", "tensor_split")
        if self.tensor_split and max(self.tensor_split) < 1 / MAX_SHARE:
            raise UsageError("tensor_split: the proportions are all 0", "tensor_split")
        if self.exact and self.flash_attn == "off":
            raise UsageError("exact needs flash attention: it cannot be off", "exact")

    def target_model(self, path: Path, *, has_draft: bool) -> ModelConfig:
        """The target's weights and layers."""
        # If the target is on RPC servers and the draft is local, the GPUs are reserved for the draft.
        keeps_gpus = not (self.rpc_servers and has_draft and not self.draft_rpc_servers)
        return replace(
            self._model(path, self.n_gpu_layers, self.devices, self.rpc_servers),
            uses_gpus=keeps_gpus,
            split_mode=self.split_mode,
            tensor_split=tuple(self.tensor_split),
            main_gpu=self.main_gpu,
        )

    def draft_model(self, path: Path) -> ModelConfig:
        """The draft's weights and layers."""
        servers = self.draft_rpc_servers or ()
        draft = self._model(path, self.draft_n_gpu_layers, self.draft_devices, servers)
        return replace(draft, uses_gpus=not servers, prefix="draft_")

    def _model(
        self, path: Path, layers: int | str, devices: Sequence[str] | None, servers: Sequence[str]
    ) -> ModelConfig:
        return ModelConfig(
            path,
            n_gpu_layers=ALL_LAYERS if isinstance(layers, str) else layers,
            fits_layers=layers == "auto",
            use_mmap=self.use_mmap,
            use_mlock=self.use_mlock,
            rpc_servers=tuple(servers),
            rpc_timeout_s=self.rpc_timeout_s,
            devices=None if devices is None else tuple(devices),
        )

    def drafting(self) -> DraftConfig:
        """The limits of drafting and its schedule."""
        n_max = AUTO_DRAFT if self.draft_n_max is None else self.draft_n_max
        # Candidates are verified in one batch together with the last accepted token.
        n_max = min(n_max, max(2, min(self.n_batch, self.n_ubatch)) - 1)
        n_max = min(n_max, LARGE_BATCH - 2) if self.exact else n_max
        n_ahead = 2 * n_max if self.draft_n_ahead is None else self.draft_n_ahead
        return DraftConfig(n_max, n_ahead, self.schedule, self.branches)

    def context(self, n_ctx: int, n_threads: int, n_threads_batch: int, n_max: int) -> ContextConfig:
        """The target's context, for at most `n_max` candidates."""
        return ContextConfig(
            n_ctx + self.exact,  # exact decodes need a spare cell
            n_threads,
            n_threads_batch,
            self.n_batch,
            self.n_ubatch,
            n_outputs_max=n_max + 1,
            flash_attn=self.flash_attn,
            type_k=self.type_k,
            type_v=self.type_v,
            exact=self.exact,
        )
