"""The suffix-successor forest of a normalized dictionary, its preorder ids and intervals.

Node 0 is the barrier; nodes 1..N are the canonical tokens in preorder. The parent of a node is the
right side of its last merge; single symbols are roots. A node u = (l, r) is an intermediate last
token of a text's prefix j iff the node of prefix j - |r| lies in ``[lo, hi)`` of u
(ARCHITECTURE.md proves it, improper dictionaries included).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toktier_stream.incremental.canonical import Canonical, normalize
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Rules


@dataclass(frozen=True, slots=True)
class Forest:
    """Arrays over nodes 0..N (int32[N+1] unless said); all read-only.

    ``row`` token row (-1 for the barrier), ``length`` in symbols, ``left``/``right`` nodes of the
    last merge (0 for roots), ``symbol`` the last symbol, ``low``/``high`` the interval,
    ``rank``/``top`` as in :class:`Canonical`; ``depth`` edges of the longest root path;
    ``root[A]`` the node of each symbol (0: it has no token).
    """

    row: Ints
    length: Ints
    left: Ints
    right: Ints
    rank: Ints
    top: Ints
    symbol: Ints
    low: Ints
    high: Ints
    root: Ints
    depth: int

    @property
    def nodes(self) -> int:
        """N, without the barrier."""
        return len(self.row) - 1


def grow(rules: Rules, canonical: Canonical | None = None) -> Forest:
    """Build the forest. Linear but for one sort of the tokens."""
    c = canonical if canonical is not None else normalize(rules)
    rows = np.flatnonzero(c.keep).astype(np.int32)
    n = len(rows)
    place = np.full(len(rules.ids), -1, dtype=np.int32)  # row -> index in ``rows``
    place[rows] = np.arange(n, dtype=np.int32)
    atom = c.left[rows] < 0
    parent = np.where(atom, -1, place[np.where(atom, 0, c.right[rows])]).astype(np.int32)
    # Children of one parent: larger top first, then larger rank (the interval uses the same key).
    order = np.lexsort((-c.rank[rows], -c.top[rows], parent)).astype(np.int32)
    first = np.searchsorted(parent[order], np.arange(-1, n + 1)).astype(np.int64)
    node = np.zeros(n, dtype=np.int32)  # index in ``rows`` -> preorder id
    last = np.zeros(n + 1, dtype=np.int32)  # preorder id -> last id of its subtree
    depth = int(_preorder(order, first, node, last))

    by_node = np.empty(n, dtype=np.int32)
    by_node[node - 1] = np.arange(n, dtype=np.int32)

    def column(values: Ints, barrier: int) -> Ints:
        out = np.empty(n + 1, dtype=np.int32)
        out[0], out[1:] = barrier, values[by_node]
        out.setflags(write=False)
        return out

    def side(of: Ints) -> Ints:
        return column(np.where(atom, 0, node[place[np.where(atom, rows, of[rows])]]), 0)

    left, right = side(c.left), side(c.right)
    rank, top = column(c.rank[rows], -1), column(c.top[rows], -1)
    low, high = np.zeros(n + 1, dtype=np.int32), np.zeros(n + 1, dtype=np.int32)
    # Children as node ids, in the same order; those of node u are kids[begins[u]:ends[u]].
    kids = node[order[first[1] :]]
    begins, ends = np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    begins[node], ends[node] = first[1:-1] - first[1], first[2:] - first[1]
    _intervals(left, right, rank, top, kids, begins, ends, last, low, high)

    root = np.zeros(len(rules.points), dtype=np.int32)
    has = rules.atoms >= 0
    root[has] = node[place[rules.atoms[has]]]
    symbol = np.zeros(n + 1, dtype=np.int32)
    symbol[root[has]] = np.flatnonzero(has)
    _inherit(right, symbol)
    for array in (low, high, root, symbol):
        array.setflags(write=False)
    length = (rules.starts[1:] - rules.starts[:-1])[rows].astype(np.int32)
    return Forest(
        row=column(rows, -1),
        length=column(length, 1),
        left=left,
        right=right,
        rank=rank,
        top=top,
        symbol=symbol,
        low=low,
        high=high,
        root=root,
        depth=depth,
    )


@kernel
def _preorder(order: Ints, first: Longs, node: Ints, last: Ints) -> int:
    """Number the nodes; children of index p are ``order[first[p+1]:first[p+2]]``, roots p = -1.

    Returns the depth: edges on the longest root path.
    """
    n = len(node)
    stack = np.empty(n + 1, np.int32)  # the path, as indices
    upto = np.empty(n + 1, np.int64)  # the next child of each
    stack[0], upto[0] = -1, first[0]
    at, number, deepest = 0, 0, 0
    while at >= 0:
        p = stack[at]
        if upto[at] < first[p + 2]:
            child = order[upto[at]]
            upto[at] += 1
            number += 1
            node[child] = number
            at += 1
            deepest = max(deepest, at)
            stack[at], upto[at] = child, first[child + 1]
        else:
            if p >= 0:
                last[node[p]] = number
            at -= 1
    return deepest - 1


@kernel
def _intervals(
    left: Ints,
    right: Ints,
    rank: Ints,
    top: Ints,
    kids: Ints,
    begins: Longs,
    ends: Longs,
    last: Ints,
    low: Ints,
    high: Ints,
) -> None:
    """``[lo, hi)``: the left side itself and its later children, which come first in preorder."""
    for u in range(1, len(left)):
        side = left[u]
        if side == 0:
            continue
        tie = top[u] == top[side] and top[side] > top[right[u]]
        a, b = begins[side], ends[side]
        while a < b:  # the first child of the left side that is not later than u
            middle = (a + b) >> 1
            c = kids[middle]
            if top[c] > top[u] or (tie and top[c] == top[u] and rank[c] > rank[u]):
                a = middle + 1
            else:
                b = middle
        low[u] = side
        high[u] = kids[a] if a < ends[side] else last[side] + 1


@kernel
def _inherit(right: Ints, symbol: Ints) -> None:
    """Last symbols, parents first: the parent has the smaller preorder id."""
    for u in range(1, len(right)):
        if right[u] > 0:
            symbol[u] = symbol[right[u]]
