"""Makes a GGUF that computes the same function as a small one, at the cost of a larger model.

python -m benchmarks.inflate SOURCE TARGET [--ffn N] [--layers N] [--experts N]

Wider feed-forward layers: gate and up repeat their rows, and the new columns of down are zero. Further layers repeat
the others, but their output projections are zero. The types stay: zero bytes are zero weights in all of them. Programs
read all weights, and write the text of the small model, for which its drafts are right as often. SmolLM2-135M in F16
has 2.7 GB with `--ffn 24576`.

Experts: each feed-forward layer becomes N copies of itself, of which a router of random weights chooses two for each
token. Their weighted mean is what the layer computed. Only models of the architecture llama.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks import argument_parser

_USED = 2  # experts that a token uses
_OUTPUTS = (".ssm_out.weight", ".shortconv.out_proj.weight")


def inflate(source: Path, target: Path, n_ff: int = 0, n_layers: int = 0, n_experts: int = 0) -> None:
    """Write `target` with feed-forward layers of width `n_ff`, with `n_layers` and experts (0: as `source` has them).

    Raises ValueError if `source` cannot be inflated so, and OSError, also if it is not a complete GGUF file.
    """
    if target.exists() and target.samefile(source):
        raise ValueError(f"{target} is the source: name another file")
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError, KeyError) as error:  # of the reader, of numpy and of mmap
        raise OSError(f"{source}: not a complete GGUF file: {error}") from None
    values = {field.name: field.contents() for field in reader.fields.values()}
    architecture = str(values.get("general.architecture"))
    names = [f"{architecture}.{name}" for name in ("feed_forward_length", "block_count")]
    had_ff, had_layers = (values.get(name) for name in names)
    has_gate = any(tensor.name == "blk.0.ffn_gate.weight" for tensor in reader.tensors)
    if not (has_gate and isinstance(had_ff, int) and isinstance(had_layers, int)):
        raise ValueError(f"{source} has no feed-forward layers of one width with a gate")
    n_ff, n_layers = n_ff or had_ff, n_layers or had_layers
    if n_ff < had_ff or n_ff % had_ff or n_layers < had_layers:  # multiples: quantised rows consist of blocks
        raise ValueError(f"{source} needs a width that is a multiple of {had_ff}, and at least {had_layers} layers")
    others = [tensor.name for tensor in reader.tensors if tensor.name.endswith(_OUTPUTS)]
    if n_layers > had_layers and others:  # of state space layers and convolutions: further layers would change the text
        raise ValueError(f"{source} cannot have more layers: {others[0]} has an output that would not be zero")
    if n_experts and (n_experts < _USED or architecture != "llama"):
        raise ValueError(f"{source}: a mixture has {_USED} experts or more, and the architecture llama")
    writer = gguf.GGUFWriter(target, architecture)
    writer.data_alignment = reader.alignment
    values |= dict(zip(names, (n_ff, n_layers), strict=True))
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if field.types[1:] else None
            writer.add_key_value(field.name, values[field.name], field.types[0], inner)
    if n_experts:
        writer.add_expert_count(n_experts)
        writer.add_expert_used_count(_USED)
    for name, data, kind in _tensors(reader, n_ff // had_ff, had_layers, n_layers, n_experts):
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, data, _ in _tensors(reader, n_ff // had_ff, had_layers, n_layers, n_experts):  # again, for lack of memory
        writer.write_tensor_data(data)
    writer.close()


def _tensors(
    reader: gguf.GGUFReader, wider: int, had_layers: int, n_layers: int, n_experts: int
) -> Iterator[tuple[str, npt.NDArray[np.uint8], gguf.GGMLQuantizationType]]:
    """The tensors of the new file: name, bytes of the rows, type."""
    random = np.random.default_rng(0)
    for each in reader.tensors:
        rows, name, kind = each.data.view(np.uint8), each.name, each.tensor_type
        if name.endswith((".ffn_gate.weight", ".ffn_up.weight")):
            rows = np.tile(rows, (wider, 1))
        elif name.endswith(".ffn_down.weight"):
            rows = np.pad(rows, ((0, 0), (0, (wider - 1) * rows.shape[1])))
        if n_experts and name.endswith((".ffn_gate.weight", ".ffn_up.weight", ".ffn_down.weight")):
            rows, name = np.tile(rows, (n_experts, 1, 1)), name.replace(".weight", "_exps.weight")
        yield name, rows, kind
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            further = np.zeros_like(rows) if rest.startswith(("attn_output.", "ffn_down")) else rows
            for i in range(had_layers + int(layer), n_layers, had_layers):
                yield f"blk.{i}.{rest}", further, kind
    for i in range(n_layers if n_experts else 0):
        n_embd = next(each.shape[0] for each in reader.tensors if each.name == "blk.0.ffn_gate.weight")
        router = random.standard_normal((n_experts, n_embd), np.float32)
        yield f"blk.{i}.ffn_gate_inp.weight", router.view(np.uint8), gguf.GGMLQuantizationType.F32


def main() -> None:
    found = argument_parser("inflate", __doc__)
    found.add_argument("source", type=Path, help="a GGUF file")
    found.add_argument("target", type=Path, help="the file to write")
    found.add_argument("--ffn", type=int, default=0, metavar="N", help="width of the feed-forward layers")
    found.add_argument("--layers", type=int, default=0, metavar="N", help="number of layers")
    found.add_argument("--experts", type=int, default=0, metavar="N", help="number of experts in each layer")
    options = found.parse_args()
    try:
        inflate(options.source, options.target, options.ffn, options.layers, options.experts)
    except ValueError as error:
        found.error(str(error))
    except OSError as error:
        sys.exit(f"inflate: {error}")


if __name__ == "__main__":
    main()
