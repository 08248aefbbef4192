"""One pattern's automaton finds the match that backtracking finds."""

from __future__ import annotations

import pytest
from compiled_samples import PROBE
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.tokenizer.automaton import DEAD, Automaton, compile_pattern, nullable, refine
from toktier_stream.tokenizer.educational import Twin
from toktier_stream.tokenizer.pattern import (
    Ahead,
    Alternate,
    CharSet,
    Concat,
    Node,
    Repeat,
    Source,
    Unsupported,
)
from toktier_stream.tokenizer.pattern_parser import parse
from toktier_stream.tokenizer.stages import Behavior, Pipeline, Stage, View

ALPHABET = "abc "
LETTERS = [CharSet(c, Source.LITERAL) for c in ALPHABET]
MASKS = {letter: 1 << i for i, letter in enumerate(LETTERS)}


def automaton_of(node: Node) -> Automaton:
    return compile_pattern(node, MASKS, len(ALPHABET))


def longest_run(automaton: Automaton, text: str, start: int) -> int:
    """Where the match that begins at ``start`` ends, by walking the automaton; -1: nowhere."""
    state, end = 0, -1
    for at in range(start, len(text) + 1):
        symbol = ALPHABET.index(text[at]) if at < len(text) else automaton.symbols
        accepted, state = automaton.step(state, symbol)
        if accepted:
            end = at
        if state == DEAD:
            break
    return end


def segments(automaton: Automaton, text: str) -> list[tuple[int, int]]:
    """Matches and gaps of ``text``, by restarting the automaton behind each match."""
    found, done, at = [], 0, 0
    while at < len(text):
        end = longest_run(automaton, text, at)
        if end < 0:
            at += 1
            continue
        found += [(done, at)] * (at > done) + [(at, end)]
        done = at = end
    return found + [(done, len(text))] * (len(text) > done)


sets = st.sampled_from(LETTERS)
ahead = st.builds(Ahead, st.lists(sets, max_size=2).map(tuple), st.booleans(), st.booleans())


def repeats(body: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    bounds = st.sampled_from([(0, 1), (0, None), (1, None), (1, 2), (2, 2), (0, 3)])
    return st.builds(
        lambda b, lh, greedy: Repeat(b, lh[0], lh[1], greedy), body, bounds, st.booleans()
    )


possessive = st.builds(
    lambda b, lh: Repeat(b, lh[0], lh[1], True, True),
    sets,
    st.sampled_from([(0, 1), (0, None), (1, None)]),
)
nodes: st.SearchStrategy[Node] = st.recursive(
    sets | possessive,
    lambda inner: st.one_of(
        st.lists(inner | ahead, min_size=1, max_size=3).map(tuple).map(Concat),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(Alternate),
        repeats(inner),
    ),
    max_leaves=8,
)
texts = st.text(ALPHABET, max_size=10)


@settings(max_examples=400, deadline=None)
@given(nodes, st.lists(texts, min_size=1, max_size=6))
def test_the_automaton_matches_as_backtracking_does(node: Node, samples: list[str]) -> None:
    """On random patterns with every construct, admitted ones cut as the slow twin does."""
    try:
        automaton = automaton_of(node)
    except Unsupported:
        return
    stage = Stage("", node, Behavior.ISOLATED, False, View.TEXT)
    twin = Twin(Pipeline((stage,), False, ""), PROBE)
    for text in samples:
        assert segments(automaton, text) == twin.pieces(text)


@settings(max_examples=200, deadline=None)
@given(nodes)
def test_certainty_of_a_match_is_what_it_says(node: Node) -> None:
    """Where the automaton says a match surely begins, one begins in every short text; where it
    does not, some short text has none."""
    try:
        automaton = automaton_of(node)
    except Unsupported:
        return
    tails = ["", *ALPHABET, *(a + b for a in ALPHABET for b in ALPHABET)]
    tails += [a + b + c for a in ALPHABET for b in ALPHABET for c in ALPHABET]
    for symbol, letter in enumerate(ALPHABET):
        if automaton.surely_matches(symbol):
            assert all(longest_run(automaton, letter + tail, 0) > 0 for tail in tails)


def test_what_can_be_empty_is_refused() -> None:
    """Empty matches, and loops over what can be empty, have their own rules in the reference."""
    a = LETTERS[0]
    with pytest.raises(Unsupported, match="empty text"):
        automaton_of(Repeat(a, 0, None))
    with pytest.raises(Unsupported, match="can be empty"):
        automaton_of(Concat((a, Repeat(Repeat(a, 0, 1), 1, None))))
    assert nullable(parse("(?:a?|b)$"))
    assert not nullable(parse("a?b"))


def test_the_best_alternative_wins_not_the_longest() -> None:
    """Leftmost-first: an earlier alternative ends the match although a later one would go on."""
    short = automaton_of(parse("a|ab"))
    long = automaton_of(parse("ab|a"))
    assert longest_run(short, "ab", 0) == 1
    assert longest_run(long, "ab", 0) == 2


def test_too_large_a_pattern_is_refused() -> None:
    """Nested counts multiply; the limit is a reason, not an hour of work."""
    node: Node = LETTERS[0]
    for _ in range(3):
        node = Repeat(Concat((node, LETTERS[1])), 30, 30)
    with pytest.raises(Unsupported, match="too many places"):
        automaton_of(node)


def test_partition_refinement_is_the_coarsest() -> None:
    """Equal labels and equal ways stay together; a difference far away separates."""
    labels = ["x", "x", "x", "y"]
    assert len(set(refine(labels, [[(1,)], [(2,)], [(3,)], [(3,)]]))) == 4
    assert len(set(refine(labels, [[(1,)], [(0,)], [(0,)], [(-1,)]]))) == 2
