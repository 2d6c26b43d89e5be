from __future__ import annotations

from pathlib import Path

from duo.config import ModelConfig
from duo.llama.gguf_file import model_size
from duo.llama.model import Model


def test_sizes_of_the_demo_draft(demo_pair: tuple[Path, Path]) -> None:
    """Quantised, and with an output layer that is the token embedding."""
    config = ModelConfig(demo_pair[1], n_gpu_layers=0)
    size, model = model_size(config), Model(config)
    widths = sum(k for k, _ in size.cache_widths), sum(v for _, v in size.cache_widths)
    assert (size.n_bytes, len(size.layers), widths) == (model.n_bytes, model.n_layer, model.cache_width)
    assert (size.n_vocab, size.n_embd, size.n_head, size.n_ff) == (49152, 576, 9, 1536)
    assert sum(size.layers) + size.output == size.n_bytes
    model.close()
