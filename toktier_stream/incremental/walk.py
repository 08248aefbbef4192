"""Search W, the production update: walk down the forest from the last symbol's root.

The state is the array theta: ``theta[j]`` is the node of the last token of prefix j, 0 at the
start. A value <= 0 is a *barrier*: what stands there never merges, and callers may keep a code of
their own in it. The last token of prefix j starts at ``j - length(theta[j])``, so the array is the
complete state and also the chain of tokens.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.layout import (
    FREE,
    LENGTH_BITS,
    MARK_BITS,
    MORE,
    ROW_BITS,
    Steps,
    home,
)
from toktier_stream.incremental.rules import Ints, Symbols
from toktier_stream.tokenizer.jit import address_of, forced, load_text, load_u32, load_u64

_ONE: Final = np.uint64(1)
_ROW: Final = np.uint64(2)
"""A row of ``kids`` has 1 << 2 numbers."""
_WIDE, _NODE, _GROWN = (np.uint64(i) for i in range(1, 4))
_GROWN_ROW: Final = np.uint64(3)
_BUCKET, _ORIGIN, _MARKS, _SPAN = (np.uint64(i) for i in range(1, 5))
_GROWN_AT: Final = np.uint64((1 << ROW_BITS) - 1)
_U32: Final = np.uint64(0xFFFFFFFF)
_SHIFT: Final = np.uint64(LENGTH_BITS)
_LENGTH: Final = np.uint64((1 << LENGTH_BITS) - 1)
_BITS: Final = np.uint64(MARK_BITS)
_LOG: Final = np.uint64((1 << MARK_BITS) - 1)
_WORD: Final = np.uint64(6)
_IN_WORD: Final = np.uint64(63)


class Laid(NamedTuple):
    """Addresses of the arrays of :class:`Steps` as uint64: numba counts references to arrays, on
    each use of one that comes out of a tuple. ``mask``: of the hashed pair table; where pairs are a
    plain array it is 0, and ``width`` the number of symbols. ``nowhere``: the first of the entries
    of pairs without children."""

    kids: Any
    grown: Any
    marks: Any
    sign: Any
    pairs: Any
    buckets: Any
    root: Any
    symbol: Any
    width: Any
    mask: Any
    nowhere: Any
    entries: Any


@kernel
def walk(symbols: Symbols, theta: Ints, j: int, t: Steps) -> None:
    """Extend theta from prefix ``j`` by ``symbols``; theta must be long enough."""
    mask = 0 if t.pairs.shape[1] == 2 else len(t.pairs) - 1
    laid = Laid(
        address_of(t.kids), address_of(t.grown), address_of(t.marks), address_of(t.sign),
        address_of(t.pairs), address_of(t.buckets), address_of(t.root), address_of(t.symbol),
        np.uint64(len(t.root)), np.uint64(mask), np.uint64(len(t.entries) - 2),
        address_of(t.entries),
    )  # fmt: skip
    walk_on(symbols, 0, len(symbols), theta, j, laid)


@kernel
def walk_on(symbols: Symbols, start: int, stop: int, theta: Ints, j: int, t: Laid) -> None:
    """The same by ``symbols[start:stop]``."""
    kids, grown, marks, sign = t.kids, t.grown, t.marks, t.sign
    entries, root = t.entries, t.root
    goes_on = theta[j] > 0
    x = np.uint64(max(theta[j], 0))
    before = np.uint64(load_u32(t.symbol, x))
    at = np.uint64(j)
    for i in range(np.uint64(start), np.uint64(stop)):
        at += _ONE
        symbol = np.int64(symbols[i])
        if symbol < 0 or load_u32(root, np.uint64(symbol)) == 0:
            theta[at] = min(symbol, np.int64(0))
            goes_on = False
            continue
        s = np.uint64(symbol)
        u = np.uint64(load_u32(root, s))
        if goes_on:
            bucket, shift = _pair(t, s, before)
            cell = ((bucket + (x >> shift)) & _U32) << _ROW
            low = np.uint64(load_u32(entries, cell))
            wide = np.uint64(load_u32(entries, cell + _WIDE))
            node = np.uint64(load_u32(entries, cell + _NODE))
            of = np.uint64(load_u32(entries, cell + _GROWN))
            if of >= MORE:
                row = last_between(kids, low, wide, x)
                low = np.uint64(load_u32(kids, row))
                wide = np.uint64(load_u32(kids, row + _WIDE))
                node = np.uint64(load_u32(kids, row + _NODE))
                of = np.uint64(load_u32(kids, row + _GROWN))
            while x - low < wide:
                u = node
                # Whether a child of u can match what stands before u.
                of = (of & _GROWN_AT) << _GROWN_ROW
                size = np.uint64(load_u32(grown, of))
                x = np.uint64(max(theta[at - (size & _LENGTH)], 0))
                span = np.uint64(load_u32(grown, of + _SPAN))
                mark = load_text(sign, x + x) & ((_ONE << (span & _LOG)) - _ONE)
                word = np.uint64(load_u32(grown, of + _MARKS)) + (mark >> _WORD)
                if load_u64(marks, word) >> (mark & _IN_WORD) & _ONE == 0:
                    break
                past = x - np.uint64(load_u32(grown, of + _ORIGIN))
                if past >= span >> _BITS:
                    break
                bucket = np.uint64(load_u32(grown, of + _BUCKET)) + (past >> (size >> _SHIFT))
                row = last_between(
                    kids, load_u32(t.buckets, bucket), load_u32(t.buckets, bucket + _ONE), x
                )
                low = np.uint64(load_u32(kids, row))
                wide = np.uint64(load_u32(kids, row + _WIDE))
                node = np.uint64(load_u32(kids, row + _NODE))
                of = np.uint64(load_u32(kids, row + _GROWN))
        theta[at] = u
        x, before, goes_on = u, s, True


@forced
def _pair(t: Laid, last: Any, before: Any) -> Any:
    """What is to be added to get an entry, and the shift, of a pair of symbols."""
    if t.mask == 0:
        cell = (last * t.width + before) << _ONE
        return np.uint64(load_u32(t.pairs, cell)), np.uint64(load_u32(t.pairs, cell + _ONE))
    at = home(last, before) & t.mask
    while True:
        cell = at << np.uint64(2)
        found = load_u32(t.pairs, cell)
        if found == FREE:
            # The last two entries are of pairs without children.
            return t.nowhere, np.uint64(31)
        if found == last and load_u32(t.pairs, cell + _ONE) == before:
            break
        at = (at + _ONE) & t.mask
    return (
        np.uint64(load_u32(t.pairs, cell + np.uint64(2))),
        np.uint64(load_u32(t.pairs, cell + np.uint64(3))),
    )


@forced
def last_between(kids: Any, first: Any, last: Any, x: Any) -> Any:
    """The last of these rows that begins at or before x, the first if none; times a row's numbers.
    Intervals of one node's children are disjoint: no other row can hold x."""
    a, b = np.uint64(first), np.uint64(last)
    while a < b:
        middle = (a + b + _ONE) >> _ONE
        if np.uint64(load_u32(kids, middle << _ROW)) <= x:
            a = middle
        else:
            b = middle - _ONE
    return a << _ROW
