"""Several conversations at one lead: what is read again, how long it takes to return to one, and who waits."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.contestants import Setup
from benchmarks.runner import Outcome, Scenario, models, note
from benchmarks.servers import lead, streamed
from duo.bench.results import markdown_table, speed_up
from duo.engine.cores import usable_cores

WORDS = ("river", "stone", "market", "window", "letter", "garden", "engine", "winter", "bridge", "paper", "teacher")
N_WORDS = 1400  # of the first message: about 1,500 tokens
TURN = {"max_tokens": 24, "ignore_eos": True, "temperature": 0, "stream": True}


class Answer(NamedTuple):
    text: str
    first_s: float  # time to the first token
    rate: float  # tokens/s after it
    n_prompt: int
    n_cached: int


def ask(url: str, messages: list[dict[str, str]], **fields: Any) -> Answer:
    """The answer of a lead, timed by the client's clock."""
    request = {**TURN, "messages": messages, "stream_options": {"include_usage": True}, **fields}
    began, times, text, usage = time.monotonic(), list[float](), "", dict[str, Any]()
    for event in streamed(f"{url}/v1/chat/completions", request):
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            if piece := choice["delta"].get("content"):
                times.append(time.monotonic())
                text += piece
    n, seconds = usage["completion_tokens"], times[-1] - times[0]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Answer(text, times[0] - began, (n - 1) / seconds if seconds else 0.0, usage["prompt_tokens"], cached)


def change(url: str, slot: int, action: str) -> None:
    """Save, restore or erase a conversation that is kept."""
    path, body = f"{url}/slots/{slot}?action={action}", {"filename": f"{slot}.bin"}
    httpx.post(path, json=body, timeout=60.0).raise_for_status()


class Talk:
    """A conversation that begins with a long message."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        words = random.Random(seed).choices(WORDS, k=N_WORDS)
        self._messages = [{"role": "user", "content": " ".join(words)}]

    def turn(self) -> Answer:
        answer = ask(self._url, self._messages)
        self._messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "Go on, please."}]
        return answer

    def again(self) -> Answer:
        """A longer answer, always the same, which is not part of the conversation."""
        return ask(self._url, self._messages, max_tokens=96)


class Conversations(Scenario):
    """See the module. -r is the number of turns."""

    def run(self, setup: Setup) -> Outcome:
        """See Scenario."""
        options = "-md", setup.draft, "-c", "8192", "-t", str(usable_cores()), "--slot-save-path"
        folder = setup.stack.enter_context(tempfile.TemporaryDirectory())
        urls = {n: lead(setup, *options, folder, "--slots", str(n)).url for n in (1, 4)}
        rows = [["", "figure"]]
        alone = [Talk(urls[1], 0)]
        one = [alone[0].turn() for _ in range(setup.n_rounds)]
        talks, both = [Talk(urls[4], seed) for seed in (0, 1)], list[Answer]()
        for i in range(setup.n_rounds):
            for talk in talks:
                both.append(talk.turn())
                ask(urls[4], [{"role": "user", "content": f"Write a title for conversation {i}: rivers and stones."}])
            note(f"turn {i + 1} of {setup.n_rounds}")
        read_s, later = median(answer.first_s for answer in both[:2]), both[2:]
        later_s = median(answer.first_s for answer in later)
        new = median(answer.n_prompt - answer.n_cached for answer in later)
        rows += [
            ["tokens read in later turns, median", f"{new:.0f}"],
            ["the same of one conversation alone", f"{median(a.n_prompt - a.n_cached for a in one[1:]):.0f}"],
            ["time to the first token of the first turn, s", f"{read_s:.3f}"],
            ["of later ones, median", f"{later_s:.3f}"],
            ["over one conversation alone", f"{later_s / median(a.first_s for a in one[1:]):.3f}"],
            ["over reading it", f"{later_s / read_s:.3f}"],
        ]
        for seed in (2, 3):
            Talk(urls[4], seed).turn()
        rows.append(self._with_full_slots(urls[4], talks[0], setup.n_rounds))
        rows += self._waiting(urls[4], setup.n_rounds)
        return Outcome(markdown_table(rows), {"models": models(setup), "rows": rows})

    def _with_full_slots(self, url: str, talk: Talk, n_rounds: int) -> list[str]:
        """The speed of one conversation: the same answer with the other three slots full and empty, in turns."""
        slots, rates = [1, 2, 3], dict[bool, list[float]]({True: [], False: []})
        talk.again()
        for slot in slots:
            change(url, slot, "save")
        for i in range(3 * n_rounds):
            for is_full in (i % 2 > 0, i % 2 == 0):
                for slot in reversed(slots):
                    change(url, slot, "erase")
                for slot in slots if is_full else []:
                    change(url, slot, "restore")
                talk.again()  # a first one after a change of memory
                rates[is_full].append(talk.again().rate)
        ratio = speed_up([full / empty for full, empty in zip(rates[True], rates[False], strict=True)])
        assert ratio is not None
        low, high = (ratio.low or 0.0, ratio.high or 0.0)
        return ["speed with four slots full, over one", f"{ratio.middle:.3f} ({low:.3f}–{high:.3f})"]

    def _waiting(self, url: str, n_rounds: int) -> list[list[str]]:
        """A short request while a long text is written."""
        short = [{"role": "user", "content": "Name a fruit."}]
        found, alone = list[float](), [ask(url, short, cache_prompt=False).first_s for _ in range(n_rounds)]
        rates = list[float]()
        for i in range(n_rounds):
            long = [{"role": "user", "content": f"Tell a long story, number {i}."}]
            writing = threading.Thread(target=lambda long=long: rates.append(ask(url, long, max_tokens=400).rate))
            writing.start()
            time.sleep(0.5 + 0.3 * i)
            found.append(ask(url, short, cache_prompt=False).first_s)
            writing.join()
        turn_s = 64 / median(rates)  # of texts that were interrupted once
        return [
            ["first token of a short request alone, s", f"{median(alone):.3f}"],
            ["while a long text is written, median and longest", f"{median(found):.3f}, {max(found):.3f}"],
            ["a turn of 64 tokens and its own prompt, s", f"{turn_s + median(alone):.3f}"],
        ]
