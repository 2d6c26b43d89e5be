"""Headers: what llama.cpp would crash on is refused in one line, and what the others say about models."""

from contextlib import closing
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
from gguf import GGUFValueType as Kind

from duo.config import ModelConfig
from duo.errors import ModelError, PromptError
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.gguf_header import GgufHeader, NoTextModelError, check_header, check_text_model
from duo.llama.model import Model
from tests.gguf_files import WORDS, tiny_bpe, tiny_gemma, tiny_hybrid, tiny_llama, tiny_mamba, tiny_qwen35
from tests.gguf_header import GgufHeader as Writable
from tests.gguf_header import Key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def head(path: Path, architecture: str = "llama") -> Writable:
    """That of a good file, which says that it is of this architecture."""
    make = tiny_qwen35 if architecture == "qwen35" else tiny_llama
    return Writable.read(make(path)).set("general.architecture", architecture.encode())


def refusal(changed: Writable, path: Path) -> str:
    with pytest.raises(ModelError, match=rf"^{path}: .*$") as raised:
        Model(ModelConfig(changed.write(path), n_gpu_layers=0))
    return str(raised.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen35.full_attention_interval", 0), ("qwen35.ssm.group_count", 0), ("llama.rope.dimension_count", 0),
        ("llama.attention.sliding_window", 2**31), ("llama.context_length", 2**31),
        ("phimoe.attention.head_count", 0), ("glm4moe.expert_count", 0),
    ],
)  # fmt: skip
def test_values_that_llama_cpp_divides_by_or_allocates(path: Path, key: str, value: int) -> None:
    changed = head(path, key.partition(".")[0]).set(key, value)
    assert refusal(changed, path) == f"{key} is {value}: the file is damaged"


def test_tensors_that_are_absent_or_of_integers_and_a_vocabulary_without_tokens(path: Path) -> None:
    absent, integers = head(path, "qwen35"), head(path)
    next(tensor for tensor in absent.tensors if tensor.name == b"blk.0.attn_gate.weight").name = b"other"
    next(tensor for tensor in integers.tensors if tensor.name == b"blk.0.attn_output.weight").kind = 26
    empty = head(path).set("llama.vocab_size", 2**32 - 1).set("tokenizer.ggml.model", b"no_vocab")
    assert [refusal(changed, path) for changed in (absent, integers, empty)] == [
        "there is no tensor blk.0.attn_gate.weight: the file is damaged",
        "blk.0.attn_output.weight has integers: the file is damaged",
        "this GGUF has no vocabulary",
    ]


def test_what_is_allowed(path: Path) -> None:
    for make in (tiny_mamba, tiny_hybrid, tiny_qwen35, partial(tiny_gemma, window=4)):
        check_header(GgufHeader(make(path)))
    check_header(GgufHeader(head(path, "plamo2").set("plamo2.ssm.group_count", 0).write(path)))  # it has a meaning
    check_header(GgufHeader(head(path, "olmo2").write(path)), vocabulary_only=True)  # without heads


# Vocabularies that lack what llama.cpp takes for granted


def test_a_vocabulary_that_adds_a_token_it_lacks(path: Path) -> None:
    changed = head(path)
    changed.keys = [key for key in changed.keys if key.name != b"tokenizer.ggml.bos_token_id"]
    changed.set("tokenizer.ggml.model", b"t5").set("tokenizer.ggml.add_bos_token", 1)
    assert refusal(changed, path).startswith("the vocabulary adds a BOS or EOS that it lacks")


def test_characters_without_tokens(path: Path) -> None:
    changed = head(path)
    tokens = next(key for key in changed.keys if key.name == b"tokenizer.ggml.tokens")
    tokens.value[3 + "é".encode()[0]] = b"other"
    with closing(Model(ModelConfig(changed.write(path), n_gpu_layers=0))) as model:
        assert model.tokenize("the cat")
        with pytest.raises(PromptError, match="no tokens for some characters of the prompt"):
            model.tokenize("the caté")
        assert model.fragment("theé cat".encode()) == model.fragment(b"the cat"), "in a fragment they are left out"


# What they say


def test_vocabularies_match_as_those_of_loaded_models(tmp_path: Path) -> None:
    paths = {
        "llama": tiny_llama(tmp_path / "llama.gguf"),
        "padded": tiny_llama(tmp_path / "padded.gguf", padding=128),
        "too much": tiny_llama(tmp_path / "too.gguf", padding=129),
        "other word": tiny_llama(tmp_path / "other.gguf", words=(*WORDS[:-2], "▁bird", "▁")),
        "adds BOS": tiny_llama(tmp_path / "bos.gguf", add_bos=True),
        "hybrid": tiny_hybrid(tmp_path / "hybrid.gguf"),
        "bytes": tiny_bpe(tmp_path / "bytes.gguf", "gpt-2"),
    }
    models = {name: Model(ModelConfig(path), vocabulary_only=True) for name, path in paths.items()}
    same = set()
    for one, other in permutations(paths, 2):
        matches = vocabulary_difference(models[one], models[other]) is None
        assert GgufHeader(paths[one]).shares_vocabulary(GgufHeader(paths[other])) == matches, (one, other)
        same |= {f"{one}, {other}"} if matches and one < other else set()
    assert same == {"llama, padded", "hybrid, llama", "hybrid, padded", "padded, too much"}


def written(path: Path, **values: object) -> Path:
    """A file with these values."""
    head = Writable([], [], b"").set("general.architecture", b"llama")
    head.keys.append(Key(b"tokenizer.ggml.tokens", Kind.STRING, [b"a", b"b"], array=True))
    for name, value in values.items():
        head.set(name.replace("__", "."), value)
    return head.write(path)


def test_what_a_file_does_not_say_is_no_difference(path: Path) -> None:
    silent = GgufHeader(written(path))
    says = GgufHeader(written(path, tokenizer__ggml__add_bos_token=1, tokenizer__ggml__bos_token_id=1))
    assert (silent.vocabulary().bos, says.vocabulary().bos) == (None, 1)
    assert silent.shares_vocabulary(says)
    assert says.shares_vocabulary(silent)


def test_formats_and_kinds(path: Path) -> None:
    for make, kind in {tiny_llama: (False, False), tiny_hybrid: (True, False), tiny_mamba: (True, True)}.items():
        found = GgufHeader(make(path))
        assert (found.keeps_state, found.is_recurrent) == kind
    names = {0: "F32", 1: "F16", 2: "Q4_0", 10: "Q2_K", 15: "Q4_K_M", 16: "Q5_K_S", 30: "IQ4_XS", 5: ""}
    for number, name in names.items():
        found = GgufHeader(written(path, general__file_type=number, general__name=b"A name"))
        assert (found.text("general.name"), found.quantisation.split(" ")[0]) == ("A name", name)
    others: dict[str, dict[str, object]] = {
        "not a text model": {"general__type": b"mmproj"}, "an encoder": {"llama__pooling_type": 1}
    }  # fmt: skip
    for reason, values in others.items():
        with pytest.raises(NoTextModelError, match=reason):
            check_text_model(GgufHeader(written(path, **values)))
