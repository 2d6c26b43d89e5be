"""`duo batch`: answers a file of requests in OpenAI's batch format."""

from collections.abc import Sequence
from pathlib import Path

from duo.cli.commands.options import BatchOptions
from duo.cli.load import loaded, say_if_fewer_at_once
from duo.cli.options import RANDOM_SEED
from duo.cli.terminal.console import blame, finish_notices, note, progress_bar, send_log, warn
from duo.cli.terminal.interrupts import on_interrupt
from duo.errors import UsageError
from duo.llama.grammar import Grammar
from duo.server.batch import AnswerFile, Batch, BatchRequest, read_requests

_MOST_WARNINGS = 16
_FAILS, _NEVER = 500, 501  # a status from the first on is a failure of this machine, except for what it never serves
_MOST_FAILURES = 8  # in succession: then the next ones would fail, too
_EXAMPLE = (
    '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", '
    '"body": {"messages": [{"role": "user", "content": "Hello"}]}}'
)


def batch(options: BatchOptions) -> int:
    """Answer what has no answer yet. Returns the exit status: 1 if an answer is an error. Raises DuoError."""
    send_log(options)
    path, output = options.requests, options.output
    if path is None or output is None:
        raise UsageError("name the requests and a file for the answers: duo batch REQUESTS -o FILE -m MODEL")
    for named, name in ((path, "the requests"), (output, "-o")):
        if named in (Path(), Path("-")):
            raise UsageError(f"{name}: name a file, from which a batch can go on, not {str(named)!r}")
    options.check_model()
    with blame("file", path):
        requests, faults = read_requests(path)
        if output.exists() and output.samefile(path):
            raise UsageError(f"-o {output}: these are the requests: name another file")
    for fault in faults[:_MOST_WARNINGS]:
        warn(f"{fault}: left out")
    if len(faults) > _MOST_WARNINGS:
        warn(f"{path}: {len(faults) - _MOST_WARNINGS} further lines: left out")
    if faults and not requests:
        note(f"no line is a request, such as {_EXAMPLE}")
    with blame("-o", output):
        opened = AnswerFile(output)
    status, n_before, has_failed = 0, len(opened.statuses), True
    try:
        with opened as answers:
            left = [one for one in requests.values() if one.custom_id not in answers.statuses]
            status = _answer(options, left, answers) if left else 0
        has_failed = False
    finally:
        statuses = [opened.statuses[one] for one in requests if one in opened.statuses]
        n_errors = sum(one >= 400 for one in statuses)
        said = f"{output}: {len(statuses)} of {len(requests)} requests are answered, {n_errors} of them by errors"
        said += f"; lines left out: {len(faults)}" if faults else ""
        if not has_failed or len(opened.statuses) > n_before:
            note(f"{said}; to go on, give the same command again" if len(statuses) < len(requests) else said)
    return status or int(n_errors > 0 or bool(faults) or len(statuses) < len(requests))


def _answer(options: BatchOptions, left: Sequence[BatchRequest], answers: AnswerFile) -> int:
    """Answer the requests that are `left`. Returns the exit status after a signal, or 0. Raises DuoError."""
    warnings, n_before, n_failed = set[str](), len(answers.statuses), 0
    config = options.config()
    with loaded(options, options.generation.stop.n_predict) as engine:
        if config.grammar is not None:
            Grammar(engine.slot.target, config.grammar)  # an invalid one fails now, and not with each text
        say_if_fewer_at_once(engine.slot)
        batch = Batch(engine, config, random_seed=options.seed == RANDOM_SEED)
        with on_interrupt(batch.stop) as interrupt, progress_bar(shows_time=True) as show:

            def add(custom_id: str, status: int, body: bytes, warning: str) -> None:
                nonlocal n_failed
                fails = status >= _FAILS and status != _NEVER
                n_failed = n_failed + 1 if fails else 0
                if n_failed == _MOST_FAILURES:
                    batch.stop()
                if fails:  # it is asked again by the next command
                    warning = f"no answer ({status}), but next time: {body.decode(errors='replace')[:300]}"
                else:
                    with blame("-o", answers.path):
                        answers.add(custom_id, status, body)
                show("answers", len(answers.statuses), n_before + len(left))
                if warning and warning not in warnings and len(warnings) < _MOST_WARNINGS:
                    warnings.add(warning)
                    warn(f"{custom_id[:100]!r}: {warning}")

            batch.answer(left, add)
        finish_notices()
        return interrupt.status
