"""GGUF files in memory, of which anything can be changed, also to what no writer would write."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType as Kind

NUMBERS: dict[Kind, str] = {
    Kind.UINT8: "B", Kind.INT8: "b", Kind.UINT16: "H", Kind.INT16: "h", Kind.UINT32: "I", Kind.INT32: "i",
    Kind.FLOAT32: "f", Kind.BOOL: "B", Kind.UINT64: "Q", Kind.INT64: "q", Kind.FLOAT64: "d",
}  # fmt: skip


@dataclass
class Key:
    """One key with its value: a number, bytes, or a list of either."""

    name: bytes
    kind: int
    value: Any
    array: bool = False


@dataclass
class Tensor:
    """What the head says about one tensor."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclass
class GgufHeader:
    """The head of a GGUF file, and its data."""

    keys: list[Key]
    tensors: list[Tensor]
    data: bytes

    @classmethod
    def read(cls, path: Path) -> GgufHeader:
        reader = gguf.GGUFReader(path)
        keys = []
        for name, found in reader.fields.items():
            if name.startswith("GGUF."):
                continue
            kind, is_array = found.types[-1], len(found.types) > 1
            values = [bytes(found.parts[i]) if kind == Kind.STRING else found.parts[i][0].item() for i in found.data]
            keys.append(Key(name.encode(), int(kind), values if is_array else values[0], is_array))
        tensors = [
            Tensor(
                t.name.encode(), [int(n) for n in t.shape], int(t.tensor_type), int(t.data_offset - reader.data_offset)
            )
            for t in reader.tensors
        ]
        return cls(keys, tensors, path.read_bytes()[reader.data_offset :])

    def set(self, name: str, value: Any) -> GgufHeader:
        """Give the key `name` a value: one that exists keeps its type; a new one is a text or a uint32."""
        for key in self.keys:
            if key.name == name.encode():
                key.value = value
                return self
        self.keys.append(Key(name.encode(), int(Kind.STRING if isinstance(value, bytes) else Kind.UINT32), value))
        return self

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pack()[0] + self.data)
        return path

    def pack(self) -> tuple[bytes, list[tuple[int, int]]]:
        """The file's head, padded, and the positions and widths of its counts, lengths and types."""
        out = bytearray(b"GGUF")
        marks: list[tuple[int, int]] = []

        def number(form: str, value: int) -> None:
            data = packed(form, value)
            marks.append((len(out), len(data)))
            out.extend(data)

        def text(value: bytes) -> None:
            number("Q", len(value))
            out.extend(value)

        number("I", 3)
        number("Q", len(self.tensors))
        number("Q", len(self.keys))
        for key in self.keys:
            text(key.name)
            if key.array:
                number("I", Kind.ARRAY)
            number("I", key.kind)
            if key.array:
                number("Q", len(key.value))
            for value in key.value if key.array else [key.value]:
                if key.kind == Kind.STRING:
                    text(value)
                else:
                    out.extend(packed(NUMBERS[Kind(key.kind)], value))
        for tensor in self.tensors:
            text(tensor.name)
            number("I", len(tensor.dims))
            for n in tensor.dims:
                number("Q", n)
            number("I", tensor.kind)
            number("Q", tensor.offset)
        out.extend(bytes(-len(out) % 32))
        return bytes(out), marks


def packed(form: str, value: float) -> bytes:
    """`value` in the `form` of struct, wrapped around if it does not fit."""
    width = struct.calcsize(form)
    if form in "fd":
        try:
            return struct.pack(f"<{form}", value)
        except OverflowError:
            return struct.pack(f"<{form}", float("inf"))
    is_number = isinstance(value, int) or abs(value) < 1e30  # no NaN
    return (int(value) % 2 ** (8 * width) if is_number else 0).to_bytes(width, "little")
