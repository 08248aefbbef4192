"""Search W, the production update: walk down the forest from the last symbol's root.

The state is the array theta: ``theta[j]`` is the node of the last token of prefix j, 0 at the
start. A value <= 0 is a *barrier*: what stands there never merges, and callers may keep a code of
their own in it. The last token of prefix j starts at ``j - length(theta[j])``, so the array is the
complete state and also the chain of tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toktier_stream.incremental.forest import Forest
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Symbols

_DENSE = 512
"""Up to this many symbols the pair table is a plain array, above a hash table."""


class Steps(NamedTuple):
    """What the walk reads. ``low[K]``: where the interval of each non-root begins, by (parent,
    low); ``kids[K, 5]``: where it ends, the node, its length, and the rows of its own children.
    ``pairs``: for (last symbol, symbol before it), the rows of the root's children that can
    match, either at ``[last * A + before]`` (int32[A*A, 2]) or hashed (int32[2^k, 4] with the
    two symbols first, -1 if free)."""

    low: Ints
    kids: Ints
    pairs: Ints
    root: Ints
    symbol: Ints


def index(forest: Forest) -> Steps:
    """Lay the forest out for the walk."""
    inner = np.flatnonzero(forest.left).astype(np.int32)
    parent = forest.right[inner]
    order = np.lexsort((forest.low[inner], parent))
    inner, parent = inner[order], parent[order]
    bounds = np.searchsorted(parent, np.arange(forest.nodes + 2)).astype(np.int32)
    low, columns = forest.low[inner], (forest.high[inner], inner, forest.length[inner])
    kids = np.stack((*columns, bounds[inner], bounds[inner + 1]), axis=1).astype(np.int32)

    # A root's children by low lie together per last symbol of their left side.
    under_root = np.flatnonzero(forest.left[parent] == 0).astype(np.int32)
    last = forest.symbol[inner[under_root]].astype(np.int64)
    before = forest.symbol[forest.left[inner[under_root]]].astype(np.int64)
    symbols = len(forest.root)
    keys, start, count = np.unique(last * symbols + before, return_index=True, return_counts=True)
    begin = under_root[start] if len(keys) else np.zeros(0, dtype=np.int32)
    if symbols <= _DENSE:
        pairs = np.zeros((symbols * symbols, 2), dtype=np.int32)
        pairs[keys, 0], pairs[keys, 1] = begin, begin + count
    else:
        size = 16
        while size < 2 * len(keys):
            size *= 2
        pairs = np.full((size, 4), -1, dtype=np.int32)
        rows = np.stack((keys // symbols, keys % symbols, begin, begin + count), axis=1)
        _fill(pairs, rows.astype(np.int32))
    for array in (low, kids, pairs):
        array.setflags(write=False)
    return Steps(low, kids, pairs, forest.root, forest.symbol)


@kernel
def _slot(pairs: Ints, last: int, before: int) -> int:
    mask = len(pairs) - 1
    h = np.int64(last) * 0x9E3779B1 + np.int64(before) * 0x85EBCA77
    i = int(h >> 7) & mask
    while pairs[i, 0] != -1 and (pairs[i, 0] != last or pairs[i, 1] != before):
        i = (i + 1) & mask
    return i


@kernel
def _fill(pairs: Ints, rows: Ints) -> None:
    for row in rows:
        pairs[_slot(pairs, row[0], row[1])] = row


@kernel
def walk(symbols: Symbols, theta: Ints, j: int, t: Steps) -> None:
    """Extend theta from prefix ``j`` by ``symbols``; theta must be long enough."""
    low, kids, pairs, root = t.low, t.kids, t.pairs, t.root
    dense = pairs.shape[1] == 2
    width = len(root)
    before = -1
    if theta[j] > 0:
        before = t.symbol[theta[j]]
    for s in symbols:
        if s < 0 or root[s] == 0:
            j += 1
            theta[j] = s if s < 0 else 0
            before = -1
            continue
        u = root[s]
        if before >= 0:
            a = b = np.int32(0)
            if dense:
                cell = np.int64(s) * width + before
                a, b = pairs[cell, 0], pairs[cell, 1]
            else:
                slot = _slot(pairs, s, before)
                if pairs[slot, 0] >= 0:
                    a, b = pairs[slot, 2], pairs[slot, 3]
            x = theta[j]
            while a < b:
                # The last child with low <= x; intervals of one node's children are disjoint.
                while b - a > 1:
                    middle = (a + b) >> 1
                    if low[middle] <= x:
                        a = middle
                    else:
                        b = middle
                if x < low[a] or x >= kids[a, 0]:
                    break
                u = kids[a, 1]
                x = theta[j + 1 - kids[a, 2]]
                a, b = kids[a, 3], kids[a, 4]
        j += 1
        theta[j] = u
        before = s
