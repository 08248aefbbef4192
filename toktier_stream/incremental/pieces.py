"""The walk (walk.py) over bytes that are divided into pieces, in one go.

Theta is laid over the whole text: at a place where a piece ends and another begins it tells the
last token of the left one, and the walk takes it for the start's 0. Where text has no words, what
a byte does is a matter of chance, and a processor that guesses wrong waits longer than a lookup
takes. So the first step below a root is made without asking whether there is one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.layout import LENGTH_BITS, MARK_BITS, MORE
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.incremental.walk import Laid, last_between
from toktier_stream.tokenizer.jit import address_of, load_text, load_u32, load_u64, store_u32

_NONE: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_ROW: Final = np.uint64(2)
_WIDE, _NODE, _GROWN = (np.uint64(i) for i in range(1, 4))
_GROWN_ROW: Final = np.uint64(3)
_BUCKET, _ORIGIN, _MARKS, _SPAN = (np.uint64(i) for i in range(1, 5))
_U32: Final = np.uint64(0xFFFFFFFF)
_SHIFT: Final = np.uint64(LENGTH_BITS)
_LENGTH: Final = np.uint64((1 << LENGTH_BITS) - 1)
_BITS: Final = np.uint64(MARK_BITS)
_LOG: Final = np.uint64((1 << MARK_BITS) - 1)
_WORD: Final = np.uint64(6)
_IN_WORD: Final = np.uint64(63)
_NOWHERE_SHIFT: Final = np.uint64(31)


@kernel
def walk_pieces(
    text: Symbols, origin: int, base: int, start: int, stop: int, cuts: Longs, theta: Ints, t: Laid
) -> None:
    """Extend theta by the bytes ``[start, stop)`` of the text; it begins at byte ``origin``, and is
    right from byte ``base`` on, where the piece begins that holds or begins at ``start``. More
    pieces begin at ``cuts``: behind ``start`` or, if not ``base``, at it; ascending, the last one
    behind ``stop``. Pairs are a plain array (:class:`Laid`)."""
    kids, grown, marks, sign, buckets = t.kids, t.grown, t.marks, t.sign, t.buckets
    entries, root, pairs, width, nowhere = t.entries, t.root, t.pairs, t.width, t.nowhere
    nodes = address_of(theta)
    at = np.uint64(start - origin)
    begin = np.uint64(base - origin)
    x = np.uint64(load_u32(nodes, at))
    before = np.uint64(text[start - 1] if start > base else 0)
    if start == base:
        x = _NONE
    turn = 0
    following = cuts[0]
    for i in range(start, stop):
        if i == following:
            turn += 1
            following = cuts[turn]
            begin, x = at, _NONE
        at += _ONE
        s = np.uint64(text[i])
        u = np.uint64(load_u32(root, s))
        cell = (s * width + before) << _ONE
        before = s
        bucket = np.uint64(load_u32(pairs, cell))
        shift = np.uint64(load_u32(pairs, cell + _ONE))
        # Nothing stands before: an entry that holds nothing.
        bucket = nowhere if x == _NONE else bucket
        shift = _NOWHERE_SHIFT if x == _NONE else shift
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
        hit = x - low < wide
        u = node if hit else u
        # Row 0 is of nodes without children.
        of = of if hit else _NONE
        while True:
            of <<= _GROWN_ROW
            size = np.uint64(load_u32(grown, of))
            left = at - (size & _LENGTH)
            x = np.uint64(load_u32(nodes, left))
            x = _NONE if left == begin else x
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
                kids, load_u32(buckets, bucket), load_u32(buckets, bucket + _ONE), x
            )
            if x - np.uint64(load_u32(kids, row)) >= np.uint64(load_u32(kids, row + _WIDE)):
                break
            u = np.uint64(load_u32(kids, row + _NODE))
            of = np.uint64(load_u32(kids, row + _GROWN))
        store_u32(nodes, at, u)
        x = u
