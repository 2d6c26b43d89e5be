"""All scenarios: pairs of models, contestants, conditions and bars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from benchmarks import (
    attacks,
    engine,
    fastest,
    faults,
    first_run,
    floor,
    page,
    sampling,
    servers,
    soak,
    sources,
    stopwatch,
    tracing,
    tune_busy,
    two_devices,
)
from benchmarks.contestants import ALONE, N_CTX, Setup, duo, ngrams, patched, plain_program, speculative
from benchmarks.measure import Bar, BenchTable, Call, Comparison, Scenario
from benchmarks.servers import Client, StreamedRun
from duo.bench.contestant import Contestant, Run
from duo.bench.peers import PROGRAMS, SPECULATIVE
from duo.bench.relay import Relay
from duo.config import ContextConfig, ModelConfig
from duo.engine.cores import allowed_cores, usable_cores
from duo.errors import DuoError
from duo.llama.devices import gpus
from duo.llama.model_size import model_size

SMOLLM2 = ("smollm2-f16", "smollm2-f32")
TINYLLAMA = ("tinyllama-f16", "tinyllama-f32")
ALL = (*SMOLLM2, *TINYLLAMA, "tinyllama-f16-stories")
PLAIN_1, PLAIN_2 = "llama-completion -t 1", "llama-completion -t 2"
DRAFT = f"-md {{draft}} {ALONE}"  # what is compared is the draft
ONE_EACH = f"{DRAFT} -t 1 -td 1"


_LEAST_OVER_PROGRAMS = {
    "smollm2-f16": 1.02,
    "smollm2-f32": 1.05,
    "tinyllama-f16": 1.15,
    "tinyllama-f32": 1.25,
    "tinyllama-f16-stories": 1.10,
    "tinyllama-f16-stories-on-code": 0.97,
}
_LEAST_ONE_CORE = {"smollm2-f32": (1.65, 1.45), "tinyllama-f32": (1.9, 2.0)}  # over programs that draft, and over plain

_RANDOM_DRAFT = """
import random
from duo.engine import slot
from duo.spec.types import Guess
class Random:
    n_recent = 0
    dice = random.Random(1)
    def guess(self, logits, position, recent=()):
        return Guess(self.dice.randrange(len(logits)), self.dice.uniform(0, 8))
    judge = guess
choosing = slot.choosing
slot.choosing = lambda *arguments: (choosing(*arguments)[0], Random())
"""

# The draft process computes locally: this isolates the cost of the process and its link from that of RPC.
_NO_SERVER = """
from dataclasses import replace
from duo.link import process
plan = process.DraftPlan
process.DraftPlan = lambda url, model, context: plan(url, replace(model, rpc_servers=()), context)
"""


def _programs(setup: Setup) -> list[Contestant]:
    plain = [plain_program(setup, name, n) for name in ("llama-completion", "llama-cli") for n in (1, 2)]
    own = [duo(setup, "duo plain", f"{ALONE} -t 1"), duo(setup, "duo 1+1", ONE_EACH)]
    return [*own, *plain, *speculative(setup, p_mins=(0.0,))]


def _program_bars(setup: Setup) -> Sequence[Bar]:
    configs = [ModelConfig(path) for path in (setup.target, setup.draft)]
    caches = sum(sum(model_size(config).cache_bytes(ContextConfig(N_CTX, 1, 1))) for config in configs)
    most_mb = (sum(config.path.stat().st_size for config in configs) + caches) / 1e6 + 250
    return (
        Bar("duo plain", PLAIN_1, 0.97),
        Bar("duo 1+1", PLAIN_1, 1.08),
        Bar("duo 1+1", PLAIN_2, 0.82),
        Bar("duo 1+1", SPECULATIVE, 1.30),
        Bar("duo 1+1", most=most_mb, figure=_peak_mb, what="peak memory in MB (at most files, caches and 250)"),
        Bar("duo 1+1", most=1.5, figure=attrgetter("startup_s"), what="seconds without the generation"),
    )


def _peak_mb(run: Run) -> float | None:
    return None if run.peak_bytes is None else run.peak_bytes / 1e6


def _accuracy(run: Run) -> float | None:
    return run.tokens_per_s / run.predicted_tokens_per_s if run.predicted_tokens_per_s else None


_FORECAST = Bar("duo", least=0.85, most=1.15, figure=_accuracy, what="measured over forecast rate")


def _all_programs(setup: Setup) -> list[Contestant]:
    return [*(plain_program(setup, "llama-completion", n) for n in (1, 2)), *speculative(setup)]


def _separate_cores(setup: Setup) -> list[Contestant]:
    """Target and draft on separate cores, and other modes on the same cores."""
    cores, n = sorted(allowed_cores()), usable_cores()
    if n < 2 or cores != list(range(cores[0], cores[0] + n)):
        raise DuoError("separate-cores needs consecutive cores, one hardware thread each: select them with taskset -c")
    own, last, both = f"{cores[0]}-{cores[-2]}", f"{cores[-1]}-{cores[-1]}", f"{cores[0]}-{cores[-1]}"
    return [
        duo(setup, f"plain on cores {both}", f"{ALONE} -t {n} -Cr {both}"),
        duo(setup, f"plain on {own}", f"{ALONE} -t {n - 1} -Cr {own}"),
        duo(setup, f"sync on {both}", f"{DRAFT} -t {n} -td {n} --schedule sync -Cr {both}"),
        duo(setup, f"async, target on {own}, draft on {last}",
            f"{DRAFT} -t {n - 1} -td 1 --schedule async -Cr {own} -Crd {last}"),
    ]  # fmt: skip


def _link(setup: Setup) -> list[Contestant]:
    alone, near, far = (servers.lead(setup, *ALONE.split()) for _ in range(3))
    relay = setup.stack.enter_context(Relay(far.port, delay_s=0.01))
    for lead, port in ((near, near.port), (far, relay.port)):
        setup.stack.enter_context(servers.back(setup, port))
        lead.wait_for_drafts(1)
    clients = {"lead alone": alone, "lead and back, loopback": near, "lead and back, 10 ms each way": far}
    return [
        duo(setup, "plain", f"{ALONE} -t 1"),
        duo(setup, "draft in a thread", ONE_EACH),
        *(Contestant(name, Client(lead)) for name, lead in clients.items()),
    ]


def _backs(setup: Setup) -> list[Contestant]:
    alone, helped = (servers.lead(setup, *ALONE.split()) for _ in range(2))
    setup.stack.enter_context(servers.back(setup, helped.port))
    helped.wait_for_drafts(1)
    return [
        Contestant("no back", Client(alone)),
        Contestant("back from the start", Client(helped)),
        Contestant("back that connects midway", Client(alone, partial(servers.connecting_back, setup, alone))),
        Contestant("back that is killed midway", Client(alone, partial(servers.dying_back, setup, alone))),
    ]


def _rpc(setup: Setup) -> list[Contestant]:
    server = f"--rpc 127.0.0.1:{setup.stack.enter_context(servers.rpc_server(setup)).port}"
    return [
        duo(setup, "plain", f"{ALONE} -t 1"),
        duo(setup, "draft in a thread", ONE_EACH),
        duo(setup, "draft in a supervised process", f"{ONE_EACH} {server}", patched(_NO_SERVER)),
        duo(setup, "draft on RPC", f"{ONE_EACH} {server}"),
        duo(setup, "target on RPC", f"{ALONE} -t 1 {server}"),
    ]


def _hostile(setup: Setup) -> list[Contestant]:
    return [duo(setup, "plain", ALONE), duo(setup, "random draft", DRAFT, patched(_RANDOM_DRAFT))]


def _placements(setup: Setup) -> list[Call]:
    """The target on the CPU, or split between CPU and GPU, with the draft on either."""
    blank = None if gpus() else "no GPU available"
    n_layers = str(len(model_size(ModelConfig(setup.target)).layers) // 2)
    return [
        Call("CPU only", ("plain", "auto", "remote"), ("-ngl", "0", "-ngld", "0")),
        Call("draft on the GPU", ("plain", "auto"), ("-ngl", "0", "-ngld", "all"), blank=blank),
        Call("split: half of the target's layers and the draft on the GPU", ("plain", "auto"),
             ("-ngl", n_layers, "-ngld", "all"), blank=blank),
    ]  # fmt: skip


RATES = ("threads", "decode t/s", "speed-up", "accept %")
MODES = ("plain", "sync", "async", "auto")

SCENARIOS: dict[str, Scenario] = {
    "schedules": BenchTable(
        "Sequential and concurrent drafting, with at most 2, 4 or 8 candidates or an automatic limit", ALL,
        calls=lambda _: [Call("", MODES[:3], ("--draft", "2,4,8,auto"))], columns=(*RATES, "tokens/decode", "hidden %"),
    ),
    "separate-cores": Comparison(
        "Target and draft on separate cores, and sequential and plain decoding on the same cores", ALL, 8,
        contestants=_separate_cores, baseline="plain on cores",
    ),
    "latency": BenchTable(
        "Milliseconds per token, per decode of the target and per drafted token", ALL,
        calls=lambda _: [Call("", MODES)], columns=("ms/token", "speed-up", "target ms", "draft ms", "first token s"),
    ),
    "placement": BenchTable(
        "The models on the CPU, split with a GPU, and the draft in a separate process", ALL, calls=_placements,
        columns=RATES,
    ),
    "peers": BenchTable(
        "duo's modes and llama.cpp's programs", ALL, calls=lambda _: [Call("", MODES, programs=PROGRAMS)],
        columns=(*RATES, "text as plain"), needs_programs=True,
    ),
    "compare": Comparison(
        "duo and every program of llama.cpp, with one and two threads", n_rounds=40, needs_programs=True,
        contestants=_programs, baseline=PLAIN_1, bars=_program_bars,
        figures={"peak MB": _peak_mb, "startup s": attrgetter("startup_s")},
    ),
    "pairs": Comparison(
        "duo without options, and the two fastest of llama.cpp's programs", tuple(_LEAST_OVER_PROGRAMS), 40, 128,
        needs_programs=True, contestants=lambda setup: [duo(setup, "duo", "-md {draft}")], screen=_all_programs,
        baseline="llama-", bars=lambda setup: (Bar("duo", "llama-", _LEAST_OVER_PROGRAMS[setup.pair]), _FORECAST),
    ),
    "first-run": Comparison(
        "A first run, later ones, each schedule forced, and the two fastest of llama.cpp's programs", ALL, 8, 128,
        needs_programs=True, contestants=first_run.contestants, screen=_all_programs, baseline=first_run.FORCED + "off",
        bars=first_run.bars,
    ),
    "fastest": fastest.Fastest(
        "A first run and a fourth one, and each schedule forced, on texts that do not repeat themselves",
        (*SMOLLM2, *TINYLLAMA), 8, 128, contestants=fastest.contestants, baseline=fastest.FORCED + "off",
        bars=fastest.bars,
    ),
    "fastest-peers": fastest.Fastest(
        "A first run and a fourth one with all defaults, and llama.cpp's programs with many settings",
        (*SMOLLM2, *TINYLLAMA), 8, 128, needs_programs=True, contestants=fastest.over_peers, bars=fastest.peer_bars,
    ),
    "verdicts": fastest.Verdicts(
        "Gains that duo states, and real ones", ("smollm2-f16", "smollm2-f32"), 15, 128, contestants=fastest.stating,
        baseline=fastest.FORCED,
    ),
    **{f"busy-{n}": fastest.Busy(
        f"Beside {n} busy loops: without options, and with fixed threads", ("smollm2-f32",), 5, 128, n_loops=n,
        contestants=fastest.beside_loops, bars=fastest.busy_bars,
    ) for n in range(3)},
    "first-token": Comparison(
        "The time to the first token with a draft and without; --prompts benchmarks/prompts/lengths/*.txt", n_rounds=20,
        n_tokens=8, contestants=first_run.first_token, baseline=first_run.ALONE, bars=first_run.first_token_bars,
        columns=("decode t/s", "first token s"),
    ),
    "lookup": Comparison(
        "Candidates from the text itself where texts repeat their prompts, and the two fastest of llama.cpp's methods",
        ("smollm2-f16-repeat", "tinyllama-f16-repeat"), 40, 128, needs_programs=True, contestants=sources.lookup,
        screen=ngrams, baseline=sources.PLAIN, bars=sources.lookup_bars,
    ),
    "lookup-prose": Comparison(
        "Candidates from the text itself where texts repeat little of their prompts", ("smollm2-f16", "tinyllama-f16"),
        40, 128, contestants=sources.prose, baseline=sources.PLAIN, bars=sources.prose_bars,
    ),
    "translated": Comparison(
        "A draft with another vocabulary", ("tinyllama-f16-smollm2", "tinyllama-f32-smollm2", "smollm2-f32-stories"),
        16, 128, contestants=sources.translated, baseline=sources.PLAIN, bars=sources.translated_bars,
        figures=sources.FIGURES,
    ),
    "both": Comparison(
        "A draft model, the text itself, and both, where half of the texts repeat their prompts",
        ("tinyllama-f16-mixed",), 32, 128, contestants=sources.both, baseline=sources.PLAIN, bars=sources.both_bars,
    ),
    "one-core": Comparison(
        "One core for each model, and the fastest programs with the same threads", tuple(_LEAST_ONE_CORE), 40, 128,
        needs_programs=True, screen=lambda setup: speculative(setup, threads=("1+1",)), baseline=PLAIN_1,
        contestants=lambda setup: [plain_program(setup, "llama-completion", 1), duo(setup, "duo", ONE_EACH)],
        bars=lambda setup: [
            *(Bar("duo", *bar) for bar in zip((SPECULATIVE, PLAIN_1), _LEAST_ONE_CORE[setup.pair], strict=True)),
            _FORECAST,
        ],
    ),
    "backs": Comparison(
        "A lead without a remote draft, with one, with one that connects and with one that is killed midway", ALL,
        contestants=_backs, baseline="no back", columns=("decode t/s", "text as plain"),
        bars=lambda _: [Bar("back that conn", "back from", 0.95, figure=attrgetter("second_half"), what="second half")],
        figures={"first half t/s": attrgetter("first_half"), "second half t/s": attrgetter("second_half")},
    ),
    "link": Comparison(
        "A remote draft on this machine, and one in a thread, with one thread for each model", SMOLLM2, 40,
        contestants=_link, baseline="plain",
        figures={"longest pause ms": lambda run: 1000 * run.longest_gap_s if isinstance(run, StreamedRun) else None},
        bars=lambda _: (
            Bar("lead and back, loopback", "draft in a thread", 0.93),
            Bar("lead and back, 10 ms", "lead alone", 1.10),
            Bar("lead alone", "plain", 0.97),
        ),
    ),
    "rpc": Comparison(
        "Drafts and targets on an RPC server of this machine, with one thread for each model", SMOLLM2, 40,
        contestants=_rpc, baseline="plain",
        bars=lambda _: (
            Bar("draft on RPC", "draft in a thread", 0.85), Bar("draft in a supervised", "draft in a thread", 0.95),
        ),
    ),
    "hostile": Comparison(
        "A draft of random tokens with random confidences, and plain decoding", n_rounds=40, contestants=_hostile,
        baseline="plain", bars=lambda _: [Bar("random draft", "plain", 0.97)],
    ),
    "sampling": sampling.Sampling(
        "Acceptance and speed by temperature and verification method, and the cost of sampling",
        n_rounds=40, n_tokens=128,
    ),
    "stopwatch": Comparison(
        "`duo bench` and wall times of processes", n_rounds=8, needs_programs=True,
        contestants=stopwatch.contestants, baseline=stopwatch.PEER, bars=lambda _: stopwatch.BARS,
        columns=("decode t/s", "speed-up"),
    ),
    "floor": Comparison(
        "The target alone: duo, a bare loop and llama-completion", n_rounds=20, n_tokens=128, needs_programs=True,
        contestants=floor.contestants, baseline=floor.LOOP, bars=floor.bars, figures=floor.FIGURES,
        columns=("decode t/s", "speed-up", "text as plain"),
    ),
    "tracing": Comparison(
        "The overhead of --trace", n_rounds=40, n_tokens=64, contestants=tracing.contestants, baseline="plain, not",
        bars=lambda _: [Bar(f"{mode}, traced", f"{mode}, not", 0.99) for mode in tracing.MODES],
        columns=("decode t/s",),
    ),
    "page": Comparison(
        "A text of a lead while the page is open in Chromium, while its events are subscribed, and without",
        n_rounds=40, contestants=page.contestants, baseline=page.WITHOUT, bars=lambda _: page.BARS,
        columns=("decode t/s", "speed-up", "text as plain"),
    ),
    "engine": engine.EngineCost(
        "Memory over -r loads, and processor time of Python per step over -n tokens", n_rounds=100, n_tokens=6000
    ),
    "faults": faults.Faults("Pauses and failures after an RPC server is killed or stopped", n_tokens=600),
    "soak": soak.Soak(
        "A lead under load, its page open; in each of -r rounds of 3 s, a back is killed, stopped, slowed or restarted",
        n_rounds=200,
    ),
    "tune-busy": tune_busy.TuneBusy(
        "`duo tune` and runs of `duo`, alternately on an idle machine and beside four busy loops for each core",
        ("smollm2-f16", "smollm2-f32", "tinyllama-f16"), n_rounds=20, n_tokens=16,
    ),
    "two-devices": two_devices.TwoDevices(
        "Target and draft on emulated hardware of their own, in every schedule", ("smollm2-f32",),
        n_rounds=3, n_tokens=64,
    ),
    "attacks": attacks.Attacks("The longest /health of a lead while one client does its worst", n_rounds=1,
                               n_tokens=2000),
}  # fmt: skip
