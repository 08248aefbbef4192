"""Searches S, B, C and D: from the longest matching token, with probes counted.

All find the deepest valid node among the canonical suffixes of the token that Aho–Corasick reports.
S tries them one by one; B, C and D search a centroid tree, choosing among a node's intervals by
count-balanced binary search, by the component-weighted tree, or (D) by a scan of up to 8 and the
weighted tree above. One *probe* is one interval record read inside the search.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from toktier_stream.incremental.automaton import Automaton, step
from toktier_stream.incremental.centroid import Centroids
from toktier_stream.incremental.forest import Forest
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Symbols

SCAN = 8
"""Search D reads up to this many intervals one after another."""

WIDEST = 256
"""Length of a histogram; the last cell takes everything above."""


class Search(IntEnum):
    """Which search an update uses; the letters are those of ARCHITECTURE.md."""

    WALK = 0
    SUFFIX = 1
    BALANCED = 2
    WEIGHTED = 3
    HYBRID = 4


class Counts:
    """What searches did: histograms over the updates whose direct check failed.

    ``probes`` and ``comparisons`` count updates by the number of records read and of interval
    ends compared; ``updates``, ``searched``, ``max_degree`` are totals. int64 arrays of WIDEST
    cells.
    """

    def __init__(self) -> None:
        self.probes: Longs = np.zeros(WIDEST, dtype=np.int64)
        self.comparisons: Longs = np.zeros(WIDEST, dtype=np.int64)
        self.totals: Longs = np.zeros(3, dtype=np.int64)

    @property
    def updates(self) -> int:
        return int(self.totals[0])

    @property
    def searched(self) -> int:
        return int(self.totals[1])

    @property
    def max_degree(self) -> int:
        return int(self.totals[2])


def advance(
    method: Search,
    symbols: Symbols,
    theta: Ints,
    j: int,
    state: int,
    forest: Forest,
    automaton: Automaton,
    centroids: Centroids,
    counts: Counts,
) -> int:
    """Extend theta from prefix ``j`` by ``symbols`` (as :func:`walk.walk`); ``state`` is the
    automaton's at ``j``. Returns its state at the end."""
    return int(
        _advance(
            int(method),
            symbols,
            theta,
            j,
            state,
            forest.root,
            forest.right,
            forest.low,
            forest.high,
            forest.length,
            automaton,
            centroids,
            counts.probes,
            counts.comparisons,
            counts.totals,
        )
    )


def read(automaton: Automaton, state: int, symbols: Symbols) -> int:
    """The automaton's state after more symbols; a barrier sets it back."""
    return int(
        _read(automaton.child, automaton.label, automaton.fail, automaton.first, state, symbols)
    )


@kernel
def _read(
    child: Ints, label: Symbols, fail: Ints, first: Ints, state: int, symbols: Symbols
) -> int:
    for s in symbols:
        state = step(child, label, fail, first, state, s) if s >= 0 else 0
    return state


@kernel
def _advance(
    method: int,
    symbols: Symbols,
    theta: Ints,
    j: int,
    state: int,
    root: Ints,
    right: Ints,
    low: Ints,
    high: Ints,
    length: Ints,
    auto: Automaton,
    trees: Centroids,
    probe_counts: Longs,
    comparison_counts: Longs,
    totals: Longs,
) -> int:
    child, label, fail, first, found = auto.child, auto.label, auto.fail, auto.first, auto.found
    widest = len(probe_counts) - 1
    for s in symbols:
        j += 1
        if s < 0 or root[s] == 0:
            theta[j] = s if s < 0 else 0
            state = 0
            continue
        state = step(child, label, fail, first, state, s)
        u = found[state]
        totals[0] += 1
        if right[u] == 0:
            theta[j] = u
            continue
        x = theta[j - length[right[u]]]
        if low[u] <= x < high[u]:
            theta[j] = u
            continue
        totals[1] += 1
        if method == 1:
            u, probes, compared, degree = _by_suffix(
                u, theta, j, right, low, high, length, auto.shorter
            )
        else:
            u, probes, compared, degree = _by_centroid(
                method, u, theta, j, right, low, high, length, trees
            )
        theta[j] = u
        probe_counts[min(probes, widest)] += 1
        comparison_counts[min(compared, widest)] += 1
        totals[2] = max(totals[2], degree)
    return state


@kernel
def _by_suffix(
    u: int,
    theta: Ints,
    j: int,
    right: Ints,
    low: Ints,
    high: Ints,
    length: Ints,
    shorter: Ints,
) -> tuple[int, int, int, int]:
    probes = compared = 0
    while True:
        u = shorter[u]
        if right[u] == 0:
            return u, probes, compared, 0
        probes += 1
        x = theta[j - length[right[u]]]
        compared += 1 if x <= low[u] else 2
        if low[u] <= x < high[u]:
            return u, probes, compared, 0


@kernel
def _by_centroid(
    method: int,
    longest: int,
    theta: Ints,
    j: int,
    right: Ints,
    low: Ints,
    high: Ints,
    length: Ints,
    trees: Centroids,
) -> tuple[int, int, int, int]:
    parts = trees.parts
    limit = length[longest]
    part = trees.tree[longest]
    probes = compared = widest = 0
    while True:
        u, above, a, b = parts[part, 0], parts[part, 1], parts[part, 2], parts[part, 3]
        # The root of a component is always valid (that is how it was entered), and a centroid with
        # nothing above it is the root.
        if above >= 0:
            # Longer than the longest match: in a shared tree, a node that does not end the text.
            valid = length[u] <= limit
            if valid:
                x = theta[j - length[right[u]]]
                valid = low[u] <= x < high[u]
            if not valid:
                part = above
                continue
        widest = max(widest, b - a)
        x = theta[j - length[u]]
        if method == 2:
            below, p, c = _balanced(trees.sorted_, a, b, x)
        elif method == 4 and b - a <= SCAN:
            below, p, c = _scan(trees.weighted, a, b, x)
        else:
            below, p, c = _weighted(trees.weighted, a, b, x)
        probes += p
        compared += c
        if below < 0:
            return u, probes, compared, widest
        part = below


@kernel
def _balanced(intervals: Ints, a: int, b: int, x: int) -> tuple[int, int, int]:
    """Branch-free lower bound on low; an exact hit reads nothing more, any other its
    predecessor. Returns the component (-1: none), records read, ends compared."""
    if a == b:
        return -1, 0, 0
    begin, n, probes = a, b - a, 0
    while n > 1:
        half = n >> 1
        probes += 1
        if intervals[a + half - 1, 0] < x:
            a += half
        n -= half
    probes += 1
    if intervals[a, 0] == x:
        return intervals[a, 2], probes, probes
    if intervals[a, 0] < x:
        a += 1
    if a == begin:
        return -1, probes, probes
    probes += 1
    if x < intervals[a - 1, 1]:
        return intervals[a - 1, 2], probes, probes
    return -1, probes, probes


@kernel
def _weighted(intervals: Ints, a: int, b: int, x: int) -> tuple[int, int, int]:
    """Descend the alphabetic tree in preorder: left subtree next, right subtree after it."""
    probes = compared = 0
    while a < b:
        probes += 1
        compared += 1
        if x == intervals[a, 0]:
            return intervals[a, 2], probes, compared
        if x < intervals[a, 0]:
            b = a + 1 + intervals[a, 3]
            a += 1
            continue
        compared += 1
        if x < intervals[a, 1]:
            return intervals[a, 2], probes, compared
        a += 1 + intervals[a, 3]
    return -1, probes, compared


@kernel
def _scan(intervals: Ints, a: int, b: int, x: int) -> tuple[int, int, int]:
    """One after another, in whatever order they lie."""
    probes = compared = 0
    for i in range(a, b):
        probes += 1
        compared += 1 if x < intervals[i, 0] else 2
        if intervals[i, 0] <= x < intervals[i, 1]:
            return intervals[i, 2], probes, compared
    return -1, probes, compared
