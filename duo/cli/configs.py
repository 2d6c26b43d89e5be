"""From options to configs: everything that can be decided before a model is loaded."""

from __future__ import annotations

from duo.cli.devices import is_demo
from duo.cli.options import EngineOptions, GenerationOptions
from duo.cli.prompt import read_argument
from duo.cli.sampling import grammar_text, sampling_config
from duo.config import EngineConfig, GenerationConfig, StopConfig
from duo.engine.threads import plan_threads
from duo.errors import UsageError
from duo.loading import DEMO, Name
from duo.models.paths import HUB


def engine_config(options: EngineOptions) -> EngineConfig:
    """How the engine decodes."""
    return EngineConfig(
        n_ctx=options.ctx_size,
        n_batch=options.batch_size,
        n_ubatch=options.ubatch_size,
        flash_attn=options.flash_attn.value,
        type_k=options.cache_type_k.value,
        type_v=options.cache_type_v.value,
        exact=options.exact,
        n_threads=options.threads,
        n_threads_batch=options.threads_batch,
        draft_n_threads=options.threads_draft,
        cpu_range=options.cpu_range,
        draft_cpu_range=options.cpu_range_draft,
        draft_n_max=options.draft,
        draft_n_ahead=options.draft_ahead,
        schedule=options.schedule.value,
        n_predict=options.predict,
    )


def generation_config(options: GenerationOptions, *, escape: bool = True) -> GenerationConfig:
    """How a text is written; `escape`: as in read_argument(). Raises UsageError or PromptError."""
    stops = tuple(read_argument(stop, "-r", escape=escape) for stop in options.reverse_prompt or ())
    stop = StopConfig(options.predict, stops, options.ignore_eos)
    return GenerationConfig(sampling_config(options), stop, grammar_text(options), options.verify.value)


def check_usage(options: EngineOptions) -> None:
    """Find out what cannot be meant like this before anything is fetched or loaded. Raises UsageError."""
    config = engine_config(options)
    threads = plan_threads(config, drafting=False)
    config.context(1, threads.target, threads.target_batch, config.drafting().n_max)


def model_names(options: EngineOptions) -> tuple[Name, Name | None]:
    """The models that are asked for, as duo.load() takes them. Raises UsageError."""
    if options.model and options.hf_repo:
        raise UsageError("-m and -hf both name the target: leave one out")
    if options.model_draft and options.hf_repo_draft:
        raise UsageError("-md and -hfd both name the draft: leave one out")
    draft: Name | None = f"{HUB}{options.hf_repo_draft}" if options.hf_repo_draft else options.model_draft
    if is_demo(options):
        if draft is not None:
            raise UsageError("a draft without a target: name the target with -m or -hf")
        return DEMO, None
    return options.model or f"{HUB}{options.hf_repo}", draft
