"""The normalized dictionary, the forest and its intervals, against their definitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from incremental_dictionaries import Dictionary, compiled, dictionaries, make

from toktier_stream.errors import ToktierError
from toktier_stream.incremental.canonical import normalize, offline, pair_table
from toktier_stream.incremental.educational import Offline, is_canonical
from toktier_stream.incremental.rules import from_merges, from_spec


@compiled
@given(dictionaries(min_letters=2))
def test_a_token_is_kept_iff_its_own_bpe_gives_it_back(d: Dictionary) -> None:
    keep = normalize(d.rules).keep
    assert [bool(k) for k in keep] == [is_canonical(d.rules, row) for row in range(len(keep))]


@compiled
@given(dictionaries(min_letters=2))
def test_intervals_of_one_nodes_children_are_disjoint(d: Dictionary) -> None:
    forest = d.tables.forest
    for u in range(1, forest.nodes + 1):
        children = np.flatnonzero((forest.right == u) & (forest.left > 0))
        spans = sorted((int(forest.low[c]), int(forest.high[c])) for c in children)
        assert all(low < high for low, high in spans)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


@compiled
@given(dictionaries(min_letters=2))
def test_parents_come_before_their_children_and_subtrees_are_contiguous(d: Dictionary) -> None:
    forest = d.tables.forest
    inner = np.flatnonzero(forest.left)
    assert (forest.right[inner] < inner).all()
    for u in inner:
        between = range(int(forest.right[u]) + 1, int(u))
        assert all(forest.right[v] >= forest.right[u] for v in between)


@compiled
@given(dictionaries(min_letters=2), st.text("abcd", max_size=40))
def test_three_ways_to_run_bpe_agree(d: Dictionary, text: str) -> None:
    symbols = [ord(c) for c in text]
    twin = Offline(d.rules)
    table = pair_table(d.rules.lefts, d.rules.rights, d.rules.products)
    compiled = offline(np.array(symbols, dtype=np.int32), d.rules.atoms, table)
    assert twin.by_heap(symbols) == twin.by_definition(symbols) == compiled.tolist()


def test_long_tokens_take_the_heap_and_are_judged_alike() -> None:
    """Tokens beyond the short form's limit: doubled runs, and one that another rule breaks up."""
    merges = [(b"a" * (1 << i), b"a" * (1 << i)) for i in range(8)]
    merges += [(b"a" * 128, b"ab"), (b"a", b"b"), (b"a", b"a" * 128)]
    d = make(b"ab", merges)
    keep = normalize(d.rules).keep
    assert [bool(k) for k in keep] == [is_canonical(d.rules, row) for row in range(len(keep))]
    assert keep.sum() < len(keep)


def test_of_a_repeated_pair_the_later_rank_counts() -> None:
    """(a,b) first and last: the rule (b,c) in between wins over it."""
    rules = from_merges(b"abc", [(b"a", b"b"), (b"b", b"c"), (b"a", b"b")])
    twin = Offline(rules)
    tokens = [bytes(rules.token(r)) for r in twin.by_heap(b"abc")]
    assert tokens == [b"a", b"bc"]
    assert normalize(rules).rank.max() == 2


def test_merges_are_read_in_both_spellings() -> None:
    vocab = {"a": 0, "b": 1, "ab": 2}
    model = {"type": "BPE", "vocab": vocab}
    one = from_spec({"model": {**model, "merges": ["a b"]}})
    two = from_spec({"model": {**model, "merges": [["a", "b"]]}})
    assert np.array_equal(one.lefts, two.lefts)
    assert np.array_equal(one.products, two.products)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"type": "Unigram"}, "not BPE"),
        ({"dropout": 0.1}, "dropout"),
        ({"continuing_subword_prefix": "##"}, "prefix"),
        ({"vocab": {"a": 0, "b": 0}}, "share an id"),
        ({"merges": ["a c"]}, "out of vocabulary"),
        ({"merges": ["a"]}, "two sides"),
    ],
)
def test_what_is_not_plain_bpe_is_refused(change: dict[str, object], reason: str) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [], **change}
    with pytest.raises(ToktierError, match=reason):
        from_spec({"model": model})


def test_a_byte_level_vocabulary_must_hold_all_bytes() -> None:
    model = {"type": "BPE", "vocab": {"a": 0}, "merges": []}
    with pytest.raises(ToktierError, match="255 bytes"):
        from_spec({"model": model, "pre_tokenizer": {"type": "ByteLevel"}})
