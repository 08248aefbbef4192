"""The normalized dictionary: which tokens are their own BPE, and how each is made.

A token is *canonical* iff BPE of its own symbols gives it back. Its record is the last merge
``(left, right, rank)`` of that run and ``top``, the largest rank in it. Every other token and rule
can be dropped: no BPE result holds a token that is not canonical, and no run applies a rule that is
not the last merge of a canonical token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Rules

_SHORT = 48
"""Up to this many symbols a linear scan for the next merge beats a heap."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """One record per token row: ``keep[V]``, and for kept tokens that are not single symbols the
    rows of the last merge, its rank, and the largest rank of the run (-1 for single symbols)."""

    keep: npt.NDArray[np.bool_]
    left: Ints
    right: Ints
    rank: Ints
    top: Ints


def normalize(rules: Rules) -> Canonical:
    """Run every token through BPE by definition, and keep what comes back whole."""
    tokens = len(rules.ids)
    left, right = np.full(tokens, -1, np.int32), np.full(tokens, -1, np.int32)
    rank, top = np.full(tokens, -1, np.int32), np.full(tokens, -1, np.int32)
    keep = np.zeros(tokens, dtype=np.bool_)
    keep[rules.atoms[rules.atoms >= 0]] = True
    candidates = np.zeros(tokens, dtype=np.bool_)
    candidates[rules.products] = True
    candidates &= ~keep
    table = pair_table(rules.lefts, rules.rights, rules.products)
    rows = np.flatnonzero(candidates)
    _self_merge(
        rows, rules.spelling, rules.starts, rules.atoms, table, keep, left, right, rank, top
    )
    return Canonical(keep, left, right, rank, top)


def pair_table(lefts: Ints, rights: Ints, products: Ints) -> Longs:
    """``(left, right) -> (rank, product)`` by open addressing; int64[2^k, 2], key -1 if free."""
    size = 16
    while size < 2 * len(lefts):
        size *= 2
    table = np.full((size, 2), -1, dtype=np.int64)
    _fill_pairs(lefts, rights, products, table)
    return table


def offline(symbols: Ints, atoms: Ints, table: Longs) -> Ints:
    """BPE of a whole sequence by heap, O(n log n): token rows; -1 for symbols without a token."""
    return _offline(symbols, atoms, table)


@kernel
def _offline(symbols: Ints, atoms: Ints, table: Longs) -> Ints:
    n = len(symbols)
    token, pair = np.empty(n, np.int32), np.empty(n, np.int64)
    after, before = np.empty(n, np.int32), np.empty(n, np.int32)
    heap = np.empty(3 * n + 3, np.int64)
    for i in range(n):
        token[i] = atoms[symbols[i]] if symbols[i] >= 0 else -1
    for i in range(n):
        pair[i] = _look_up(table, token[i], token[i + 1]) if i + 1 < n else -1
    if n > 0:
        _run_long(token, pair, after, before, heap, n, table)
    count, i = 0, 0
    while i < n:  # in place: the k-th token is never right of its own first symbol
        token[count] = token[i]
        count += 1
        i = after[i]
    return token[:count].copy()


@kernel
def _key(left: Any, right: Any) -> int:
    return int(np.int64(left) << 32 | np.int64(right))


@kernel
def _slot(table: Longs, key: int) -> int:
    mask = table.shape[0] - 1
    h = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    i = int(np.int64(h >> np.uint64(20))) & mask
    while table[i, 0] != -1 and table[i, 0] != key:
        i = (i + 1) & mask
    return int(i)


@kernel
def _fill_pairs(lefts: Ints, rights: Ints, products: Ints, table: Longs) -> None:
    for rule in range(len(lefts)):
        key = _key(lefts[rule], rights[rule])
        i = _slot(table, key)
        table[i, 0] = key
        table[i, 1] = (np.int64(rule) << 32) | np.int64(products[rule])  # the later rank wins


@kernel
def _look_up(table: Longs, left: int, right: int) -> int:
    """``rank << 32 | product``, or -1."""
    return int(table[_slot(table, _key(left, right)), 1])


@kernel
def _self_merge(
    rows: Longs,
    spelling: Ints,
    starts: Longs,
    atoms: Ints,
    table: Longs,
    keep: npt.NDArray[np.bool_],
    left: Ints,
    right: Ints,
    rank: Ints,
    top: Ints,
) -> None:
    longest = 1
    for row in rows:
        longest = max(longest, starts[row + 1] - starts[row])
    token = np.empty(longest + 1, np.int32)
    pair = np.empty(longest + 1, np.int64)  # value of _look_up for (token[i], its right neighbour)
    after = np.empty(longest + 1, np.int32)
    before = np.empty(longest + 1, np.int32)
    heap = np.empty(3 * longest + 3, np.int64)
    for row in rows:
        n = starts[row + 1] - starts[row]
        whole = True
        for i in range(n):
            symbol = spelling[starts[row] + i]
            token[i] = atoms[symbol] if symbol >= 0 else -1
            whole = whole and token[i] >= 0
        if not whole:
            continue
        for i in range(n - 1):
            pair[i] = _look_up(table, token[i], token[i + 1])
        pair[n - 1] = -1
        if n <= _SHORT:
            a, b, k, m, left_over = _run_short(token, pair, n, table)
        else:
            a, b, k, m, left_over = _run_long(token, pair, after, before, heap, n, table)
        if left_over == 1 and token[0] == row:
            keep[row] = True
            left[row], right[row], rank[row], top[row] = a, b, k, m


@kernel
def _run_short(token: Ints, pair: Longs, n: int, table: Longs) -> tuple[int, int, int, int, int]:
    """BPE in place; returns the last merge's sides and rank, the largest rank, tokens left."""
    a = b = k = m = -1
    while True:
        best = -1
        for i in range(n - 1):
            if pair[i] >= 0 and (best < 0 or pair[i] >> 32 < pair[best] >> 32):
                best = i
        if best < 0:
            return a, b, k, m, n
        a, b, k = token[best], token[best + 1], int(pair[best] >> 32)
        m = max(m, k)
        token[best] = pair[best] & 0xFFFFFFFF
        n -= 1
        for i in range(best + 1, n):
            token[i], pair[i] = token[i + 1], pair[i + 1]
        pair[best] = _look_up(table, token[best], token[best + 1]) if best + 1 < n else -1
        if best > 0:
            pair[best - 1] = _look_up(table, token[best - 1], token[best])


@kernel
def _run_long(
    token: Ints, pair: Longs, after: Ints, before: Ints, heap: Longs, n: int, table: Longs
) -> tuple[int, int, int, int, int]:
    """The same on a linked list with a heap of ``rank << 32 | position``."""
    a = b = k = m = -1
    size = 0
    for i in range(n):
        after[i], before[i] = i + 1, i - 1
        if pair[i] >= 0:
            size = _push(heap, size, (pair[i] >> 32 << 32) | i)
    alive = n
    while size > 0:
        first = heap[0]
        size = _pop(heap, size)
        i = first & 0xFFFFFFFF
        if pair[i] < 0 or pair[i] >> 32 != first >> 32:
            continue  # the pair at this place has changed since
        j = after[i]
        a, b, k = token[i], token[j], int(pair[i] >> 32)
        m = max(m, k)
        token[i] = pair[i] & 0xFFFFFFFF
        alive -= 1
        pair[j] = -1
        after[i] = after[j]
        pair[i] = -1
        if after[i] < n:
            before[after[i]] = i
            pair[i] = _look_up(table, token[i], token[after[i]])
            if pair[i] >= 0:
                size = _push(heap, size, (pair[i] >> 32 << 32) | i)
        if before[i] >= 0:
            h = before[i]
            pair[h] = _look_up(table, token[h], token[i])
            if pair[h] >= 0:
                size = _push(heap, size, (pair[h] >> 32 << 32) | h)
    return a, b, k, m, alive


@kernel
def _push(heap: Longs, size: int, value: int) -> int:
    i = size
    while i > 0 and heap[(i - 1) >> 1] > value:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = value
    return size + 1


@kernel
def _pop(heap: Longs, size: int) -> int:
    size -= 1
    value = heap[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value
    return size
