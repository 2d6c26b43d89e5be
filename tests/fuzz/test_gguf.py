"""Damaged GGUF files, as target and as draft: the command generates, or says in one line what is wrong."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import gguf
import pytest
from gguf import GGUFValueType as Kind
from hypothesis import given

from tests.fuzz.cases import cases, damaged, dice
from tests.fuzz.forks import Forks
from tests.gguf_files import tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35
from tests.gguf_header import NUMBERS, GgufHeader, Key

SHORT = ("-p", "the cat sat ä!\n", "-n", "6", "-c", "64", "-t", "1")


INTEGERS = (0, 1, -1, 2, 3, 7, 127, 255, 511, 512, 513, 1025, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63)
FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("nan"))
TEXTS = (b"", b"\0", b"\xff\xfe", b"%s%n", b"none", b"longrope", b"yarn", b"{{", b"gpt2", b"bert", b"x" * 5000)
KINDS = (Kind.UINT32, Kind.UINT32, Kind.UINT32, Kind.FLOAT32, Kind.BOOL, Kind.INT32, Kind.STRING)  # of added keys
ARCHITECTURE = b"general.architecture"
NUMERIC_KEYS = sorted(
    key
    for group in vars(gguf.Keys).values()
    if isinstance(group, type)
    for name, key in vars(group).items()
    if name[0] != "_" and isinstance(key, str)
)


def damaged_file(base: GgufHeader, dice: Random) -> bytes:
    """A file like `base` with one to three faults."""
    head = copy.deepcopy(base)
    for fault in dice.choices(list(_FAULTS), list(_FAULTS.values()), k=dice.choice((1, 1, 1, 2, 3))):
        fault(head, dice)
    content, marks = head.pack()
    raw = bytearray(content)
    if dice.random() < 0.15:  # a count or length
        at, width = dice.choice(marks)
        raw[at : at + width] = (dice.choice(INTEGERS) % 2 ** (8 * width)).to_bytes(width, "little")
    return (damaged(dice, bytes(raw)) if dice.random() < 0.15 else bytes(raw)) + head.data


def _odd(kind: int) -> Any:
    """Values that a key of this kind hardly has."""
    if kind == Kind.STRING:
        return TEXTS
    return FLOATS if kind in (Kind.FLOAT32, Kind.FLOAT64) else INTEGERS


def _value(head: GgufHeader, dice: Random) -> None:
    is_text = dice.random() < 0.2
    key = dice.choice([k for k in head.keys if not k.array and (k.kind == Kind.STRING) == is_text])
    key.value = dice.choice(_odd(key.kind))


def _retype(head: GgufHeader, dice: Random) -> None:
    key, kind = dice.choice(head.keys), dice.choice([*NUMBERS, Kind.STRING, Kind.STRING])
    values = (key.value if key.array else [key.value]) or [0]
    if kind == Kind.STRING:
        values = [v if isinstance(v, bytes) else str(v).encode() for v in values]
    else:
        values = [0 if isinstance(v, bytes) else v for v in values]
    key.kind, key.array = int(kind), dice.random() < 0.4
    key.value = (values * dice.choice((1, 1, 2, 512, 513)))[:5000] if key.array else values[0]


def _array(head: GgufHeader, dice: Random) -> None:
    """Half of them have a value for each layer instead of one for all."""
    is_array = dice.random() < 0.5
    key = dice.choice([k for k in head.keys if k.array == is_array])
    if not key.array:
        key.array, key.value = True, [key.value] * dice.choice((0, 1, 2, 3, 512, 513))
    if dice.random() < 0.5 and key.value:
        i = dice.randrange(min(len(key.value), dice.choice((3, 500))))
        key.value[i] = dice.choice(_odd(key.kind) if dice.random() < 0.6 else key.value)
    else:
        n = len(key.value)
        key.value = (key.value * 2)[: dice.choice((0, 1, 2, 100, n - 1, n // 2, 2 * n))]


def _add(head: GgufHeader, dice: Random) -> None:
    architecture = next((k.value for k in head.keys if k.name == ARCHITECTURE and isinstance(k.value, bytes)), b"llama")
    name, kind = dice.choice(NUMERIC_KEYS).encode().replace(b"{arch}", architecture), dice.choice(KINDS)
    value = dice.choice(_odd(kind))
    head.keys = [k for k in head.keys if k.name != name]
    if dice.random() < 0.2:
        head.keys.append(Key(name, int(kind), [value] * dice.choice((0, 1, 2, 4)), array=True))
    else:
        head.keys.append(Key(name, int(kind), value))


def _architecture(head: GgufHeader, dice: Random) -> None:
    for key in [k for k in head.keys if k.name == ARCHITECTURE and isinstance(k.value, bytes)]:
        before, key.value = key.value + b".", dice.choice(list(gguf.MODEL_ARCH_NAMES.values())).encode()
        for other in head.keys:
            if other.name.startswith(before):
                other.name = key.value + b"." + other.name.removeprefix(before)


def _tensor(head: GgufHeader, dice: Random) -> None:
    if not head.tensors:
        return
    tensor = dice.choice(head.tensors)
    match dice.randrange(7):
        case 0 | 1 if tensor.dims:
            j = dice.randrange(len(tensor.dims))
            tensor.dims[j] = dice.choice((*INTEGERS, tensor.dims[j] + 1, 2 * tensor.dims[j]))
        case 2:
            tensor.kind = dice.randrange(45) if dice.random() < 0.8 else dice.choice(INTEGERS)
        case 3:
            tensor.offset = dice.choice((*INTEGERS, tensor.offset + 1, tensor.offset - 32, tensor.offset + 4))
        case 4:
            tensor.name = dice.choice((b"", b"x", b"blk.99999999999.x", b"y" * 63, b"y" * 64, head.tensors[0].name))
        case 5:
            tensor.dims = dice.choice(([], tensor.dims[::-1], [*tensor.dims, 1], [*tensor.dims, 1, 1, 1], [0]))
        case _:
            head.tensors.remove(tensor)
            at = 0
            for other in head.tensors:  # closed up: llama.cpp accepts no gap
                other.offset = at
                at += -(-4 * math.prod(other.dims) // 32) * 32


_FAULTS: dict[Callable[[GgufHeader, Random], object], int] = {  # and how often they are chosen
    _value: 10, _retype: 3, _array: 5, _add: 6, _architecture: 3, _tensor: 4,
    lambda head, dice: head.keys.remove(dice.choice(head.keys)): 2,
    lambda head, dice: head.keys.append(dice.choice(head.keys)): 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("good") / "good.gguf")


@pytest.fixture(scope="module")
def bases(good: Path) -> list[GgufHeader]:
    others = (
        tiny_gemma(good.with_name("gemma.gguf"), window=16),
        tiny_hybrid(good.with_name("hybrid.gguf")),
        tiny_qwen35(good.with_name("qwen35.gguf")),
        tiny_mamba(good.with_name("mamba.gguf")),
    )
    return [GgufHeader.read(path) for path in (good, good, *others)]


def test_the_bases_are_sound(good: Path, bases: list[GgufHeader], duo: Forks, tmp_path: Path) -> None:
    for base in bases:
        path = str(base.write(tmp_path / "base.gguf"))
        for models in (["-m", path], ["-m", str(good), "-md", path, "-td", "1"]):
            status, stderr = duo(*SHORT, *models)
            assert status == 0, stderr


@cases(2000)
@given(draw=dice)
def test_a_damaged_file_ends_no_process(
    good: Path, bases: list[GgufHeader], duo: Forks, tmp_path: Path, draw: Random
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(damaged_file(draw.choice(bases), draw))
    models = ["-m", str(good), "-md", str(path), "-td", "1"] if draw.random() < 0.25 else ["-m", str(path)]
    assert duo.fault(*SHORT, *models) == ""
