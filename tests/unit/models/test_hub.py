"""Names from the hub, through the real huggingface_hub, against a local hub."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duo.errors import DownloadError, DuoError, UsageError
from duo.models.hub import resolve_hub, select_block, select_files
from tests.unit.models.fake_hub import TOKEN, FakeHub, FakeRepo, fake_hub

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")

REPOS = {
    "maker/small": FakeRepo(
        {"README.md": b"no model", "mmproj-small-Q4_K_M.gguf": b"GGUF eyes"}
        | {f"small-{quant}.gguf": f"GGUF {quant.lower()}".encode() for quant in ("BF16", "Q4_K_M", "Q8_0")}
    ),
    "maker/odd": FakeRepo({"mmproj.gguf": b"GGUF eyes", "zoo.gguf": b"GGUF zoo", "odd.gguf": b"GGUF odd"}),
    "maker/split": FakeRepo({f"Q4_0/big-Q4_0-{i:05}-of-00003.gguf": b"GGUF part %d" % i for i in (1, 2, 3)}),
    "maker/twins": FakeRepo({f"{name}-Q8_0.gguf": b"GGUF" for name in ("one", "two")}),
    "maker/none": FakeRepo({"README.md": b"", "mmproj-F16.gguf": b"GGUF eyes"}),
    "maker/private": FakeRepo({"secret-Q4_K_M.gguf": b"GGUF secret"}, private=True),
    "maker/gated": FakeRepo({"gated-Q4_K_M.gguf": b"GGUF gated"}, gated=True),
    "maker/moving": FakeRepo({f"m-{i:05}-of-00002.gguf": b"GGUF %d" % i for i in (1, 2)}, moves=True),
}


def use(patch: pytest.MonkeyPatch, url: str) -> None:
    """Take the hub at `url`. huggingface_hub reads its variables when it is imported: these are what they set."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + template[template.index("/{") :])


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of a user with an empty cache and without a token."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("HF_HUB_CACHE", f"{tmp_path}/hub"),
        ("HF_TOKEN_PATH", f"{tmp_path}/token"),
        ("HF_HUB_OFFLINE", False),
        ("HF_HUB_DISABLE_PROGRESS_BARS", True),
    ):
        monkeypatch.setattr(constants, name, value)
    with fake_hub(REPOS) as served:
        use(monkeypatch, served.url)
        yield served
    huggingface_hub.close_session()


def refused(spec: str, *, offline: bool = False, kind: type[DuoError] = DownloadError) -> str:
    with pytest.raises(kind) as caught:
        resolve_hub(spec, offline=offline)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_offline_only_what_is_cached_is_found_without_a_request(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetched = resolve_hub("maker/small:q8_0")
    assert fetched.read_bytes() == b"GGUF q8_0"
    resolve_hub("maker/split:Q4_0").with_name("big-Q4_0-00002-of-00003.gguf").unlink()
    odd = resolve_hub("maker/odd")
    assert odd.read_bytes() == b"GGUF odd"
    odd.resolve().unlink()  # the blob that the name in the snapshot points to
    hub.asked.clear()
    for spec in ("maker/small:q8_0", "maker/small"):  # the only one in the cache
        assert resolve_hub(spec, offline=True) == fetched
    for spec in ("maker/private", "maker/small:Q4_K_M", "maker/split:Q4_0", "maker/odd"):
        assert refused(spec, offline=True) == f"{spec} is not in {tmp_path}/hub, and duo is offline"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert resolve_hub("maker/small") == fetched
    assert (hub.asked, caplog.records) == ([], [])


@pytest.mark.parametrize("text", ["", ".", "..", "../..", "/", "a\0", "\udcff", "a" * 5000, "*", "a/../.."])
def test_an_odd_reference_to_a_commit_leads_nowhere(hub: FakeHub, tmp_path: Path, text: str) -> None:
    for path in (resolve_hub("maker/small").parents[2] / "a-Q8_0.gguf", tmp_path / "hub" / "b-Q8_0.gguf"):
        path.write_bytes(b"GGUF")
    (path.parent / "models--maker--small" / "refs" / "main").write_text(text, errors="surrogateescape")
    assert "is not in" in refused("maker/small:Q8_0", offline=True)


def test_a_private_repository_needs_the_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("maker/private").startswith(f"{hub.url} has no maker/private, or it is private and HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert resolve_hub("maker/private").read_bytes() == b"GGUF secret"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("maker/gated", "maker/gated is gated: "),
        ("maker/none", "maker/none has no GGUF model"),
        ("maker/moving", "maker/moving changed during the download: run again"),
        ("maker/nothing", "has no maker/nothing, or"),
    ],
)
def test_a_model_that_is_not_available(spec: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert said in refused(spec)


def test_a_cached_model_is_used_when_the_hub_is_not_reachable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetched = resolve_hub("maker/small")
    use(monkeypatch, "http://127.0.0.1:9")
    assert resolve_hub("maker/small") == fetched
    assert "Connection refused; using maker/small from the cache" in caplog.text
    assert refused("maker/odd") == "cannot download maker/odd from http://127.0.0.1:9: Connection refused"


# Files of a repository


@pytest.mark.parametrize("text", ["b", "a/b/c", "a/b:", "", "a/b\n", "../../b"])
def test_no_names(text: str) -> None:
    assert refused(text, kind=UsageError) == f"a Hugging Face name has the form user/repo[:quant], not {text!r}"


PARTS = "b-Q8_0-00001-of-00002.gguf b-Q8_0-00002-of-00002.gguf"


@pytest.mark.parametrize(
    ("names", "quant", "chosen"),
    [
        ("m-F16.gguf m-Q8_0.gguf m-q4_k_m.gguf", None, "m-q4_k_m.gguf"),
        ("m-F16.gguf m-BF16.gguf", None, "m-BF16.gguf"),  # the first by name, in whatever order they come
        ("m-BF16.gguf m-F16.gguf", "f16", "m-F16.gguf"),
        ("m-IQ2_XS.gguf m-IQ2_XXS.gguf", "iq2_xxs", "m-IQ2_XXS.gguf"),
        ("m-UD-Q4_K_XL.gguf m_Q4_K_S.gguf", "Q4_K_S", "m_Q4_K_S.gguf"),
        ("mmproj-Q8_0.gguf mtp-Q8_0.gguf imatrix.gguf README.md z.gguf", None, "z.gguf"),
        (f"{PARTS} b-Q8_0.gguf", "Q8_0", PARTS),
        # Words of a name, not parts of words.
        ("m-MTP-Q4_K_M.gguf m-MTP-Q8_0.gguf", "q8_0", "m-MTP-Q8_0.gguf"),
        ("eagle3-m-F16.gguf m-mtp-Q4_0.gguf mtp-m-Q4_0.gguf", None, "m-mtp-Q4_0.gguf"),
        ("MTP/m-Q8_0-MTP.gguf m-Q8_0.gguf", "Q8_0", "m-Q8_0.gguf"),
        ("m-imatrix-Q4_0.gguf m-imatrix.gguf imatrix_m.gguf", "Q4_0", "m-imatrix-Q4_0.gguf"),
        ("a-mmproj-m.gguf m.mmproj-Q4_0.gguf mmprojector-Q4_0.gguf", None, "mmprojector-Q4_0.gguf"),
        ("eagle3-m-F16.gguf eagle3-m-Q8_0.gguf", "F16", "eagle3-m-F16.gguf"),  # a repository of heads
        # An exact tag wins.
        ("a-UD-Q4_K_M.gguf z-Q4_K_M.gguf", "Q4_K_M", "z-Q4_K_M.gguf"),
        ("a-UD-Q4_K_M.gguf z-Q4_K_M.gguf", None, "z-Q4_K_M.gguf"),
        ("a-UD-Q4_K_M.gguf z-Q4_K_M.gguf", "UD-Q4_K_M", "a-UD-Q4_K_M.gguf"),
        ("m-UD-Q4_K_M.gguf", "Q4_K_M", "m-UD-Q4_K_M.gguf"),
        ("m-F16-long.gguf n-F16.gguf", "F16", "n-F16.gguf"),
        ("m-F16-long.gguf n-F16.gguf", "f16-long", "m-F16-long.gguf"),
        ("Q4_0/m.gguf Q8_0/m.gguf", "Q8_0", "Q8_0/m.gguf"),
        ("a/m-Q8_0.gguf b/m-Q8_0.gguf", "b/m-Q8_0", "b/m-Q8_0.gguf"),
        ("m-7B-Q8_0.gguf m-70B-Q8_0.gguf", "7B-Q8_0", "m-7B-Q8_0.gguf"),
    ],
)
def test_choice(names: str, quant: str | None, chosen: str) -> None:
    assert select_files(names.split(), "a/b", quant) == chosen.split()


@pytest.mark.parametrize(
    ("names", "quant", "error", "said"),
    [
        ("m-7B-Q8_0.gguf m-70B-Q8_0.gguf", "q8_0", UsageError,
         "a/b has 2 models called q8_0: name one, a/b:m-70B-Q8_0, a/b:m-7B-Q8_0"),
        ("m-7B-Q8_0.gguf m-70B-Q8_0.gguf", None, UsageError,
         "a/b has 2 models to choose from: name one, a/b:m-70B-Q8_0, a/b:m-7B-Q8_0"),
        ("m-Q4_K_M.gguf", "K_M", DownloadError, "a/b has no K_M (available: Q4_K_M)"),
        ("m-Q4_K_M.gguf m-UD-Q4_K_XL.gguf", "XL", DownloadError, "a/b has no XL (available: Q4_K_M, UD-Q4_K_XL)"),
        ("m-Q8_0-00002-of-00002.gguf", "Q8_0", DownloadError,
         "a/b has 1 of the 2 parts of m-Q8_0-00001-of-00002.gguf"),
    ],
)  # fmt: skip
def test_no_choice(names: str, quant: str | None, error: type[DuoError], said: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        select_files(names.split(), "a/b", quant)


@pytest.mark.parametrize("offline", [False, True])
def test_a_name_of_several_models_is_refused_with_and_without_the_hub(*, offline: bool) -> None:
    for spec in ("maker/twins:one-Q8_0", "maker/twins:two-Q8_0"):
        resolve_hub(spec)
    assert "has 2 models called Q8_0" in refused("maker/twins:Q8_0", offline=offline, kind=UsageError)


@pytest.mark.parametrize(
    ("model", "others", "found"),
    [
        ("a-Q4_K_M.gguf", ["b.gguf", "mtp-a.gguf", "a-Q8_0.gguf"], []),
        ("a-Q4_K_M.gguf", ["dflash-a.gguf"], ["dflash-a.gguf"]),
        ("a-Q4_K_M.gguf", ["dflash-b.gguf", "DSpark-A-Q8_0.gguf"], ["DSpark-A-Q8_0.gguf", "dflash-b.gguf"]),
        ("a-Q4_K_M.gguf", ["dspark-a-Q8_0.gguf", "dspark-a-Q4_K_M.gguf"],
         ["dspark-a-Q4_K_M.gguf", "dspark-a-Q8_0.gguf"]),
        ("x/a-Q8_0.gguf", ["dspark-a-Q8_0.gguf", "x/dflash-a-F16.gguf"], ["x/dflash-a-F16.gguf"]),
        ("a-8B-Q8_0.gguf", ["dflash-a-4B.gguf", "dflash-a-8B.gguf"], ["dflash-a-8B.gguf", "dflash-a-4B.gguf"]),
        ("dflash-a.gguf", [], []),
    ],
)  # fmt: skip
def test_the_block_drafts_beside_a_model(model: str, others: list[str], found: list[str]) -> None:
    assert select_block([model, *others], model) == found
