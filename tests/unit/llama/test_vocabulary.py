"""Tokenising: what may go wrong with hostile texts, on tiny vocabularies."""

import threading
from contextlib import closing
from pathlib import Path

import pytest

from duo.config import ModelConfig
from duo.errors import ClosedError, PromptError
from duo.llama import vocabulary
from duo.llama.model import Model
from tests.gguf_files import tiny_bpe, tiny_llama

LONG = "a" * 5000


@pytest.fixture
def bpe(tmp_path: Path) -> Model:
    return Model(ModelConfig(tiny_bpe(tmp_path / "bpe.gguf", "deepseek-llm")), vocabulary_only=True)


@pytest.fixture
def words(tmp_path: Path) -> Model:
    """A SentencePiece vocabulary that adds BOS."""
    return Model(ModelConfig(tiny_llama(tmp_path / "words.gguf", add_bos=True)), vocabulary_only=True)


def test_a_long_text_is_tokenised_on_a_stack_of_its_own(bpe: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without, it would overflow: tests/process/llama/test_model.py."""
    assert bpe.tokenize(LONG) == [ord("a")] * 5000 == 5000 * bpe.tokenize("a")
    monkeypatch.setattr(vocabulary, "_STACK_PER_BYTE", 2**50)
    with pytest.raises(PromptError, match="not enough memory to tokenise a prompt of 5000 bytes"):
        bpe.tokenize(LONG)
    with pytest.raises(PromptError, match=r"^the prompt is not text: .*surrogates"):
        bpe.tokenize(LONG + "\udfff")
    assert threading.stack_size() == 0


def test_bos_is_added_once(words: Model) -> None:
    tokens = words.tokenize("the cat", add_bos=False)
    assert words.tokenize("the cat") == [words.bos, *tokens]
    for rest in ("", "the cat", LONG):
        marked = words.tokenize(f"<s>{rest}")
        assert marked.count(words.bos) == 1
        assert marked[0] == words.bos
        assert marked == words.tokenize(f"<s>{rest}", add_bos=False)


def test_a_closed_model_is_not_used(tmp_path: Path) -> None:
    model = Model(ModelConfig(tiny_llama(tmp_path / "model.gguf")))
    token = model.tokenize("cat")[0]
    model.close()
    with pytest.raises(ClosedError, match="Model is closed"):
        model.tokenize("cat")
    for look in (model.piece, model.is_end, lambda one: model.spelling([one]), lambda _: model.end_tokens):
        with pytest.raises(ClosedError, match="Model is closed"):
            look(token)


# Fragments


def test_fragments_and_prompts_spell_the_text_and_nothing_else(bpe: Model, words: Model) -> None:
    """A SentencePiece vocabulary puts a space in front of a text; in a fragment, special tokens are text."""
    for model in (bpe, words):
        for text in ("the cat sat", "  the", "", "\n the\n\n", "the</s>cat", "日本 the", "é\x00a"):
            tokens = model.fragment(text.encode())
            assert b"".join(map(model.piece, tokens)) == text.encode()
            assert not {model.bos, model.eos} & set(tokens)
        for text in ("the cat", " the cat", "<s>the cat</s>the cat</s> the cat", "</s>the", "a</s>\n", "the cat\n"):
            expected = text.removeprefix("<s>") if model is words else text
            assert model.prompt_text(model.tokenize(text)).decode() == expected


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_that_is_not_in_the_vocabulary(words: Model, token: int) -> None:
    """llama.cpp would end the process."""
    for act in (words.piece, lambda one: words.spelling([one]), lambda one: words.prompt_text([one])):
        with pytest.raises(PromptError, match=f"no token {token} in a vocabulary of"):
            act(token)


def test_tags_are_part_of_the_text_and_other_special_tokens_are_not(tmp_path: Path) -> None:
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    path = tiny_llama(tmp_path / "tags.gguf", words=("▁",), control=("<|im_start|>", *tags))
    with closing(Model(ModelConfig(path), vocabulary_only=True)) as model:
        special = range(260, 265)
        assert model.spelling(special) == b"<|im_start|>" + "".join(tags).encode()
        assert [model.piece(token) for token in special] == [b"", *(tag.encode() for tag in tags)]
