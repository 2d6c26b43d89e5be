"""Keeps a lead busy with clients of many kinds while its backs are killed: is every request answered, and right?

python -m benchmarks.soak [--seconds N]; README.md has the protocol.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from benchmarks.measure import git_commit
from benchmarks.options import PROMPTS
from duo.bench.facts import hardware
from duo.models.demo import demo_pair
from tests.serving import PATIENCE_S, BackProcess, LeadProcess

N_CLIENTS = 4
N_TOKENS = (1, 16, 48, 96)
KILL_EVERY_S = 5.0
_BLOWS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)


@dataclass(slots=True)
class Tally:
    """What happened; the lock protects it."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, problem: str | None = None) -> None:
        with self.lock:
            self.counts[kind] += 1
            if problem is not None:
                self.wrong.append(f"{kind}: {problem}")


def client(seed: int, lead: LeadProcess, texts: dict[tuple[str, int], str], end: float, tally: Tally) -> None:
    """Ask again and again, each time in another way."""
    dice = random.Random(seed)
    ways = {"whole": whole, "stream": stream, "left": leave, "bad": bad, "chat": chat}
    while time.monotonic() < end:
        kind = dice.choice(list(ways))
        prompt, n = dice.choice(list(texts))
        try:
            tally.add(kind, ways[kind](lead, prompt, n, texts[prompt, n], tally))
        except Exception as error:  # no answer at all
            tally.add(kind, repr(error))


def whole(lead: LeadProcess, prompt: str, n: int, text: str, _: Tally) -> str | None:
    return None if lead.write(prompt, n) == text else "another text"


def stream(lead: LeadProcess, prompt: str, n: int, text: str, tally: Tally) -> str | None:
    asked = lead.stream(prompt, n)
    if asked.finish() != text:
        return "another text"
    with tally.lock:
        tally.longest_gap_s = max(tally.longest_gap_s, *(b - a for a, b in pairwise(asked.times)), 0.0)
    return None


def leave(lead: LeadProcess, prompt: str, n: int, _: str, __: Tally) -> str | None:
    """Go away in the middle."""
    request = {"prompt": prompt, "max_tokens": 4 * n, "stream": True}
    with httpx.stream("POST", f"{lead.url}/v1/completions", json=request, timeout=PATIENCE_S) as response:
        next(response.iter_lines(), None)
        return None if response.status_code == 200 else f"status {response.status_code}"


def bad(lead: LeadProcess, _: str, __: int, ___: str, ____: Tally) -> str | None:
    status = lead.post("/v1/completions", prompt=[-1]).status_code
    return None if status == 400 else f"status {status}"


def chat(lead: LeadProcess, prompt: str, n: int, _: str, __: Tally) -> str | None:
    answer = lead.post("/v1/chat/completions", messages=[{"role": "user", "content": prompt}], max_tokens=n, seed=1)
    return None if answer.status_code == 200 else f"status {answer.status_code}"


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=(__doc__ or "").partition("\n")[0]
    )
    arguments.add_argument("--seconds", type=float, default=600.0)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    target, draft = demo_pair()
    dice, tally, n_kills = random.Random(0), Tally(), 0
    prompts = [file.read_text(encoding="utf-8") for file in sorted(PROMPTS.glob("*.txt"))][:3]
    with LeadProcess(target, "--exact", "--schedule", "async", "-c", "1024") as lead:
        texts = {(prompt, n): lead.write(prompt, n) for prompt in prompts for n in N_TOKENS}
        memory = [resident_bytes(lead.process.pid)]
        end = time.monotonic() + options.seconds
        threads = [threading.Thread(target=client, args=(i, lead, texts, end, tally)) for i in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        backs = [BackProcess(draft, lead.port) for _ in range(2)]
        while time.monotonic() < end:
            time.sleep(KILL_EVERY_S)
            i = dice.randrange(len(backs))
            backs[i].send(dice.choice(_BLOWS))
            time.sleep(1.0)
            backs[i].__exit__(None, None, None)
            backs[i] = BackProcess(draft, lead.port)
            n_kills += 1
            memory.append(resident_bytes(lead.process.pid))
            print(
                f"\r{sum(tally.counts.values())} requests, {n_kills} backs killed, {len(tally.wrong)} wrong",
                end="",
                file=sys.stderr,
            )
        for thread in threads:
            thread.join()
        for back in backs:
            back.__exit__(None, None, None)
        accepted = lead.metric("spec_decode_num_accepted_tokens_total")
        lead.send(signal.SIGTERM)
        status = lead.finish()
    print(file=sys.stderr)
    n = sum(tally.counts.values())
    print(f"{n} requests answered ({dict(tally.counts)}), {len(tally.wrong)} wrong; {n_kills} backs killed or stopped")
    print(f"{accepted:.0f} guesses accepted; longest gap in a stream {1000 * tally.longest_gap_s:.0f} ms")
    print(
        f"memory of the lead {memory[0] / 1e6:.0f} MB at first, {memory[-1] / 1e6:.0f} MB at last; exit status {status}"
    )
    for problem in tally.wrong[:10]:
        print(f"  {problem}")
    if options.json:
        document = {
            "hardware": hardware(), **git_commit(), "seconds": options.seconds, "requests": dict(tally.counts),
            "wrong": tally.wrong, "backs_killed": n_kills, "accepted": accepted, "memory_bytes": memory,
            "longest_gap_s": tally.longest_gap_s,
        }  # fmt: skip
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.exit(bool(tally.wrong) or status != 0)


def resident_bytes(pid: int) -> int:
    """The resident size of a process; 0 where the system does not say."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return 0
    lines = [line for line in status.read_text().splitlines() if line.startswith("VmRSS")]
    return int(lines[0].split()[1]) * 1024


if __name__ == "__main__":
    main()
