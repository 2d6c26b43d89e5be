"""JSON schemas and grammars at random: each is refused in one line, or can be used; this process never suffers."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duo.config import ModelConfig
from duo.errors import GrammarError, UsageError
from duo.llama.grammar import Grammar, schema_grammar
from duo.llama.model import Model
from tests.fuzz.cases import cases
from tests.gguf_files import WORDS, tiny_llama

N_TOKENS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    more = ['{"', '":', '",', '"]', "true", "null", "aa", "aaaa", "ab", "abab", "bb", "12", "é", "🙂", "\n", " "]
    path = tiny_llama(tmp_path_factory.mktemp("models") / "words.gguf", words=(*WORDS, *more))
    with closing(Model(ModelConfig(path), vocabulary_only=True)) as loaded:
        yield loaded


# Schemas

some_of = st.sampled_from
Strategy = st.SearchStrategy[Any]

_names = some_of(["a", "b", "root", "string", "x" * 300, "-", "", "é\u2028", '"', "\\", "$ref", "\0"])
_counts: Strategy = some_of([0, 1, 2, 3, 15, 99, 100, 2000, 2001, 9999, 10**5, 10**9, 10**30, -1, 1.5, "2", None])
_json = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | some_of([[], {}, {"a": [1]}])
_parts = some_of(
    ["a", "b", ".", "(", ")", "[a-z]", "[^", "]", "|", "*", "+", "?", "{3}", "{,5}", "{2,}", "{0,9999}", "{}", "{x}",
     "{99999999}", "\\d", "\\", '"', "(?:", "(?=a)", "é", "a{1000}", "(a|b)*", "(a*)*", "^", "$", "\\u0041"]
)  # fmt: skip
_refs = some_of(
    ["#", "#/", "#/$defs/a", "#/properties/a", "#/none", "https://192.0.2.1/schema", "file:///dev/zero", "",
     "https://192.0.2.1/#/a"]
)  # fmt: skip
_types: Strategy = some_of(
    ["string", "array", "object", "integer", "null", "nonsense", 5, None, ["string", "null"], []]
)


def _larger(inner: Strategy) -> Strategy:
    several, properties = st.lists(inner, max_size=3), st.dictionaries(_names, inner, max_size=4)
    keywords: dict[str, Strategy] = {
        "type": _types, "minLength": _counts, "maxLength": _counts, "minItems": _counts, "maxItems": _counts,
        "minimum": _counts, "maximum": _counts, "minProperties": _counts, "items": inner, "prefixItems": several,
        "pattern": st.lists(_parts, max_size=8).map(lambda parts: f"^{''.join(parts)}$"),
        "format": some_of(["date", "time", "date-time", "uuid", "email", 5]), "$ref": _refs, "const": _json,
        "enum": several, "anyOf": several, "oneOf": several, "allOf": several, "properties": properties,
        "multipleOf": _counts, "patternProperties": st.dictionaries(_parts, inner, max_size=3), "not": inner,
        "$defs": properties, "required": st.lists(_names | _json, max_size=3), "additionalProperties": inner,
    }  # fmt: skip
    some = st.lists(some_of(list(keywords)), min_size=1, max_size=3, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


_DEEP = '{"type": "array", "minItems": 3, "items": '
_schemas = st.recursive(_json, _larger, max_leaves=8)
_schema_texts = st.one_of(
    _schemas.map(json.dumps),
    st.builds(lambda one, n: _DEEP * n + json.dumps(one) + "}" * n, _schemas, some_of([12, 90, 400])),
    st.builds(
        lambda one, n: json.dumps({"properties": {f"p{i}": one for i in range(n)}}), _schemas, some_of([12, 200, 900])
    ),
    some_of([10, 1000, 6000]).map(lambda n: json.dumps({"enum": [f"{i}" for i in range(n)]})),
    st.builds(lambda part, n: part * n, some_of(['{"items":', "[", '{"a":[', "1"]), some_of([1, 3000, 9000])),
)

# Grammars

_rules = some_of(["root", "a", "b", "c", "none"])
_repeats = some_of(["", "", "", "*", "+", "?", "{2}", "{0,3}", "{1000}", "{0,2000}", "{2001}", "{,2}", "{99999999999}"])
_atoms = some_of(
    ['"a"', '"ab"', '""', "[a-z]", "[^a]", "[]", ".", '"é"', '"\\n"', '"\\x61"', '"\\u0061"', '"🙂"', "<[5]>", "!<[5]>",
     "</s>", "<none>", "<[99999999999]>", "[", '"', "(", ")", "#", "|", "::=", "\\", "\n", "a"]
)  # fmt: skip


def _group(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequence = st.lists(st.tuples(inner, _repeats).map("".join), max_size=4).map(" ".join)
    alternatives = st.lists(sequence, min_size=1, max_size=3).map(" | ".join)
    return alternatives | st.builds("({}){}".format, alternatives, _repeats)


_bodies = st.recursive(_atoms | _rules, _group, max_leaves=8)
_links = some_of(["r{1}", "r{1} r{1}", "r{1} | r{1}", 'r{1} "a" | ', "r{1} r{0}", "r{1}*", '("a" | r{1})?'])


def _chain(body: str, last: str, n: int) -> str:
    """A rule that refers to the next, `n` times."""
    rules = [f"r{i} ::= {body.format(i, i + 1)}" for i in range(n)]
    return "\n".join(["root ::= r0", *rules, f"r{n} ::= {last}"])


_grammars = st.one_of(
    st.dictionaries(_rules, _bodies, max_size=4).map(
        lambda rules: "\n".join(f"{name} ::= {body}" for name, body in {"root": "a b", **rules}.items())
    ),
    st.builds(_chain, _links, _bodies, some_of([5, 18, 200, 3000])),
    st.builds(lambda body, n: "root ::= " + "(" * n + body + ")" * n, _bodies, some_of([30, 3000, 100_000])),
    st.builds(lambda body, n: "root ::= " + f"{body} " * n, _bodies, some_of([20, 1000])),
    st.text(alphabet='root:=()[]{}"|*+?,0123456789 \n\\<>!#.^-é', max_size=60),
)
_lark_parts = some_of(
    ["start: ", "a: ", "A: ", "\n", '"a"', "/[a-z]+/", "/(?s:.*)b/", " & ~", " | ", "*", "{2,99999}", "a", "A", "start",
     "%json {}", '%json {"type": "array"}', "%ignore / /\n", "[max_tokens=3]", "[lazy]", "(", ")", "<[5]>", "</s>", "é"]
)  # fmt: skip
_larks = st.lists(_lark_parts, max_size=12).map(lambda parts: "%llguidance {}\nstart: " + "".join(parts))


@given(
    which=_schema_texts.map(lambda text: ("schema", text)) | (_grammars | _larks).map(lambda text: ("grammar", text)),
    choices=st.lists(st.integers(0, 10**6), min_size=N_TOKENS, max_size=N_TOKENS),
)
@cases(5000)
def test_a_schema_or_grammar(model: Model, which: tuple[str, str], choices: list[int]) -> None:
    """It is refused, or some tokens that it allows are written."""
    kind, text = which
    logits = np.zeros(model.n_vocab, np.float32)
    try:
        grammar = Grammar(model, schema_grammar(text, "the schema") if kind == "schema" else text)
        for choice in choices:
            allowed = np.flatnonzero(np.isfinite(grammar.mask(logits)))
            token = int(allowed[choice % len(allowed)])
            assert grammar.allows(token)
            grammar.accept(token)
            if token == model.eos:
                return
    except GrammarError:  # no token is allowed
        pass
    except UsageError as error:
        said = str(error)
        assert said.startswith(("the schema ", "the grammar "))
        assert "\n" not in said
        assert len(said) < 1100
