"""Measures what a dead or stalled RPC server costs: the longest gap in a text, and the time until a run gives up.

python -m benchmarks.faults
"""

from __future__ import annotations

import argparse
import signal
import time
from itertools import pairwise
from pathlib import Path

from duo.models.demo import demo_pair
from tests.relay import Relay
from tests.serving import LeadProcess, RpcServer, Served

N_TOKENS = 600
WEIGHTS = 20_000_000  # bytes that have passed while there are more to come
MOST_GAP_S, MOST_END_S = 1.0, 10.0
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


def gap(target: Path, draft: Path, number: signal.Signals) -> float:
    """The longest pause in a streamed text, seconds, when the draft's server dies or stalls in it and comes back."""
    with (
        RpcServer() as server,
        LeadProcess(target, "-md", draft, "--schedule", "async", "--rpc", server.name) as lead,
    ):
        lead.wait_for("has joined")
        text = lead.stream("Once upon a time", N_TOKENS)
        text.wait_for_pieces(50)
        server.send_all(number)
        lead.wait_for("the target goes on alone")
        text.finish()
    return float(max(b - a for a, b in pairwise(text.times)))


def end(target: Path, number: signal.Signals, phase: str) -> float:
    """Seconds from the fault of the target's server until the run has ended."""
    struck: list[float] = []

    def strike() -> None:
        struck.append(time.monotonic())
        server.send_all(number)

    options = ("-m", target, "-p", "Once upon a time", "-n", str(N_TOKENS), "--ignore-eos", "-ngl", "99", "--rpc")
    n_bytes = WEIGHTS if phase == "loading" else 0
    with (
        RpcServer() as server,
        Relay(server.port, n_bytes, strike) as relay,
        Served(*options, relay.name) as run,
    ):
        if phase == "generating":
            while len(run.stdout) < 200:
                time.sleep(0.01)
            strike()
        assert run.finish() == 1, run.lines
        return time.monotonic() - struck[0]


def main() -> None:
    argparse.ArgumentParser("faults", description=(__doc__ or "").partition("\n")[0]).parse_args()
    target, draft = demo_pair()
    for what, number in SIGNALS.items():
        print(f"draft's server {what}: longest gap {gap(target, draft, number):.2f} s, at most {MOST_GAP_S:g}")
        for phase in ("loading", "generating"):
            seconds = end(target, number, phase)
            print(f"target's server {what} while {phase}: ended after {seconds:.2f} s, at most {MOST_END_S:g}")


if __name__ == "__main__":
    main()
