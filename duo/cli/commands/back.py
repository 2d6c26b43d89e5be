"""`duo back`: a draft worker."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from duo.cli.commands.options import BackOptions
from duo.cli.load import check_gpu, check_servers, load_interruptibly
from duo.cli.options import back_token, named
from duo.cli.terminal.console import note, progress_bar, send_log
from duo.cli.terminal.interrupts import on_interrupt
from duo.config import AUTO_DRAFT, DEMO, ModelConfig
from duo.engine.cores import CoresInUse, check_threads, follows_cores, plan_threads
from duo.engine.stream import background
from duo.llama.build import end_with_stdin
from duo.llama.gguf_header import GgufHeader, check_not_head
from duo.llama.model import Model
from duo.loading import in_background, load_model
from duo.models.demo import demo_pair
from duo.models.hub import check_gguf, find_model
from duo.remote.process import BATCH, WorkerPlan, draft_workers, run_all


def back(options: BackOptions) -> int:
    """Draft for the lead until SIGINT or SIGTERM. Returns the exit status. Raises DuoError."""
    if options.until_eof:
        end_with_stdin()
    send_log(options)
    token = back_token(options.token, options.token_file, "--token")
    config = replace(options.engine, n_ubatch=BATCH)
    threads = plan_threads(config, drafting=False)
    check_threads(threads, concurrent=False)
    model, vocabulary = _model_config(options), options.vocab and check_gguf(options.vocab)
    spare = config.context(2 * AUTO_DRAFT, threads.target, threads.target_batch, 1)
    plan = WorkerPlan(options.lead, model, spare, vocabulary, config.warmup, config.n_ctx, options.n_texts)
    cores = CoresInUse() if follows_cores(config) else None
    with draft_workers(plan, token, _load, cores) as workers:
        note(f"{model.path.stem} drafts for {options.lead} (Ctrl-C to stop)")

        def run(_put: Callable[[None], None], _stop: object) -> None:
            run_all(workers)

        def stop() -> None:
            for worker in workers:
                worker.stop()

        with on_interrupt(stop), background(run, "duo-back") as running:
            list(running)  # until it has ended
    return 0


def _load(config: ModelConfig) -> Model:
    check_not_head(GgufHeader(config.path))
    return load_interruptibly(lambda show: in_background(partial(load_model, config), show))


def _model_config(options: BackOptions) -> ModelConfig:
    """The draft that the options name, by default that of the demo pair. Raises DuoError."""
    engine, name = options.engine, named(options.model, options.hf_repo, "-m and -hf", "draft")
    if name and name != Path(DEMO):
        path = find_model(name, offline=engine.offline)
    else:
        with progress_bar(unit_bytes=True) as bar:
            _, path = demo_pair(bar, offline=engine.offline)
        why = "" if name else "no model given (-m, -hf): "
        note(f"{why}using the draft of the demo pair, SmolLM2-135M-Instruct in Q4_0")
    check_servers(engine)
    check_gpu(engine, has_draft=False)
    config = engine.target_model(path, has_draft=False)
    for part in config.shards:
        check_gguf(part)
    return replace(config, uses_gpus=not config.rpc_servers, heads=False)
