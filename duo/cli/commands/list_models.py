"""`duo list`: the models in the caches, and which can draft for which."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duo.cli.options.by_command import ListOptions
from duo.cli.terminal.console import columns, size_of, warn
from duo.errors import ModelError
from duo.llama.gguf_summary import GgufSummary, NoTextModelError, summarize
from duo.models.draft_files import find_models, hub_name, is_small_enough, model_folders, size

_HEADS = ("", "model", "size", "format", "vocabulary", "drafts")
_LEFT = {1, 3, 4, 5}


@dataclass(frozen=True, slots=True)
class Listed:
    """One model of the list."""

    path: Path
    n_bytes: int
    summary: GgufSummary  # with the tokens of the first model of the group, so that they are kept once
    n_tokens: int
    group: str  # the same for models that share a vocabulary

    def can_draft_for(self, target: Listed) -> bool:
        """Whether this is a draft for `target` without translation."""
        return (
            self.group == target.group
            and is_small_enough(self.n_bytes, target.n_bytes)
            and not self.summary.keeps_state
            and not target.summary.is_recurrent
        )


def list_models(options: ListOptions) -> int:
    """Print the models. Returns the exit status. Raises ModelError for a file that is given and missing."""
    given = options.paths or []
    for path in given:
        if not path.exists():
            raise ModelError(f"{path}: no such file")
    models = _read(find_models(given))
    print(_to_json(models) if options.json else "\n".join(render(models)))  # noqa: T201 - the output
    return 0


def _read(paths: Sequence[Path]) -> list[Listed]:
    """The text models among these files, by vocabulary and size; warns of files that cannot be read."""
    found: list[tuple[Path, int, GgufSummary, int, int]] = []
    groups: list[GgufSummary] = []  # the first of each
    for path in paths:
        try:
            summary = summarize(path)
            n_bytes = size(path)
        except NoTextModelError:
            continue
        except (ModelError, OSError) as error:
            warn(f"{error}")
            continue
        group = next((i for i, first in enumerate(groups) if summary.shares_vocabulary(first)), len(groups))
        groups += [summary] * (group == len(groups))
        found.append((path, n_bytes, replace(summary, tokens=groups[group].tokens), len(summary.tokens), group))
    largest = [max(n_bytes for _, n_bytes, *_, group in found if group == i) for i in range(len(groups))]
    order = sorted(range(len(groups)), key=lambda i: -largest[i])
    names = {group: _letters(place) for place, group in enumerate(order)}
    found.sort(key=lambda one: (order.index(one[-1]), -one[1], one[0]))
    return [Listed(path, n_bytes, summary, n, names[group]) for path, n_bytes, summary, n, group in found]


def render(models: Sequence[Listed]) -> list[str]:
    """The table, and what it means."""
    folders = ", ".join(map(_short, model_folders()))
    if not models:
        return [f"no models in {folders}: `duo demo` fetches a pair, `duo chat -hf USER/REPO:QUANT` any model"]
    rows = [
        (
            str(number),
            hub_name(one.path) or _short(one.path),
            size_of(one.n_bytes),
            one.summary.quantisation,
            f"{one.group} ({one.n_tokens})",
            ", ".join(map(str, _drafts(one, models))),
        )
        for number, one in enumerate(models, 1)
    ]
    return [
        *columns((_HEADS, *rows), _LEFT),
        "",
        "drafts: numbers of the models with the same vocabulary and at most half the size. Any other small model can",
        "draft, too: its text is translated. `duo tune -m FILE` measures which draft is fastest.",
        "Use -m or -md with a file, -hf or -hfd with USER/REPO:QUANT.",
        f"Searched: {folders}.",
    ]


def _drafts(target: Listed, models: Sequence[Listed]) -> list[int]:
    """The numbers of the models that can draft for `target`."""
    return [number for number, one in enumerate(models, 1) if one.can_draft_for(target)]


def _to_json(models: Sequence[Listed]) -> str:
    entries = [
        {
            "path": str(one.path),
            "hub": hub_name(one.path),
            "name": one.summary.name,
            "architecture": one.summary.architecture,
            "bytes": one.n_bytes,
            "quantisation": one.summary.quantisation,
            "vocabulary": one.group,
            "tokens": one.n_tokens,
            "drafts": [str(models[number - 1].path) for number in _drafts(one, models)],
        }
        for one in models
    ]
    return json.dumps(entries, indent=2)


def _letters(n: int) -> str:
    """A, B … Z, AA, AB … for 0, 1 …"""
    return (_letters(n // 26 - 1) if n >= 26 else "") + chr(ord("A") + n % 26)


def _short(path: Path) -> str:
    """`path` with ~ for the home directory, which a shell understands."""
    try:
        home = Path.home()
    except RuntimeError:
        return str(path)
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
