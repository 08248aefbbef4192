"""Five searches, one answer: BPE's last token after every symbol."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from incremental_dictionaries import (
    Dictionary,
    campaign,
    chain,
    compiled,
    dictionaries,
    expected_prefixes,
    make,
    random_text,
)

from toktier_stream.incremental import centroid, tables
from toktier_stream.incremental.debruijn import family, word
from toktier_stream.incremental.rules import from_merges
from toktier_stream.incremental.search import Counts, Search, advance
from toktier_stream.incremental.state import State


def _assert_exact(d: Dictionary, text: bytes, search: Search) -> None:
    state = State(d.tables, search)
    state.extend(np.frombuffer(text, dtype=np.uint8))
    for j, expected in enumerate(expected_prefixes(d, text)):
        assert chain(state, j) == expected, (d.merges, text[:j], search)


@pytest.mark.parametrize("proper", [True, False])
def test_every_prefix_of_random_texts_is_exact(proper: bool) -> None:
    """TOKTIER_TEST_DICTIONARIES sets how many dictionaries of each kind are tried."""
    for d, rng in campaign(proper):
        for search in Search:
            _assert_exact(d, random_text(rng, d), search)


@compiled
@given(dictionaries(), st.text("abcd", max_size=30), st.sampled_from(Search))
def test_every_prefix_is_exact(d: Dictionary, text: str, search: Search) -> None:
    _assert_exact(d, text.encode(), search)


@compiled
@given(dictionaries(min_letters=2), st.text("abcde", max_size=40))
def test_trees_shared_between_tokens_give_the_same(d: Dictionary, text: str) -> None:
    """Where trees of all suffixes would be too large, only maximal tokens have one."""
    shared = centroid.build(d.tables.forest, d.tables.automaton, shared_above=0)
    symbols = np.frombuffer(text.encode(), dtype=np.uint8)
    own, other = (np.zeros(len(symbols) + 1, dtype=np.int32) for _ in range(2))
    for trees, theta in ((d.tables.centroids, own), (shared, other)):
        advance(
            Search.WEIGHTED,
            symbols,
            theta,
            0,
            0,
            d.tables.forest,
            d.tables.automaton,
            trees,
            Counts(),
        )
    assert np.array_equal(own, other)


@pytest.mark.parametrize("search", Search)
def test_ranks_alone_do_not_order_the_intervals(search: Search) -> None:
    """The smallest improper case: on "abab", rank-only intervals would give a|bab."""
    d = make(b"abc", [(b"b", b"ab"), (b"a", b"b")])
    assert not d.proper
    _assert_exact(d, b"abab", search)
    state = State(d.tables, search)
    state.extend(np.frombuffer(b"abab", dtype=np.uint8))
    assert state.boundaries(4).tolist() == [0, 2, 4]


@pytest.mark.parametrize("search", Search)
def test_equal_ranks_go_to_the_left(search: Search) -> None:
    d = make(b"abc", [(b"a", b"a"), (b"aa", b"a")])
    _assert_exact(d, b"a" * 17, search)


@pytest.mark.parametrize("search", Search)
def test_nothing_merges_across_a_barrier(search: Search) -> None:
    """Symbols without a token, and codes of the caller's, which stay in the state."""
    d = make(b"abc", [(b"a", b"b"), (b"ab", b"c")])
    state = State(d.tables, search)
    state.extend(np.array([97, 98, -7, 99, ord("?"), 97, 98, 99], dtype=np.int32))
    assert state.boundaries(8).tolist() == [0, 2, 3, 4, 5, 8]
    assert [int(x) for x in state.theta[[3, 5]]] == [-7, 0]


def test_pairs_of_the_de_bruijn_word_are_all_different() -> None:
    w = word(32767)
    assert len(set(pairwise(w))) == len(w) - 1
    assert min(w) >= 1
    assert max(w) <= 254


@pytest.mark.parametrize(("k", "balanced"), [(1, 2), (2, 4), (4, 11), (6, 22), (8, 37), (10, 56)])
def test_the_adversarial_family_needs_exactly_the_predicted_probes(k: int, balanced: int) -> None:
    """Verma & Ying, figure 1: k(k+1)/2 + 1 records against k, on the last byte of 255 S."""
    f = family(k)
    assert (f.balanced_probes, f.weighted_probes) == (balanced, k)
    t = tables.build(from_merges(range(256), f.merges))
    assert t.longest == 2**k
    symbols = np.frombuffer(f.stream, dtype=np.uint8)
    for search, probes in ((Search.BALANCED, balanced), (Search.WEIGHTED, k)):
        state = State(t, search)
        state.extend(symbols[:-1])
        state.counts = Counts()
        state.extend(symbols[-1:])
        assert np.flatnonzero(state.counts.probes).tolist() == [probes]
        assert state.counts.searched == 1
        assert state.counts.max_degree == 2 ** (k - 1)
        # U_0 is ruled out by the byte before it; U_1 is what remains.
        assert state.boundaries(state.length).tolist()[-2:] == [2, 2**k + 1]


@pytest.mark.parametrize("k", [3, 5, 6])
def test_the_adversarial_family_is_exact_after_every_byte(k: int) -> None:
    f = family(k)
    d = make(bytes(range(256)), list(f.merges))
    assert d.proper
    for search in Search:
        _assert_exact(d, f.stream, search)


def test_deep_forests_use_the_bounded_search() -> None:
    assert tables.build(from_merges(range(256), family(4).merges)).search is Search.WALK
    assert tables.build(from_merges(range(256), family(8).merges)).search is Search.HYBRID


def test_the_family_has_limits() -> None:
    with pytest.raises(ValueError, match="1 to 15"):
        family(16)
    with pytest.raises(ValueError, match="different adjacent pairs"):
        word(70000)
