"""Patterns are read as the reference's regex dialect means them, or refused with a reason."""

from __future__ import annotations

import re

import pattern_samples
import pytest
from compiled_samples import PROBE
from tokenizers import Regex
from tokenizers import pre_tokenizers as reference

from toktier_stream.tokenizer.educational import Twin
from toktier_stream.tokenizer.pattern import (
    END_OF_LINE,
    Ahead,
    CharSet,
    Concat,
    Repeat,
    Source,
    Unsupported,
    case_folded_runs,
    char_sets,
)
from toktier_stream.tokenizer.pattern_parser import literal, parse
from toktier_stream.tokenizer.stages import Behavior, Pipeline, Stage, View


def reference_matches(pattern: str, text: str) -> list[str]:
    """What the reference's engine isolates in ``text``, gaps included."""
    split = reference.Split(Regex(pattern), "isolated")
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def our_matches(pattern: str, text: str) -> list[str]:
    """The same by our tree, matched by plain backtracking."""
    stage = Stage("", parse(pattern), Behavior.ISOLATED, False, View.TEXT)
    twin = Twin(Pipeline((stage,), False, ""), PROBE)
    return [text.encode()[s:e].decode() for s, e in twin.pieces(text)]


DIALECT = [
    # {m,n}+ is "one or more {m,n}", not possessive: it gives back.
    ("a{1,3}+b", ["aaaaaab", "aab", "b"]),
    ("(?:a{2}+)ab", ["aaaab", "aab", "ab"]),
    # {n}? is "optional {n}", not a lazy {n}.
    ("a{2}?b", ["aab", "ab", "b"]),
    ("a{1,2}?b", ["aab", "ab", "aaab"]),
    ("a{,2}b", ["aaab", "b"]),
    ("a{2,}b", ["aaab", "ab"]),
    # Possessive forms never give back.
    ("a++b|a", ["aaab", "aaa"]),
    ("a++ab|a", ["aaab"]),
    ("[ab]?+a|b", ["a", "aa", "ba", "b"]),
    ("x[ab]*+b|x", ["xab", "xaa"]),
    # $ stands before every line feed, and at the end.
    (r"\s+$", ["a  \n  b  ", " \n", "a \r\n"]),
    (r"a\z|b", ["aa", "ab", "a\n"]),
    (r"\s+(?!\S)|\s+", ["  a", " a", "  ", "\n \n a"]),
    ("a(?=b|c)|.", ["abacada"]),
    ("a(?!b|$)|.", ["abaca"]),
    # Case folding is the reference's: long s and the Kelvin sign belong to s and k.
    ("(?i:'s)|'", ["'s", "'S", "'ſ", "'x"]),
    ("(?i:k)|.", ["kK\u212a"]),
    (r"'(?i:[sdmt]|ll|ve|re)", ["'ſ", "'LL", "'lL", "'R"]),
    ("(?i:a(?-i:b))", ["AB", "Ab"]),
    # Escapes and classes.
    (r"\x41\x{42}\u0043\t|\.", ["ABC\t", "."]),
    (r"[\p{Lu}&&[^A-M]]+", ["ANZ"]),
    (r"[^\P{L}a]+", ["abc1"]),
    (r"[[:upper:]\]-]+", ["AB]-c"]),
    (r"\h+|\H", ["fFg"]),
    (r"\p{^L}", ["a1"]),
    ("(a|b)c", ["acbc"]),
    ("ab|a", ["aba"]),
    ("a|ab", ["aba"]),
    ("(?:ab?){1,2}?c|.", ["ababc", "aac"]),
]


@pytest.mark.parametrize(("pattern", "texts"), DIALECT)
def test_the_dialect_is_the_references(pattern: str, texts: list[str]) -> None:
    """Each construct matches, by our reading, exactly what the reference's engine matches."""
    for text in texts:
        assert our_matches(pattern, text) == reference_matches(pattern, text), text


REFUSED = [
    (r"\bfoo", "word boundary"),
    ("^a", "anchor"),
    (r"\Aa", "anchor"),
    (r"a\Z", "two characters ahead"),
    ("(?<=a)b", "look-behind"),
    ("(?<!a)b", "look-behind"),
    ("(?>a|ab)c", "atomic"),
    ("a(?=bc)", "more than one character"),
    (r"\d(?=(\d{3})+(?!\d))", "more than one character"),
    (r"(a)\1", "escape"),
    ("(?<n>a)", "group construct"),
    ("(?i)a", "group construct"),
    ("(?#x)a", "group construct"),
    ("(?:ab)++c", "possessive"),
    (r"\X", "more than one character"),
    (r"\R", "more than one character"),
    (r"(?i:\p{L})", "under (?i:)"),
    ("(?i:ß)", "under (?i:)"),
    ("(?i:[^a])", "under (?i:)"),
    ("(?!a)*b", "repeated look-ahead"),
    ("a{x}", "brace"),
    ("a{3,2}", "reversed"),
    ("a{1,65}", "more than 64"),
    ("a{0}", "zero"),
    ("[]a]", "begins with ']'"),
    ("[a", "without an end"),
    ("(a", "without an end"),
    ("a)", "unmatched"),
    ("*a", "nothing to repeat"),
    (r"\x80", "no code point"),
    (r"\x4", "incomplete"),
    (r"\uD800", "surrogate"),
    (r"\p{L", "without an end"),
    (r"\pL", "without braces"),
    ("a\\", "middle of a construct"),
    (r"\k<n>", "back reference"),
]


@pytest.mark.parametrize(("pattern", "reason"), REFUSED)
def test_what_is_not_understood_is_refused_with_a_reason(pattern: str, reason: str) -> None:
    """No construct is guessed: the refusal names it."""
    with pytest.raises(Unsupported, match=re.escape(reason)):
        parse(pattern)


def test_sets_keep_their_source_text() -> None:
    """A character class reaches the reference verbatim, nested classes and intersections too."""
    fragment = r"[\p{Lu}\]&&[^\p{Han}[:digit:]]]"
    assert parse(fragment) == CharSet(fragment)
    assert parse(rf"{fragment}+\s") == Concat((Repeat(CharSet(fragment), 1, None), CharSet(r"\s")))


def test_a_dollar_is_a_look_ahead() -> None:
    """The end of a line and of the text are read as what may come next."""
    assert parse("a$") == Concat((CharSet("a", Source.LITERAL), END_OF_LINE))
    assert Ahead((CharSet(r"\S"),), at_end=False, negative=True) in parse(r"\s+(?!\S)").parts


def test_sets_of_a_pattern_are_all_found() -> None:
    """Sets in look-ahead, groups and repetitions are found; none is found twice."""
    found = {s.text for s in char_sets(parse(r"(?:\s+|\p{L}{1,3})(?!\S)"))}
    assert found == {r"\s", r"\p{L}", r"\S"}


def test_runs_under_ignore_case_are_collected() -> None:
    """Side by side, letters under (?i:) can fold together; each such run is reported once."""
    assert case_folded_runs(parse("(?i:'re|st)x(?i:(?:ab)c)")) == {"'re", "st", "abc"}
    assert case_folded_runs(parse(pattern_samples.CL100K_POSSESSIVE)) == {"ll", "ve", "re"}


def test_literals_are_not_read_as_patterns() -> None:
    """A String split takes its text as it is."""
    assert literal(".") == CharSet(".", Source.LITERAL)
    assert literal("a+") == Concat((CharSet("a", Source.LITERAL), CharSet("+", Source.LITERAL)))
    with pytest.raises(Unsupported, match="empty string"):
        literal("")


@pytest.mark.parametrize(
    "pattern",
    [
        pattern_samples.CL100K,
        pattern_samples.CL100K_POSSESSIVE,
        pattern_samples.QWEN3_5,
        pattern_samples.O200K,
        pattern_samples.TEKKEN,
        pattern_samples.KIMI,
        pattern_samples.BLOOM,
        *pattern_samples.DEEPSEEK,
    ],
)
def test_every_known_pattern_is_read(pattern: str) -> None:
    """The patterns in use today are within the subset, and none folds runs to one character."""
    node = parse(pattern)
    assert char_sets(node)
    assert not PROBE.single_character_for(case_folded_runs(node))
