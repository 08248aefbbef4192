"""Kernels that find added-token literals: leftmost first, the longest at each place.

The literals are a trie. The scan walks it from each place whose byte can start a literal, which
equals the reference's Aho-Corasick automaton in its leftmost-longest mode: the first place where
any literal starts, then the longest that starts there, then on behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from toktier_stream.tokenizer.jit import (
    Bytes,
    Flags,
    Number,
    Places,
    Words,
    address_of,
    entry,
    forced,
    inner,
    load_text,
    signed,
)

BLOCK = 32
"""Bytes tested at once for the only byte that starts a literal."""
FULL = -1
"""The result when the output has no room."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_BIT_8 = np.uint64(8)
_BIT_32 = np.uint64(32)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)


@forced
def _child(edges: Words, shift: Number, node: int, byte: Number) -> Any:
    """The node behind an edge, or 0 (the root is nobody's child)."""
    key = (np.uint64(node) << _BIT_8) | np.uint64(byte)
    mask = np.uint64(edges.size - 1)
    at = (key * _GOLDEN) >> shift
    while True:
        edge = edges[at]
        if edge >> _BIT_32 == key:
            return signed(edge & np.uint64(0xFFFFFFFF))
        if edge == _EMPTY:
            return 0
        at = (at + _ONE) & mask


@entry
def fill_edges(edges: Words, shift: Number, nodes: Words, byte: Number, children: Words) -> None:
    """Enter ``(nodes[k], byte[k]) -> children[k]`` into an empty table (all ones)."""
    mask = np.uint64(edges.size - 1)
    for k in range(nodes.size):
        key = (np.uint64(nodes[k]) << _BIT_8) | np.uint64(byte[k])
        at = (key * _GOLDEN) >> shift
        while edges[at] != _EMPTY:
            at = (at + _ONE) & mask
        edges[at] = (key << _BIT_32) | np.uint64(children[k])


@inner
def longest_at(
    text: Bytes, start: int, end: int, edges: Words, shift: Number, final: Places
) -> tuple[int, int]:
    """The longest literal that starts at ``start`` and ends by ``end``: its end and its id, or
    ``start`` and -1."""
    node = 0
    stop = start
    token = -1
    at = start
    while at < end:
        node = _child(edges, shift, node, text[at])
        if node == 0:
            break
        at += 1
        if final[node] >= 0:
            stop = at
            token = final[node]
    return stop, token


@inner
def _next_candidate(text: Bytes, at: int, end: int, first: Flags, only: int) -> int:
    """The first place from ``at`` whose byte can start a literal, or ``end``."""
    if only >= 0:
        bytes_at = address_of(text)
        pattern = np.uint64(only) * _ONES
        while at + BLOCK <= end:
            found = np.uint64(0)
            for i in range(0, BLOCK, 8):
                # A byte of the difference is zero where the text has the byte we look for; the
                # carry of a subtraction may only report one too many.
                difference = load_text(bytes_at, at + i) ^ pattern
                found |= (difference - _ONES) & ~difference & _HIGHS
            if found:
                break
            at += BLOCK
    while at < end and not first[text[at]]:
        at += 1
    return at


@entry
def split(
    text: Bytes,
    segments: Places,
    first: Flags,
    only: int,
    edges: Words,
    shift: Number,
    final: Places,
    out: Places,
) -> int:
    """Cut literals out of the text segments: the number of new segments, or FULL.

    ``segments`` and ``out`` are int64[k, 3] as :func:`kernels.encode_segments` takes them.
    Segments that are added tokens already stay as they are. ``first`` is bool[256]; ``only`` the
    single byte that can start a literal, or -1.
    """
    room = out.shape[0]
    n = 0
    for k in range(segments.shape[0]):
        start = segments[k, 0]
        end = segments[k, 1]
        at = start
        while segments[k, 2] < 0 and at < end:
            at = _next_candidate(text, at, end, first, only)
            if at >= end:
                break
            stop, token = longest_at(text, at, end, edges, shift, final)
            if token < 0:
                at += 1
                continue
            if n + 2 > room:
                return FULL
            if at > start:
                out[n, 0] = start
                out[n, 1] = at
                out[n, 2] = -1
                n += 1
            out[n, 0] = at
            out[n, 1] = stop
            out[n, 2] = token
            n += 1
            at = stop
            start = stop
        if start < end:
            if n + 1 > room:
                return FULL
            out[n, 0] = start
            out[n, 1] = end
            out[n, 2] = segments[k, 2]
            n += 1
    return n


@inner
def covered(
    text: Bytes,
    place: int,
    reach: int,
    end: int,
    first: Flags,
    edges: Words,
    shift: Number,
    final: Places,
) -> bool:
    """Whether some occurrence of a literal in ``text[:end]``, chosen or not, starts before
    ``place`` and ends behind it. ``reach`` is the length of the longest literal."""
    for start in range(max(0, place - reach + 1), place):
        if first[text[start]]:
            stop, token = longest_at(text, start, end, edges, shift, final)
            if token >= 0 and stop > place:
                return True
    return False


@entry
def grows_from(
    text: Bytes,
    low: int,
    first: Flags,
    edges: Words,
    shift: Number,
    final: Places,
) -> int:
    """The first place from ``low`` where a literal may begin that ends behind the text, or the
    text's size: left of it every occurrence is complete."""
    size: int = text.size
    for start in range(max(0, low), size):
        if not first[text[start]]:
            continue
        node = 0
        at = start
        while at < size:
            node = _child(edges, shift, node, text[at])
            if node == 0:
                break
            at += 1
        if node != 0:
            if final[node] < 0:
                return start
            for byte in range(256):
                if _child(edges, shift, node, np.uint8(byte)) != 0:
                    return start
    return size
