"""Memory: what it predicts after an n-gram, how sure it is, what it keeps, and how the lookup takes part."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.speculation import memory as module
from duo.speculation.memory import END, Memory
from duo.speculation.prompt_lookup import PromptLookup

A, B, C, D, E, X, Y = range(1, 8)
TEXTS = st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=8)


def made(*texts: Sequence[int]) -> Memory:
    memory = Memory()
    for text in texts:
        memory.learn(text)
    return memory


def proposed(memory: Memory | None, prompt: Sequence[int], text: Sequence[int] = (), n: int = 1) -> tuple[int, ...]:
    """What is proposed after `prompt` and the target's `text`, by lookup and memory."""
    lookup = PromptLookup()
    lookup.begin([*prompt, *text])
    if memory is not None:
        memory.begin(text)
    return tuple(candidate.token for candidate in lookup.propose(n, memory).candidates)


def chances(memory: Memory, text: Sequence[int]) -> list[float]:
    memory.begin(text)
    return [chance for chance, _ in PromptLookup().propose(4, memory).chances]


def expected(texts: Sequence[Sequence[int]], text: Sequence[int]) -> set[int]:
    """All tokens that most often follow the longest end of `text` in `texts`."""
    begun = [[END, END, END, *each] for each in texts]
    for n in (3, 2, 1):
        found = Counter(
            each[i] for each in begun for i in range(3, len(each)) if each[i - n : i] == [END, END, END, *text][-n:]
        )
        if found:
            return {token for token, count in found.items() if count == max(found.values())}
    return set()


@given(TEXTS, st.lists(st.integers(0, 5), max_size=6))
def test_it_predicts_what_most_often_followed_the_longest_end(texts: list[list[int]], text: list[int]) -> None:
    texts = [each for each in texts if each][:3]  # so that no n-gram occurs more often than is looked at
    memory = made(*texts)
    memory.begin(text)
    found = memory._find(memory.ngram)
    assert ({found[0]} if found else set()) <= expected(texts, text)
    assert (found is None) == (not expected(texts, text))


@given(TEXTS)
def test_it_is_the_same_whether_texts_are_learned_one_by_one_or_at_once(texts: list[list[int]]) -> None:
    one_by_one = made(*texts)
    at_once = Memory([token for text in texts for token in (END, *text)])
    assert bytes(one_by_one._ngrams) == bytes(at_once._ngrams)
    assert bytes(one_by_one._following) == bytes(at_once._following)
    assert one_by_one.log.tolist() == at_once.log.tolist()


def test_it_predicts_how_texts_begin() -> None:
    memory = made((A, B, C), (A, B, D), (X, B, C))
    assert proposed(memory, (), (), 2)[:2] == (A, B)
    assert proposed(made(), (), ()) == ()


def test_a_longer_one_and_one_that_occurs_more_often_is_surer() -> None:
    often, seldom = made(*[(A, B, C, D)] * 8), made((A, B, C, D))
    assert chances(seldom, (X, Y, C))[0] < chances(seldom, (X, B, C))[0] < chances(seldom, (A, B, C))[0]
    assert chances(seldom, (A, B, C))[0] < chances(often, (A, B, C))[0]
    disputed = made(*[(A, B, C, D)] * 4, *[(A, B, C, E)] * 4)
    assert chances(disputed, (A, B, C))[0] < chances(often, (A, B, C))[0]


def test_at_each_position_the_likelier_is_proposed() -> None:
    memory = made(*[(A, B, C, D, E, X)] * 9)
    prompt = (*[A, B, C, Y, Y, Y, D, Y] * 6, X, X)  # knows what follows A B C better than the memory
    assert proposed(memory, prompt, (A, B, C)) == (Y,)
    assert proposed(memory, (C, Y, X, X), (A, B, C), 2) == (D, E), "a single token has matched"
    assert proposed(None, (C, Y, X, X), (A, B, C)) == (Y,)


def test_where_they_differ_the_memory_is_trusted_less() -> None:
    memory = made(*[(A, B, C, D)] * 9)
    own, *_ = chances(memory, (A, B, C))
    assert memory.likelier(memory.ngram, Y, 0.95 * own, 7.0) == (Y, 0.95 * own, 7.0)
    token, chance, _ = memory.likelier(memory.ngram, Y, 0.1, 7.0)
    assert token == D
    assert chance == pytest.approx(0.9 * own)


def test_where_both_agree_it_is_likelier() -> None:
    memory, lookup = made(*[(A, B, C, D)] * 3), PromptLookup()
    lookup.begin((B, C, D, X, Y, A, B, C))
    memory.begin((A, B, C))
    ((alone, _),) = lookup.propose(1).chances
    ((both, _),) = lookup.propose(1, memory).chances
    assert both > max(alone, chances(memory, (A, B, C))[0])


def test_wrong_predictions_make_it_less_sure_and_at_last_silent() -> None:
    memory, dice = made(*[(A, B, C, D)] * 9), random.Random(1)
    (before, *_) = chances(memory, (A, B, C))
    asked = []
    for _ in range(200):
        lookup = PromptLookup()
        lookup.begin(())
        asked.append(bool(lookup.propose(1, memory).candidates) or memory.ngram in memory._known)
        memory.extend([dice.choice((X, Y))])
    (later, *_) = chances(memory, (A, B, C))
    assert later < before
    memory.begin(())
    for _ in range(80):
        memory._find(memory.ngram)
        memory.extend([X])
    assert [memory.is_asked() for _ in range(16)].count(True) == 2


def test_the_oldest_texts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 80)
    memory = made(*[(10 + i, A, B, 30 + i, X, Y) for i in range(40)])
    assert 60 <= len(memory.log) <= 80
    assert memory.log[0] == END
    assert proposed(memory, (), (49, A, B)) == (69,)
    assert 30 not in memory.log
    memory.learn(range(200))
    assert memory.log.tolist() == [*range(130, 200)], "of one text that is too long, the end"


def test_what_a_shorter_ngram_predicts_does_not_depend_on_what_was_asked_before() -> None:
    memory = made((21, 5, 6, 7), (9, 5, 6, 8), (10, 5, 6, 8), (11, 5, 6, 8))
    for text, token in (((21, 5, 6), 7), ((99, 5, 6), 8)):
        memory.begin(text)
        found = memory._find(memory.ngram)
        assert found is not None
        assert found[0] == token


def test_what_was_found_is_kept_for_some_ngrams_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KNOWN", 20)
    memory = made(range(200))
    for i in range(190):
        memory.begin((i, i + 1))
        assert PromptLookup().propose(4, memory).candidates
        assert len(memory._known) < 20 + 2 * 4


def test_a_text_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 64)
    memory = made(range(200), (1, 2, 3))
    assert memory.log.tolist()[-4:] == [END, 1, 2, 3]
    assert memory.log.tolist()[-8:-4] == [196, 197, 198, 199]
    assert len(memory.log) == 56 + 4
    memory.learn(range(300, 310))
    assert len(memory.log) == 56
