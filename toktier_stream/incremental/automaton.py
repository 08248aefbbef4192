"""Aho–Corasick over the canonical tokens: the longest of them that ends a text, symbol by symbol.

States are the nodes of the trie of all tokens, numbered level by level, so that the children of a
state are neighbours and one array of starts describes the whole trie.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toktier_stream.incremental.forest import Forest
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Rules, Symbols


class Automaton(NamedTuple):
    """State 0 is the root. ``child[S+1]``: the children of state v are ``child[v]:child[v+1]``,
    by ``label[S]``; ``fail[S]`` the state of the longest proper suffix; ``found[S]`` the forest
    node of the longest token that is a suffix (0: none);
    ``shorter[N+1]``: for each forest node the next shorter token that is its suffix (0: none)."""

    child: Ints
    label: Symbols
    fail: Ints
    found: Ints
    shorter: Ints
    first: Ints
    """``first[A]``: the root's child by symbol, 0 if none."""
    levels: Longs
    """The states of depth d are ``levels[d]:levels[d+1]``."""

    @property
    def depth(self) -> int:
        """Symbols of the longest token."""
        return len(self.levels) - 2


def build(rules: Rules, forest: Forest) -> Automaton:
    """Linear in the total length of the tokens, after one sort of them."""
    n = forest.nodes
    rows = forest.row[1:]
    starts, lengths = rules.starts[rows], forest.length[1:].astype(np.int64)
    # Tokens in lexicographic order of symbols; big-endian bytes compare like the numbers.
    wide = len(rules.points) > 256
    data = rules.spelling.astype(">u4" if wide else np.uint8).tobytes()
    unit = 4 if wide else 1
    cuts = zip((unit * starts).tolist(), (unit * (starts + lengths)).tolist(), strict=True)
    keys = [data[a:b] for a, b in cuts]
    order = np.array(sorted(range(n), key=keys.__getitem__), dtype=np.int64)
    starts, lengths = starts[order], lengths[order]
    child, label, ends, levels = trie(rules.spelling, starts, lengths, wide)
    found = np.zeros(len(label), dtype=np.int32)
    found[ends] = 1 + order
    first = root_children(child, label, len(rules.points))
    fail = np.zeros(len(label), dtype=np.int32)
    shorter = np.zeros(n + 1, dtype=np.int32)
    _fail(child, label, first, fail, found, shorter)
    for array in (child, label, fail, found, shorter, first, levels):
        array.setflags(write=False)
    return Automaton(child, label, fail, found, shorter, first, levels)


def trie(
    spelling: Symbols, starts: Longs, lengths: Longs, wide: bool
) -> tuple[Ints, Symbols, Ints, Longs]:
    """The trie of words in lexicographic order: ``child``, ``label``, the state of each word, and
    ``levels`` (as in :class:`Automaton`). ``wide``: labels need more than a byte."""
    common = np.zeros(len(starts), dtype=np.int64)
    new = np.zeros(int(lengths.max(initial=0)) + 2, dtype=np.int64)
    _count(spelling, starts, lengths, common, new)
    states = int(new.sum()) + 1
    child = np.zeros(states + 1, dtype=np.int32)
    label: Symbols = np.zeros(states, dtype=np.int32 if wide else np.uint8)
    ends = np.zeros(len(starts), dtype=np.int32)
    _trie(spelling, starts, lengths, common, new, child, label, ends)
    new[0] = 1
    levels = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(new[:-1])))
    return child, label, ends, levels


def root_children(child: Ints, label: Symbols, symbols: int) -> Ints:
    """The root's child by symbol, 0 if none."""
    first = np.zeros(symbols, dtype=np.int32)
    first[label[child[0] : child[1]]] = np.arange(child[0], child[1])
    return first


@kernel
def _count(spelling: Symbols, starts: Longs, lengths: Longs, common: Longs, levels: Longs) -> None:
    """Symbols shared with the token before, and new states per depth."""
    for i in range(len(starts)):
        shared = 0
        if i > 0:
            shortest = min(lengths[i - 1], lengths[i])
            a, b = starts[i - 1], starts[i]
            while shared < shortest and spelling[a + shared] == spelling[b + shared]:
                shared += 1
        common[i] = shared
        for d in range(shared + 1, lengths[i] + 1):
            levels[d] += 1


@kernel
def _trie(
    spelling: Symbols,
    starts: Longs,
    lengths: Longs,
    common: Longs,
    levels: Longs,
    child: Ints,
    label: Symbols,
    ends: Ints,
) -> None:
    """Number states by (depth, order); the children of one state come one after another."""
    place = np.zeros(len(levels) + 1, np.int64)  # next free state of each depth
    place[0], place[1] = 0, 1
    for d in range(1, len(levels)):
        place[d + 1] = place[d] + levels[d]
    path = np.zeros(len(levels), np.int64)
    degree = child[1:]  # counted here, summed up below
    for i in range(len(starts)):
        for d in range(common[i] + 1, lengths[i] + 1):
            state = place[d]
            place[d] += 1
            path[d] = state
            label[state] = spelling[starts[i] + d - 1]
            degree[path[d - 1]] += 1
        ends[i] = path[lengths[i]]
    child[0] = 1
    for v in range(1, len(child)):
        child[v] += child[v - 1]


@kernel
def step(child: Ints, label: Symbols, fail: Ints, first: Ints, state: int, symbol: int) -> int:
    """The state after one more symbol (>= 0); amortized constant time."""
    while state != 0:
        a, b = child[state], child[state + 1]
        while a < b:
            middle = (a + b) >> 1
            if label[middle] < symbol:
                a = middle + 1
            else:
                b = middle
        if a < child[state + 1] and label[a] == symbol:
            return int(a)
        state = fail[state]
    return int(first[symbol])


@kernel
def _fail(child: Ints, label: Symbols, first: Ints, fail: Ints, found: Ints, shorter: Ints) -> None:
    """Level by level: suffix states are shallower, so they are complete when they are needed."""
    for v in range(len(fail)):
        if v > 0:
            suffix = found[fail[v]]
            if found[v] > 0:
                shorter[found[v]] = suffix
            else:
                found[v] = suffix
        for c in range(child[v], child[v + 1]):
            fail[c] = 0 if v == 0 else step(child, label, fail, first, fail[v], label[c])
