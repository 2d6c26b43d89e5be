"""A mixture of experts whose tensors are placed by name, with an RPC server as the device: read back from the log."""

import re
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from duo import loading
from duo.config import ContextConfig, ModelConfig
from duo.llama.gguf_header import GgufHeader
from duo.llama.library import supports_rpc
from duo.llama.model import model_size
from tests.command import assert_refused, duo
from tests.gguf_files import tiny_llama, tiny_mixture
from tests.serving import LeadProcess, RpcServer
from tests.unit.cli import runner

needs_rpc = pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
PROMPT = "the cat sat on the mat and"
TEXT = ("-p", PROMPT, "-n", "12", "--ignore-eos", "--exact", "-t", "1", "--no-profile")
LAYERS = [{f"blk.{i}.ffn_{name}_exps.weight" for name in ("gate", "up", "down")} for i in range(3)]
EXPERTS = LAYERS[0] | LAYERS[1] | LAYERS[2]
MIB = 1 << 20
# Code for `before`: so much memory is free on each device, in MiB, beside the margin.
FREE = """
from duo.llama.devices import Device
from duo.models.fitting import MARGIN
Device.memory = property(lambda self: (int({}.get(self.name, 0) * 2**20) + MARGIN, 2**40))
"""


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_mixture(tmp_path_factory.mktemp("models") / "mixture.gguf", seed=2, depth=0.05)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its draft, which is often right."""
    return tiny_llama(tmp_path_factory.mktemp("draft") / "dense.gguf", seed=2, depth=0.02)


@pytest.fixture(scope="module")
def plain(mixture: Path) -> bytes:
    """What the mixture writes on this machine alone."""
    run = runner.duo("-m", mixture, *TEXT)
    assert run.status == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with RpcServer() as server:
        yield server.name


def placed(log: Path) -> tuple[dict[str, str], float]:
    """Where llama.cpp has put single tensors, and MiB of all weights on the server."""
    text = log.read_text()
    found = dict(re.findall(r"tensor (\S+) \(.*\) buffer type overridden to (\w+)", text))
    return found, sum(map(float, re.findall(r"RPC0\S+ model buffer size = *([\d.]+) MiB", text)))


@needs_rpc
@pytest.mark.parametrize(
    ("options", "on_cpu", "on_device"),
    [
        ("-cmoe", EXPERTS, set()),
        ("-ncmoe 1", LAYERS[0], set()),
        ("-ncmoe 99", EXPERTS, set()),
        (r"-ot blk\.2\..*_exps=CPU", LAYERS[2], set()),
        ("-ot up_exps=CPU,gate_exps=CPU -ot down_exps=CPU", EXPERTS, set()),
        (r"-cmoe -ot blk\.0\.ffn_.*_exps=SERVER", LAYERS[1] | LAYERS[2], LAYERS[0]),  # -ot counts first
        (r"-ngl 1 -ncmoe 2 -ot blk\.2\.ffn_(up|down|gate)_exps=SERVER", LAYERS[0] | LAYERS[1], LAYERS[2]),
    ],
)
def test_each_tensor_is_where_it_was_asked(
    mixture: Path, plain: bytes, server: str, tmp_path: Path, options: str, on_cpu: Set[str], on_device: Set[str]
) -> None:
    words, log = options.replace("SERVER", f"RPC0[{server}]").split(), tmp_path / "log.txt"
    run = duo("-m", mixture, *TEXT, "--rpc", server, *words, "--log-file", log)
    assert (run.status, run.stdout, run.warnings) == (0, plain, []), run.stderr
    found, n_mib = placed(log)
    assert found == dict.fromkeys(on_cpu, "CPU") | dict.fromkeys(on_device, "RPC0")
    sizes = GgufHeader(mixture).tensors
    output = {"output.weight", "output_norm.weight"}
    layers = output if "-ngl 1" in options else sizes.keys() - {"token_embd.weight"}
    assert n_mib == pytest.approx(sum(sizes[name] for name in (layers - on_cpu) | on_device) / MIB, abs=0.01)


@needs_rpc
@pytest.mark.parametrize(("options", "layers"), [("-cmoe", "4"), ("", "[0-3]")])
def test_layers_fit_whose_experts_do_not(tmp_path: Path, server: str, options: str, layers: str) -> None:
    mixture = tiny_mixture(tmp_path / "mixture.gguf", n_expert=32)
    size, context = model_size(ModelConfig(mixture)), ContextConfig(257, 1, 1)  # --exact needs one more
    needed = sum(size.layers) - sum(size.experts) + size.output + sum(size.cache_bytes(context))
    free = {"RPC0": (needed + size.compute_bytes(context) + size.staging_bytes(context)) / MIB + 0.1}
    run = duo("-m", mixture, *TEXT, "-c", "256", "--rpc", server, *options.split(), before=FREE.format(free))
    assert re.search(f"target {layers} of 4", run.stderr), run.stderr
    assert ("(more fit with -cmoe: experts on the CPU)" in run.stderr) == (not options)


@needs_rpc
def test_what_stays_on_the_cpu_is_said_and_a_dense_draft_beside_it_changes_nothing(
    mixture: Path, dense: Path, plain: bytes, server: str
) -> None:
    models = ("-m", mixture, "-md", dense, "--rpc", server, "--rpcd", "none", "-td", "1", "--schedule", "sync")
    run = duo(*models, *TEXT, "-cmoe")
    assert (run.status, run.stdout) == (0, plain), run.stderr
    assert "target 4 of 4 on RPC0 (1 MiB of them on the CPU)" in run.stderr


@pytest.mark.parametrize("options", ["-cmoe", "-ncmoe 1", "-ot exps=CPU"])
def test_on_the_cpu_alone_nothing_changes(mixture: Path, plain: bytes, options: str) -> None:
    run = runner.duo("-m", mixture, *TEXT, *options.split())
    assert (run.status, run.stdout, run.warnings) == (0, plain, []), run.stderr


def test_without_a_device_no_tensor_is_split(mixture: Path, plain: bytes) -> None:
    run = runner.duo("-m", mixture, *TEXT, "-dev", "none", "-sm", "tensor", "-cmoe")
    assert (run.status, run.stdout) == (0, plain), run.stderr


def test_by_variables_and_as_a_draft(mixture: Path, dense: Path) -> None:
    text = (*TEXT, "-td", "1", "--schedule", "sync")
    alone = runner.duo("-m", dense, *TEXT)
    variables = {"LLAMA_ARG_SPEC_DRAFT_CPU_MOE": "1", "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE": "2"}
    run = runner.duo("-m", dense, "-md", mixture, *text, "-otd", "exps=CPU", env=variables)
    assert (run.status, run.stdout) == (0, alone.stdout), run.stderr
    for variable, said in (
        ({"LLAMA_ARG_CPU_MOE": "on"}, "-cmoe: dense.gguf has no experts"),
        ({"LLAMA_ARG_N_CPU_MOE": "3"}, "-ncmoe: dense.gguf has no experts in these layers"),
        ({"LLAMA_ARG_OVERRIDE_TENSOR": "exps=CPU"}, "-ot: no tensor of dense.gguf matches 'exps' (one is "),
    ):
        assert_refused(runner.duo("-m", dense, *TEXT, env=variable), said, status=2)


def test_a_worker_reads_the_variables_of_a_draft_only(dense: Path) -> None:
    of_target = {"LLAMA_ARG_CPU_MOE": "on", "LLAMA_ARG_N_CPU_MOE": "3", "LLAMA_ARG_OVERRIDE_TENSOR": "exps=CPU"}
    back = ("back", "-m", dense, "--lead", "ftp://lead")
    assert_refused(runner.duo(*back, env=of_target), "--lead must be ws://", status=2)
    of_draft = {"LLAMA_ARG_SPEC_DRAFT_CPU_MOE": "on"}
    assert_refused(runner.duo(*back, env=of_target | of_draft), "-cmoe: dense.gguf has no experts", status=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-ot exps", "-ot: 'exps' is not of the form PATTERN=TYPE"),
        ("-ot =CPU", "-ot: '=CPU' is not of the form"),
        ("-ot exps=CPU,", "-ot: '' is not of the form"),
        (r"-ot blk\.\d{1,2}\.ffn_up_exps=CPU", "such as exps=CPU (a comma separates two)"),
        ("-ot exps=CUDA0", "-ot: no buffer type CUDA0 for this model (there are: CPU)"),
        ("-ot exps$=CPU", "-ot: no tensor of mixture.gguf matches 'exps$' (one is blk.0.ffn_gate_exps.weight)"),
        ("-ot EXPS=CPU", "matches 'EXPS'"),
        ("-ot (?i)EXPS=CPU", "-ot: '(?i)EXPS' is not a regular expression, or has flags"),
        ("-ot (exps=CPU", "-ot: '(exps' is not a regular expression"),
        ("-ot (?!attn)*exps=CPU", "-ot: llama.cpp refuses a pattern: "),
        ("-otd exps=CPU", "-otd: no tensor of dense.gguf matches"),
        ("-cmoed", "-cmoed: dense.gguf has no experts"),
        ("-ncmoed 1", "-ncmoed: dense.gguf has no experts in these layers"),
        ("-ncmoe -1", "-ncmoe must be at least 0"),
    ],
)
def test_what_cannot_be_placed_is_said_in_one_line(mixture: Path, dense: Path, options: str, said: str) -> None:
    assert_refused(runner.duo("-m", mixture, "-md", dense, *TEXT, *options.split()), said, status=2)


@pytest.mark.parametrize("options", ["-ot x$=CPU", "-otd exps=CPU"])
def test_patterns_are_checked_before_a_model_is_loaded(
    mixture: Path, dense: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr(loading, "load_model", None)
    assert_refused(runner.duo("-m", mixture, "-md", dense, *TEXT, *options.split()), "no tensor of", status=2)


@needs_rpc
@pytest.mark.parametrize(
    ("options", "said"),
    [("-otd x$=CPU", "-otd: no tensor of dense.gguf matches 'x$'"), ("-cmoed", "-cmoed: dense.gguf has no experts")],
)
def test_those_of_a_draft_on_a_server_are_checked_before_too(
    mixture: Path, dense: Path, server: str, monkeypatch: pytest.MonkeyPatch, options: str, said: str
) -> None:
    monkeypatch.setattr(loading, "load_model", None)
    assert_refused(
        runner.duo("-m", mixture, "-md", dense, "--rpc", server, *TEXT, *options.split()), f"error: {said}", status=2
    )


def test_a_lead_keeps_experts_on_the_cpu(mixture: Path, plain: bytes, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with LeadProcess(mixture, "--exact", "-ncmoe", "2", "--log-file", log) as lead:
        assert lead.write(PROMPT, 12) == plain.decode(errors="replace")
    assert placed(log)[0] == dict.fromkeys(LAYERS[0] | LAYERS[1], "CPU")
