"""`duo tune --list` and `--reset`: what was learned about pairs of models on this machine."""

import time
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from msgspec.structs import replace

from duo.cli.terminal.console import blame, columns, note, size_of
from duo.config import AUTO_DRAFT
from duo.errors import UsageError
from duo.models.profiles import Key, KeyModel, SavedProfile, kept_threads, profiles_dir, saved_profiles
from duo.remote.messages import printable
from duo.speculation.controller import Controller
from duo.speculation.draft_estimates import DraftEstimates

_SHOWN = 8  # names in a message
_HEADS = ("changed", "size", "on", "threads", "ms/token", "draft", "accepted", "fastest", "profile")


def list_profiles(names: Sequence[str]) -> int:
    """Print a table of all profiles, or those of these names in full. Returns the exit status. Raises DuoError."""
    saved = _saved()
    parts = [describe(_find(saved, name), saved) for name in names] or [table(saved)]
    print("\n\n".join(map("\n".join, parts)))  # noqa: T201 - the output
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
    rows = [_row(one, saved) for one in sorted(saved, key=lambda one: -one.modified_s)]
    lines = map(printable, columns((_HEADS, *rows), {0, 2, 3, 7, 8}))
    return [*lines, "", f"ms/token of the target and of the draft; in {profiles_dir()}"]


def describe(one: SavedProfile, saved: Sequence[SavedProfile]) -> list[str]:
    """Everything in a profile that says something to its reader."""
    key, learned = one.key, _learned(one, saved)
    found = [*zip(_HEADS, _row(one, saved), strict=True), ("file", str(one.path))]
    if key is None or learned is None:
        found.append(("damaged", f"it is not used (duo tune --reset {one.name} removes it)"))
    else:
        found += [("model", f"{each.path}, {size_of(each.n_bytes)}, {_place(each, key)}") for each in key.models]
        found.append(("machine", f"{', '.join(key.devices)}; {key.cores} cores"))
        names = {"alone": "", "while the draft computes": learned.draft.name if learned.draft is not None else ""}
        for words, name in names.items():
            for n_cores, times in learned.controller.target.times(name).items() if name or words == "alone" else ():
                where = "" if n_cores == "0" else f", {n_cores} of the cores free"
                if times:
                    measured = ", ".join(f"T({int(n)}) = {_ms(seconds)}" for n, (seconds, _) in times.items())
                    found.append(("times", f"{measured} ms {words}{where}"))
        rates = ", ".join(f"{schedule} {rate:.1f}" for schedule, rate in learned.rates.items())
        found.append(("forecast", f"tokens/s: {rates or '-'}"))
    return [printable(f"{head:<10}{words}") for head, words in found]


def _saved() -> list[SavedProfile]:
    with blame("the profiles", profiles_dir()):
        return saved_profiles()


class _Learned(NamedTuple):
    controller: Controller
    draft: DraftEstimates | None  # None: the profile is that of a target

    @property
    def rates(self) -> dict[str, float]:
        """In tokens/s, by schedule; empty for a target."""
        rates = self.controller.prospects.rates() if self.draft is not None else {}
        return {mode.schedule.value: rate for mode, rate in rates.items()}


def _learned(one: SavedProfile, saved: Sequence[SavedProfile]) -> _Learned | None:
    """What a profile says, with that of its target; None if it is damaged or empty."""
    if one.key is None:
        return None
    controller, targets = Controller(), [each for each in saved if _is_target(each, one)]
    knows = [controller.target.restore(each.document["target"]) for each in targets if "target" in each.document]
    if len(one.key.models) == 1:
        return _Learned(controller, None) if any(knows) else None
    draft = DraftEstimates(controller.target, AUTO_DRAFT, 2 * AUTO_DRAFT)
    if "draft" not in one.document or not draft.restore(one.document["draft"]):
        return None
    controller.begin([draft], 0, sampling=next(iter(one.document["draft"]["acceptance"]), "greedy"))
    return _Learned(controller, draft)


def _is_target(each: SavedProfile, one: SavedProfile) -> bool:
    """Whether a profile is that of the target of `one`, with its options, or the same one."""
    if each is one or each.key is None or one.key is None or len(each.key.models) > 1:
        return each is one
    tuned = kept_threads(one.document).get("threads")
    n_threads = one.key.options[0]
    if tuned is not None and tuned["target"] != one.key.cores:
        n_threads = tuned["target"]
    alone = replace(
        one.key, models=one.key.models[:1], options=(n_threads, None, one.key.options[2], None, *one.key.options[4:])
    )
    return each.key == alone


def _row(one: SavedProfile, saved: Sequence[SavedProfile]) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.modified_s))
    key, learned = one.key, _learned(one, saved)
    if key is None or learned is None:
        return (when, *[""] * (len(_HEADS) - 3), "damaged", one.name)
    (controller, draft), rates, shares, draft_s = learned, learned.rates, list[float](), list[float]()
    if draft is not None:
        shares = [found["mean"] for found in one.document["draft"]["acceptance"].values()]  # by mode of sampling
        draft_s = [times.token_s for times in (draft.costs.alone, draft.costs.concurrent) if times.by_threads]
    alone = controller.target.alone
    return (
        when,
        " + ".join(size_of(model.n_bytes) for model in key.models),
        "/".join(dict.fromkeys(_place(model, key) for model in key.models)),
        _threads(one, key),
        _ms(alone.seconds(1) if alone.time(1).n else 0.0),
        _ms(draft_s[0] if draft_s else 0.0),
        ", ".join(f"{100 * share:.0f} %" for share in shares) or "-",
        max(rates, key=rates.__getitem__) if rates else "-",
        one.name,
    )


def _place(model: KeyModel, key: Key) -> str:
    """Where a model's layers are."""
    if model.servers:
        return "RPC"
    if not model.n_gpu_layers or model.devices == () or set(key.llama[2:-1]) <= {"RPC", "CPU", "BLAS"}:
        return "CPU"
    moved = ", some tensors elsewhere" * bool(model.split[3:])
    return ("GPU" if model.n_gpu_layers < 0 else f"{model.n_gpu_layers} layers on GPU") + moved


def _threads(one: SavedProfile, key: Key) -> str:
    """The numbers of threads: found by `duo tune`, given by the user, or duo's defaults."""
    if tuned := kept_threads(one.document).get("threads"):
        return "tuned {target}/{draft} {concurrent[0]}+{concurrent[1]}".format(**tuned)
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
