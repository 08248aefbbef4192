"""Kernels that find where text may be cut: between classes that synchronize, outside literals,
where normalization does not reach across."""

from __future__ import annotations

from toktier_stream.tokenizer.jit import (
    Bytes,
    Flags,
    Number,
    Places,
    Words,
    entry,
    inner,
)
from toktier_stream.tokenizer.literals import covered
from toktier_stream.tokenizer.runs import SAFE
from toktier_stream.tokenizer.utf8 import character_start, decode


@inner
def _unchanged(text: Bytes, start: int, end: int, kinds: Bytes) -> bool:
    """Whether normalization leaves every character alone that ``text[start:end]`` touches."""
    at = character_start(text, start)
    while at < end:
        point, size = decode(text, at)
        if kinds[point] != SAFE:
            return False
        at += size
    return True


@entry
def find_cut(
    text: Bytes,
    low: int,
    high: int,
    step: int,
    class_of: Bytes,
    boundary: Flags,
    kinds: Bytes,
    reach: int,
    wide: bool,
    first: Flags,
    edges: Words,
    shift: Number,
    final: Places,
) -> int:
    """The first safe cut from ``low`` to ``high`` (``step`` 1) or back (``step`` -1), or -1.

    ``boundary`` is bool[C, C], the one- or two-sided table. ``kinds`` is empty where nothing is
    normalized. ``wide``: literals are matched in normalized text, so that nothing within their
    reach of the cut may change.
    """
    size = text.size
    low = max(low, 1)
    high = min(high, size - 1)
    at = low if step > 0 else high
    while low <= at <= high:
        if text[at] & 0xC0 != 0x80:
            before = character_start(text, at - 1)
            left, _ = decode(text, before)
            right, width = decode(text, at)
            if boundary[class_of[left], class_of[right]]:
                safe = True
                if kinds.size:
                    # The character behind the right one may compose with it and change its class.
                    behind = at + width
                    start, end = before, min(size, behind + 1)
                    if wide:
                        start = max(0, min(start, at - reach))
                        end = min(size, max(end, at + reach + 1))
                    safe = _unchanged(text, start, end, kinds)
                if safe and not covered(text, at, reach, size, first, edges, shift, final):
                    return at
        at += step
    return -1


@entry
def find_second_cut(
    text: Bytes,
    low: int,
    high: int,
    class_of: Bytes,
    boundary: Flags,
    kinds: Bytes,
    reach: int,
    wide: bool,
    first: Flags,
    edges: Words,
    shift: Number,
    final: Places,
) -> int:
    """The safe cut left of the last one from ``low`` to ``high``, or -1: what a certificate asks
    for, in one call."""
    last = find_cut(
        text, low, high, -1, class_of, boundary, kinds, reach, wide, first, edges, shift, final
    )
    if last < 0:
        return -1
    return find_cut(
        text, low, last - 1, -1, class_of, boundary, kinds, reach, wide, first, edges, shift, final
    )
