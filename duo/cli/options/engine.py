"""The options from which engine and generation configs are built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from duo.cli.options.context import BatchOptions, CacheOptions, ContextOption, WarmupOption
from duo.cli.options.devices import DeviceOptions, RpcOptions
from duo.cli.options.drafting import DraftingOptions, ExactOption, ProfileOption
from duo.cli.options.model import HubOptions, ModelOptions, WeightOptions
from duo.cli.options.output import LogOptions
from duo.cli.options.prompt import LimitOptions, StopOptions, read_argument
from duo.cli.options.sampling import GrammarOptions, SamplingOptions, VerifyOption
from duo.cli.options.server import BackPortOptions, BackTokenOptions
from duo.cli.options.threads import CoreOptions, ThreadOptions
from duo.config import DEMO, HUB, EngineConfig, GenerationConfig, StopConfig
from duo.errors import UsageError


# fmt: off
@dataclass(frozen=True)
class EngineOptions(
    ModelOptions, HubOptions, WeightOptions, LimitOptions, DraftingOptions, ProfileOption, ExactOption, ThreadOptions,
    CoreOptions, DeviceOptions, RpcOptions, BackPortOptions, BackTokenOptions, ContextOption, BatchOptions,
    CacheOptions, WarmupOption, LogOptions,
):
    """Which models to load, and how they decode."""

    @property
    def is_demo(self) -> bool:
        """Whether the demo pair is used: by its name, or because no target is named."""
        return not self.names_target or self.model == Path(DEMO)

    @property
    def names_target(self) -> bool:
        """Whether a target is named."""
        return bool(self.model or self.hf_repo)

    def model_names(self) -> tuple[Path | str, Path | str | None]:
        """Target and draft, as duo.load() takes them. Raises UsageError."""
        if self.model and self.hf_repo:
            raise UsageError("-m and -hf both name the target: use only one")
        if self.model_draft and self.hf_repo_draft:
            raise UsageError("-md and -hfd both name the draft: use only one")
        draft: Path | str | None = f"{HUB}{self.hf_repo_draft}" if self.hf_repo_draft else self.model_draft
        if self.is_demo:
            if draft is not None:
                what = "the demo pair has its own draft" if self.names_target else "a draft without a target"
                raise UsageError(f"{what}: name the target with -m or -hf")
            return DEMO, None
        return self.model or f"{HUB}{self.hf_repo}", draft

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft, such as that of the demo pair."""
        return self.is_demo or self.model_names()[1] is not None

    def engine_config(self) -> EngineConfig:
        """How the engine decodes."""
        return EngineConfig(
            n_ctx=self.ctx_size,
            n_batch=self.batch_size,
            n_ubatch=self.ubatch_size,
            flash_attn=self.flash_attn,
            type_k=self.cache_type_k,
            type_v=self.cache_type_v,
            exact=self.exact,
            n_threads=self.threads,
            n_threads_batch=self.threads_batch,
            draft_n_threads=self.threads_draft,
            cpu_range=self.cpu_range,
            draft_cpu_range=self.cpu_range_draft,
            draft_n_max=self.draft,
            draft_n_ahead=self.draft_ahead,
            schedule=self.schedule,
            n_predict=self.predict,
            warmup=self.warmup,
            lookup=self.lookup,
            branches=self.branches,
            n_gpu_layers="auto" if self.gpu_layers is None else self.gpu_layers,
            draft_n_gpu_layers="auto" if self.gpu_layers_draft is None else self.gpu_layers_draft,
            devices=self.device,
            draft_devices=self.device_draft,
            split_mode=self.split_mode,
            tensor_split=self.tensor_split or (),
            main_gpu=self.main_gpu,
            rpc_servers=self.rpc or (),
            draft_rpc_servers=self.rpc_draft,
            rpc_timeout_s=self.rpc_timeout,
            use_mmap=self.mmap,
            use_mlock=self.mlock,
            offline=self.offline,
            profile=self.profile,
            back_port=self.back_port,
            back_host=self.back_host,
            back_token=self.back_token or "",
        )


@dataclass(frozen=True)
class GenerationOptions(LimitOptions, StopOptions, SamplingOptions, GrammarOptions, VerifyOption):
    """How a text is generated."""

    def generation_config(self, *, escape: bool = True) -> GenerationConfig:
        """How a text is generated; `escape`: as in read_argument(). Raises UsageError or PromptError."""
        stops = tuple(read_argument(stop, "-r", escape=escape) for stop in self.reverse_prompt or ())
        stop = StopConfig(self.predict, stops, self.ignore_eos)
        return GenerationConfig(self.sampling_config(), stop, self.grammar_text(), self.verify)
