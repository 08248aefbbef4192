"""Kernels around normalization: where text may change, and what tokens cover of the source."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.bpe import same_bytes
from toktier_stream.tokenizer.jit import (
    Bytes,
    Flags,
    Ids,
    Places,
    address_of,
    entry,
    load_text,
    load_u32,
    signed,
    store_text,
)
from toktier_stream.tokenizer.utf8 import character_start, decode

SAFE = 0
"""Never changes, never moves, and composes with nothing on its left."""
OTHER = 1
"""May change: ask the reference."""
ORDERED = 2
"""ORDERED + k: a mark that never changes or composes; it may have to move before another."""

_STRIDE = 16
"""Tokens that are passed over at once where their lengths stay."""
_ASCII_BLOCK = 32
"""Bytes that are looked at together."""
_HIGH_BITS = np.uint64(0x8080808080808080)


@entry
def find_runs(text: Bytes, segments: Places, kinds: Bytes, out: Places) -> int:
    """Runs to be asked about, as int64[k, 2] start and end: their number, or -1: no room.

    Marks alone, in the order of their classes, are no reason to ask (the quick check of Unicode's
    annex 15).
    """
    bytes_at = address_of(text)
    room = out.shape[0]
    n = 0
    for k in range(segments.shape[0]):
        if segments[k, 2] >= 0:
            continue
        end = segments[k, 1]
        at = segments[k, 0]
        before = at
        while at < end:
            if text[at] < 0x80:
                before = at
                at += 1
                while at + _ASCII_BLOCK <= end:
                    found = np.uint64(0)
                    for i in range(0, _ASCII_BLOCK, 8):
                        found |= load_text(bytes_at, at + i)
                    if found & _HIGH_BITS:
                        break
                    at += _ASCII_BLOCK
                    before = at - 1
                continue
            point, size = decode(text, at)
            kind = kinds[point]
            if kind == SAFE:
                before = at
                at += size
                continue
            first = before
            asked = False
            highest = ORDERED
            while True:
                if kind == OTHER or kind < highest:
                    asked = True
                highest = kind
                at += size
                if at >= end or text[at] < 0x80:
                    break
                point, size = decode(text, at)
                kind = kinds[point]
                if kind == SAFE:
                    break
            if asked:
                if n == room:
                    return -1
                out[n, 0] = first
                out[n, 1] = at
                n += 1
    return n


def find(
    text: npt.NDArray[np.uint8], segments: npt.NDArray[np.int64], kinds: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """int64[k, 2]: start and end of each run of characters that are not SAFE and may change,
    with the character before it, inside segments that are no added tokens."""
    room = 64 + len(text) // 64
    while True:
        out = np.empty((room, 2), dtype=np.int64)
        n = find_runs(text, segments, kinds, out)
        if n >= 0:
            return out[:n]
        room *= 8


@entry
def rewrite(
    source: Bytes,
    size: int,
    spans: Places,
    forms: Bytes,
    text: Bytes,
    segments: Places,
    places: Places,
    origin: Places,
) -> None:
    """Copy ``source[:size]`` to ``text`` with some spans replaced by others; both are padded.

    ``spans`` is int64[k, 3], from left to right: start, end, and the size of what comes in its
    place; ``forms`` holds these one behind the other. Written are ``text``, ``places`` (int64[k, 5]
    as :class:`normalization.Normalized` says) and, moved in place, ``segments`` (none of which a
    span crosses) and ``origin`` (by byte of ``forms`` a place in its span, then in the source).
    """
    source_at, text_at = address_of(source), address_of(text)
    at = to = edge = form = signed(0)
    for i in range(spans.shape[0] + 1):
        last = i == spans.shape[0]
        start = size if last else spans[i, 0]
        # Edges of segments up to here have moved as this span's start has.
        while edge < 2 * segments.shape[0] and segments[edge >> 1, edge & 1] <= start:
            segments[edge >> 1, edge & 1] += to - at
            edge += 1
        # Whole words: what is written too much is written over, or padding.
        for j in range(0, start - at, 8):
            store_text(text_at, to + j, load_text(source_at, at + j))
        to += start - at
        if last:
            break
        at = spans[i, 1]
        places[i, 0] = to
        for j in range(spans[i, 2]):
            text[to + j] = forms[form + j]
            origin[form + j] += start
        to += spans[i, 2]
        places[i, 1] = to
        places[i, 2] = start
        places[i, 3] = at
        places[i, 4] = form
        form += spans[i, 2]


@entry
def source_lengths(
    text: Bytes,
    source: Bytes,
    source_size: int,
    changes: Places,
    origin: Places,
    ids: Ids,
    added: Flags,
    lengths: Ids,
) -> None:
    """Turn byte lengths in the normalized text into lengths in the source, in place.

    The rule is the reference's (:mod:`reference`): a token starts where the source's character
    starts that it starts in; one that starts inside a character starts at its own byte there if
    the source holds its bytes, and none starts before the token before it. ``changes`` is
    int64[k, 5] as :class:`normalization.Normalized` says; ``added`` is bool by id.
    """
    text_at, source_at, lengths_at = address_of(text), address_of(source), address_of(lengths)
    count = lengths.size
    place = 0
    k = 0
    delta = 0
    start = 0
    begun = 0
    own = 0
    i = 0
    while i < count:
        size = signed(lengths[i])
        while k < changes.shape[0] and changes[k, 1] <= place:
            delta = changes[k, 3] - changes[k, 1]
            k += 1
        if i == 0:
            start = 0
        else:
            before = start
            if k < changes.shape[0] and changes[k, 0] <= place:
                start = origin[changes[k, 4] + place - changes[k, 0]]
            else:
                start = character_start(text, place) + delta
            if text[place] & 0xC0 == 0x80 and not added[ids[i]]:
                here = before + own
                if (
                    start <= here
                    and here + size <= source_size
                    and same_bytes(text_at, place, source_at, here, size)
                ):
                    start = here
            reached = max(begun, start)
            lengths[i - 1] = reached - begun
            begun = reached
        if start == place + delta and begun == start:
            # In step: tokens that end before the next change keep their lengths.
            limit = changes[k, 0] if k < changes.shape[0] else text.size
            following = place + size
            while i + _STRIDE < count:
                covered = signed(0)
                for j in range(1, _STRIDE + 1):
                    covered += signed(load_u32(lengths_at, i + j))
                if following + covered > limit:
                    break
                i += _STRIDE
                following += covered
                size = signed(lengths[i])
                place = following - size
            while i + 1 < count and following + signed(lengths[i + 1]) <= limit:
                place = following
                i += 1
                size = signed(lengths[i])
                following += size
            start = place + delta
            begun = start
        own = 0 if added[ids[i]] else size
        place += size
        i += 1
    if count:
        lengths[count - 1] = source_size - begun
