"""Centroid search trees over the canonical suffixes of each token (the papers' CST).

The canonical suffixes of a token T form a tree under the forest's parent relation. It is split
recursively at strict-half centroids: from the component's root move down while a child's part is
larger than half. A component keeps its centroid, the component above it, and for each component
below the interval that leads there. Intervals are stored twice: sorted by their low end for
count-balanced search, and as the component-weighted alphabetic tree of Verma & Ying in preorder.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toktier_stream.incremental.automaton import Automaton
from toktier_stream.incremental.forest import Forest
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs

SHARED_ABOVE = 1 << 22
"""With more suffixes in all than this, tokens that are suffixes of others have no tree of their
own: they use a longer token's, whose additional nodes cannot be valid (they are longer than the
longest match)."""


class Centroids(NamedTuple):
    """``tree[N+1]``: component 0 of a token's tree. Component ``i`` has ``parts[i]`` =
    (centroid node, component above or -1, first interval, end of intervals); ``sorted_[I, 3]``
    and ``weighted[I, 4]`` are its intervals: low, high, component below (and in the weighted form
    the size of the left subtree, root first)."""

    tree: Ints
    parts: Ints
    sorted_: Ints
    weighted: Ints


def build(forest: Forest, automaton: Automaton, shared_above: int = SHARED_ABOVE) -> Centroids:
    """Trees for every token, or for the maximal ones where those are too large."""
    n = forest.nodes
    count = np.zeros(n + 1, dtype=np.int64)
    by_length = np.argsort(forest.length, kind="stable").astype(np.int64)
    _chains(by_length, automaton.shorter, count)
    owner = np.arange(n + 1, dtype=np.int32)
    if int(count.sum()) > shared_above:
        _owners(by_length, automaton.shorter, owner)
    total = int(count[owner == np.arange(n + 1)].sum())
    parts = np.zeros((total, 4), dtype=np.int32)
    sorted_ = np.zeros((total, 3), dtype=np.int32)
    weighted = np.zeros((total, 4), dtype=np.int32)
    tree = np.zeros(n + 1, dtype=np.int32)
    used = _decompose(
        owner,
        automaton.shorter,
        forest.right,
        forest.low,
        forest.high,
        int(count.max(initial=1)),
        tree,
        parts,
        sorted_,
        weighted,
    )
    sorted_, weighted = sorted_[:used].copy(), weighted[:used].copy()
    for array in (tree, parts, sorted_, weighted):
        array.setflags(write=False)
    return Centroids(tree, parts, sorted_, weighted)


@kernel
def _chains(by_length: Longs, shorter: Ints, count: Longs) -> None:
    """How many canonical suffixes each token has, itself included."""
    for u in by_length:
        if u > 0:
            count[u] = 1 + count[shorter[u]]


@kernel
def _owners(by_length: Longs, shorter: Ints, owner: Ints) -> None:
    """The longest token of which each is a suffix (one of them)."""
    for i in range(len(by_length) - 1, -1, -1):
        u = by_length[i]
        s = shorter[u]
        if u > 0 and s > 0:
            owner[s] = owner[u]


@kernel
def _decompose(
    owner: Ints,
    shorter: Ints,
    right: Ints,
    low: Ints,
    high: Ints,
    longest: int,
    tree: Ints,
    parts: Ints,
    sorted_: Ints,
    weighted: Ints,
) -> int:
    node = np.empty(longest, np.int32)  # the chain, longest first
    parent = np.empty(longest, np.int32)  # index of the parent in the chain; parents come later
    where = np.full(len(owner), -1, np.int32)
    order = np.empty(longest, np.int32)  # indices, each component a run; longest first
    scratch = np.empty(longest, np.int32)
    size = np.zeros(longest, np.int32)
    label = np.empty(longest, np.int32)
    starts = np.empty(longest + 2, np.int64)
    stack = np.empty((longest + 1, 3), np.int64)  # run begin, run end, component number
    keys = np.empty(longest, np.int64)
    bounds = np.empty((longest + 1, 3), np.int64)
    prefix = np.zeros(longest + 1, np.int64)
    components = 0
    intervals = 0
    for token in range(1, len(owner)):
        if owner[token] != token:
            continue
        n = 0
        u = np.int32(token)
        while u > 0:
            node[n], where[u] = u, n
            u = shorter[u]
            n += 1
        for i in range(n):
            parent[i] = where[right[node[i]]] if right[node[i]] > 0 else -1
            order[i] = i
        tree[token] = components
        stack[0, 0], stack[0, 1], stack[0, 2] = 0, n, components
        components += 1
        at = 1
        while at > 0:
            at -= 1
            a, b, me = stack[at, 0], stack[at, 1], stack[at, 2]
            top = order[b - 1]
            for q in range(a, b):
                size[order[q]] = 1
            for q in range(a, b - 1):
                size[parent[order[q]]] += size[order[q]]
            centre = top
            for q in range(a, b):
                if 2 * size[order[q]] > b - a:
                    centre = order[q]
                    break
            # Label 0: above the centroid; 1, 2, ...: below it, per child; the centroid drops out.
            label[centre] = -1
            below = 0
            for q in range(b - 1, a - 1, -1):
                i = order[q]
                if i == centre:
                    continue
                if i == top:
                    label[i] = 0
                elif parent[i] == centre:
                    below += 1
                    label[i] = below
                    keys[below - 1] = (np.int64(low[node[i]]) << 32) | below
                else:
                    label[i] = label[parent[i]]
            starts[: below + 2] = 0
            for q in range(a, b):
                if order[q] != centre:
                    starts[label[order[q]] + 1] += 1
            starts[0] = a
            for g in range(below + 1):
                starts[g + 1] += starts[g]
            for g in range(below + 1):
                bounds[g, 0], bounds[g, 1] = starts[g], starts[g + 1]
            for q in range(a, b):
                i = order[q]
                if i != centre:
                    scratch[starts[label[i]]] = i
                    starts[label[i]] += 1
            order[a : b - 1] = scratch[a : b - 1]
            for g in range(below + 1):
                bounds[g, 2] = -1
                if bounds[g, 0] < bounds[g, 1]:
                    bounds[g, 2] = components
                    stack[at, 0], stack[at, 1] = bounds[g, 0], bounds[g, 1]
                    stack[at, 2] = components
                    components += 1
                    at += 1
            begin = intervals
            keys[:below] = np.sort(keys[:below])
            for d in range(below):
                g = keys[d] & 0xFFFFFFFF
                child = node[order[bounds[g, 1] - 1]]
                sorted_[intervals, 0], sorted_[intervals, 1] = low[child], high[child]
                sorted_[intervals, 2] = bounds[g, 2]
                prefix[d + 1] = prefix[d] + bounds[g, 1] - bounds[g, 0]
                intervals += 1
            _alphabetic(sorted_[begin:intervals], prefix, weighted[begin:intervals])
            parts[me, 0], parts[me, 1] = node[centre], bounds[0, 2]
            parts[me, 2], parts[me, 3] = begin, intervals
    for token in range(1, len(owner)):
        tree[token] = tree[owner[token]]
    return intervals


@kernel
def _alphabetic(sorted_: Ints, prefix: Longs, weighted: Ints) -> None:
    """Preorder of the weighted tree: the pivot is the smallest p with 2 * (prefix to p) >= W."""
    todo = np.empty((len(sorted_) + 1, 3), np.int64)  # begin, end, place of the root
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, len(sorted_), 0
    at = 1
    while at > 0:
        at -= 1
        a, b, place = todo[at, 0], todo[at, 1], todo[at, 2]
        if a == b:
            continue
        half = prefix[a] * 2 + prefix[b] - prefix[a]
        x, y = a, b - 1
        while x < y:
            middle = (x + y) >> 1
            if 2 * prefix[middle + 1] >= half:
                y = middle
            else:
                x = middle + 1
        weighted[place, 0], weighted[place, 1] = sorted_[x, 0], sorted_[x, 1]
        weighted[place, 2], weighted[place, 3] = sorted_[x, 2], x - a
        todo[at, 0], todo[at, 1], todo[at, 2] = a, x, place + 1
        todo[at + 1, 0], todo[at + 1, 1], todo[at + 1, 2] = x + 1, b, place + 1 + x - a
        at += 2
