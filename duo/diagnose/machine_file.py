"""Machine files: what decodes cost on hardware that somebody has measured. See docs/benchmarking.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from duo.config import AUTO_DRAFT, MAX_BRANCHES
from duo.errors import UsageError
from duo.models.storage import MIB, read_path
from duo.speculation.machine import Machine

MAX_MS = 1e9
Milliseconds: TypeAlias = Annotated[float, Meta(ge=1e-9, le=MAX_MS)]  # far less overflows in forecasts
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Table: TypeAlias = dict[Annotated[int, Meta(ge=1, le=1 << 20)], Milliseconds]  # by tokens, or by sequences
_Optional: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_MS)]


class _Emulated(msgspec.Struct, forbid_unknown_fields=True):
    slow_down: Annotated[float, Meta(gt=0, le=1e6)]


class _Sourced(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    source: str = ""
    inferred: str = ""
    assumed: list[str] = []


class _PairFields(_Sourced, forbid_unknown_fields=True):
    target_ms: Table
    draft_ms: Milliseconds | Table
    beside_target_ms: Table | None = None
    beside_draft_ms: Milliseconds | Table | None = None
    read_ms: _Optional = 0.0
    pair_ms: _Optional = 0.0
    apart: bool = False
    aborts: bool = True
    delay_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0
    two_devices: _Emulated | None = None
    traces: str = ""


class _File(_Sourced, forbid_unknown_fields=True):
    name: str
    pairs: Annotated[dict[str, _PairFields], Meta(min_length=1)]
    noise: Share = 0.0
    spikes: Share = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft on a machine. Times in seconds."""

    name: str
    machine_name: str
    machine: Machine  # target_s: of T(1) to T(n_max + 1)
    separate_devices: bool  # whether the draft has a device of its own
    draft_alone_s: Sequence[float]  # of one token in each of 1, 2, … MAX_BRANCHES + 1 sequences, the target idle
    slow_down: float | None  # for the benchmarks, which emulate it; None: they do not
    traces: str  # name of the recorded texts
    source: str  # who measured this
    assumed: Sequence[str]  # fields that nobody has measured


def read_machine(path: Path, n_max: int = AUTO_DRAFT) -> dict[str, Pair]:
    """The pairs of a file by name, with T(1) to T(n_max + 1). Raises UsageError, which names file and field."""
    try:
        found = msgspec.json.decode(read_path(path, MIB), type=_File)
        return {name: _pair(name, found, n_max) for name in found.pairs}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # including those of msgspec and of encodings
        raise UsageError(f"{path}: not a machine file: {error}") from None


def read_pair(text: str, n_max: int = AUTO_DRAFT) -> Pair:
    """That of FILE or FILE:PAIR. Raises UsageError, also if the file has several pairs and none is named."""
    name = ""
    if not Path(text).expanduser().is_file() and ":" in text:
        text, _, name = text.rpartition(":")
    path = Path(text).expanduser()
    pairs = read_machine(path, n_max)
    if name not in pairs and (name or len(pairs) > 1):
        raise UsageError(f"{path}: add : and the name of a pair (it has: {', '.join(pairs)})")
    return pairs[name] if name else next(iter(pairs.values()))


def _pair(name: str, file: _File, n_max: int) -> Pair:
    fields = file.pairs[name]
    beside_target, beside_draft = fields.beside_target_ms, fields.beside_draft_ms
    try:
        if not (fields.apart or (beside_target and beside_draft)):
            raise ValueError("`beside_target_ms` and `beside_draft_ms` are required unless `apart` is true")
        alone_s, branch_s = _sequences(fields.draft_ms), _sequences(beside_draft or fields.draft_ms)
        target_s, beside_s = (curve(ms, n_max + 1) for ms in (fields.target_ms, beside_target or fields.target_ms))
    except ValueError as error:
        raise ValueError(f"pair {name!r}: {error}") from None
    machine = Machine(
        target_s, alone_s[0], beside_s, branch_s[0], fields.read_ms / 1000, fields.pair_ms / 1000, noise=file.noise,
        spikes=file.spikes, branch_s=branch_s, latency_s=2 * fields.delay_ms / 1000, aborts=fields.aborts,
    )  # fmt: skip
    return Pair(
        name, file.name, machine, fields.apart, alone_s, fields.two_devices.slow_down if fields.two_devices else None,
        fields.traces, fields.source or file.source, fields.assumed or file.assumed,
    )  # fmt: skip


def _sequences(known: float | Mapping[int, float]) -> Sequence[float]:
    """By the number of sequences; from a single number: as many tokens, one after the other."""
    n = MAX_BRANCHES + 1
    return curve(known if isinstance(known, Mapping) else {1: known, n: n * known}, n)


def curve(known: Mapping[int, float], n_most: int) -> Sequence[float]:
    """Seconds for 1 to `n_most` from some of them in ms: linear between and beyond. Raises ValueError without 1."""
    if 1 not in known:
        raise ValueError("a table has no time for 1")
    ns = sorted(known)
    ms = [known[n] for n in ns]
    if ns[-1] < n_most:
        slope = (ms[-1] - ms[-2]) / (ns[-1] - ns[-2]) if len(ns) > 1 else 0.0
        ns.append(n_most)
        ms.append(ms[-1] + max(0.0, slope) * (n_most - ns[-2]))
    return tuple((np.interp(range(1, n_most + 1), ns, ms) / 1000).tolist())
