"""Soak test of a lead: clients check its responses while its backs are killed, stopped, slowed and restarted."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import httpx
import psutil

from benchmarks import page, servers
from benchmarks.contestants import Setup, patched
from benchmarks.runner import Outcome, Scenario, note, verdict
from benchmarks.servers import Relay, Server, streamed

_N_BACKS, _N_PROMPTS = 3, 2
_N_TOKENS = (1, 24, 96)
_SAMPLED: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 1})
_EVERY_S = 3.0  # between two events
_DELAY_S = 0.05  # in each direction, of a slow back
_PATIENCE_S = 300.0
_WARM = 0.2  # share of the rounds before the memory counts: until then, it fills with conversations
_N_SAMPLES = 5  # of the memory, at either end
_MOST_GROWTH_MB, _MOST_OVER_DECODE_MS, _LEAST_ACCEPTED = 30.0, 150.0, 0.01

_EVENTS = {  # that may happen to a back, by its state
    "running": ("kill", "stop", "slow", "restart"),
    "slow": ("kill", "stop", "quicken"),
    "stopped": ("continue", "kill"),
    "gone": ("start",),
}

# Writes the seconds of each decode of the target, without those of a prompt.
_DECODES = """
from pathlib import Path
from duo.engine.recorder import Recorder
file, decoded = Path({file!r}).open("w", buffering=1), Recorder.decoded
def record(self, start, end, n_tokens):
    decoded(self, start, end, n_tokens)
    if self.steps:
        file.write(f"{{end - start}}\\n")
Recorder.decoded = record
"""


@dataclass(slots=True)
class Tally:
    """Counts and errors of all clients; protected by the lock."""

    counts: Counter[str] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)  # by client
    unanswered: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Text(NamedTuple):
    prompt: str
    n_tokens: int
    is_chat: bool
    is_sampled: bool

    @property
    def fields(self) -> dict[str, Any]:
        message = {"messages": [{"role": "user", "content": self.prompt}]}
        content: dict[str, Any] = message if self.is_chat else {"prompt": self.prompt}
        return content | {"max_tokens": self.n_tokens, "ignore_eos": True} | _SAMPLED[self.is_sampled]

    def whole(self, lead: Server) -> str:
        answer = _post(lead, "chat/completions" if self.is_chat else "completions", self.fields)
        choice = answer.raise_for_status().json()["choices"][0]
        return str(choice["message"]["content"] if self.is_chat else choice["text"])


class Back:
    """A remote draft, behind a relay that can be slow."""

    def __init__(self, setup: Setup, lead: Server, stack: ExitStack) -> None:
        self._setup = setup
        self._relay = stack.enter_context(Relay(lead.port, 0.0))
        self._state = "running"
        self._start()
        stack.callback(self._end)

    def happen(self, dice: random.Random) -> str:
        """Let one of the events happen that can. Returns its name."""
        event = dice.choice(_EVENTS[self._state])
        self._state = {"stop": "stopped", "slow": "slow", "kill": "gone"}.get(event, "running")
        if event in ("stop", "continue"):
            self._process.send(signal.SIGSTOP if event == "stop" else signal.SIGCONT)
        elif event in ("slow", "quicken"):
            self._relay.delay_s = _DELAY_S if event == "slow" else 0.0
        elif event == "restart":
            self._process.stop()
        if event in ("kill", "restart"):
            self._end()
        if event in ("start", "restart"):
            self._start()
        return event

    def _start(self) -> None:
        self._relay.delay_s = 0.0
        self._process = servers.back(self._setup, self._relay.port)

    def _end(self) -> None:
        self._process.__exit__()


@dataclass(frozen=True, slots=True)
class Soak(Scenario):
    """In every round something happens to a back. Texts with --exact are compared with those of the lead alone."""

    n_clients: int = 4
    is_exact: bool = True  # otherwise texts are written together, and a request may be refused with 503

    def run(self, setup: Setup) -> Outcome:
        dice, tally, done, events, memory = random.Random(0), Tally(), threading.Event(), Counter[str](), list[int]()
        file = setup.folder / "decodes"
        watched = replace(setup, duo=patched(_DECODES.format(file=str(file))))
        # A raw prompt and the chats begin with the same tokens, and F16 weights are exact only below 64 rows. No text
        # waits for others once it has begun, which would be a gap.
        exact = "--exact", "--schedule", "async", "-ub", "32", "--turn-tokens", "0"
        lead = servers.lead(watched, "-c", "1024", *(exact if self.is_exact else ("-md", setup.draft)))
        texts = _references(lead, setup, is_exact=self.is_exact)
        more = (lead, texts, done, tally)
        clients = [threading.Thread(target=_client, args=(i, *more), daemon=True) for i in range(self.n_clients)]
        with ExitStack() as stack:
            watching = stack.enter_context(page.Subscription(lead))
            if (browser := stack.enter_context(page.browser())) is not None:
                stack.enter_context(page.opened(browser, lead))
            backs = [Back(setup, lead, stack) for _ in range(_N_BACKS)]
            stack.callback(_join, clients, tally)
            stack.callback(done.set)
            for client in clients:
                client.start()
            for i in range(setup.n_rounds):
                time.sleep(_EVERY_S)
                events[dice.choice(backs).happen(dice)] += 1
                memory.append(psutil.Process(lead.pid).memory_info().rss)
                n_wrong = len(tally.unanswered) + len(tally.wrong)
                note(f"{i + 1} events, {tally.counts.total()} requests, {n_wrong} wrong or not answered")
            if watching.problem is not None:
                tally.wrong.append(f"live events: {watching.problem}")
        found = {
            "requests": dict(tally.counts), "events": dict(events), "unanswered": tally.unanswered,
            "wrong": tally.wrong, "accepted": lead.metric("spec_decode_num_accepted_tokens_total"),
            "verified": lead.metric("spec_decode_num_draft_tokens_total"), "memory_bytes": memory,
            "longest_gap_s": tally.longest_gap_s, "status": lead.stop(), "live_events": dict(watching.counts),
            "longest_decode_s": max(map(float, file.read_text(encoding="ascii").split()), default=0.0),
            "page_open": browser is not None, "is_exact": self.is_exact,
            "answered": [tally.answered[i] for i in range(self.n_clients)],
        }  # fmt: skip
        return _outcome(found)


def _outcome(found: dict[str, Any]) -> Outcome:
    memory, gap_s, decode_s = found["memory_bytes"], found["longest_gap_s"], found["longest_decode_s"]
    warm = memory[int(_WARM * len(memory)) :]
    growth = (median(warm[-_N_SAMPLES:]) - median(warm[:_N_SAMPLES])) / 1e6 if warm else 0.0
    accepted, verified = found["accepted"], found["verified"]
    rows = {
        "requests": _counts(found["requests"]),
        "events": _counts(found["events"]),
        "answers of a client, fewest and most": f"{min(found['answered'])}, {max(found['answered'])}",
        "not answered": len(found["unanswered"]),
        "wrong": len(found["wrong"]),
        "live events": _counts(found["live_events"]),
        "page": "open" if found["page_open"] else "not open: no browser",
        "candidates accepted": f"{accepted:.0f} of {verified:.0f} verified",
        "longest gap in a stream, ms": f"{1000 * gap_s:.0f}",
        "longest decode of the target, ms": f"{1000 * decode_s:.0f}",
        "memory of the lead, warm and at the end, MB": f"{warm[0] / 1e6:.0f}, {warm[-1] / 1e6:.0f}" if warm else "",
    }
    lines = ["| figure | measured |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    problems = [*found["unanswered"], *found["wrong"]]
    lines += ["", *(f"- {problem}" for problem in problems[:10])] if problems else []
    verdicts = [
        verdict("requests not answered", len(found["unanswered"]), most=0),
        verdict("wrong answers", len(found["wrong"]), most=0),
        verdict("fewest answers of a client", min(found["answered"]), least=1),
        verdict("exit status of the lead", found["status"], most=0),
        verdict("growth of the lead's memory, MB", growth, most=_MOST_GROWTH_MB),
    ]
    if found["is_exact"]:  # other texts are drafted for as it pays, and pause for other clients
        share = accepted / verified if verified else 0.0
        verdicts.append(verdict("share of candidates accepted", share, least=_LEAST_ACCEPTED))
        over_ms = 1000 * (gap_s - decode_s)
        verdicts.append(verdict("longest gap over the longest decode, ms", over_ms, most=_MOST_OVER_DECODE_MS))
    return Outcome(lines, found, verdicts)


def _counts(counts: dict[str, int]) -> str:
    return f"{sum(counts.values())} ({', '.join(f'{n} {name}' for name, n in sorted(counts.items()))})"


def _references(lead: Server, setup: Setup, *, is_exact: bool) -> dict[Text, str | None]:
    """The lead's own texts, before there is any back; None: not to be compared."""
    prompts = [file.read_text(encoding="utf-8") for file in setup.prompt_files[:_N_PROMPTS]]
    texts = [Text(*what) for what in product(prompts, _N_TOKENS, (False, True), (False, True))]
    return {text: text.whole(lead) if is_exact else None for text in texts}


def _join(clients: Sequence[threading.Thread], tally: Tally) -> None:
    """Wait for the clients; one that does not end waits for an answer."""
    for client in clients:
        client.join(_PATIENCE_S)
        if client.is_alive():
            tally.unanswered.append(f"nothing within {_PATIENCE_S:g} s")


def _client(seed: int, lead: Server, texts: dict[Text, str | None], done: threading.Event, tally: Tally) -> None:
    """Send random requests until `done` is set."""
    dice = random.Random(seed)
    while not done.is_set():
        text, error, problem, gap_s = dice.choice(list(texts)), None, None, 0.0
        kind = dice.choice(("chat" if text.is_chat else "whole", "stream", "disconnect", "invalid"))
        try:
            if kind == "stream":
                text = text._replace(is_chat=False)
                run = servers.stream(lead.url, text.prompt, text.n_tokens, **_SAMPLED[text.is_sampled])
                gap_s, expected = run.figures["longest_gap_s"] or 0.0, texts[text]
                problem = _difference(expected and expected.strip("\n"), run.text)
            elif kind == "disconnect":
                request = text._replace(is_chat=False, n_tokens=4 * text.n_tokens).fields
                with closing(streamed(f"{lead.url}/v1/completions", request | {"stream": True})) as pieces:
                    next(pieces, None)
            elif kind == "invalid":
                status = _post(lead, "completions", {"prompt": [-1]}).status_code
                problem = None if status == httpx.codes.BAD_REQUEST else f"status {status}"
            else:
                problem = _difference(texts[text], text.whole(lead))
        except Exception as raised:
            error = repr(raised)
            if None in texts.values() and str(httpx.codes.SERVICE_UNAVAILABLE) in error:  # the queue is full
                kind, error = "refused", None
                time.sleep(dice.random())
        with tally.lock:
            tally.counts[kind] += 1
            tally.answered[seed] += kind not in ("refused", "invalid") and error is None
            tally.longest_gap_s = max(tally.longest_gap_s, gap_s)
            tally.unanswered += [f"{kind}: {error}"] * (error is not None)
            tally.wrong += [f"{kind}: {problem}"] * (problem is not None)


def _difference(expected: str | None, found: str) -> str | None:
    if expected is None or found == expected:
        return None
    at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), -1)
    return f"expected {expected[at:][:40]!r}, found {found[at:][:40]!r} at character {at}"


def _post(lead: Server, path: str, fields: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{lead.url}/v1/{path}", json=fields, timeout=_PATIENCE_S)
