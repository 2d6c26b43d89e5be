"""Usage errors: exit status 2 and one line, before any model is loaded."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from unittest import mock

import pytest

from duo.llama.library import supports_rpc
from tests.command import assert_refused
from tests.unit.cli.runner import duo

# No such model exists: the options are refused first.
MISSING = "-m missing.gguf -p x"

OPTIONS = [
    ("-n -3", "-n must be at least -1, not -3"),
    ("-n many", "-n"),
    ("--draft -1", "--draft must be at least 0, not -1"),
    ("--draft x", "'x' is not a number or 'auto'"),
    ("--branches x", "'x' is not a number or 'auto'"),
    ("--branches -1", "--branches must be at least 0, not -1"),
    ("--branches 9", "--branches must be at most 8, not 9: each is one more token of every decode of the draft"),
    ("--draft-ahead 0", "--draft-ahead must be at least 1, not 0"),
    ("--draft-ahead x", "'x' is not a number or 'auto'"),
    ("-t 0", "-t must be at least 1"),
    ("-td 0", "-td must be at least 1"),
    ("-tb 0", "-tb must be at least 1"),
    ("-c -1", "-c must be at least 0"),
    ("-b 0", "-b must be at least 1"),
    ("-ub 0", "-ub must be at least 1"),
    ("-ngl x", "'x' is not a number or 'auto' or 'all'"),
    ("-ngld x", "'x' is not a number or 'auto' or 'all'"),
    ("-fa maybe", "'maybe' is not one of 'auto', 'on', 'off'"),
    ("-ctk nonsense", "'nonsense' is not one of 'f32', 'f16'"),
    ("-ctv nonsense", "'nonsense' is not one of 'f32', 'f16'"),
    ("--schedule fast", "'fast' is not one of 'auto', 'async', 'sync', 'off'"),
    ("--color blue", "'blue' is not one of 'auto', 'always', 'never'"),
    ("-Cr nonsense", "a range of cores is written lo-hi, for example 0-3, not 'nonsense'"),
    ("-Crd 3", "a range of cores is written lo-hi, for example 0-3, not '3'"),
    ("-Cr 0-99999", "cores 0-99999: this process may use"),
    ("-Cr 3-1", "cores 3-1: this process may use"),
    ("--temp warm", "'--temp' / '--temperature'"),
    ("--temp nan", "--temp must be at least 0, not nan"),
    ("--top-p 1.5", "--top-p must be at most 1, not 1.5: it is a probability"),
    ("--min-p -1", "--min-p must be at least 0, not -1"),
    ("--typical 2", "--typical must be at most 1, not 2"),
    ("--repeat-penalty 0", "--repeat-penalty must be at least 0.001, not 0"),
    ("--repeat-last-n -2", "--repeat-last-n"),
    ("--presence-penalty inf", "--presence-penalty must be at most 1000000, not inf"),
    ("-s -2", "-s must be at least -1"),
    ("--logit-bias 12", "'12' is not of the form TOKEN_ID(+/-)BIAS, such as 15043+1 or 15043-inf"),
    ("-l x+1", "'x+1' is not of the form TOKEN_ID(+/-)BIAS"),
    ("-l 12+much", "'12+much' is not of the form TOKEN_ID(+/-)BIAS"),
    ("--samplers top_q", "unknown sampler 'top_q' (known: penalties, top_k"),
    ("--verify hope", "'hope' is not one of 'coupled', 'rejection'"),
    ("--grammar 'root ::= \"a\"' -j {}", "--grammar and -j each give a grammar"),
    ("-j {", "-j is not valid JSON: "),
    ('-j \'{"type": "nonsense"}\'', "-j is an invalid or unsupported JSON schema: "),
    ("-r ''", "-r must not be empty"),
    ("--exact -fa off", "--exact needs flash attention"),
    ("--draft-ahead 999999999", "--draft-ahead must be at most 128, not 999999999: the time to plan for them"),
    ("--draft-ahead 100000", "--draft-ahead must be at most 128, not 100000"),
    ("--draft 1000000000", "--draft must be at most 64, not 1000000000: the time to plan for them"),
    ("-t 100000", "-t must be at most 512, not 100000: llama.cpp computes with no more threads"),
    ("-td 513", "-td must be at most 512"),
    ("-tb 513", "-tb must be at most 512"),
    ("-c 2147483648", "-c must be at most 2147483647, not 2147483648: llama.cpp has 32 bits for it"),
    ("-b 2147483648", "-b must be at most 2147483647"),
    ("-ub 65537", "-ub must be at most 65536, not 65537: the buffers for a batch are allocated in full"),
    ("-n 2147483648", "-n must be at most 2147483647"),
    ("-ts 1e308,1e308", "proportions must be from 0 to 1e+30"),
    ("-ts nan", "proportions must be from 0 to 1e+30"),
    ("--rpc-timeout inf", "--rpc-timeout must be at most 86400, not inf"),
    ("--top-k 2147483648", "--top-k must be at most 2147483647"),
    ("--repeat-last-n 2147483648", "--repeat-last-n must be at most 2147483647"),
    ("-s 18446744073709551616", "-s must be at most 18446744073709551615, not 18446744073709551616: a seed has 64"),
    ("-Crd 3", "-Crd: a range of cores is written lo-hi"),
    (f"-Cr 0-{'9' * 5000}", "-Cr: a range of cores is written lo-hi"),
    ("--nonsense", "No such option: --nonsense"),
    ("nonsense", "nonsense"),
    ("-c", "-c requires an argument (see duo --help-all)"),
    ("-hf user/repo", "-m and -hf both name the target"),
    ("-md a.gguf -hfd user/repo", "-md and -hfd both name the draft"),
    ("-f prompt.txt", "-p and -f both give a prompt"),
    ("--json x --trace x", "use a different file for each"),
    ("--back-port 0 --back-host 0.0.0.0", "--back-token"),
    ("--back-port 0 --back-token ''", "must not be empty"),
    ("--back-port 0 --verify rejection --temp 1", "--verify rejection"),
]

COMMANDS = [
    ("-md draft.gguf -p x", "a draft without a target"),
    ("-hfd user/repo -p x", "a draft without a target"),
    ("-m missing.gguf", "no prompt: add -p or -f"),
    ("-n 128", "no model: add -m FILE or -hf USER/REPO:QUANT, or try `duo demo`"),
    ("-p x --json figures.json", "no model: add -m FILE or -hf USER/REPO:QUANT, or try `duo demo`"),
    ("-m demo -md draft.gguf -p x", "the demo pair has its own draft: name the target with -m or -hf"),
    ("demo -m main.gguf", "No such option: -m; an option of `duo`"),
    ("-m x -p x -c nv", "'-c' / '--ctx-size'"),
    ("-n 3 doctor", "options of `duo doctor` must follow `doctor`"),
    ("doctor -m model.gguf", "No such option: -m"),
    ("tune -md draft.gguf", "a draft without a target"),
    ("tune -m a.gguf -hf user/repo -md b.gguf", "-m and -hf both name the target"),
    ("tune -n 7", "-n must be at least 8, not 7"),
    ("check -m missing.gguf", "nothing to check without a draft: name one with -md or -hfd"),
    ("check --schedule off", "nothing to check without drafting: omit --schedule off and --draft 0"),
    ("check --draft 0", "nothing to check without drafting"),
    ("check --verify rejection --temp 1", "the draft changes the text by design"),
    ("chat ftp://a", "'ftp://a' is not a URL"),
    ("chat -n -3", "-n must be at least -1, not -3"),
    ("chat -n 2147483648", "-n must be at most 2147483647"),
    ("chat -s 99999999999999999999", "-s must be at most 18446744073709551615"),
    ("chat --temp inf", "--temp must be at most 1000000, not inf"),
    ("bench -m missing.gguf -r 1000000000", "-r must be at most 1000"),
    ("bench -m missing.gguf -n 2147483648", "-n must be at most 2147483647"),
    ("bench -m missing.gguf --draft 1000000000", "--draft must be at most 64"),
    (f"bench -m missing.gguf --draft {'9' * 5000}", "neither a number of at least 1 nor auto"),
    ("check -m a.gguf -md b.gguf -n 2147483648", "-n must be at most 2147483647"),
    ("lead -m missing.gguf --queue 1000000000", "--queue must be at most 10000"),
    ("lead -m missing.gguf --draft-ahead 999999999", "--draft-ahead must be at most 128"),
    ("back -m missing.gguf -t 100000", "-t must be at most 512"),
    ("rpc-server -t 100000", "-t must be at most 512"),
    ("back --token ''", "must not be empty"),
    ("back -m a.gguf -hf user/repo", "-m and -hf both name the draft"),
    ("rpc-server -H 0.0.0.0", "--insecure-bind"),
    ("rpc-server -d GPU99", "unknown device GPU99"),
    ("rpc-server -d none", "-d none"),
]

RPC = [
    ("--rpc localhost", "not of the form host:port"),
    ("--rpc localhost:x", "not of the form host:port"),
    ("--rpc [::1]:5", "not of the form host:port"),
    ("--rpc a:1,,b:2", "a name is missing"),
    ("--rpcd localhost:1", "--rpcd without a draft"),
    ("-ts 1,x", "not of the form N,N"),
    ("--rpc localhost:1 -ngl 0", "0 layers"),
    ("--rpc localhost:1 -dev none", "-dev none"),
    ("--rpc localhost:1,127.0.0.1:1", "is named twice"),
    ("-md b.gguf --rpc localhost:1,localhost:2 --rpcd localhost:2", "localhost:2 is named twice"),
    ("-md b.gguf --rpc localhost:1 --temp 1 --verify rejection", "--verify rejection"),
]


@pytest.mark.parametrize(("arguments", "said"), OPTIONS)
def test_an_option_out_of_range(arguments: str, said: str) -> None:
    assert_refused(duo(*shlex.split(f"{MISSING} {arguments}")), said, status=2)


@pytest.mark.parametrize(("arguments", "said"), COMMANDS)
def test_options_that_exclude_each_other(arguments: str, said: str) -> None:
    assert_refused(duo(*shlex.split(arguments)), said, status=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-ngl 2147483648", "-ngl must be at most 2147483647"),
        ("-ngld 2147483648", "-ngld must be at most 2147483647"),
        ("-mg 2147483648", "-mg must be at most 2147483647"),
        (f"-ts 1{',1' * 98}", "-ts has 99 parts"),
    ],
)
def test_an_option_about_the_devices_of_one_model(tiny: Path, arguments: str, said: str) -> None:
    run = duo("-m", tiny, "-md", tiny, "-p", "x", *arguments.split())
    lines = run.stderr.splitlines()  # the first may be a warning that there are no GPUs
    assert lines[-1].startswith(f"duo: error: {said}"), run.stderr
    assert (run.status, run.stdout, len(lines) - len(run.warnings)) == (2, b"", 1)


@pytest.mark.skipif(not supports_rpc(), reason="this build has no RPC")
@pytest.mark.parametrize(("arguments", "said"), RPC)
def test_rpc_servers_that_exclude_each_other(arguments: str, said: str) -> None:
    assert_refused(duo(*shlex.split(f"{MISSING} {arguments}")), said, status=2)


def test_a_build_without_rpc_names_the_command_that_adds_it() -> None:
    with mock.patch("duo.cli.devices.supports_rpc", return_value=False):
        assert_refused(duo(*shlex.split(f"{MISSING} --rpc localhost:1")), "built without RPC; to build it with RPC: ")


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused(duo("rpc-server", "-p", str(port)), f"cannot listen on 127.0.0.1:{port}", status=2)


@pytest.mark.parametrize("option", ["--json", "--trace", "--log-file"])
def test_a_file_that_cannot_be_written(tmp_path: Path, option: str) -> None:
    for path, said in ((tmp_path / "none" / "file", "No such file or directory"), (tmp_path, "Is a directory")):
        assert_refused(duo(*MISSING.split(), option, path), f"{option} {path}: {said}", status=2)


@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_the_check_for_a_writable_file_creates_and_changes_none(tmp_path: Path, option: str) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("of a run before")
    for path in (new, old):
        assert duo(*MISSING.split(), option, path).status == 1
    assert not new.exists()
    assert old.read_text() == "of a run before"


@pytest.mark.parametrize("names", ["-hf user/repo", "-m {tiny} -hfd user/repo"])
def test_hugging_face_names_without_huggingface_hub(tiny: Path, names: str) -> None:
    with mock.patch.dict("sys.modules", {"huggingface_hub": None}):
        run = duo(*names.format(tiny=tiny).split(), "-p", "x")
    assert_refused(run, "models from Hugging Face need huggingface_hub: pip install huggingface_hub")
