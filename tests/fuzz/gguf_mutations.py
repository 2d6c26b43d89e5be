"""Damages heads of GGUF files: numbers, texts, arrays, keys, tensors, counts and lengths, and bytes at random."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import gguf
from gguf import GGUFValueType as Kind

from tests.gguf_head import NUMBERS, Head, Key, Tensor

INTEGERS = (0, 1, -1, 2, 3, 7, 127, 255, 511, 512, 513, 1025, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63)
FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("nan"))
TEXTS = (b"", b"\0", b"\xff\xfe", b"%s%n", b"none", b"longrope", b"yarn", b"{{", b"x" * 5000, "é".encode())
TOKENIZERS = (b"llama", b"gpt2", b"bert", b"t5", b"rwkv", b"plamo2", b"none", b"no_vocab", b"test", b"gemma4")
NUMERIC_KEYS = sorted(
    key
    for group in vars(gguf.Keys).values()
    if isinstance(group, type)
    for name, key in vars(group).items()
    if name[0] != "_" and isinstance(key, str)
)


def damaged(base: Head, random: Random) -> tuple[bytes, str]:
    """A file like `base` with one to three faults, and what they are."""
    head = Head(
        [Key(k.name, k.kind, list(k.value) if k.array else k.value, k.array) for k in base.keys],
        [Tensor(t.name, list(t.dims), t.kind, t.offset) for t in base.tensors],
        base.data,
    )
    said = [random.choices(*zip(*_FAULTS, strict=True))[0](head, random) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    content, marks = head.pack()
    raw = bytearray(content)
    if random.random() < 0.15:
        said.append(_overwrite(raw, marks, random))
    if random.random() < 0.08:
        said.append(_flip(raw, random))
    content = bytes(raw) + head.data
    if random.random() < 0.05:
        length = random.randrange(len(raw) if random.random() < 0.7 else len(content))
        said.append(f"only {length} bytes")
        content = content[:length]
    return content, "; ".join(said)


def _number(head: Head, random: Random) -> str:
    key = random.choice([k for k in head.keys if not k.array and k.kind != Kind.STRING])
    key.value = random.choice(FLOATS if key.kind in (Kind.FLOAT32, Kind.FLOAT64) else INTEGERS)
    return f"{key.name!r} = {key.value}"


def _text(head: Head, random: Random) -> str:
    key = random.choice([k for k in head.keys if not k.array and k.kind == Kind.STRING])
    key.value = random.choice(TEXTS)
    return f"{key.name!r} = {key.value[:20]!r}"


def _retype(head: Head, random: Random) -> str:
    key = random.choice(head.keys)
    kind = random.choice([*list(NUMBERS), Kind.STRING, Kind.STRING])
    values = key.value if key.array else [key.value]
    if kind == Kind.STRING:
        values = [v if isinstance(v, bytes) else str(v).encode() for v in values]
    else:
        values = [0 if isinstance(v, bytes) else v for v in values]
    key.array = random.random() < 0.4
    key.kind, key.value = int(kind), values * random.choice((1, 1, 2, 512, 513)) if key.array else (values or [0])[0]
    if key.array and len(key.value) > 5000:
        key.value = key.value[:5000]
    if not key.array and kind == Kind.STRING and not isinstance(key.value, bytes):
        key.value = b""
    return f"{key.name!r} is {'an array of ' if key.array else ''}{kind.name}"


def _per_layer(head: Head, random: Random) -> str:
    key = random.choice([k for k in head.keys if not k.array and k.kind != Kind.STRING])
    key.array, key.value = True, [key.value] * random.choice((0, 1, 2, 3, 512, 513))
    if key.value and random.random() < 0.5:
        key.value[random.randrange(len(key.value))] = random.choice(INTEGERS)
    return f"{key.name!r} = [{len(key.value)}] {key.value[:3]}"


def _array(head: Head, random: Random) -> str:
    key = random.choice([k for k in head.keys if k.array])
    length = random.choice((0, 1, 2, 100, len(key.value) - 1, len(key.value) // 2, 2 * len(key.value)))
    if random.random() < 0.5 and key.value:
        i = random.randrange(min(len(key.value), random.choice((3, 500))))
        odd: Any = TEXTS if key.kind == Kind.STRING else FLOATS if key.kind == Kind.FLOAT32 else INTEGERS
        key.value[i] = random.choice(odd if random.random() < 0.6 else key.value)
        return f"{key.name!r}[{i}] = {key.value[i]!r:.20}"
    key.value = (key.value * 2)[:length]
    return f"{key.name!r} has {length} elements"


def _remove(head: Head, random: Random) -> str:
    key = head.keys.pop(random.randrange(len(head.keys)))
    return f"no {key.name!r}"


def _repeat(head: Head, random: Random) -> str:
    key = random.choice(head.keys)
    head.keys.append(key)
    return f"{key.name!r} twice"


def _add(head: Head, random: Random) -> str:
    architecture = next((k.value for k in head.keys if k.name == b"general.architecture"), b"llama")
    if not isinstance(architecture, bytes):
        architecture = b"llama"
    name = random.choice(NUMERIC_KEYS).replace("{arch}", architecture.decode("latin1")).encode("latin1")
    head.keys = [k for k in head.keys if k.name != name]
    kind = random.choice((Kind.UINT32, Kind.UINT32, Kind.UINT32, Kind.FLOAT32, Kind.BOOL, Kind.INT32, Kind.STRING))
    odd: Any = TEXTS if kind == Kind.STRING else FLOATS if kind == Kind.FLOAT32 else INTEGERS
    key = Key(name, int(kind), random.choice(odd))
    if random.random() < 0.2:
        key.array, key.value = True, [key.value] * random.choice((0, 1, 2, 4))
    head.keys.append(key)
    return f"{name!r} = {key.value!r:.40}"


def _architecture(head: Head, random: Random) -> str:
    key = next((k for k in head.keys if k.name == b"general.architecture"), None)
    if key is None or not isinstance(key.value, bytes):
        return "as it was"
    before, after = key.value, random.choice(list(gguf.MODEL_ARCH_NAMES.values())).encode()
    key.value = after
    for other in head.keys:
        if other.name.startswith(before + b"."):
            other.name = after + other.name[len(before) :]
    return f"architecture {after!r}"


def _tokenizer(head: Head, random: Random) -> str:
    model = random.choice(TOKENIZERS)
    head.keys = [k for k in head.keys if k.name not in (b"tokenizer.ggml.model", b"tokenizer.ggml.merges")]
    head.keys.append(Key(b"tokenizer.ggml.model", int(Kind.STRING), model))
    merges = random.choice(([], [b"a b", b"c d"], [b"", b" ", b"x"], None))
    if merges is not None:
        head.keys.append(Key(b"tokenizer.ggml.merges", int(Kind.STRING), merges, array=True))
    return f"tokenizer {model!r}, merges {merges}"


def _tensor(head: Head, random: Random) -> str:
    if not head.tensors:
        return "as it was"
    i = random.randrange(len(head.tensors))
    tensor = head.tensors[i]
    name = tensor.name.decode("latin1")
    match random.randrange(7):
        case 0 | 1 if tensor.dims:
            j = random.randrange(len(tensor.dims))
            tensor.dims[j] = random.choice((*INTEGERS, tensor.dims[j] + 1, 2 * tensor.dims[j]))
            return f"{name} has dims {tensor.dims}"
        case 2:
            tensor.kind = random.randrange(45) if random.random() < 0.8 else random.choice(INTEGERS)
            return f"{name} has type {tensor.kind}"
        case 3:
            tensor.offset = random.choice((*INTEGERS, tensor.offset + 1, tensor.offset - 32, tensor.offset + 4))
            return f"{name} has offset {tensor.offset}"
        case 4:
            tensor.name = random.choice((b"", b"x", b"blk.99999999999.x", b"y" * 63, b"y" * 64, head.tensors[0].name))
            return f"{name} is called {tensor.name!r}"
        case 5:
            tensor.dims = random.choice(([], tensor.dims[::-1], [*tensor.dims, 1], [*tensor.dims, 1, 1, 1], [0]))
            return f"{name} has dims {tensor.dims}"
        case _:
            del head.tensors[i]
            at = 0
            for other in head.tensors:  # closed up: llama.cpp accepts no gap
                other.offset = at
                at += -(-4 * _product(other.dims) // 32) * 32
            return f"no {name}"


def _product(dims: list[int]) -> int:
    n = 1
    for dim in dims:
        n *= dim
    return n


def _count(head: Head, random: Random) -> str:
    if random.random() < 0.5:
        head.n_keys = random.choice((*INTEGERS, len(head.keys) - 1, len(head.keys) + 1))
        return f"n_kv = {head.n_keys}"
    head.n_tensors = random.choice((*INTEGERS, len(head.tensors) - 1, len(head.tensors) + 1))
    return f"n_tensors = {head.n_tensors}"


def _alignment(head: Head, random: Random) -> str:
    value = random.choice((*INTEGERS, 8, 16, 64, 4096))
    head.keys.append(Key(b"general.alignment", int(Kind.UINT32), value))
    return f"alignment {value}"


def _overwrite(raw: bytearray, marks: list[tuple[int, int]], random: Random) -> str:
    at, width = random.choice(marks)
    value = random.choice(INTEGERS)
    raw[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    return f"{width} bytes at {at} = {value}"


def _flip(raw: bytearray, random: Random) -> str:
    at = [random.randrange(len(raw)) for _ in range(random.choice((1, 3, 20)))]
    for i in at:
        raw[i] ^= 1 << random.randrange(8)
    return f"bits flipped at {at}"


_FAULTS: list[tuple[Callable[[Head, Random], str], int]] = [
    (_number, 8),
    (_text, 2),
    (_retype, 3),
    (_per_layer, 2),
    (_array, 3),
    (_remove, 2),
    (_repeat, 1),
    (_add, 5),
    (_architecture, 3),
    (_tokenizer, 2),
    (_tensor, 4),
    (_count, 1),
    (_alignment, 1),
]
