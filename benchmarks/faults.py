"""Faults of an RPC server: the longest pause in a text, and the time until a run fails."""

from __future__ import annotations

import signal
import time
from functools import partial

from benchmarks import servers
from benchmarks.contestants import Setup
from benchmarks.engine import resident_bytes
from benchmarks.measure import Outcome, Scenario, Verdict, note
from duo.bench.process import Child
from duo.bench.statistics import Range

_PROMPT = "Once upon a time"
_WEIGHTS = 20_000_000  # bytes on the server, when the upload of weights has started but not finished
_WRITTEN = 100  # characters of text before the fault
_MOST_GAP_S, _MOST_END_S = 1.0, 10.0
_SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


class Faults(Scenario):
    """Injects each fault once."""

    def run(self, setup: Setup) -> Outcome:
        verdicts = []
        for what, number in _SIGNALS.items():
            gap = _gap_s(setup, number)
            verdicts.append(
                Verdict(f"draft's server {what}: longest pause, s", Range(gap, None, None), most=_MOST_GAP_S)
            )
            for phase in ("loading", "generating"):
                name = f"target's server {what} while {phase}: end after, s"
                verdicts.append(Verdict(name, Range(_end_s(setup, number, phase), None, None), most=_MOST_END_S))
                note(str(verdicts[-1]))
        return Outcome([], {}, verdicts)


def _gap_s(setup: Setup, number: signal.Signals) -> float:
    """The longest pause in a text whose draft server is killed or stopped at half of the text."""
    with servers.rpc_server(setup) as rpc:
        lead = servers.lead(setup, "-md", setup.draft, "--schedule", "async", "--rpc", f"127.0.0.1:{rpc.port}")
        lead.wait_for_drafts(1)
        with lead:
            return servers.stream(lead, _PROMPT, setup.n_tokens, partial(rpc.send, number)).longest_gap_s


def _end_s(setup: Setup, number: signal.Signals, phase: str) -> float:
    """Seconds from the fault of the target's server until the run exits."""
    options = ["-p", _PROMPT, "-n", str(setup.n_tokens), "--ignore-eos", "-ngl", "99", "--no-profile"]
    with servers.rpc_server(setup) as rpc:
        before, address = resident_bytes(str(rpc.pid)), f"127.0.0.1:{rpc.port}"
        with Child([*setup.duo, "-m", str(setup.target), *options, "--rpc", address]) as run:
            if phase == "loading":
                servers.wait_until(lambda: resident_bytes(str(rpc.pid)) - before > _WEIGHTS, run)
            else:
                servers.wait_until(lambda: len(run.stdout) > _WRITTEN, run)
            struck = time.monotonic()
            rpc.send(number)
            cost = run.wait()
            assert cost.status == 1, cost.stderr
            return time.monotonic() - struck
