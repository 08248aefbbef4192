"""The walk (walk.py) over bytes that are divided into pieces, in one go.

Theta is laid over the whole text: at a place where a piece ends and another begins it tells the
last token of the left one, and the walk takes it for the start's 0. Where text has no words, what
a byte does is a matter of chance, and a processor that guesses wrong waits longer than a lookup
takes. So the first step below a root is made without asking whether there is one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from toktier_stream.incremental.chain import Sizes
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.layout import LENGTH_BITS, MARK_BITS, MORE, ROW_BITS
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.incremental.walk import Laid, last_between
from toktier_stream.tokenizer.jit import (
    address_of,
    load_text,
    load_u32,
    load_u64,
    store_u16,
    store_u32,
)

_NONE: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_ROW: Final = np.uint64(2)
_WIDE, _NODE, _GROWN = (np.uint64(i) for i in range(1, 4))
_GROWN_ROW: Final = np.uint64(3)
_BUCKET, _ORIGIN, _MARKS, _SPAN = (np.uint64(i) for i in range(1, 5))
_U32: Final = np.uint64(0xFFFFFFFF)
_SHIFT: Final = np.uint64(LENGTH_BITS)
_GROWN_AT: Final = np.uint64((1 << ROW_BITS) - 1)
_LENGTH: Final = np.uint64(ROW_BITS)
_ATOM: Final = np.uint64(1 << ROW_BITS)
"""A node without children, one byte long."""
_BITS: Final = np.uint64(MARK_BITS)
_LOG: Final = np.uint64((1 << MARK_BITS) - 1)
_WORD: Final = np.uint64(6)
_IN_WORD: Final = np.uint64(63)


@kernel
def walk_pieces(
    text: Symbols,
    origin: int,
    base: int,
    start: int,
    stop: int,
    cuts: Longs,
    theta: Ints,
    widths: Sizes,
    t: Laid,
) -> None:
    """Extend theta by the bytes ``[start, stop)`` of the text, and write how long these tokens are;
    both begin at byte ``origin``. Theta is right from byte ``base`` on, where the piece begins that
    goes on at ``start``. More pieces begin at ``cuts``, ascending, the first at ``start`` or behind
    it, the last one behind ``stop``. Pairs are a plain array (:class:`Laid`)."""
    kids, grown, marks, sign, buckets = t.kids, t.grown, t.marks, t.sign, t.buckets
    entries, root, pairs, width = t.entries, t.root, t.pairs, t.width
    nodes, sizes = address_of(theta), address_of(widths)
    at = np.uint64(start - origin)
    begin = np.uint64(base - origin)
    x = np.uint64(load_u32(nodes, at))
    before = np.uint64(text[start - 1] if start > base else 0)
    turn = 0
    following = base if start == base else cuts[0]
    for i in range(start, stop):
        s = np.uint64(text[i])
        u = np.uint64(load_u32(root, s))
        if i == following:
            # Nothing stands before.
            turn += i >= cuts[turn]
            following = cuts[turn]
            begin = at
            at += _ONE
            store_u32(nodes, at, u)
            store_u16(sizes, at, _ONE)
            x, before = u, s
            continue
        at += _ONE
        cell = (s * width + before) << _ONE
        before = s
        bucket = np.uint64(load_u32(pairs, cell))
        shift = np.uint64(load_u32(pairs, cell + _ONE))
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
        of = of if hit else _ATOM
        while True:
            left = at - (of >> _LENGTH)
            row = (of & _GROWN_AT) << _GROWN_ROW
            x = np.uint64(load_u32(nodes, left))
            x = _NONE if left == begin else x
            span = np.uint64(load_u32(grown, row + _SPAN))
            mark = load_text(sign, x + x) & ((_ONE << (span & _LOG)) - _ONE)
            word = np.uint64(load_u32(grown, row + _MARKS)) + (mark >> _WORD)
            if load_u64(marks, word) >> (mark & _IN_WORD) & _ONE == 0:
                break
            past = x - np.uint64(load_u32(grown, row + _ORIGIN))
            if past >= span >> _BITS:
                break
            bucket = np.uint64(load_u32(grown, row + _BUCKET))
            bucket += past >> (np.uint64(load_u32(grown, row)) >> _SHIFT)
            row = last_between(kids, load_u32(buckets, bucket), load_u32(buckets, bucket + _ONE), x)
            if x - np.uint64(load_u32(kids, row)) >= np.uint64(load_u32(kids, row + _WIDE)):
                break
            u = np.uint64(load_u32(kids, row + _NODE))
            of = np.uint64(load_u32(kids, row + _GROWN))
        store_u32(nodes, at, u)
        store_u16(sizes, at, of >> _LENGTH)
        x = u
