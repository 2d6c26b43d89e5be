"""The programs that are measured: how each is called, and what each says about its speed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

N_CTX = 2048
SPECULATIVE_N_MAX = (2, 3, 5, 8)
SPECULATIVE_P_MIN = (0.0, 0.5)


@dataclass(frozen=True, slots=True)
class Job:
    """What every contestant is asked for: `n_tokens` greedy tokens after a raw prompt."""

    target: Path
    draft: Path
    prompt_file: Path
    n_tokens: int
    json_file: Path  # for those that write one

    @property
    def prompt(self) -> str:
        """The prompt as all of them read it: without one trailing newline."""
        return self.prompt_file.read_text(encoding="utf-8").removesuffix("\n")


@dataclass(frozen=True, slots=True)
class Output:
    """What one process left behind."""

    stdout: str
    stderr: str
    json_text: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One text, without prompt or outer newlines, and its speed by the program's own count."""

    tokens: int
    tps: float
    text: str
    predicted_tps: float | None = None  # what the program's own simulation says


class ParseError(Exception):
    """A program's output is not what its parser knows."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One program with one set of threads and options."""

    name: str
    program: str
    threads: int | None  # None: it chooses
    command: Callable[[Job], list[str]]
    parse: Callable[[Job, Output], Run]
    draft_threads: int | None = None  # None: no draft, or it chooses
    options: dict[str, Any] = field(default_factory=dict)


def all_contestants(duo: list[str], peers: Path) -> list[Contestant]:
    """Every contestant; `duo` is the command that starts it, `peers` the folder with llama.cpp's programs."""
    found = [duo_plain(duo, 1), duo_pair(duo, 1, 1)]
    found += [completion(peers, 1), completion(peers, 2), cli(peers, 1), cli(peers, 2)]
    return found + taking_turns(peers, ("1+1", "2"), p_mins=(0.0,))


def taking_turns(peers: Path, threads: Sequence[str], p_mins: Sequence[float] = SPECULATIVE_P_MIN) -> list[Contestant]:
    """llama-speculative-simple in every combination of its settings."""
    return [speculative(peers, *setting) for setting in product(threads, SPECULATIVE_N_MAX, p_mins)]


def duo_alone(duo: list[str]) -> Contestant:
    """duo with no flags but the models: it chooses everything else."""

    def command(job: Job) -> list[str]:
        return [*duo, *_common(job), "-md", str(job.draft), "--json", str(job.json_file)]

    return Contestant("duo", "duo", None, command, parse_duo)


def duo_plain(duo: list[str], threads: int) -> Contestant:
    """duo without a draft."""

    def command(job: Job) -> list[str]:
        return [*duo, *_common(job), "-t", str(threads), "--json", str(job.json_file)]

    return Contestant(f"duo plain {threads}", "duo", threads, command, parse_duo)


def duo_pair(duo: list[str], threads: int, draft_threads: int) -> Contestant:
    """duo with both models at the same time."""

    def command(job: Job) -> list[str]:
        threads_options = ["-t", str(threads), "-td", str(draft_threads)]
        return [*duo, *_common(job), "-md", str(job.draft), *threads_options, "--json", str(job.json_file)]

    name = f"duo {threads}+{draft_threads}"
    return Contestant(name, "duo", threads, command, parse_duo, draft_threads)


def completion(peers: Path, threads: int) -> Contestant:
    """llama.cpp's plain baseline."""

    def command(job: Job) -> list[str]:
        flags = ["--temp", "0", "-no-cnv", "--no-escape", "--no-display-prompt"]
        return [str(peers / "llama-completion"), *_common(job), "-t", str(threads), *flags]

    return Contestant(f"completion {threads}", "llama-completion", threads, command, parse_completion)


def cli(peers: Path, threads: int) -> Contestant:
    """llama.cpp's chat program: a template that only repeats the message makes its prompt a raw one."""

    def command(job: Job) -> list[str]:
        raw = "{% for message in messages %}{{ message.content }}{% endfor %}"
        flags = ["--temp", "0", "--no-escape", "-st", "--jinja", "--chat-template", raw]
        server = ["-np", "1", "--simple-io", "--color", "off"]
        return [str(peers / "llama-cli"), *_common(job), "-t", str(threads), *flags, *server]

    return Contestant(f"cli {threads}", "llama-cli", threads, command, parse_cli)


def speculative(peers: Path, threads: str, n_max: int, p_min: float) -> Contestant:
    """llama.cpp's taking turns; `threads` is "1+1" for one each or "2" for all to whoever's turn it is."""
    target, _, draft = threads.partition("+")
    draft = draft or target

    def command(job: Job) -> list[str]:
        flags = ["--temp", "0", "--no-escape", "-t", target, "-td", draft]
        drafting = ["-md", str(job.draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(n_max)]
        drafting += ["--spec-draft-p-min", f"{p_min:g}"]
        return [str(peers / "llama-speculative-simple"), *_common(job), *flags, *drafting]

    return Contestant(
        f"speculative {threads} n{n_max}" + (f" p{p_min:g}" if p_min else ""),
        "llama-speculative-simple",
        int(target),
        command,
        parse_speculative,
        int(draft),
        {"n_max": n_max, "p_min": p_min},
    )


def _common(job: Job) -> list[str]:
    files = ["-m", str(job.target), "-f", str(job.prompt_file)]
    return [*files, "-n", str(job.n_tokens), "-c", str(N_CTX), "--ignore-eos"]


def parse_duo(job: Job, output: Output) -> Run:  # noqa: ARG001 (all parsers are called alike)
    """Read duo's --json; stdout is the text and nothing else."""
    if output.json_text is None:
        raise ParseError("duo wrote no --json file")
    statistics = json.loads(output.json_text)
    generation, policy = statistics["generation"], statistics.get("policy") or {}
    tokens, tps = int(generation["tokens"]), float(generation["tokens_per_s"])
    return Run(tokens, tps, output.stdout.strip("\n"), policy.get("predicted_tokens_per_s"))


def parse_completion(job: Job, output: Output) -> Run:  # noqa: ARG001
    """Read "eval time = … / 255 runs (…, 117.12 tokens per second)"; the first token is the prompt's."""
    found = _search(r" eval time = .*/ +(\d+) runs .*?([\d.]+) tokens per second", output.stderr)
    return Run(int(found[1]) + 1, float(found[2]), output.stdout.strip("\n"))


def parse_cli(job: Job, output: Output) -> Run:
    """Read "[ Prompt: 536.4 t/s | Generation: 95.4 t/s ]", which follows the prompt and the text."""
    found = _search(r"\n\[ Prompt: .* Generation: ([\d.]+) t/s \]", output.stdout)
    text = _after_prompt(job, output.stdout[: found.start()])
    return Run(job.n_tokens, float(found[1]), text)


def parse_speculative(job: Job, output: Output) -> Run:
    """Read "decoded  258 tokens in … speed:   63.536 t/s"; it may decode a few more than it was asked for."""
    found = _search(r"decoded +(\d+) tokens in .*speed: +([\d.]+) t/s", output.stderr)
    return Run(int(found[1]), float(found[2]), _after_prompt(job, output.stdout))


def _search(pattern: str, text: str) -> re.Match[str]:
    found = re.search(pattern, text)
    if found is None:
        raise ParseError(f"no {pattern!r} in: …{text[-500:]}")
    return found


def _after_prompt(job: Job, stdout: str) -> str:
    """The text after the prompt; with TinyLlama's vocabulary a space follows every special token that is printed."""
    prompt = _search(r"\s*".join(map(re.escape, job.prompt.split())), stdout)
    return stdout[prompt.end() :].strip("\n")
