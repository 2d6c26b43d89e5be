"""`duo tune --list` and `--reset`: what was learned about pairs of models on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from duo.cli.terminal.console import columns, say, size_of
from duo.cli.terminal.files import blame
from duo.config import AUTO_DRAFT
from duo.engine.cores import kept_threads
from duo.errors import UsageError
from duo.link.messages import printable
from duo.models.profiles import Key, KeyModel, ProfileDocument, SavedProfile, profiles_dir, saved_profiles
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule

_SHOWN = 8  # names in a message
_HEADS = ("changed", "size", "on", "threads", "ms/token", "draft", "accepted", "fastest", "profile")
_LEFT = {0, 2, 3, 7, 8}


@dataclass(frozen=True, slots=True)
class Learned:
    """What a profile says; None where nothing is known."""

    policy: Policy
    accepted: dict[str, float]  # share, by mode of sampling
    rates: dict[Schedule, float]  # tokens/s

    @property
    def target_s(self) -> float | None:
        """T(1), if it was measured."""
        return self.policy.alone.target_s(1) if self.policy.alone.target(1).n else None

    @property
    def draft_s(self) -> float | None:
        """The draft's time per token, if it was measured."""
        models = (self.policy.alone, self.policy.concurrent)
        return next((costs.draft_s for costs in models if costs.state()["draft_s"]), None)

    @property
    def assumed(self) -> str:
        """What the forecasts assume, in words."""
        alone, beside = self.policy.alone, self.policy.concurrent
        sizes = {int(n) for costs in (alone, beside) for n in costs.state()["target_s"]}
        known = {
            "batches of several tokens": max(sizes, default=1) > 1,
            "both models at once": beside.is_measured,
            "the draft's time for two tokens": alone.state()["pair_s"],
        }
        return ", ".join(words for words, is_known in known.items() if not is_known)


def list_profiles(names: Sequence[str]) -> int:
    """Print a table of all profiles, or those of these names in full. Returns the exit status. Raises DuoError."""
    with blame("the profiles", profiles_dir()):
        saved = saved_profiles()
    if names:
        print("\n\n".join("\n".join(describe(one)) for one in _choose(saved, names)))  # noqa: T201 - the output
    else:
        print("\n".join(table(saved)))  # noqa: T201
    return 0


def reset_profiles(names: Sequence[str]) -> int:
    """Remove the profiles of these names; `all` is every one. Returns the exit status. Raises DuoError."""
    if not names:
        raise UsageError("duo tune --reset needs a name, or all: `duo tune --list` shows the names")
    with blame("the profiles", profiles_dir()):
        saved = saved_profiles()
    chosen = saved if list(names) == ["all"] else _choose(saved, names)
    for one in saved:
        if one in chosen or _is_of_target(one, chosen):
            name = one.name
            with blame("the profile", one.path):
                one.path.unlink(missing_ok=True)
            say(f"duo: removed {name}")
    return 0


def _is_of_target(one: SavedProfile, chosen: Sequence[SavedProfile]) -> bool:
    """Whether these are the T(n) that one of the chosen pairs would take again."""
    targets = [other.key.models[:1] for other in chosen if other.key is not None]
    return one.key is not None and len(one.key.models) == 1 and one.key.models in targets


def learned(one: SavedProfile) -> Learned | None:
    """What a profile says; None if it is damaged or empty."""
    if one.key is None:
        return None
    try:
        state = one.document["policy"]
        policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT)
        policy.restore(state)
        accepted = {mode: float(found["mean"]) for mode, found in state["acceptance"].items()}
        policy.begin(0, mode=next(iter(accepted), "greedy"))
        has_draft = len(one.key.models) > 1
        return Learned(policy, accepted if has_draft else {}, policy.rates() if has_draft else {})
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def table(saved: Sequence[SavedProfile]) -> list[str]:
    """The table, the latest first."""
    if not saved:
        return [f"no profiles in {profiles_dir()}: `duo tune`, and every run with a draft, keeps one"]
    rows = [_row(one) for one in sorted(saved, key=lambda one: -one.modified_s)]
    return [*columns((_HEADS, *rows), _LEFT), "", f"ms/token of the target and of the draft; in {profiles_dir()}"]


def _row(one: SavedProfile) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.modified_s))
    key, found = one.key, learned(one)
    if key is None or found is None:
        return (when, "", "", "", "", "", "", "damaged", one.name)
    return (
        when,
        " + ".join(size_of(model.n_bytes) for model in key.models),
        "/".join(dict.fromkeys(_place(model, key) for model in key.models)),
        _threads(one.document, key, brief=True),
        _ms(found.target_s),
        _ms(found.draft_s),
        ", ".join(f"{100 * share:.0f} %" for share in found.accepted.values()) or "-",
        max(found.rates, key=found.rates.__getitem__).value if found.rates else "-",
        one.name,
    )


def describe(one: SavedProfile) -> list[str]:
    """Everything in a profile that says something to its reader."""
    key, found = one.key, learned(one)
    lines = [one.name, f"file      {one.path}", f"changed   {time.ctime(one.modified_s)}"]
    if key is None or found is None:
        return [*lines, f"damaged: it is not used (duo tune --reset {one.name} removes it)"]
    for role, model in zip(("target", "draft"), key.models, strict=False):
        lines.append(f"{role:<10}{model.path}, {size_of(model.n_bytes)}, {_place(model, key)}")
    lines.append(f"machine   {', '.join(key.devices)}; {key.cores} cores")
    lines.append(f"threads   {_threads(one.document, key, brief=False)}")
    for n_cores, both in one.document["policy"]["costs"].items():  # restored without an error
        where = "" if n_cores == "0" else f", {n_cores} of the cores free"
        for costs, words in zip(both, ("alone", "while the draft computes"), strict=True):
            if times := costs.get("target_s"):
                measured = ", ".join(f"T({int(n)}) = {_ms(seconds)}" for n, (seconds, _) in times.items())
                lines.append(f"times     {measured} ms {words}{where}")
    if found.draft_s and len(key.models) > 1:
        lines.append(f"draft     {_ms(found.draft_s)} ms per token")
    lines += [
        f"accepted  {100 * share:.0f} % of the draft's tokens ({mode})"
        for mode, share in found.accepted.items()
        if mode.isprintable()
    ]
    if found.rates:
        rates = ", ".join(f"{schedule.value} {rate:.1f}" for schedule, rate in found.rates.items())
        lines.append(f"forecast  tokens/s: {rates}{found.assumed and f'; assumed: {found.assumed}'}")
    return [printable(line) for line in lines]


def _place(model: KeyModel, key: Key) -> str:
    """Where a model's layers are."""
    if model.servers:
        return "RPC"
    if not model.n_gpu_layers or model.devices == () or set(key.llama[2:-1]) <= {"RPC", "CPU", "BLAS"}:
        return "CPU"
    return "GPU" if model.n_gpu_layers < 0 else f"{model.n_gpu_layers} layers on GPU"


def _threads(document: ProfileDocument, key: Key, *, brief: bool) -> str:
    """The numbers of threads: found by `duo tune`, given by the user, or duo's defaults."""
    if tuned := kept_threads(document).get("threads"):
        first, second = tuned["beside"]
        both = f"target {tuned['target']}, draft {tuned['draft']}, concurrent {first} and {second}"
        return "tuned" if brief else f"found by `duo tune`: {both}"
    given = [f"{name} {n}" for name, n in zip(("-t", "-td"), key.options, strict=False) if n]
    return " ".join(given) or ("auto" if brief else "duo's defaults")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _choose(saved: Sequence[SavedProfile], names: Sequence[str]) -> list[SavedProfile]:
    """The profiles of these names. Raises UsageError."""
    chosen = {one.name: one for name in names for one in [_find(saved, name)]}
    return list(chosen.values())


def _find(saved: Sequence[SavedProfile], name: str) -> SavedProfile:
    """The profile of this name, or the only one whose name contains it. Raises UsageError."""
    by_name = {one.name: one for one in saved}
    wanted = name.removesuffix(".json").lower()
    matching = [known for known, one in by_name.items() if wanted in known or wanted == one.path.stem]
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
