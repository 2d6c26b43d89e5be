"""A server with one, two and four clients at once: its throughput, and how long the clients wait.

Both decode several texts in one batch; llama-server has a slot for each client.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from benchmarks.contestants import N_CTX, Setup
from benchmarks.runner import Outcome, Scenario, models, note, prompts_of
from benchmarks.servers import lead, start_llama_server, stream
from duo.bench.results import markdown_table
from duo.bench.rounds import Run
from duo.engine.cores import usable_cores

CLIENTS = (1, 2, 4)
REQUEST: dict[str, Any] = {"ignore_eos": False, "temperature": 0, "cache_prompt": False}
TIMES = "first_token_s", "last_token_s"


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
        figures: dict[tuple[str, int], list[list[Run]]] = {key: [] for key in found}
        for i in range(setup.n_rounds):
            for name, n in random.Random(i).sample(sorted(found), len(found)):
                sent = [prompts[(i * max(CLIENTS) + j) % len(prompts)] for j in range(n)]
                with ThreadPoolExecutor(n) as pool:
                    request = partial(stream, found[name, n], n_tokens=setup.n_tokens, **REQUEST)
                    answers = list(pool.map(request, sent))
                figures[name, n].append(answers)
                note(f"{i + 1}/{setup.n_rounds} {name}, {n} clients: {throughput(answers):.1f} tokens/s")
        rows = [["", "clients", "tokens/s of all", "first token s, median", "longest", "last token s, median"]]
        for (name, n), rounds in sorted(figures.items(), key=lambda item: (item[0][1], item[0][0])):
            firsts, lasts = ([run.figures[which] or 0.0 for run in chain(*rounds)] for which in TIMES)
            seconds = [median(firsts), max(firsts), median(lasts)]
            rows.append(
                [name, str(n), f"{median(map(throughput, rounds)):.1f}", *(f"{value:.2f}" for value in seconds)]
            )
        return Outcome(markdown_table(rows), {"models": models(setup), "rows": rows})


def throughput(runs: list[Run]) -> float:
    """Tokens per second of clients that began at the same time, prompts included."""
    return sum(run.tokens or 0 for run in runs) / max(run.figures["last_token_s"] or 0.0 for run in runs)
