"""Kernels that write tokens out of theta: the chain of last tokens, from its end on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.jit import address_of, load_u32, store_u32

Sizes = npt.NDArray[np.uint16]


class Words(NamedTuple):
    """By node, its id and its length; and the trie of the strings that are one token as a whole
    piece only: ``child`` and ``label`` as in automaton.py, ``whole`` the id or -1, ``longest``
    bytes at most."""

    ids: Ids
    sizes: Sizes
    child: Ints
    label: Symbols
    whole: Longs
    longest: int


@kernel
def mark_whole(text: Symbols, start: int, end: int, theta: Ints, origin: int, words: Any) -> None:
    """Where the piece ``text[start:end]`` is one token as a whole only, say so in theta, which
    begins at byte ``origin``: a number below 0 for the id (:func:`chain` reads it)."""
    size = end - start
    if not 0 < size <= words.longest:
        return
    node = np.int64(theta[end - origin])
    if node > 0 and np.int64(words.sizes[node]) == size:
        # One token: then it is no other one as a whole piece.
        return
    token = _whole(text, start, end, words)
    if token >= 0:
        theta[end - origin] = -1 - token


@kernel
def chain(
    theta: Ints,
    widths: Sizes,
    low: int,
    end: int,
    limit: int,
    old_end: int,
    old_lengths: Ids,
    cuts: Longs,
    count: int,
    words: Any,
    room: int,
    ids: Ids,
    lengths: Ids,
) -> tuple[int, int, int]:
    """Write the tokens of prefix ``end`` left of ``ids[room]``, as far as they are not those of
    prefix ``old_end``, of which ``old_lengths`` are known: from ``limit`` on left they may be.
    ``widths`` are the lengths of theta's nodes, behind prefix ``low``. The ``count`` places where
    pieces began are ``cuts`` (ascending prefixes, the first is 0).

    Returns where the tokens begin (-1: a byte has none), and how many old tokens and bytes stay."""
    sizes, of = words.sizes, words.ids
    p, q, kept, at = end, old_end, len(old_lengths), room
    piece = count - 1
    first = max(q, limit, low)
    while p > first and theta[p] > 0:
        at -= 1
        ids[at], lengths[at] = theta[p], widths[p]
        p -= int(np.int64(widths[p]))
    while p != q or p > limit:
        # In turns: what is left of a common boundary is the same.
        if q > p:
            kept -= 1
            q -= int(np.int64(old_lengths[kept]))
            continue
        node = np.int64(theta[p])
        size = np.int64(widths[p]) if p > low else np.int64(sizes[max(node, 0)])
        if node <= 0:
            if node == 0:
                return -1, 0, 0
            while cuts[piece] >= p:
                piece -= 1
            size = p - cuts[piece]
        at -= 1
        ids[at], lengths[at] = theta[p], size
        p -= int(size)
    out, of_node = address_of(ids), address_of(of)
    for i in range(np.uint64(at), np.uint64(room)):
        found = np.int64(np.int32(load_u32(out, i)))
        if found > 0:
            store_u32(out, i, load_u32(of_node, np.uint64(found)))
        else:
            store_u32(out, i, -1 - found)
    return at, kept, p


@kernel
def _whole(text: Symbols, start: int, end: int, words: Any) -> int:
    """The id of ``text[start:end]`` as a whole piece, -1 if it has none."""
    child, label = words.child, words.label
    state = 0
    for at in range(start, end):
        a, b = child[state], child[state + 1]
        while a < b and label[a] < text[at]:
            a += 1
        if a == b or label[a] != text[at]:
            return -1
        state = a
    return int(words.whole[state]) if state > 0 else -1
