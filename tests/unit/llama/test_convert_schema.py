"""Conversion of JSON schemas to grammars."""

from __future__ import annotations

from duo.llama import convert_schema


def test_rules_without_a_letter_are_renamed_and_repetitions_are_not() -> None:
    grammar = 'root ::= "1" - [a-z]{2,3} 1\n- ::= "x"\n1 ::= "y"'
    assert convert_schema.renamed(grammar, "s0-") == (
        's0-root ::= "1" s0-- [a-z]{2,3} s0-1\ns0-- ::= "x"\ns0-1 ::= "y"'
    )
