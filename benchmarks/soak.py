"""Soak test of a lead: clients of several kinds check its responses while its backs are killed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks import servers
from benchmarks.contestants import Setup
from benchmarks.engine import resident_bytes
from benchmarks.measure import Outcome, Scenario, Verdict, note
from benchmarks.servers import Server
from duo.bench.server_peer import streamed
from duo.bench.statistics import Range

_N_CLIENTS, _N_BACKS, _N_PROMPTS = 4, 2, 3
_N_TOKENS = (1, 16, 48, 96)
_KILL_EVERY_S, _STALL_S, _PATIENCE_S = 5.0, 1.0, 60.0
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)


@dataclass(slots=True)
class Tally:
    """Counts and errors of all clients; protected by the lock."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Soak(Scenario):
    """Compares texts with references, exact by --exact. In every round a back is killed or stopped, and replaced."""

    def run(self, setup: Setup) -> Outcome:
        dice, tally, done = random.Random(0), Tally(), threading.Event()
        prompts = [file.read_text(encoding="utf-8") for file in setup.prompt_files[:_N_PROMPTS]]
        lead = servers.lead(setup, "--exact", "--schedule", "async", "-c", "1024")
        texts = {(prompt, n): _complete(lead, prompt, n) for prompt in prompts for n in _N_TOKENS}
        memory = [resident_bytes(str(lead.pid))]
        clients = [threading.Thread(target=_client, args=(i, lead, texts, done, tally)) for i in range(_N_CLIENTS)]
        with ExitStack() as stack:
            for client in clients:
                client.start()
                stack.callback(client.join)
            stack.callback(done.set)
            backs = [stack.enter_context(servers.back(setup, lead.port)) for _ in range(_N_BACKS)]
            for i in range(setup.n_rounds):
                time.sleep(_KILL_EVERY_S)
                killed = dice.randrange(_N_BACKS)
                backs[killed].send(dice.choice(_SIGNALS))
                time.sleep(_STALL_S)
                backs[killed].__exit__()
                backs[killed] = stack.enter_context(servers.back(setup, lead.port))
                memory.append(resident_bytes(str(lead.pid)))
                note(f"{i + 1} backs killed, {tally.counts.total()} requests, {len(tally.wrong)} wrong")
        accepted = lead.metric("spec_decode_num_accepted_tokens_total")
        status = lead.stop()
        lines = [
            f"- {tally.counts.total()} requests answered ({dict(tally.counts)})",
            f"- {accepted:.0f} candidates accepted; longest pause in a stream {1000 * tally.longest_gap_s:.0f} ms",
            f"- memory of the lead: {memory[0] / 1e6:.0f} MB at the start, {memory[-1] / 1e6:.0f} MB at the end",
            *(f"- wrong: {problem}" for problem in tally.wrong[:10]),
        ]
        found = {"requests": dict(tally.counts), "wrong": tally.wrong, "accepted": accepted, "memory_bytes": memory}
        verdicts = [
            Verdict("failed or wrong responses", Range(len(tally.wrong), None, None), most=0),
            Verdict("exit status of the lead", Range(status, None, None), most=0),
        ]
        return Outcome(lines, found | {"longest_gap_s": tally.longest_gap_s}, verdicts)


def _client(seed: int, lead: Server, texts: dict[tuple[str, int], str], done: threading.Event, tally: Tally) -> None:
    """Send random requests until `done` is set."""
    dice = random.Random(seed)
    while not done.is_set():
        kind = dice.choice(("whole", "stream", "disconnect", "invalid", "chat"))
        prompt, n = dice.choice(list(texts))
        problem, gap_s = None, 0.0
        try:
            if kind == "whole":
                problem = None if _complete(lead, prompt, n) == texts[prompt, n] else "text differs"
            elif kind == "stream":
                run = servers.stream(lead, prompt, n)
                gap_s = run.longest_gap_s
                problem = None if run.text == texts[prompt, n].strip("\n") else "text differs"
            elif kind == "disconnect":
                request = {"prompt": prompt, "max_tokens": 4 * n, "stream": True}
                with closing(streamed(f"{lead.url}/v1/completions", request)) as events:
                    next(events, None)
            elif kind == "invalid":
                status = _post(lead, "completions", prompt=[-1]).status_code
                problem = None if status == httpx.codes.BAD_REQUEST else f"status {status}"
            else:
                messages = [{"role": "user", "content": prompt}]
                _post(lead, "chat/completions", messages=messages, max_tokens=n, seed=1).raise_for_status()
        except Exception as error:  # counted as a failure
            problem = repr(error)
        with tally.lock:
            tally.counts[kind] += 1
            tally.longest_gap_s = max(tally.longest_gap_s, gap_s)
            tally.wrong += [f"{kind}: {problem}"] * (problem is not None)


def _complete(lead: Server, prompt: str, n: int) -> str:
    answer = _post(lead, "completions", prompt=prompt, max_tokens=n, ignore_eos=True).raise_for_status()
    return str(answer.json()["choices"][0]["text"])


def _post(lead: Server, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{lead.url}/v1/{path}", json=fields, timeout=_PATIENCE_S)
