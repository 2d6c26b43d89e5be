"""All scenarios: pairs of models, contestants, conditions and bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks import (
    clients,
    engine,
    footsteps,
    gpu,
    models,
    sampling,
    servers,
    soak,
    spec_bench,
    two_devices,
    verdicts,
)
from benchmarks.contestants import ALONE, Setup, commands, duo, flash_attention, patched, plain_program
from benchmarks.ratios import DISTINCT
from benchmarks.runner import Bar, Comparison, Outcome, Scenario, note
from duo.bench.contestants import SPECULATIVE, Program
from duo.bench.rounds import Contestant, distinct_share
from duo.engine.cores import allowed_cores, usable_cores
from duo.errors import DuoError
from duo.speculation.modes import Schedule

SMOLLM2 = ("smollm2-f16", "smollm2-f32")
TINYLLAMA = ("tinyllama-f16", "tinyllama-f32")
DRAFT = f"-md {{draft}} {ALONE}"  # what is compared is the draft
ONE_EACH = f"{DRAFT} -t 1 -td 1"
OFF = "duo, lookup off"
LEAD, NOTHING = "lead and back", "nothing prepared, 20 ms"
WITH_HEAD, IN_TURNS = "duo with the head", "llama-speculative-simple"
FIRST, FOURTH, FORCED = "duo, first run", "duo, fourth run", "forced "
COLD, WARM, SYNC = "with the draft, first run", "with the draft, later runs", "with the draft, sync"
_N_EARLIER = 3  # texts before the fourth run
# Over the best schedule, which is chosen on the same rounds.
BARS = (Bar(FIRST, FORCED, 0.93), Bar(FOURTH, FORCED, 0.97))

_RANDOM_DRAFT = """
import random
from duo.engine import scheduler
from duo.speculation.types import Candidate
class Random:
    n_recent = 0
    dice = random.Random(1)
    def candidate(self, logits, position, recent=()):
        return Candidate(self.dice.randrange(len(logits)), self.dice.uniform(0, 8))
    judge = candidate
choosing = scheduler.choosing
scheduler.choosing = lambda *arguments: (choosing(*arguments)[0], Random())
"""


# As many candidates as --draft, at each step: as llama.cpp's programs.
_FIXED_DEPTH = """
from benchmarks.two_devices import FixedLength
from duo.speculation.controller import Controller
Controller.plan = FixedLength.plan
"""


def of(options: Mapping[str, str]) -> Callable[[Setup], list[Contestant]]:
    return lambda setup: commands(setup, options)


def _separate_cores(setup: Setup) -> list[Contestant]:
    """Target and draft on separate cores, and other modes on the same cores."""
    cores, n = sorted(allowed_cores()), usable_cores()
    if n < 2 or cores != list(range(cores[0], cores[0] + n)):
        raise DuoError("separate-cores needs consecutive cores, one hardware thread each: select them with taskset -c")
    own, last, both = f"{cores[0]}-{cores[-2]}", f"{cores[-1]}-{cores[-1]}", f"{cores[0]}-{cores[-1]}"
    options = {
        f"plain on cores {both}": f"{ALONE} -t {n} -Cr {both}",
        f"plain on {own}": f"{ALONE} -t {n - 1} -Cr {own}",
        f"sync on {both}": f"{DRAFT} -t {n} -td {n} --schedule sync -Cr {both}",
        f"async, target on {own}, draft on {last}":
            f"{DRAFT} -t {n - 1} -td 1 --schedule async -Cr {own} -Crd {last}",
    }  # fmt: skip
    return commands(setup, options)


def _link(setup: Setup) -> list[Contestant]:
    """Leads and draft workers on a core each, llama.cpp's program on both cores."""
    first, last = servers.pinned(setup)
    found = [*commands(first, {"plain": f"{ALONE} -t 1"}), *commands(setup, {"draft in a thread": ONE_EACH})]
    found.append(servers.client("lead alone", servers.lead(first, *ALONE.split())))
    for delay_ms, more in ((0, ""), (5, ""), (20, ""), (20, "--branches 0")):
        lead = servers.lead(first, *f"{ALONE} {more}".split())
        relay = setup.stack.enter_context(servers.Relay(lead.port, delay_ms / 1000))
        setup.stack.enter_context(servers.back(last, relay.port if delay_ms else lead.port))
        servers.wait_until(lambda: lead.metric("duo:workers_connected") == 1, lead)  # noqa: B023
        found.append(servers.client(NOTHING if more else f"{LEAD}, {delay_ms} ms", lead))
    if (setup.peers / SPECULATIVE).exists():
        for n in (1, 2, 3, 4, 6, 8):
            options = f"-md {{draft}} --spec-type draft-simple --spec-draft-n-max {n} --spec-draft-p-min 0".split()
            found.append(Contestant(f"{IN_TURNS} n={n}", Program(SPECULATIVE, setup.program(SPECULATIVE), 2, options)))
    return found


def _rpc(setup: Setup) -> list[Contestant]:
    server = f"--rpc 127.0.0.1:{setup.stack.enter_context(servers.rpc_server(setup)).port}"
    options = {"plain": f"{ALONE} -t 1", "draft in a thread": ONE_EACH, "draft on RPC": f"{ONE_EACH} {server}",
               "target on RPC": f"{ALONE} -t 1 {server}"}  # fmt: skip
    return commands(setup, options)


def _hostile(setup: Setup) -> list[Contestant]:
    return [duo(setup, "plain", ALONE), duo(setup, "random draft", DRAFT, patched(_RANDOM_DRAFT))]


def _heads(setup: Setup) -> list[Contestant]:
    """duo with a head, as a user's texts would follow each other, and llama.cpp with fixed numbers of candidates."""
    found = [duo(setup, OFF, ALONE), duo(setup, WITH_HEAD, DRAFT)]
    found.append(plain_program(setup, "llama-completion", usable_cores(), "-fa", flash_attention(setup.target)))
    for n in (1, 2, 3, 4, 6):
        more = [
            "-md",
            "{draft}",
            "--spec-type",
            "draft-eagle3",
            "--spec-draft-n-max",
            str(n),
            "-fa",
            flash_attention(setup.target),
        ]
        program = Program(SPECULATIVE, setup.program(SPECULATIVE), usable_cores(), more)
        found.append(Contestant(f"{IN_TURNS} n={n}", program))
        fixed = f"{DRAFT} --no-profile --schedule sync --draft {n}"
        found.append(duo(setup, f"duo, fixed n={n}", fixed, patched(_FIXED_DEPTH)))
    return found


def _translated(setup: Setup) -> list[Contestant]:
    found = commands(setup, {OFF: ALONE, COLD: f"{DRAFT} --no-profile", WARM: DRAFT,
                             SYNC: f"{DRAFT} --no-profile --schedule sync"})  # fmt: skip
    for file in setup.prompt_files[-2:]:  # from which the later runs have learned
        setup.write(found[2], file)
    return found


def _fastest(setup: Setup) -> list[Contestant]:
    """duo without a profile, with one from three other texts, and with each schedule."""
    forced = {FORCED + name.value: f"{DRAFT} --no-profile --schedule {name.value}" for name in Schedule}
    fourth = duo(setup, FOURTH, f"-md {{draft}} {ALONE}")
    for file in setup.prompt_files[-_N_EARLIER:]:
        setup.write(fourth, file)
    return [duo(setup, FIRST, f"-md {{draft}} {ALONE} --no-profile"), fourth, *commands(setup, forced)]


class Fastest(Comparison):
    """Whether duo finds the fastest schedule: all kinds of speculation are fast on texts that repeat themselves.

    These end by themselves, after prompts whose texts do not repeat themselves, at most eight of them.
    """

    def run(self, setup: Setup) -> Outcome:
        setup = replace(setup, may_end=True)
        alone, files = duo(setup, "", f"{ALONE} --schedule off --no-profile"), []
        for file in setup.prompt_files:
            try:
                run = setup.write(alone, file)
            except DuoError as error:  # the text is too short
                note(f"{file.stem}: {error}")
                continue
            share = distinct_share(run.text)
            note(f"{file.stem}: {100 * share:.0f} % distinct, {run.tokens} tokens")
            if share >= DISTINCT and (run.tokens or 0) >= setup.n_tokens / 2:
                files.append(file)
        if not files:
            raise DuoError("each text repeats itself or is too short")
        return Comparison.run(self, replace(setup, prompt_files=files[: 8 + _N_EARLIER]))


SCENARIOS: dict[str, Scenario] = {
    "fastest": Fastest(
        "A first run and a fourth one, and each schedule forced, on texts that do not repeat themselves",
        (*SMOLLM2, *TINYLLAMA), 8, 128, contestants=_fastest, baseline=FORCED + "off",
        bars=BARS,
    ),
    "spec-bench": spec_bench.SpecBench(
        "duo and llama.cpp's programs with many settings on --questions FILE, per category",
        (*SMOLLM2, *TINYLLAMA), n_rounds=1,
    ),
    "first-token": Comparison(
        "The time to the first token with a draft and without; --prompts benchmarks/prompts/lengths/*.txt", n_rounds=20,
        n_tokens=8, contestants=of({"target alone": ALONE, "with a draft": "-md {draft} --no-profile"}),
        baseline="target alone", bars=[Bar("with a draft", "target alone", most=1.05, figure="first_token_s")],
        columns=("decode t/s", "first token s"),
    ),
    "separate-cores": Comparison(
        "Target and draft on separate cores, and sequential and plain decoding on the same cores",
        (*SMOLLM2, *TINYLLAMA), 8, contestants=_separate_cores, baseline="plain on cores",
    ),
    "translated": Comparison(
        "A draft with another vocabulary",
        ("tinyllama-f16-smollm2", "tinyllama-f32-smollm2"), 16, 128, contestants=_translated,
        baseline=OFF, bars=[Bar(COLD, OFF, 0.97)],
        columns=("decode t/s", "speed-up", "accept %", "text as plain", "first_accept_rate", "over_forecast"),
    ),
    "heads": Comparison(
        "An EAGLE-3 head (--models TARGET HEAD), and llama.cpp with fixed numbers of its candidates", n_tokens=128,
        n_rounds=8, contestants=_heads, baseline=OFF,
        columns=("decode t/s", "speed-up", "accept %", "text as plain", "first_accept_rate"),
        bars=[Bar(WITH_HEAD, IN_TURNS, 0.97), Bar(WITH_HEAD, OFF, 0.97)],
    ),
    "link": Comparison(
        "A remote draft on this machine, also with delays of 5 and 20 ms each way, with a core for each model",
        ("inflated-f32-far",), 8, 96, contestants=_link, baseline="plain",
        columns=("decode t/s", "speed-up", "accept %", "text as plain", "longest_gap_s"),
        bars=(
            Bar(f"{LEAD}, 0 ms", "draft in a thread", 0.93), Bar("lead alone", "plain", 0.97),
            Bar(f"{LEAD}, 0 ms", "lead alone", 1.0), Bar(f"{LEAD}, 5 ms", "lead alone", 1.0),
            Bar(f"{LEAD}, 20 ms", "lead alone", 1.0), Bar(f"{LEAD}, 0 ms", IN_TURNS, 1.0),
            Bar(f"{LEAD}, 20 ms", NOTHING, 0.99),  # 1.05 if two sequences cost the draft at most 1.25 of one
        ),
    ),
    "verdicts": verdicts.Verdicts(
        "The time from a target's decode that rejects a candidate to a remote draft's next decode, on a core each",
        n_rounds=4, n_tokens=96,
    ),
    "rpc": Comparison(
        "Drafts and targets on an RPC server of this machine, with one thread for each model", SMOLLM2, 40,
        contestants=_rpc, baseline="plain", bars=[Bar("draft on RPC", "draft in a thread", 0.85)],
    ),
    "hostile": Comparison(
        "A draft of random tokens with random confidences, and plain decoding", n_rounds=40, contestants=_hostile,
        baseline="plain", bars=[Bar("random draft", "plain", 0.97)],
    ),
    "sampling": sampling.Sampling(
        "Acceptance and speed by temperature and verification method, and the cost of sampling",
        n_rounds=40, n_tokens=128,
    ),
    "engine": engine.EngineCost(
        "Memory over -r loads, and processor time of Python per step over -n tokens", n_rounds=100, n_tokens=6000
    ),
    "footsteps": footsteps.Footsteps(
        "Files of duo in which a function is entered: for a token on the terminal, and for a lead's first event",
        n_rounds=3,
    ),
    "clients": clients.Clients(
        "A lead, and llama-server with a slot for each, with one, two and four clients at once", n_tokens=128
    ),
    "soak": soak.Soak(
        "A lead under load, its page open; in each of -r rounds of 3 s, a back is killed, stopped, slowed or restarted",
        n_rounds=200,
    ),
    "crowd": soak.Soak(
        "The same with 32 clients, whose texts are written together, and a queue of 64", n_rounds=200,
        n_clients=32, is_exact=False,
    ),
    "two-devices": two_devices.TwoDevices(
        "Target and draft on emulated hardware of their own, in every schedule", ("smollm2-f32",),
        n_rounds=3, n_tokens=64,
    ),
    "gpu": gpu.Placements(
        "Placements of target and draft on CPU and GPU", models.ON_A_CARD, 16, 96,
        contestants=gpu.contestants, baseline=gpu.CPU, bars=gpu.BARS,
    ),
}  # fmt: skip
