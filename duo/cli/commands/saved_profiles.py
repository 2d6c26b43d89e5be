"""`duo tune --list` and `--reset`: what was learned about pairs of models on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import get_close_matches

from duo.cli.terminal.console import blame, columns, note, size_of
from duo.config import AUTO_DRAFT
from duo.errors import UsageError
from duo.link.messages import printable
from duo.models.profiles import Key, KeyModel, SavedProfile, kept_threads, profiles_dir, saved_profiles
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule

_SHOWN = 8  # names in a message
_HEADS = ("changed", "size", "on", "threads", "ms/token", "draft", "accepted", "fastest", "profile")


def list_profiles(names: Sequence[str]) -> int:
    """Print a table of all profiles, or those of these names in full. Returns the exit status. Raises DuoError."""
    saved = _saved()
    if names:
        print("\n\n".join("\n".join(describe(_find(saved, name))) for name in names))  # noqa: T201 - the output
    else:
        print("\n".join(table(saved)))  # noqa: T201
    return 0


def reset_profiles(names: Sequence[str]) -> int:
    """Remove the profiles of these names; `all` is every one. Returns the exit status. Raises DuoError."""
    if not names:
        raise UsageError("duo tune --reset needs a name, or all: `duo tune --list` shows the names")
    saved = _saved()
    chosen = saved if list(names) == ["all"] else [_find(saved, name) for name in names]
    # With those of a pair go the T(n) of its target, which it would take again.
    targets = [one.key.models[:1] for one in chosen if one.key is not None]
    for one in saved:
        if one in chosen or (one.key is not None and one.key.models in targets):
            with blame("the profile", one.path):
                one.path.unlink(missing_ok=True)
            note(f"removed {one.name}")
    return 0


def table(saved: Sequence[SavedProfile]) -> list[str]:
    """The table, the latest first."""
    if not saved:
        return [f"no profiles in {profiles_dir()}: `duo tune`, and every run with a draft, keeps one"]
    rows = [_row(one) for one in sorted(saved, key=lambda one: -one.modified_s)]
    lines = columns((_HEADS, *rows), {0, 2, 3, 7, 8})
    return [*lines, "", f"ms/token of the target and of the draft; in {profiles_dir()}"]


def describe(one: SavedProfile) -> list[str]:
    """Everything in a profile that says something to its reader."""
    key, policy = one.key, _learned(one)
    lines = [one.name, f"file      {one.path}"]
    if key is None or policy is None:
        return [*lines, f"damaged: it is not used (duo tune --reset {one.name} removes it)"]
    for role, model in zip(("target", "draft"), key.models, strict=False):
        lines.append(f"{role:<10}{model.path}, {size_of(model.n_bytes)}, {_place(model, key)}")
    lines.append(f"machine   {', '.join(key.devices)}; {key.cores} cores; threads: {_threads(one, key)}")
    for n_cores, both in one.document["policy"]["costs"].items():  # restored without an error
        where = "" if n_cores == "0" else f", {n_cores} of the cores free"
        for costs, words in zip(both, ("alone", "while the draft computes"), strict=True):
            if times := costs.get("target_s"):
                measured = ", ".join(f"T({int(n)}) = {_ms(seconds)}" for n, (seconds, _) in times.items())
                lines.append(f"times     {measured} ms {words}{where}")
    if len(key.models) > 1:
        lines.append(f"draft     {_ms(_draft_s(policy))} ms per token; accepted: {_accepted(one)}")
        rates = ", ".join(f"{schedule.value} {rate:.1f}" for schedule, rate in policy.rates().items())
        lines.append(f"forecast  tokens/s: {rates or '-'}")
    return [printable(line) for line in lines]


def _saved() -> list[SavedProfile]:
    with blame("the profiles", profiles_dir()):
        return list(saved_profiles())


def _learned(one: SavedProfile) -> Policy | None:
    """A policy that knows what a profile says; None if it is damaged or empty."""
    try:
        state = one.document["policy"]
        policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT)
        policy.restore(state)
        policy.begin(0, mode=next(iter(state["acceptance"]), "greedy"))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return policy


def _row(one: SavedProfile) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.modified_s))
    key, policy = one.key, _learned(one)
    if key is None or policy is None:
        return (when, "", "", "", "", "", "", "damaged", one.name)
    rates: dict[Schedule, float] = policy.rates() if len(key.models) > 1 else {}
    return (
        when,
        " + ".join(size_of(model.n_bytes) for model in key.models),
        "/".join(dict.fromkeys(_place(model, key) for model in key.models)),
        _threads(one, key),
        _ms(policy.alone.target_s(1) if policy.alone.target(1).n else 0.0),
        _ms(_draft_s(policy)),
        _accepted(one),
        max(rates, key=rates.__getitem__).value if rates else "-",
        one.name,
    )


def _draft_s(policy: Policy) -> float:
    """The draft's time per token, if it was measured; otherwise 0."""
    return next((costs.draft_s for costs in (policy.alone, policy.concurrent) if costs.state()["draft_s"]), 0.0)


def _accepted(one: SavedProfile) -> str:
    """By mode of sampling."""
    shares = (found["mean"] for found in one.document["policy"]["acceptance"].values())
    return ", ".join(f"{100 * share:.0f} %" for share in shares) or "-"


def _place(model: KeyModel, key: Key) -> str:
    """Where a model's layers are."""
    if model.servers:
        return "RPC"
    if not model.n_gpu_layers or model.devices == () or set(key.llama[2:-1]) <= {"RPC", "CPU", "BLAS"}:
        return "CPU"
    return "GPU" if model.n_gpu_layers < 0 else f"{model.n_gpu_layers} layers on GPU"


def _threads(one: SavedProfile, key: Key) -> str:
    """The numbers of threads: found by `duo tune`, given by the user, or duo's defaults."""
    if tuned := kept_threads(one.document).get("threads"):
        first, second = tuned["beside"]
        return f"tuned {tuned['target']}/{tuned['draft']} {first}+{second}"
    given = [f"{name} {n}" for name, n in zip(("-t", "-td"), key.options, strict=False) if n]
    return " ".join(given) or "auto"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}" if seconds else "-"


def _find(saved: Sequence[SavedProfile], name: str) -> SavedProfile:
    """The profile of this name, or the only one whose name contains it. Raises UsageError."""
    wanted = name.removesuffix(".json").lower()
    matching = [one for one in saved if wanted in one.name or wanted == one.path.stem]
    if len(matching) == 1:
        return matching[0]
    names = [one.name for one in matching or saved]
    similar = names if matching else get_close_matches(wanted, names, n=_SHOWN, cutoff=0.3) or names
    found = "is in several names" if matching else "is no name"
    raise UsageError(f"{name!r} {found} of a profile; there is: {', '.join(similar[:_SHOWN]) or 'none'}")
