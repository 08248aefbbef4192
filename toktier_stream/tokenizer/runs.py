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
    signed,
)
from toktier_stream.tokenizer.utf8 import character_start, decode

SAFE = 0
"""Never changes, never moves, and composes with nothing on its left."""
OTHER = 1
"""May change: ask the reference."""
ORDERED = 2
"""ORDERED + k: a mark that never changes or composes; it may have to move before another."""

_HIGH_BITS = np.uint64(0x8080808080808080)


@entry
def _find(text: Bytes, segments: Places, kinds: Bytes, out: Places) -> int:
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
                if at + 8 <= end and load_text(bytes_at, at) & _HIGH_BITS == 0:
                    before = at + 7
                    at += 8
                else:
                    before = at
                    at += 1
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
        n = _find(text, segments, kinds, out)
        if n >= 0:
            return out[:n]
        room *= 8


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
    text_at, source_at = address_of(text), address_of(source)
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
