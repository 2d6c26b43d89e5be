"""`duo profile`: what was learned about pairs of models on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from duo.cli.options.profile import ProfileOptions
from duo.cli.terminal.console import say
from duo.cli.terminal.files import blame
from duo.cli.terminal.table import columns, size_of
from duo.config import AUTO_DRAFT
from duo.engine.threads import kept_threads
from duo.errors import UsageError
from duo.models.profiles import SavedProfile, profiles_dir, saved_profiles
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule

_ACTIONS = ("list", "show", "reset")
_SHOWN = 8  # names in a message
_HEADS = ("changed", "size", "on", "threads", "T(1)", "draft", "accepted", "fastest", "profile")
_LEFT = {0, 2, 3, 7, 8}


@dataclass(frozen=True, slots=True)
class Learned:
    """What a profile says; None where nothing is known."""

    policy: Policy
    accepted: dict[str, float]  # share, by mode of sampling
    rates: dict[Schedule, float]  # tokens/s

    @property
    def target_s(self) -> float | None:
        """T(1)."""
        return self.policy.alone.target_s(1) or None

    @property
    def draft_s(self) -> float | None:
        """The draft's time per token."""
        return self.policy.alone.draft_s or self.policy.beside.draft_s or None


def profile(options: ProfileOptions) -> int:
    """List, show or remove profiles. Returns the exit status. Raises DuoError."""
    if options.action not in _ACTIONS:
        raise UsageError(f"duo profile {options.action}: use one of {', '.join(_ACTIONS)}")
    names = options.names or []
    if options.action == "list" and names:
        raise UsageError(f"duo profile list takes no name: duo profile show {names[0]}")
    if options.all and (options.action != "reset" or names):
        raise UsageError("--all is for `duo profile reset` without names")
    with blame("the profiles", profiles_dir()):
        saved = saved_profiles()
        if options.action == "list":
            print("\n".join(_list(saved)))  # noqa: T201 - the output
            return 0
        chosen = saved if options.all else _choose(saved, names, options.action)
        if options.action == "show":
            print("\n\n".join("\n".join(show(one)) for one in chosen))  # noqa: T201 - the output
        else:
            for one in chosen:
                one.path.unlink(missing_ok=True)
                say(f"duo: removed {one.name}")
    return 0


def learned(document: dict[str, Any]) -> Learned | None:
    """What a profile's document says; None if it is damaged or empty."""
    try:
        state = document["policy"]
        policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT)
        policy.restore(state)
        accepted = {str(mode): float(found["mean"]) for mode, found in state["acceptance"].items()}
        policy.begin(0, mode=next(iter(accepted), "greedy"))
        has_draft = len(document["for"]["models"]) > 1
        return Learned(policy, accepted if has_draft else {}, policy.rates() if has_draft else {})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _list(saved: Sequence[SavedProfile]) -> list[str]:
    """The table, the latest first."""
    if not saved:
        return [f"no profiles in {profiles_dir()}: `duo tune`, and every run with a draft, keeps one"]
    rows = [_row(one) for one in sorted(saved, key=lambda one: -one.modified_s)]
    return [*columns((_HEADS, *rows), _LEFT), "", f"ms per token; in {profiles_dir()}"]


def _row(one: SavedProfile) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.modified_s))
    found, models = learned(one.document), _models(one.document)
    if found is None:
        return (when, "", "", "", "", "", "", "damaged", one.name)
    return (
        when,
        " + ".join(size_of(model["bytes"]) for model in models if isinstance(model.get("bytes"), int)),
        "/".join(dict.fromkeys(_place(model, one.document) for model in models)),
        _threads(one.document, brief=True),
        _ms(found.target_s),
        _ms(found.draft_s),
        ", ".join(f"{100 * share:.0f} %" for share in found.accepted.values()),
        max(found.rates, key=found.rates.__getitem__).value if found.rates else "",
        one.name,
    )


def show(one: SavedProfile) -> list[str]:
    """Everything in a profile that says something to its reader."""
    found, models, key = learned(one.document), _models(one.document), one.document.get("for", {})
    lines = [one.name, f"file      {one.path}", f"changed   {time.ctime(one.modified_s)}"]
    if found is None:
        return [*lines, f"damaged: it is not used (duo profile reset {one.name} removes it)"]
    for role, model in zip(("target", "draft"), models, strict=False):
        lines.append(f"{role:<10}{model.get('path')}, {size_of(model.get('bytes', 0))}, {_place(model, one.document)}")
    lines.append(f"machine   {', '.join(map(str, key.get('devices', ())))}; {key.get('cores')} cores")
    lines.append(f"threads   {_threads(one.document, brief=False)}")
    for name, words in (("alone", "alone"), ("beside", "while the draft computes")):
        if times := one.document["policy"][name]["target_s"]:
            measured = ", ".join(f"T({n}) = {_ms(seconds)}" for n, (seconds, _) in times.items())
            lines.append(f"times     {measured} ms {words}")
    if found.draft_s and len(models) > 1:
        lines.append(f"draft     {_ms(found.draft_s)} ms per token")
    lines += [f"accepted  {100 * share:.0f} % of the draft's tokens ({mode})" for mode, share in found.accepted.items()]
    if found.rates:
        rates = ", ".join(f"{schedule.value} {rate:.1f}" for schedule, rate in found.rates.items())
        lines.append(f"forecast  tokens/s: {rates}")
    return lines


def _models(document: dict[str, Any]) -> list[dict[str, Any]]:
    key = document.get("for")
    models = key.get("models") if isinstance(key, dict) else None
    return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []


def _place(model: dict[str, Any], document: dict[str, Any]) -> str:
    """Where a model's layers are."""
    if model.get("servers"):
        return "RPC"
    layers, llama = model.get("gpu_layers"), document["for"].get("llama") or []
    if not layers or model.get("devices") == [] or set(llama[2:-1]) <= {"RPC", "CPU", "BLAS"}:
        return "CPU"
    return "GPU" if not isinstance(layers, int) or layers < 0 else f"{layers} layers on GPU"


def _threads(document: dict[str, Any], *, brief: bool) -> str:
    """The numbers of threads: found by `duo tune`, given by the user, or duo's defaults."""
    if tuned := kept_threads(document).get("threads"):
        first, second = tuned["beside"]
        both = f"target {tuned['target']}, draft {tuned['draft']}, concurrent {first} and {second}"
        return "tuned" if brief else f"found by `duo tune`: {both}"
    options = document["for"].get("options") or [None, None]
    given = [f"{name} {n}" for name, n in zip(("-t", "-td"), options, strict=False) if n]
    return " ".join(given) or ("auto" if brief else "duo's defaults")


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def _choose(saved: Sequence[SavedProfile], names: Sequence[str], action: str) -> list[SavedProfile]:
    """The profiles of these names. Raises UsageError."""
    if not names:
        more = " (or --all)" if action == "reset" else ""
        raise UsageError(f"duo profile {action} needs a name{more}: `duo profile list` shows them")
    chosen = {one.name: one for name in names for one in [_find(saved, name)]}
    return list(chosen.values())


def _find(saved: Sequence[SavedProfile], name: str) -> SavedProfile:
    """The profile of this name, or the only one whose name contains it. Raises UsageError."""
    by_name = {one.name: one for one in saved}
    wanted = name.removesuffix(".json").lower()
    matching = [known for known in by_name if wanted in known]
    if len(matching) == 1:
        return by_name[matching[0]]
    if matching:
        raise UsageError(f"{name!r} is in the names of {len(matching)} profiles: {_some(matching)}")
    if not saved:
        raise UsageError(f"no profile {name!r}: there are none")
    similar = get_close_matches(wanted, by_name, n=_SHOWN, cutoff=0.3) or list(by_name)
    raise UsageError(f"no profile {name!r}; there is {_some(similar)}")


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
