"""Search W, the production update: walk down the forest from the last symbol's root.

The state is the array theta: ``theta[j]`` is the node of the last token of prefix j, 0 at the
start. A value <= 0 is a *barrier*: what stands there never merges, and callers may keep a code of
their own in it. The last token of prefix j starts at ``j - length(theta[j])``, so the array is the
complete state and also the chain of tokens.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toktier_stream.incremental.forest import Forest
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Symbols

_DENSE = 512
"""Up to this many symbols the pair table is a plain array, above a hash table."""
_FINE = 4
"""Buckets for each child of a root, about."""
_FREE: Final = np.uint32(0xFFFFFFFF)
_ONE: Final = np.uint64(1)
_NONE: Final = np.uint64(0)

Counts = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]


class Steps(NamedTuple):
    """What the walk reads; unsigned, so that no place is held for one counted from the end.

    ``kids``, uint32[K+1, 8]: a row for each non-root, by (parent, low): where its interval begins
    and how wide it is, the node, its length, the rows of its own children, and 64 flags, which are
    also column 3 of ``flags``, uint64[K+1, 4]: bit s modulo 64 is set if a child's left side ends
    in symbol s. Most tokens can be told by it not to grow further. A row fills half a cache line;
    the last one is of no node.

    ``pairs``: for (last symbol, symbol before it), where the buckets of the root's children that
    can match begin, and a shift; either at ``[last * A + before]`` (uint32[A*A, 2]) or hashed
    (uint32[2^k, 4] with the two symbols first, :data:`_FREE` if free). ``buckets``: the last row
    that begins at or before each ``1 << shift``-th node of the tree of the symbol before, and the
    last row of all: so a search looks at one row or two, however many there are."""

    kids: Counts
    flags: Words
    pairs: Counts
    buckets: Counts
    root: Ints
    symbol: Ints


def index(forest: Forest) -> Steps:
    """Lay the forest out for the walk."""
    inner = np.flatnonzero(forest.left).astype(np.int32)
    parent = forest.right[inner]
    order = np.lexsort((forest.low[inner], parent))
    inner, parent = inner[order], parent[order]
    bounds = np.searchsorted(parent, np.arange(forest.nodes + 2)).astype(np.int64)
    kids = _aligned(len(inner) + 1)
    low, high = forest.low[inner], forest.high[inner]
    columns = (low, high - low, inner, forest.length[inner], bounds[inner], bounds[inner + 1])
    for at, column in enumerate(columns):
        kids[:-1, at] = column
    _flag(kids, kids.view(np.uint64), forest.symbol[forest.left[inner]])

    # A root's children by low lie together per last symbol of their left side.
    under_root = np.flatnonzero(forest.left[parent] == 0).astype(np.int32)
    last = forest.symbol[inner[under_root]].astype(np.int64)
    before = forest.symbol[forest.left[inner[under_root]]].astype(np.int64)
    symbols = len(forest.root)
    keys, start, count = np.unique(last * symbols + before, return_index=True, return_counts=True)
    begin = under_root[start].astype(np.int64) if len(keys) else np.zeros(0, dtype=np.int64)

    # What stands before is a node of one tree, whose nodes are numbered in a row.
    roots = np.sort(forest.root[forest.root > 0]).astype(np.int64)
    origin = forest.root[keys % symbols].astype(np.int64)
    beyond = np.append(roots, forest.nodes + 1)[np.searchsorted(roots, origin, side="right")]
    size = beyond - origin
    wide = np.maximum(1, size // (_FINE * count))
    shift = np.ceil(np.log2(wide)).astype(np.int64)
    number = ((size - 1) >> shift) + 1
    offset = np.cumsum(number + 1) - number - 1
    nowhere = int((number + 1).sum())  # two more, for pairs without children: the last row
    buckets = np.full(nowhere + 2, len(inner), dtype=np.uint32)
    _divide(kids, begin, begin + count, origin, shift, offset, number, buckets)
    if symbols <= _DENSE:
        pairs = np.full((symbols * symbols, 2), (nowhere, 31), dtype=np.uint32)
        pairs[keys, 0], pairs[keys, 1] = offset, shift
    else:
        size = 16
        while size < 2 * len(keys):
            size *= 2
        pairs = np.full((size, 4), _FREE, dtype=np.uint32)
        rows = np.stack((keys // symbols, keys % symbols, offset, shift), axis=1)
        _fill(pairs, rows.astype(np.uint32))
    return _steps(forest, kids, pairs, buckets)


def laid_out(forest: Forest, kids: Counts, pairs: Counts, buckets: Counts) -> Steps:
    """The same from arrays that were stored."""
    aligned = _aligned(len(kids))
    aligned[:] = kids
    return _steps(forest, aligned, pairs, buckets)


def _steps(forest: Forest, kids: Counts, pairs: Counts, buckets: Counts) -> Steps:
    flags = kids.view(np.uint64)
    for array in (kids, flags, pairs, buckets):
        array.setflags(write=False)
    return Steps(kids, flags, pairs, buckets, forest.root, forest.symbol)


def _aligned(rows: int) -> Counts:
    """uint32[rows, 8], zero, that begins at a cache line."""
    plain = np.zeros(8 * rows + 16, dtype=np.uint32)
    skip = -plain.ctypes.data % 64 // 4
    return plain[skip : skip + 8 * rows].reshape(rows, 8)


@kernel
def _flag(kids: Counts, flags: Words, last: Ints) -> None:
    """``last``: of each row, the last symbol of the left side."""
    for row in range(len(last)):
        found = np.uint64(0)
        for kid in range(kids[row, 4], kids[row, 5]):
            found |= _ONE << np.uint64(last[kid] & 63)
        flags[row, 3] = found


@kernel
def _divide(
    kids: Counts,
    begin: Longs,
    end: Longs,
    origin: Longs,
    shift: Longs,
    offset: Longs,
    number: Longs,
    buckets: Counts,
) -> None:
    for p in range(len(begin)):
        row = begin[p]
        for i in range(number[p]):
            while row + 1 < end[p] and np.int64(kids[row + 1, 0]) <= origin[p] + (i << shift[p]):
                row += 1
            buckets[offset[p] + i] = row
        buckets[offset[p] + number[p]] = end[p] - 1


@kernel
def _slot(pairs: Counts, last: Any, before: Any) -> int:
    mask = len(pairs) - 1
    h = np.int64(last) * 0x9E3779B1 + np.int64(before) * 0x85EBCA77
    i = int(h >> 7) & mask
    while pairs[i, 0] != _FREE and (pairs[i, 0] != last or pairs[i, 1] != before):
        i = (i + 1) & mask
    return i


@kernel
def _fill(pairs: Counts, rows: Counts) -> None:
    for row in rows:
        pairs[_slot(pairs, row[0], row[1])] = row


@kernel
def walk(symbols: Symbols, theta: Ints, j: int, t: Steps) -> None:
    """Extend theta from prefix ``j`` by ``symbols``; theta must be long enough."""
    walk_on(symbols, 0, len(symbols), theta, j, t)


@kernel
def walk_on(symbols: Symbols, start: int, stop: int, theta: Ints, j: int, t: Steps) -> None:
    """The same by ``symbols[start:stop]``."""
    kids, flags, pairs, buckets, root = t.kids, t.flags, t.pairs, t.buckets, t.root
    dense = pairs.shape[1] == 2
    width = np.uint64(len(root))
    goes_on = theta[j] > 0
    x = np.uint64(max(theta[j], 0))
    before = np.uint64(t.symbol[x])
    for i in range(start, stop):
        symbol = np.int64(symbols[i])
        if symbol < 0 or root[symbol] == 0:
            j += 1
            theta[j] = min(symbol, np.int64(0))
            goes_on = False
            continue
        s = np.uint64(symbol)
        u = np.uint64(root[s])
        if goes_on:
            if dense:
                cell = s * width + before
                offset, shift = np.uint64(pairs[cell, 0]), np.uint64(pairs[cell, 1])
            else:
                slot = _slot(pairs, s, before)
                offset, shift = np.uint64(len(buckets) - 2), np.uint64(31)
                if pairs[slot, 0] != _FREE:
                    offset, shift = np.uint64(pairs[slot, 2]), np.uint64(pairs[slot, 3])
            # The last child with low <= x; intervals of one node's children are disjoint.
            at = offset + ((x - np.uint64(root[before])) >> shift)
            a = _last_from(kids, np.uint64(buckets[at]), np.uint64(buckets[at + _ONE]) + _ONE, x)
            hit = x - np.uint64(kids[a, 0]) < np.uint64(kids[a, 1])
            u = np.uint64(kids[a, 2]) if hit else u
            grows = flags[a, 3] if hit else _NONE
            while grows != 0:
                y = max(theta[np.uint64(j + 1) - np.uint64(kids[a, 3])], 0)
                if grows >> np.uint64(t.symbol[y] & 63) & _ONE == 0:
                    break
                x = np.uint64(y)
                a = _last_from(kids, np.uint64(kids[a, 4]), np.uint64(kids[a, 5]), x)
                if x - np.uint64(kids[a, 0]) >= np.uint64(kids[a, 1]):
                    break
                u = np.uint64(kids[a, 2])
                grows = flags[a, 3]
        j += 1
        theta[j] = u
        x, before, goes_on = u, s, True


@kernel
def _last_from(kids: Counts, a: Any, b: Any, x: Any) -> Any:
    """The last of the rows [a, b) that begins at or before x; a if none."""
    while b - a > _ONE:
        middle = (a + b) >> _ONE
        if np.uint64(kids[middle, 0]) <= x:
            a = middle
        else:
            b = middle
    return a
