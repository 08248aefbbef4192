"""Added tokens are cut out as the reference cuts them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from engine_samples import (
    EXAMPLES,
    GPT2_SPLIT,
    FamilyFile,
    artifact_of,
    assert_same,
    bpe_spec,
    family,
    quick_encoder,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.tokenizer.added import AddedTables, LiteralTable, refusal
from toktier_stream.tokenizer.artifact import AddedToken
from toktier_stream.tokenizer.reference import Reference


def spec_of(*added: dict[str, Any], normalizer: Any = None) -> dict[str, Any]:
    return bpe_spec([(b"a", b"b")], pre_tokenizer=GPT2_SPLIT, added=added, normalizer=normalizer)


def slow_split(text: bytes, literals: dict[bytes, int]) -> list[tuple[int, int, int]]:
    """The twin: leftmost, then longest; the rest are stretches of text."""
    out, start, at = [], 0, 0
    while at < len(text):
        here = [w for w in literals if w and text.startswith(w, at)]
        if not here:
            at += 1
            continue
        word = max(here, key=len)
        if start < at:
            out.append((start, at, -1))
        out.append((at, at + len(word), literals[word]))
        at = start = at + len(word)
    return [*out, (start, len(text), -1)] if start < len(text) else out


LITERALS = st.dictionaries(
    st.binary(max_size=5).map(lambda b: bytes(65 + x % 3 for x in b)), st.integers(0, 999)
)


@settings(max_examples=EXAMPLES * 5, deadline=None)
@given(LITERALS, st.binary(max_size=300).map(lambda b: bytes(65 + x % 4 for x in b)))
def test_search_against_its_twin(literals: dict[bytes, int], text: bytes) -> None:
    """Leftmost-longest, over sets of literals that overlap and hold each other."""
    table = LiteralTable.build(literals)
    segments = np.array([[0, len(text), -1]], dtype=np.int64)
    found = table.split(np.frombuffer(text + bytes(16), dtype=np.uint8), segments)
    assert [tuple(row) for row in found.tolist()] == slow_split(text, literals)


WORDS = ["<", "<a", "<a>", "a>", "a", "<<", " <a", "é>", "<a><b>", "\n"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(WORDS), st.booleans(), st.booleans()),
        max_size=6,
        unique_by=lambda t: t[0],
    ),
    st.lists(st.sampled_from([*WORDS, "b", "é", "x", "ab"]), max_size=12).map("".join),
)
def test_against_the_reference(tokens: list[tuple[str, bool, bool]], text: str) -> None:
    """Any mixture of special and other tokens, matched before and after normalization."""
    spec = spec_of(
        *({"content": c, "special": special, "normalized": after} for c, special, after in tokens)
    )
    assert_same(quick_encoder(spec), Reference(artifact_of(spec)), text)


def test_tokens_matched_before_normalization_go_first() -> None:
    """<a matched in the raw text takes the < from <<a that is matched later, though that starts
    further left; among equals the longest wins."""
    spec = spec_of(
        {"content": "<a", "normalized": False},
        {"content": "<<a>", "normalized": True},
        {"content": "<a>", "normalized": False},
    )
    encoder = quick_encoder(spec)
    ids = {t["content"]: t["id"] for t in spec["added_tokens"]}
    assert encoder.encode(b"<<a>").ids.tolist() == [ord("<"), ids["<a>"]]
    assert encoder.encode(b"<<ab").ids.tolist() == [ord("<"), ids["<a"], ord("b")]
    for text in ("<<a>", "<<ab", "<<a><a><a"):
        assert_same(encoder, Reference(artifact_of(spec)), text)


def test_order_and_kind_make_no_difference() -> None:
    """Neither the file's order nor ``special`` changes what is found."""
    for order in permutations(["<a", "<a>", "a>"]):
        for special in (False, True):
            spec = spec_of(*({"content": c, "special": special} for c in order))
            assert_same(quick_encoder(spec), Reference(artifact_of(spec)), "<a><a a> <a>a>")


def test_literals_end_what_stands_before_them() -> None:
    """The text between two tokens is text of its own: white space before a token is trailing."""
    spec = spec_of({"content": "<x>"})
    reference = Reference(artifact_of(spec))
    for text in ("a  <x>  b", "  <x>", "<x>  ", "\n \n<x>\n", "<x><x>", "it'<x>s"):
        assert_same(quick_encoder(spec), reference, text)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["é", "e\u0301", "Å", "\u212b", "<é>", "<e\u0301>", "\u0301", "<", "a\u0323"]
        ),
        max_size=10,
    ).map("".join)
)
def test_literals_that_are_normalized_too(text: str) -> None:
    """A normalized token's literal is matched in its own normal form; others as they are written,
    and what is left around them is normalized piece by piece."""
    spec = spec_of(
        {"content": "<e\u0301>", "normalized": True},
        {"content": "\u212b", "normalized": False},
        {"content": "<", "normalized": False},
        normalizer={"type": "NFC"},
    )
    assert_same(quick_encoder(spec), Reference(artifact_of(spec)), text)


def token_of(**flags: bool) -> AddedToken:
    off = {"special": False, "normalized": False, "lstrip": False, "rstrip": False}
    return AddedToken(id=1, content="<x>", **{**off, "single_word": False, **flags})


def test_what_reaches_into_its_surroundings_is_refused() -> None:
    """lstrip, rstrip and single_word are named; bare literals are fine."""
    assert refusal([token_of(), token_of(special=True, normalized=True)]) is None
    for flag in ("lstrip", "rstrip", "single_word"):
        assert flag in str(refusal([token_of(), token_of(**{flag: True})]))


def test_round_trip_of_the_tables() -> None:
    """What the cache keeps is what was built."""
    tables = AddedTables.build({b"<a>": 1, b"": 2}, {"é".encode(): 3}, 3)
    again = AddedTables.from_arrays(tables.to_arrays())
    assert again.reach == tables.reach == 3
    assert again.longest == 3
    text, segments = np.frombuffer("x<a>é".encode() + bytes(16), np.uint8), np.array([[0, 6, -1]])
    assert again.any.split(text, segments).tolist() == [[0, 1, -1], [1, 4, 1], [4, 6, 3]]


@pytest.mark.families
@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v4", "qwen3", "claude"])
def test_real_added_tokens(name: str, family_file: FamilyFile) -> None:
    """Every added token of a file: alone, twice, cut in two by a character, as the start of
    another, and behind white space. DeepSeek has some that are matched after normalization."""
    encoder, reference = family(family_file(name))
    for token in reference.artifact.added_tokens[:30] + reference.artifact.added_tokens[-60:]:
        c = token.content
        half = len(c) // 2
        assert_same(encoder, reference, f"a {c}{c}\n {c[:half]}-{c[half:]}{c[:half]}{c} {c[:-1]}")
