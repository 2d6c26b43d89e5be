"""llama.cpp's own programs: how each is called, and what each says about its speed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duo.bench.contestant import Job, Run
from duo.bench.process import Cost, last_line, run_process
from duo.errors import DuoError

PROGRAMS = ("llama-completion", "llama-cli", "llama-speculative-simple", "llama-server")


_VERSION_S = 10.0  # for a program to say its version
_ECHOED = 500  # bytes of a prompt that llama-cli repeats: llama.cpp, tools/cli/cli-ui.h
_SHOWN = 200  # characters of an output that cannot be read


class ParseError(DuoError):
    """A program's output is not what its parser knows."""


def version(program: Path) -> str | None:
    """What it says of its version and build; None if it does not say."""
    try:
        cost = run_process([str(program), "--version"], timeout_s=_VERSION_S)
    except (OSError, TimeoutError):
        return None
    found = re.search(r"^version: *(.+)$", cost.stderr + cost.stdout, re.MULTILINE)
    return found and found[1]


def completion_command(program: Path, job: Job, threads: int) -> list[str]:
    """llama-completion: llama.cpp's plain baseline."""
    flags = ["--temp", "0", "-no-cnv", "--no-escape", "--no-display-prompt"]
    return [str(program), *_common(job), "-t", str(threads), *flags]


def cli_command(program: Path, job: Job, threads: int) -> list[str]:
    """llama-cli: a template that only repeats the message makes its prompt a raw one."""
    raw = "{% for message in messages %}{{ message.content }}{% endfor %}"
    flags = ["--temp", "0", "--no-escape", "-st", "--jinja", "--chat-template", raw]
    server = ["-np", "1", "--simple-io", "--color", "off"]
    return [str(program), *_common(job), "-t", str(threads), *flags, *server]


def speculative_command(
    program: Path, job: Job, threads: int, draft_threads: int, n_max: int, p_min: float = 0.0
) -> list[str]:
    """llama-speculative-simple: draft and target take turns."""
    flags = ["--temp", "0", "--no-escape", "-t", str(threads), "-td", str(draft_threads)]
    drafting = ["-md", str(job.draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(n_max)]
    return [str(program), *_common(job), *flags, *drafting, "--spec-draft-p-min", f"{p_min:g}"]


def _common(job: Job) -> list[str]:
    files = ["-m", str(job.target), "-f", str(job.prompt_file)]
    return [*files, "-n", str(job.n_tokens), "-c", str(job.n_ctx), "--ignore-eos"]


_PER_SECOND = r" +([\d.]+) tokens per second"


def parse_completion(job: Job, cost: Cost) -> Run:  # noqa: ARG001 (all parsers are called alike)
    """Read "eval time = … / 255 runs (7.64 ms per token, 130.85 …)"; the first token is the prompt's."""
    prompt = _search(rf"prompt eval time = .*?,{_PER_SECOND}", cost.stderr)
    found = _search(rf" eval time = .*/ +(\d+) runs +\( *([\d.]+) ms per token,{_PER_SECOND}", cost.stderr)
    return Run(
        int(found[1]) + 1,
        float(found[3]),
        cost.stdout.strip("\n"),
        prompt_tokens_per_s=float(prompt[1]),
        target_ms=float(found[2]),
    )


def parse_cli(job: Job, cost: Cost) -> Run:
    """Read "[ Prompt: 536.4 t/s | Generation: 95.4 t/s ]", which follows the prompt and the text; how long that is
    it does not say."""
    found = _search(r"\n\[ Prompt: ([\d.]+) t/s \| Generation: ([\d.]+) t/s \]", cost.stdout)
    text = _after(_echo(job.prompt), cost.stdout[: found.start()])
    return Run(None, float(found[2]), text, prompt_tokens_per_s=float(found[1]))


def parse_speculative(job: Job, cost: Cost) -> Run:
    """Read "decoded  258 tokens in … speed:   63.536 t/s"; it may decode a few more than it was asked for."""
    encoded = _search(r"encoded +\d+ tokens in .*speed: +([\d.]+) t/s", cost.stderr)
    found = _search(r"decoded +(\d+) tokens in .*speed: +([\d.]+) t/s", cost.stderr)
    drafted, accepted = (_search(rf"n_{word} += +(\d+)", cost.stderr) for word in ("drafted", "accept"))
    return Run(
        int(found[1]),
        float(found[2]),
        _after(job.prompt, cost.stdout),
        prompt_tokens_per_s=float(encoded[1]),
        n_verified=int(drafted[1]),
        n_accepted=int(accepted[1]),
    )


def _search(pattern: str, text: str) -> re.Match[str]:
    found = re.search(pattern, text)
    if found is None:
        raise ParseError(f"no {pattern[:_SHOWN]!r} in: …{text[-_SHOWN:]!r}")
    return found


def _echo(prompt: str) -> str:
    """What llama-cli shows of it."""
    data = prompt.encode()
    return prompt if len(data) <= _ECHOED else data[:_ECHOED].decode("utf-8", "replace") + " ... (truncated)"


def _after(prompt: str, stdout: str) -> str:
    """The text after the prompt; with TinyLlama's vocabulary a space follows every special token that is printed."""
    found = _search(r"\s*".join(map(re.escape, prompt.split())), stdout)
    return stdout[found.end() :].strip("\n")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that writes one text in a process of its own."""

    name: str
    command: Callable[[Job], list[str]]
    parse: Callable[[Job, Cost], Run]
    more: Sequence[str] = ()  # options for all jobs

    def write(self, job: Job, stop: threading.Event) -> Run:
        """Run it. Raises ParseError if it fails, stops early or says what nobody knows, Interrupted."""
        command = [*self.command(job), *self.more]
        try:
            cost = run_process(command, stop=stop)
        except OSError as error:
            raise ParseError(f"{self.name}: cannot run {command[0]}: {error.strerror}") from None
        if cost.status != 0:
            raise ParseError(f"{self.name} exited with {cost.status}: {last_line(cost.stderr)}")
        try:
            run = self.parse(job, cost)
        except (ValueError, ParseError) as error:
            raise ParseError(f"{self.name}: cannot read its output: {error}") from None
        if run.tokens is not None and run.tokens < job.n_tokens:  # its rate would not compare
            raise ParseError(f"{self.name} stopped after {run.tokens} of {job.n_tokens} tokens")
        return run
