"""What a name from the hub means."""

from __future__ import annotations

import pytest

from duo.errors import DownloadError, UsageError
from duo.models.selection import HubSpec, select_files


@pytest.mark.parametrize(
    ("text", "repo", "quant"),
    [
        ("a/b", "a/b", None),
        ("a-1/b.2_c:Q4_K_M", "a-1/b.2_c", "Q4_K_M"),
        ("a/b:ud-q2_k.xl", "a/b", "ud-q2_k.xl"),
    ],
)
def test_names(text: str, repo: str, quant: str | None) -> None:
    spec = HubSpec.parse(text)
    assert spec == HubSpec(repo, quant)
    assert str(spec) == text


@pytest.mark.parametrize("text", ["b", "a/", "/b", "a/b/c", "a/b:", "a/b:Q4:0", "", "a b/c", "a/b\n", "../../b"])
def test_no_names(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        HubSpec.parse(text)
    assert str(caught.value) == f"a Hugging Face name has the form user/repo[:quant], not {text!r}"


@pytest.mark.parametrize(
    ("names", "quant", "chosen"),
    [
        ("m-F16.gguf m-Q8_0.gguf m-q4_k_m.gguf", None, "m-q4_k_m.gguf"),
        ("m-F16.gguf m-Q8_0.gguf", None, "m-Q8_0.gguf"),
        ("m-F16.gguf m-BF16.gguf", None, "m-BF16.gguf"),  # the first by name, in whatever order they come
        ("m-BF16.gguf m-F16.gguf", "f16", "m-F16.gguf"),
        ("m-IQ2_XS.gguf m-IQ2_XXS.gguf", "iq2_xxs", "m-IQ2_XXS.gguf"),
        ("m-UD-Q4_K_XL.gguf m_Q4_K_S.gguf", "Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("m-UD-Q4_K_XL.gguf m_Q4_K_S.gguf", "Q4_K_S", "m_Q4_K_S.gguf"),
        ("mmproj-Q8_0.gguf mtp-Q8_0.gguf imatrix.gguf README.md z.gguf", None, "z.gguf"),
        (
            "b-Q8_0-00001-of-00002.gguf b-Q8_0-00002-of-00002.gguf b-Q8_0.gguf",
            "Q8_0",
            "b-Q8_0-00001-of-00002.gguf b-Q8_0-00002-of-00002.gguf",
        ),
        (
            "x/b-00002-of-00002.gguf x/b-00001-of-00002.gguf",
            None,
            "x/b-00001-of-00002.gguf x/b-00002-of-00002.gguf",
        ),
    ],
)
def test_choice(names: str, quant: str | None, chosen: str) -> None:
    assert select_files(names.split(), HubSpec("a/b", quant)) == chosen.split()


@pytest.mark.parametrize(
    ("names", "quant", "said"),
    [
        ("README.md mmproj-F16.gguf", None, "a/b has no GGUF model"),
        ("m-Q4_0.gguf m-Q8_0.gguf n-Q8_0.gguf", "Q2_K", "a/b has no Q2_K (available: Q4_0, Q8_0)"),
        ("m.gguf", "Q2_K", "a/b has no Q2_K (available: m.gguf)"),
        ("m-Q4_0-00001-of-00002.gguf m-Q4_0-00002-of-00002.gguf", "Q2_K", "a/b has no Q2_K (available: Q4_0)"),
        ("m-00002-of-00002.gguf", None, "a/b has 1 of the 2 parts of m-00002-of-00002.gguf"),
        (
            "m-00001-of-00003.gguf m-00003-of-00003.gguf",
            None,
            "a/b has 2 of the 3 parts of m-00001-of-00003.gguf",
        ),
    ],
)
def test_no_choice(names: str, quant: str | None, said: str) -> None:
    with pytest.raises(DownloadError) as caught:
        select_files(names.split(), HubSpec("a/b", quant))
    assert str(caught.value) == said
