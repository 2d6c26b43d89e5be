"""A server with one, two and four clients at once: its throughput, and how long the clients wait.

Both decode several texts in one batch, each in a slot of its own. --questions: those of Spec-Bench, not the prompts.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, product
from statistics import median
from typing import Any

from benchmarks.contestants import N_CTX, Setup, flash_attention, settings
from benchmarks.questions import interleaved, read_questions
from benchmarks.runner import Outcome, Scenario, models, note, prompts_of
from benchmarks.servers import lead, start_llama_server, stream
from duo.bench.results import markdown_table
from duo.bench.rounds import Run
from duo.config import ModelConfig
from duo.engine.cores import usable_cores
from duo.llama.model import Model

CLIENTS = (1, 2, 4)
OWN = "duo lead and the draft"
REQUEST: dict[str, Any] = {"ignore_eos": False, "temperature": 0, "cache_prompt": False}
TIMES = "first_token_s", "last_token_s"


class Clients(Scenario):
    """See the module. -r is the number of rounds, in each of which every client sends one prompt, or a question."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        prompts = [prompt.text for prompt in prompts_of(setup)]
        if setup.questions is not None:
            questions = interleaved(read_questions(setup.questions), setup.per_category)
            template = Model(ModelConfig(setup.target), vocabulary_only=True).apply_chat_template
            prompts = [template([{"role": "user", "content": question.turns[0]}]) for question in questions]
        threads = "-t", str(usable_cores())
        options = "-md", setup.draft, "-c", str(N_CTX), *threads
        url = lead(setup, *options, remembers=setup.questions is not None).url
        most = max(CLIENTS)  # among which llama-server divides the context
        slots = "-np", str(most), "-c", str(most * N_CTX), "-fa", flash_attention(setup.target)
        each = partial(start_llama_server, setup, *threads, *slots)
        found = {OWN: url, "llama-server": each()}
        for name, more in settings().items():
            if name in ("draft", "ngram-mod n=3, m=8", "ngram-map-k n=3, m=8"):
                found[f"llama-server, {name}"] = each(*more)
        figures: dict[tuple[str, int], list[list[Run]]] = {key: [] for key in product(found, CLIENTS)}
        for i in range(setup.n_rounds):
            for name, n in random.Random(i).sample(sorted(figures), len(figures)):
                first = i * sum(CLIENTS) + sum(CLIENTS[: CLIENTS.index(n)])  # servers remember what they have written
                sent = [prompts[(first + j) % len(prompts)] for j in range(n)]
                with ThreadPoolExecutor(n) as pool:
                    request = partial(stream, found[name], n_tokens=setup.n_tokens, **REQUEST)
                    answers = list(pool.map(request, sent))
                figures[name, n].append(answers)
                note(f"{i + 1}/{setup.n_rounds} {name}, {n} clients: {throughput(answers):.1f} tokens/s")
        rows = [["", "clients", "tokens/s of all", "duo over it", "first token s, median", "longest", "last token s"]]
        for (name, n), rounds in sorted(figures.items(), key=lambda item: (item[0][1], item[0][0])):
            firsts, lasts = ([run.figures[which] or 0.0 for run in chain(*rounds)] for which in TIMES)
            rates = [throughput(answers) for answers in rounds]
            ratio = median(throughput(own) / rate for own, rate in zip(figures[OWN, n], rates, strict=True))
            seconds = (f"{value:.2f}" for value in (median(firsts), max(firsts), median(lasts)))
            rows.append([name, str(n), f"{median(rates):.1f}", f"{ratio:.2f}", *seconds])
        return Outcome(markdown_table(rows), {"models": models(setup), "rows": rows})


def throughput(runs: list[Run]) -> float:
    """Tokens per second of clients that began at the same time, prompts included."""
    return sum(run.tokens or 0 for run in runs) / max(run.figures["last_token_s"] or 0.0 for run in runs)
