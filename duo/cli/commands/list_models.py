"""`duo list`: the models in the current folder and in the caches, and which can draft for which."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from shlex import quote

from duo.cli.commands.options import ListOptions
from duo.cli.terminal.console import columns, progress_bar, size_of, warn
from duo.config import EXPERTS, ModelConfig
from duo.errors import ModelError
from duo.llama.gguf_header import GgufHeader, NoTextModelError, check_text_model, has_mtp, head_kind, may_fit, n_mtp
from duo.llama.limits import available_bytes
from duo.models.demo import DRAFT, TARGET
from duo.models.draft_files import check_parts, find_models, hub_name, is_small_enough, model_folders, size
from duo.models.hub import has_package
from duo.models.memory_file import SUFFIX, name_of, summary

_HEADS = ("", "model", "size", "format", "vocabulary", "drafts")
_LEFT = {1, 3, 4, 5}
_Found = tuple[Path, str, str | None]  # a file, what it is, and the model that it belongs to, if it has one
_MOMENT_S = 1.0  # in which suggest() reads files


@dataclass(slots=True)
class Listed:
    """One model of the list."""

    path: Path
    n_bytes: int
    n_tokens: int
    header: GgufHeader  # with the tokens of the first model of the group, so that they are kept once
    group: int  # the same for models that share a vocabulary

    @property
    def letter(self) -> str:
        """The name of the group: A to Z, A1 …"""
        rounds, place = divmod(self.group, 26)
        return chr(ord("A") + place) + str(rounds or "")

    @property
    def expert_bytes(self) -> int:
        """Of a mixture of experts, the size of all of them."""
        return _experts(self.header.tensors)

    @property
    def token_bytes(self) -> int:
        """What one token reads of all tensors: of the experts its own, of a token embedding apart one row."""
        used, read = self.header.number("expert_used_count"), dict(self.header.tensors)
        share = min(1.0, used / max(1, self.header.number("expert_count"))) or 1.0
        if "output.weight" in read:
            read.pop("token_embd.weight", None)
        first = self.header.number("block_count") - n_mtp(self.header)  # of the layers that only draft
        layers = {name: int(found[1]) for name in read if (found := re.match(r"blk\.(\d+)\.", name))}
        read = {name: n for name, n in read.items() if layers.get(name, -1) < first}
        return sum(read.values()) - round((1 - share) * _experts(read))

    @property
    def drafts_itself(self) -> bool:
        """Whether it has a layer that drafts (MTP)."""
        return has_mtp(self.header) and not head_kind(self.header)

    def can_draft_for(self, target: "Listed") -> bool:
        """Whether this is a draft for `target` without translation."""
        if self.group != target.group or head_kind(target.header):
            return False
        if head_kind(self.header):
            return may_fit(self.header, target.header)
        rolls_back = not self.header.keeps_state and not target.header.is_recurrent
        return rolls_back and is_small_enough(self.n_bytes, target.n_bytes)


def _experts(tensors: Mapping[str, int]) -> int:
    return sum(n for name, n in tensors.items() if re.search(EXPERTS, name))


def list_models(options: ListOptions) -> int:
    """Print the models. Returns the exit status. Raises ModelError for a file that is given and missing."""
    given = options.paths or [*Path().glob("*.gguf")]
    for path in given:
        if not path.exists():
            raise ModelError(f"{path}: no such file")
    given = [path for path in given if path.suffix != SUFFIX]
    with progress_bar("reading the models"):
        models = _read(find_models(given))
    searched = [*(path for path in options.paths or [Path()] if path.is_dir()), *model_folders()]
    memories = [*_memories(options.paths or [Path()])]
    lines = [*_table(models, searched), *(f"{_short(file)}: {what}" for file, what, _ in memories)]
    print(json.dumps(_entries(models, memories), indent=2) if options.json else "\n".join(lines))  # noqa: T201
    return 0


def suggest() -> str:
    """The options that name a model, and its draft, of this machine, or of the current directory."""
    paths = find_models(sorted(Path().glob("*.gguf")))
    own = sorted((path for path in paths if path.name not in (TARGET.name, DRAFT.name)), key=size)
    nothing = "-m demo" if len(own) < len(paths) else "-hf USER/REPO:QUANT" if has_package() else "-m FILE"
    # In turns the largest and the smallest of the rest.
    own = [path for pair in zip(reversed(own), own, strict=True) for path in pair][: len(own)]
    found = _read_soon(own)
    targets = [one for one in found if not head_kind(one.header)]
    drafts = {one.path: [each for each in targets if each.can_draft_for(one)] for one in targets}
    targets = [one for one in targets if one.n_bytes < available_bytes()] or targets
    if not targets:
        return nothing
    can_chat = [one for one in targets if one.header.text("tokenizer.chat_template")]
    best = max(can_chat or targets, key=lambda one: (bool(drafts[one.path]), one.n_bytes))
    words = list[str]()
    chosen = [best, *drafts[best.path][-1:]]  # the smallest draft is the last one
    for one, file, hub in zip(chosen, ("-m", "-md"), ("-hf", "-hfd"), strict=False):
        words += [hub, name] if (name := hub_name(one.path)) else [file, _short(one.path)]
    return " ".join(words)


def mixtures() -> list[Listed]:
    """The mixtures of experts among the largest models of this machine, and of the current directory."""
    largest_first = sorted(find_models(sorted(Path().glob("*.gguf"))), key=size, reverse=True)
    return [one for one in _read_soon(largest_first) if one.expert_bytes]


def name_of_model(one: Listed) -> str:
    """As -hf takes it, or its path."""
    return hub_name(one.path) or _short(one.path)


def _read_soon(paths: Iterable[Path]) -> list[Listed]:
    """As many as are read in a moment."""
    end_s = time.monotonic() + _MOMENT_S
    return _read(takewhile(lambda _: time.monotonic() < end_s, paths), lambda _: None)


def _read(paths: Iterable[Path], tell: Callable[[str], object] = warn) -> list[Listed]:
    """The text models among these files, by vocabulary and size; tells of files that cannot be read."""
    found: list[Listed] = []
    groups: list[GgufHeader] = []  # the first of each
    for path in paths:
        try:
            header, n_bytes = GgufHeader(path), size(path)
            check_text_model(header)
            check_parts(path)
            if header.number("expert_count"):
                header.add_files(ModelConfig(path).shards[1:])
        except NoTextModelError:
            continue
        except (ModelError, OSError) as error:
            tell(f"{error}")
            continue
        group = next((i for i, first in enumerate(groups) if header.shares_vocabulary(first)), len(groups))
        groups += [header] * (group == len(groups))
        n_tokens, header.tokens = len(header.tokens), groups[group].tokens
        found.append(Listed(path, n_bytes, n_tokens, header, group))
    found.sort(key=lambda one: (-one.n_bytes, one.path))
    order = list(dict.fromkeys(one.group for one in found))  # the group of the largest model comes first
    for one in found:
        one.group = order.index(one.group)
    return sorted(found, key=lambda one: one.group)


def _entries(models: Sequence[Listed], memories: Sequence[_Found]) -> list[dict[str, object]]:
    return [
        {
            "path": str(one.path),
            "hub": hub_name(one.path),
            "name": one.header.text("general.name"),
            "architecture": one.header.architecture,
            "bytes": one.n_bytes,
            "expert_bytes": one.expert_bytes,
            "quantisation": one.header.quantisation,
            "vocabulary": one.letter,
            "tokens": one.n_tokens,
            "head": head_kind(one.header) or None,
            "mtp": one.drafts_itself,
            "drafts": [str(draft.path) for draft in models if draft.can_draft_for(one)],
            "memories": [str(file) for file, _, of in memories if of == name_of(one.header, one.path)],
        }
        for one in models
    ]


def _table(models: Sequence[Listed], searched: Sequence[Path]) -> list[str]:
    """The table, and what it means."""
    folders = ", ".join(map(_short, searched))
    if not models:
        return [f"no models in {folders}: `duo demo` fetches a pair, `duo chat -hf USER/REPO:QUANT` any model"]
    rows = []
    for number, one in enumerate(models, 1):
        drafts = ["MTP"] * one.drafts_itself + [str(i) for i, each in enumerate(models, 1) if each.can_draft_for(one)]
        name, vocabulary = name_of_model(one), f"{one.letter} ({one.n_tokens})"
        kind = " ".join(filter(None, (one.header.quantisation, head_kind(one.header))))
        rows.append((str(number), name, size_of(one.n_bytes), kind, vocabulary, ", ".join(drafts)))
    mixtures = [
        f"{number} is a mixture of experts: {size_of(one.expert_bytes)} of experts, "
        f"{size_of(one.n_bytes - one.expert_bytes)} of the rest; on a card that lacks room for all: -ngl 99 -cmoe"
        for number, one in enumerate(models, 1) if one.expert_bytes
    ]  # fmt: skip
    return [
        *columns((_HEADS, *rows), _LEFT),
        "",
        *mixtures,
        "drafts: numbers of the models with the same vocabulary and at most half the size. Any other small model can",
        "draft, too: its text is translated. MTP: the model has a layer that drafts. Heads and block drafts (EAGLE-3,",
        "DFlash, DSpark) are shown for the models that they may belong to. `duo tune -m FILE` measures which draft is",
        "fastest.",
        "Use -m or -md with a file, -hf or -hfd with USER/REPO:QUANT.",
        f"Searched: {folders}.",
    ]


def _memories(paths: Iterable[Path]) -> Iterator[_Found]:
    """The memories among files and in folders."""
    files = (file for path in paths for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]))
    for file in (file for file in files if file.suffix == SUFFIX):
        try:
            name, n_tokens = summary(file)
            yield file, f"a memory of {name}, {n_tokens} tokens (--memory)", name
        except ValueError:
            yield file, "a damaged memory", None
        except OSError as error:
            yield file, str(error.strerror), None


def _short(path: Path) -> str:
    """`path` as a shell understands it, with ~ for the home directory."""
    home = Path("~").expanduser()
    return f"~/{quote(str(path.relative_to(home)))}" if path.is_relative_to(home) else quote(str(path))
