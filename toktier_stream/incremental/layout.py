"""The suffix-successor forest laid out for the walk (walk.py): what one step reads lies together.

A step looks for the one child of a node whose interval holds some x. Children are sorted by where
their intervals begin, and *buckets* over the values of x say where to look, so that a search sees
one row or two. Most steps end in nothing. So a node that has children carries *marks*: a bit for
each *sign* that an x in any of their intervals has. The sign of a node is a hash of its last two
symbols. An interval [lo, hi) holds nodes that end in the left side l = lo: one sign if l has two
symbols, else that of l and those of the subtrees below it that lie in the interval.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toktier_stream.incremental.forest import Forest
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs

DENSE: Final = 512
"""Up to this many symbols the pair table is a plain array, above a hash table."""
FREE: Final = np.uint32(0xFFFFFFFF)
LENGTH_BITS: Final = 26
MARK_BITS: Final = 5
MORE: Final = np.uint32(1 << 31)
"""Above every number of a row."""
ROW_BITS: Final = 21
"""Of the number of a row of ``grown``, where a length stands above it."""
LONGEST: Final = (1 << 31 - ROW_BITS) - 1
"""Length of a token that is told so, at most: that of longer ones is told as 0."""
_FINE: Final = 4
"""Buckets for each child, about."""
_SPARSE: Final = 8
"""Marks for each sign, at least."""
_SIGNS: Final = 1 << 16
_WORD: Final = 64
_LINE: Final = 64

Counts = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
Signs = npt.NDArray[np.uint16]


class Steps(NamedTuple):
    """What the walk reads.

    ``kids``, uint32[K+1, 4]: a row for each non-root, by (parent, low): where its interval begins
    and how wide it is, the node, and its row of ``grown`` with (from bit :data:`ROW_BITS`) the
    node's length. Four rows fill a cache line; the last one is of no node.

    ``grown``, uint32[G+1, 8]: a row for each non-root that has children, row 0 for all others: its
    length and (from bit :data:`LENGTH_BITS`) a shift, its children's first bucket, where the first
    child's interval begins, its first word of marks, and the logarithm of their number with (from
    bit :data:`MARK_BITS`) the values of x from the first interval's beginning to the last one's
    end.

    ``marks``: uint64; word 0 is of nodes without children, and has none. ``sign``: of each node,
    uint16[N+1], and some more to be read beyond.

    ``buckets``: of the rows of ``grown``, the last row of ``kids`` that begins at or before each
    ``1 << shift``-th value of x, and the last row of all.

    ``entries``, uint32[E, 4]: the buckets of roots, where all is told at once: the only row of
    ``kids`` that can hold such an x, or the first and the last one, 0 and :data:`MORE`. ``pairs``:
    for (last symbol, symbol before it), a shift, and what is to be added to the shifted x to get
    the entry (modulo 2^32) of the root's children that can match; either at ``[last * A + before]``
    (uint32[A*A, 2]) or hashed (uint32[2^k, 4] with the two symbols first, :data:`FREE` if free).
    The last two entries hold nothing.

    ``root`` and ``symbol``: the forest's."""

    kids: Counts
    grown: Counts
    marks: Words
    sign: Signs
    pairs: Counts
    buckets: Counts
    entries: Counts
    root: Ints
    symbol: Ints


STORED: Final = ("kids", "grown", "marks", "sign", "pairs", "buckets", "entries")


def index(forest: Forest) -> Steps:
    """Lay the forest out."""
    inner = np.flatnonzero(forest.left).astype(np.int32)
    parent = forest.right[inner]
    order = np.lexsort((forest.low[inner], parent))
    inner, parent = inner[order], parent[order]
    kids = np.zeros((len(inner) + 1, 4), dtype=np.uint32)
    low, high = forest.low[inner], forest.high[inner]
    for at, column in enumerate((low, high - low, inner)):
        kids[:-1, at] = column

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
    root_begin, root_count = begin, count
    root_origin, root_span = origin, beyond - origin

    # Children of other nodes.
    first, after = (np.searchsorted(parent, inner, side=side) for side in ("left", "right"))
    has = np.flatnonzero(first < after)
    begin, count = first[has], (after - first)[has]
    origin, end = kids[begin, 0].astype(np.int64), begin + count - 1
    span = kids[end, 0].astype(np.int64) + kids[end, 1] - origin
    buckets, wide, place = _divided(kids, begin, count, origin, span)
    sign = np.zeros(forest.nodes + 1 + 3, dtype=np.uint16)
    _sign(forest.left, forest.right, forest.symbol, sign)
    ends = _last_below(forest.right)
    bits = np.zeros(len(has), dtype=np.int64)
    _mark(kids, begin, count, forest.left, ends, sign, bits, np.zeros(0, np.int64), _NOTHING)
    words = np.cumsum(1 << bits >> 6)
    marks = np.zeros(1 + int(words[-1]) if len(words) else 1, dtype=np.uint64)
    words = 1 + words - (1 << bits >> 6)
    _mark(kids, begin, count, forest.left, ends, sign, bits, words, marks)
    if len(has) >= 1 << ROW_BITS:
        raise ValueError("too many tokens")
    length = forest.length[inner].astype(np.uint32)
    kids[:-1, 3] = np.where(length > LONGEST, 0, length) << ROW_BITS
    kids[has, 3] += 1 + np.arange(len(has), dtype=np.uint32)
    grown = np.zeros((len(has) + 1, 8), dtype=np.uint32)
    columns = (
        forest.length[inner[has]] | wide << LENGTH_BITS, place, origin, words,
        bits | span << MARK_BITS,
    )  # fmt: skip
    for at, values in enumerate(columns):
        grown[1:, at] = values
    grown[0, 0] = 1  # what stands there is looked up before it is known that there are no marks

    # Those of roots: x counts from 0, so that buckets begin at multiples of their width.
    entries, shift, offset = _entries(kids, root_begin, root_count, root_origin, root_span)
    nowhere = len(entries) - 2
    if symbols <= DENSE:
        pairs = np.full((symbols * symbols, 2), (nowhere, 31), dtype=np.uint32)
        pairs[keys, 0], pairs[keys, 1] = offset, shift
    else:
        size = 16
        while size < 2 * len(keys):
            size *= 2
        pairs = np.full((size, 4), FREE, dtype=np.uint32)
        rows = np.stack((keys // symbols, keys % symbols, offset, shift), axis=1)
        _fill(pairs, rows.astype(np.uint32))
    return laid_out(forest, kids, grown, marks, sign, pairs, buckets, entries)


def laid_out(
    forest: Forest,
    kids: Counts,
    grown: Counts,
    marks: Words,
    sign: Signs,
    pairs: Counts,
    buckets: Counts,
    entries: Counts,
) -> Steps:
    """The same from arrays that were stored."""
    arrays = (_aligned(kids), _aligned(grown), marks, sign, pairs, buckets, _aligned(entries))
    for array in arrays:
        array.setflags(write=False)
    return Steps(*arrays, forest.root, forest.symbol)


def _aligned(rows: Counts) -> Counts:
    """A copy whose rows begin at a cache line."""
    plain = np.zeros(rows.size + 2 * _LINE // 4, dtype=np.uint32)
    skip = -plain.ctypes.data % _LINE // 4
    aligned = plain[skip : skip + rows.size].reshape(rows.shape)
    aligned[:] = rows
    return aligned


_NOTHING: Final = np.zeros(0, dtype=np.uint64)


def _entries(
    kids: Counts, begin: Longs, count: Longs, origin: Longs, span: Longs
) -> tuple[Counts, Longs, Longs]:
    """As :func:`_divided` with entries as buckets, and two that hold nothing at the end; the third
    is what is to be added to a shifted x to get its entry."""
    width = np.maximum(1, span // (_FINE * count))
    shift = np.ceil(np.log2(width)).astype(np.int64)
    lowest = origin >> shift << shift
    number = ((origin + span - 1 - lowest) >> shift) + 1
    offset = np.cumsum(number + 1) - number - 1
    rows = np.zeros(int((number + 1).sum()), dtype=np.uint32)
    _divide(kids, begin, begin + count, lowest, shift, offset, number, rows)
    rows = np.append(rows, np.full(2, len(kids) - 1, dtype=np.uint32))
    entries = kids[rows]
    more = np.flatnonzero(rows[:-1] < rows[1:])
    entries[more, 0], entries[more, 1] = rows[more], rows[more + 1]
    entries[more, 2], entries[more, 3] = 0, MORE
    return entries, shift, (offset - (lowest >> shift)) & 0xFFFFFFFF


def _divided(
    kids: Counts, begin: Longs, count: Longs, origin: Longs, span: Longs
) -> tuple[Counts, Longs, Longs]:
    """Buckets of groups of rows: ``count`` rows from ``begin`` on, for ``span`` values of x from
    ``origin`` on. Returns them, and of each group the shift and the first bucket."""
    wide = np.maximum(1, span // (_FINE * count))
    shift = np.ceil(np.log2(wide)).astype(np.int64)
    number = ((span - 1) >> shift) + 1
    offset = np.cumsum(number + 1) - number - 1
    buckets = np.zeros(int((number + 1).sum()), dtype=np.uint32)
    _divide(kids, begin, begin + count, origin, shift, offset, number, buckets)
    return buckets, shift, offset


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
def _sign(left: Ints, right: Ints, symbol: Ints, sign: Signs) -> None:
    """A parent has a smaller number than its children, and ends in the same symbols."""
    second = np.full(len(left), -1, np.int64)
    for u in range(1, len(left)):
        if left[u] > 0:
            second[u] = second[right[u]]
            if left[right[u]] == 0:
                second[u] = symbol[left[u]]
        mixed = np.uint64(symbol[u]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= np.uint64(second[u]) * np.uint64(0xC2B2AE3D27D4EB4F)
        mixed *= np.uint64(0x165667B19E3779F9)
        sign[u] = np.uint16(mixed >> np.uint64(48))


@kernel
def _last_below(right: Ints) -> Ints:
    """The last node of each subtree: its nodes are numbered in a row."""
    last = np.arange(len(right)).astype(np.int32)
    for u in range(len(right) - 1, 0, -1):
        if right[u] > 0:
            last[right[u]] = max(last[right[u]], last[u])
    return last


@kernel
def _mark(
    kids: Counts,
    begin: Longs,
    count: Longs,
    left: Ints,
    ends: Ints,
    sign: Signs,
    bits: Longs,
    words: Longs,
    marks: Words,
) -> None:
    """Of groups of rows, write the marks at ``words``; or if there are none yet, the logarithm of
    their number to ``bits``."""
    seen = np.full(_SIGNS, -1, np.int64)
    found = np.empty(_SIGNS, np.int64)
    for p in range(len(begin)):
        n = 0
        for row in range(begin[p], begin[p] + count[p]):
            y = np.int64(kids[row, 0])
            stop = y + np.int64(kids[row, 1])
            if left[y] > 0:
                stop = y + 1
            below = y
            while y < stop:
                if seen[sign[y]] != p:
                    seen[sign[y]] = p
                    found[n] = sign[y]
                    n += 1
                y = y + 1 if y == below else np.int64(ends[y]) + 1
        if len(words) == 0:
            bits[p] = 6
            while 1 << bits[p] < min(_SPARSE * n, _SIGNS):
                bits[p] += 1
            continue
        for i in range(n):
            mark = found[i] & ((1 << bits[p]) - 1)
            marks[words[p] + mark // _WORD] |= np.uint64(1) << np.uint64(mark % _WORD)


@kernel
def home(last: Any, before: Any) -> Any:
    """Where a pair's place in the hashed table would be, were the table endless."""
    mixed = np.uint64(last) * np.uint64(0x9E3779B1) + np.uint64(before) * np.uint64(0x85EBCA77)
    return mixed >> np.uint64(7)


@kernel
def _fill(pairs: Counts, rows: Counts) -> None:
    mask = np.uint64(len(pairs) - 1)
    for row in rows:
        i = home(row[0], row[1]) & mask
        while pairs[i, 0] != FREE:
            i = (i + np.uint64(1)) & mask
        pairs[i] = row
