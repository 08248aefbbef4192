"""Kernels that write a piece's tokens out of theta: the chain of last tokens, from its end on."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.jit import forced

_MANY: Final = 64
"""Bytes from which on lengths are looked up before they are asked for."""

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


@forced
def emit(
    text: Symbols,
    theta: Ints,
    start: int,
    end: int,
    words: Any,
    part: bool,
    ids: Ids,
    lengths: Ids,
    out: int,
) -> int:
    """Write the tokens of the piece ``text[start:end]``, or of the rest of one (``part``); the new
    end of the output, -1 where a byte has no token. ``words``: what is :class:`Words`."""
    size = end - start
    if 0 < size <= words.longest and not part:
        token = _whole(text, start, end, words)
        if token >= 0:
            ids[out] = token
            lengths[out] = size
            return out + 1
    at, _ = _back(theta, size, 0, words, ids, lengths)
    if at < 0:
        return -1
    # From the end of the room to where they belong: never further right.
    count = len(ids) - at
    for i in range(count):
        ids[out + i], lengths[out + i] = ids[at + i], lengths[at + i]
    return out + count


@kernel
def rejoin(
    theta: Ints, p: int, words: Any, q: int, old_ids: Ids, old_lengths: Ids, ids: Ids, lengths: Ids
) -> tuple[int, int, int]:
    """Write the tokens of prefix ``p``, given those of prefix ``q`` of the same theta: the tokens
    and bytes in common with these, and the end of the output, -1 where a byte has no token."""
    kept, stop = len(old_ids), q
    at, p = _back(theta, p, stop, words, ids, lengths)
    if at < 0:
        return 0, 0, -1
    # From here on in turns: what is left of a common boundary is the same.
    while p != stop:
        if stop > p:
            kept -= 1
            stop -= int(np.int64(old_lengths[kept]))
            continue
        node = np.int64(theta[p])
        if node <= 0:
            return 0, 0, -1
        at -= 1
        ids[at], lengths[at] = words.ids[node], words.sizes[node]
        p -= int(np.int64(words.sizes[node]))
    fresh = len(ids) - at
    for i in range(fresh):
        ids[kept + i], lengths[kept + i] = ids[at + i], lengths[at + i]
    for i in range(kept):
        ids[i], lengths[i] = old_ids[i], old_lengths[i]
    return kept, p, kept + fresh


@forced
def _back(theta: Ints, p: int, stop: int, words: Any, ids: Ids, lengths: Ids) -> tuple[int, int]:
    """Write the chain from prefix ``p`` down to ``stop`` or the first boundary left of it, at the
    end of the room: where it begins there, -1 where a byte has no token; and that boundary."""
    sizes, at = words.sizes, len(ids)
    if p - stop > _MANY:
        at, p = _far_back(theta, p, stop, sizes, ids, lengths)
    while p > stop:
        node = np.int64(theta[p])
        if node <= 0:
            return -1, p
        size = int(np.int64(sizes[node]))
        at -= 1
        ids[at] = node
        lengths[at] = size
        p -= size
    # Lengths first, as each step waits for one; ids do not.
    of = words.ids
    for i in range(at, len(ids)):
        ids[i] = of[np.int64(ids[i])]
    return at, p


@kernel
def _far_back(
    theta: Ints, p: int, stop: int, sizes: Sizes, ids: Ids, lengths: Ids
) -> tuple[int, int]:
    """The same without ids, up to a byte without a token. All lengths are looked up at once:
    the chain would wait for each."""
    near = np.empty(p - stop, np.uint16)
    for i in range(p - stop):
        node = theta[stop + 1 + i]
        near[i] = sizes[node] if node > 0 else 0
    at = len(ids)
    while p > stop:
        size = int(np.int64(near[p - stop - 1]))
        if size == 0:
            break
        at -= 1
        ids[at] = theta[p]
        lengths[at] = size
        p -= size
    return at, p


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
