"""Whether a context fits the host and the devices, by what they report."""

from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duo.config import ContextConfig, ModelConfig
from duo.errors import MemoryLimitError
from duo.llama.context import Context
from duo.llama.context_params import check_memory
from duo.llama.devices import Device
from duo.llama.model import Model, ModelSize
from duo.models import fitting
from tests.gguf_files import N_EMBD, tiny_llama

MIB = 1 << 20
# Four layers of 1 MiB; 1024 bytes of float16 cache for each token and layer.
NO_HEAD: Any = None
SIZE = ModelSize((MIB,) * 4, MIB, MIB, 5 * MIB, ((256, 256),) * 4, NO_HEAD)


def check(free: int, total: int, n_ctx: int, n_offloaded: int = 4) -> None:
    device, config = SimpleNamespace(name="GPU0", memory=(free * MIB, total * MIB)), ModelConfig(Path("model.gguf"))
    model: Any = SimpleNamespace(
        devices=[device], n_offloaded=n_offloaded, config=config, size=SIZE, n_vocab=0, path=config.path
    )
    check_memory(model, ContextConfig(n_ctx, 1, 1, n_ubatch=1))


def test_what_fits_is_said() -> None:
    with pytest.raises(MemoryLimitError, match=r"iB are available: use a smaller n_ctx"):
        check(0, 0, 2**40, n_offloaded=0)
    with pytest.raises(MemoryLimitError) as raised:
        check(5, 100, 2048)
    assert str(raised.value) == (
        "model.gguf: a context of 2048 tokens needs 8 MiB on GPU0, and 5 MiB are free: at most 1024 tokens fit "
        "(n_ctx); fewer layers there (n_gpu_layers) leave more room"
    )


@pytest.mark.parametrize(
    ("free", "total", "n_ctx", "n_offloaded", "fits"),
    [(5, 100, 2048, 2, True), (5, 100, 2048, 3, False), (0, 0, 1024, 4, True)],  # nor where nothing is reported
)
def test_only_the_layers_on_the_device_count(free: int, total: int, n_ctx: int, n_offloaded: int, fits: bool) -> None:
    with nullcontext() if fits else pytest.raises(MemoryLimitError):
        check(free, total, n_ctx, n_offloaded)


# Devices that report all of their memory as free


def test_what_loaded_models_hold_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Device(f"RPC{i}", "host:1", "RPC", i) for i in range(3)]
    reports = {"RPC0": (2**30, 2**30), "RPC1": (2**30, 2**30), "RPC2": (2**29, 2**30)}
    monkeypatch.setattr(Device, "reported", property(lambda self: reports[self.name]))
    with closing(Model(ModelConfig(tiny_llama(tmp_path / "tiny.gguf", n_layer=4)))) as model:
        model.devices, model.n_offloaded = [cards[0], cards[2]], 2
        weights = model.size.offloaded_bytes(2)
        assert [card.memory for card in cards] == [(2**30 - weights // 2, 2**30), reports["RPC1"], reports["RPC2"]]
        model.config = replace(model.config, tensor_split=(3.0, 1.0))
        with closing(Context(model, ContextConfig(256, 1, 1))):
            caches = 2 * 256 * 4 * N_EMBD
            assert cards[0].memory[0] == 2**30 - int(0.75 * (weights + caches))
        reports["RPC0"] = weights // 2, weights // 2
        assert cards[0].memory == (0, weights // 2)
    assert [card.memory for card in cards] == list(reports.values())


def test_a_plan_says_once_which_hosts_report_all_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = (("RPC0", "host:1", "RPC"), ("RPC1", "host:2", "RPC"), ("Vulkan0", "card", "GPU"))
    cards = [Device(*place, i) for i, place in enumerate(places)]
    monkeypatch.setattr(Device, "reported", property(lambda self: (8 * 2**30, (8 + (self.name == "RPC1")) * 2**30)))
    monkeypatch.setattr(fitting, "devices_for", lambda _: cards)
    caplog.set_level("INFO", "duo.models")
    configs = [ModelConfig(tiny_llama(tmp_path / f"{name}.gguf"), fits_layers=True) for name in "ab"]
    fitting.fit(configs[0], configs[1], ContextConfig(256, 1, 1))
    assert [record.message for record in caplog.records if "reports" in record.message] == [
        "RPC0 (host:1) reports all of its 8.0 GiB as free, whatever other programs use there: if the layers do not "
        "fit, set n_gpu_layers"
    ]
