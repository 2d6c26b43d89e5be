"""A server with one, two and four clients at once: its throughput, and how long the clients wait.

duo lead writes one text at a time. llama-server decodes those of its slots in one batch; it has one for each client.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median

from benchmarks.contestants import N_CTX, Setup
from benchmarks.runner import Outcome, Scenario, models, note, prompts_of
from benchmarks.servers import lead, start_llama_server, streamed
from duo.bench.results import markdown_table
from duo.bench.rounds import ParseError
from duo.engine.cores import usable_cores

CLIENTS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Answer:
    tokens: int
    first_s: float  # from the request to the first text
    last_s: float  # and to the last


class Clients(Scenario):
    """See the module. -r is the number of rounds, in each of which every client sends one prompt."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        prompts = [prompt.text for prompt in prompts_of(setup)]
        threads = "-t", str(usable_cores())
        own = lead(setup, "-md", setup.draft, "-c", str(N_CTX), *threads)
        each = partial(start_llama_server, setup, *threads, "-fa", "off")  # as duo on a CPU
        drafting = ["-md", "{draft}", "--spec-type", "draft-simple"]
        found = {(f"llama-server -np {n}", n): each("-np", str(n)) for n in CLIENTS}
        found |= {(f"llama-server -np {n} and the draft", n): each("-np", str(n), *drafting) for n in CLIENTS}
        found |= {("duo lead and the draft", n): own.url for n in CLIENTS}
        figures: dict[tuple[str, int], list[list[Answer]]] = {key: [] for key in found}
        for i in range(setup.n_rounds):
            for name, n in random.Random(i).sample(sorted(found), len(found)):
                sent = [prompts[(i * max(CLIENTS) + j) % len(prompts)] for j in range(n)]
                with ThreadPoolExecutor(n) as pool:
                    answers = list(pool.map(partial(ask, found[name, n], setup.n_tokens), sent))
                figures[name, n].append(answers)
                note(f"{i + 1}/{setup.n_rounds} {name}, {n} clients: {throughput(answers):.1f} tokens/s")
        rows = [["", "clients", "tokens/s of all", "first token s, median", "longest", "last token s, median"]]
        for (name, n), rounds in sorted(figures.items(), key=lambda item: (item[0][1], item[0][0])):
            firsts, lasts = ([getattr(answer, which) for answer in chain(*rounds)] for which in ("first_s", "last_s"))
            seconds = [median(firsts), max(firsts), median(lasts)]
            rows.append(
                [name, str(n), f"{median(map(throughput, rounds)):.1f}", *(f"{value:.2f}" for value in seconds)]
            )
        return Outcome(markdown_table(rows), {"models": models(setup), "rows": rows})


def ask(url: str, n_tokens: int, prompt: str) -> Answer:
    """Request a text, and time it by the client's clock. Raises ParseError."""
    request = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "stream": True, "cache_prompt": False,
               "stream_options": {"include_usage": True}}  # fmt: skip
    began, times, n = time.monotonic(), list[float](), 0
    for event in streamed(f"{url}/v1/completions", request):
        if "error" in event:
            raise ParseError(f"{url}: {event['error']}")
        if any(choice.get("text") for choice in event.get("choices", ())):
            times.append(time.monotonic() - began)
        n = (event.get("usage") or {}).get("completion_tokens", n)
    if not times:
        raise ParseError(f"{url}: no text")
    return Answer(n, times[0], times[-1])


def throughput(answers: list[Answer]) -> float:
    """Tokens per second of clients that began at the same time, prompts included."""
    return sum(answer.tokens for answer in answers) / max(answer.last_s for answer in answers)
