"""Compiled loops of pages: where tokens are cut into pages, and their packing (page.py has the
record). Costs are in bits, and leave out a page's head.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from toktier_stream.session.kernels import count_characters, extend_kernel, kernel
from toktier_stream.tokenizer.jit import address_of, load_text, load_u32, store_text

LENGTH_BITS: Final = 4
"""Bits of a token's length; one that does not fit is escaped."""
LONG: Final = (1 << LENGTH_BITS) - 1
"""The first length that is escaped, and what stands in its place."""
HEAD: Final = 10
"""Bytes of a page's head."""
LAST: Final = 8
"""Tokens that the last page of a text holds at least, where they are small: those that an append
may change. What stands left of them is rarely written again."""

_ZERO: Final = np.uint64(0)
_BYTE: Final = np.uint64(0xFF)
_EIGHT: Final = np.uint64(8)
_LONG: Final = np.uint64(LONG)
_STRIDE: Final = 16
_THREE: Final = np.uint64(3)
_SEVEN: Final = np.uint64(7)
_WHOLE: Final = np.uint64(0xF8)
_NARROW: Final = np.uint64(28)
"""Bits of a token, at most, of which two fit into a word behind the bits that wait."""


@kernel
def measure(ids: Any, lengths: Any) -> Any:
    """(sum of lengths, longest length, bits that the largest id takes)."""
    total: Any = 0
    longest: Any = 0
    largest: Any = 0
    for i in range(lengths.shape[0]):
        length = np.int64(lengths[i])
        total += length
        longest = max(longest, length)
        largest = max(largest, np.int64(ids[i]))
    return total, longest, bits_of(largest)


@kernel
def bits_of(value: Any) -> Any:
    """Bits that a number takes, one at least."""
    bits = 1
    while value >> bits:
        bits += 1
    return bits


@kernel
def page_cuts(lengths: Any, per_token: Any, target: Any, limit: Any) -> Any:
    """Where to cut a run of tokens into pages: int64[pages, 2], the token index and the byte at
    which each page ends; the last is the end of all.

    ``per_token``: bits of a token besides its text. A page is closed once it costs ``target``, and
    never costs more than ``limit`` unless one character's tokens do. No cut stands between tokens
    of length 0 and the token that completes their character.
    """
    n = lengths.shape[0]
    out = np.empty((n + 1, 2), dtype=np.int64)
    pages = 0
    size: Any = 0
    cut_size: Any = 0
    cost: Any = 0
    cut = 0  # the last index at which this page may end
    cut_cost = 0
    start = 0
    for i in range(n):
        length = np.int64(lengths[i])
        cost += 8 * length + per_token
        if length >= LONG:
            cost += 32
        size += length
        if length == 0:
            continue
        if cost > limit and cut > start:
            out[pages, 0] = cut
            out[pages, 1] = cut_size
            pages += 1
            start = cut
            cost -= cut_cost
        cut = i + 1
        cut_cost = cost
        cut_size = size
        if cost >= target:
            out[pages, 0] = cut
            out[pages, 1] = size
            pages += 1
            start = cut
            cost = 0
            cut_cost = 0
    if start < n:
        out[pages, 0] = n
        out[pages, 1] = size
        pages += 1
    return out[:pages]


@kernel
def full_cuts(lengths: Any, per_token: Any, limit: Any) -> Any:
    """:func:`page_cuts` with ``limit`` for a target, and room for one more page."""
    n = lengths.shape[0]
    sizes = address_of(lengths)
    most = 2
    out = np.empty((most, 2), dtype=np.int64)
    pages = 0
    start = 0
    begin: Any = 0
    while start < n:
        i = start
        size: Any = begin
        cost: Any = 0
        # Many at once, as long as they do not reach the limit.
        while i + _STRIDE <= n:
            some: Any = 0
            long: Any = 0
            for k in range(_STRIDE):
                length = np.int64(load_u32(sizes, i + k))
                some += length
                long += length >= LONG
            more_cost = 8 * some + _STRIDE * per_token + 32 * long
            if cost + more_cost >= limit:
                break
            cost += more_cost
            size += some
            i += _STRIDE
        while i < n and cost < limit:
            length = np.int64(load_u32(sizes, i))
            size += length
            cost += 8 * length + per_token + 32 * (length >= LONG)
            i += 1
        # Back to where a page may end: not too large, and right of a token with bytes.
        end, end_size = i, size
        while i > start and (cost > limit or lengths[i - 1] == 0) and (i < n or cost > limit):
            i -= 1
            length = np.int64(lengths[i])
            size -= length
            cost -= 8 * length + per_token + 32 * (length >= LONG)
        if i == start:
            # One character's tokens are more than a page holds, or a run of empty tokens is.
            i, size = end, end_size
            while i < n and lengths[i - 1] == 0:
                size += np.int64(lengths[i])
                i += 1
        if pages + 1 == most:
            most *= 2
            more = np.empty((most, 2), dtype=np.int64)
            more[:pages] = out[:pages]
            out = more
        out[pages, 0] = i
        out[pages, 1] = size
        pages += 1
        start = i
        begin = size
    return out, pages


@kernel
def end_cuts(lengths: Any, per_token: Any, limit: Any) -> Any:
    """The same for the end of a text: full pages, then what is left, if three quarters of a page at
    least, then a last page with the rest, :data:`LAST` tokens or more."""
    n = lengths.shape[0]
    last = n
    rest: Any = 0
    rest_cost: Any = 0
    size: Any = 0
    cost: Any = 0
    i = n
    while i > 0 and n - i < LAST:
        i -= 1
        length = np.int64(lengths[i])
        size += length
        cost += 8 * length + per_token + 32 * (length >= LONG)
        if 4 * cost > limit:
            break
        if i == 0 or lengths[i - 1] > 0:
            last = i
            rest = size
            rest_cost = cost
    out, pages = full_cuts(lengths[:last], per_token, limit)
    if last == n:
        return out[:pages]
    start = 0
    begin: Any = 0
    end: Any = 0
    if pages > 1:
        start = out[pages - 2, 0]
        begin = out[pages - 2, 1]
    if pages > 0:
        end = out[pages - 1, 1]
    cost = rest_cost + 8 * (end - begin) + per_token * (last - start)
    sizes = address_of(lengths)
    for i in range(start, last):
        cost += 32 * (load_u32(sizes, i) >= LONG)
    if pages > 0 and 4 * cost < 3 * limit:
        pages -= 1
    out[pages, 0] = n
    out[pages, 1] = end + rest
    return out[: pages + 1]


@kernel
def pack(ids: Any, lengths: Any, out: Any) -> Any:
    """Write ids, lengths and escapes as page.py has them into ``out`` (9 bytes a token suffice).

    Returns (bytes written, bits per id, number of escapes).
    """
    n = ids.shape[0]
    largest = np.uint32(0)
    for i in range(n):
        largest = max(largest, ids[i])
    bits = bits_of(np.int64(largest))
    shift, width = np.uint64(bits), np.uint64(bits + LENGTH_BITS)
    values, sizes, target = address_of(ids), address_of(lengths), address_of(out)
    waiting, have, at = _ZERO, _ZERO, _ZERO  # ``have``: bits that wait, below 8
    escapes: Any = 0
    first = 0
    if width <= _NARROW:
        # Two at a time: each step waits for the one before it.
        for i in range(0, n - 1, 2):
            one, other = np.uint64(load_u32(sizes, i)), np.uint64(load_u32(sizes, i + 1))
            escapes += (one >= _LONG) + (other >= _LONG)
            left = np.uint64(load_u32(values, i)) | min(one, _LONG) << shift
            right = np.uint64(load_u32(values, i + 1)) | min(other, _LONG) << shift
            waiting |= (left | right << width) << have
            store_text(target, at, waiting)
            have += width + width
            waiting >>= have & _WHOLE
            at += have >> _THREE
            have &= _SEVEN
        first = n - n % 2
    for i in range(first, n):
        size = np.uint64(load_u32(sizes, i))
        escapes += size >= _LONG
        waiting |= (np.uint64(load_u32(values, i)) | min(size, _LONG) << shift) << have
        store_text(target, at, waiting)
        have += width
        waiting >>= have & _WHOLE
        at += have >> _THREE
        have &= _SEVEN
    end: Any = np.int64(at) + (have > _ZERO)
    if escapes > 0:
        for i in range(n):
            value = np.uint64(lengths[i])
            if value >= LONG:
                for _ in range(4):
                    out[end] = value & _BYTE
                    value >>= _EIGHT
                    end += 1
    return end, bits, escapes


@kernel
def unpack(data: Any, bits: Any, escapes: Any, ids: Any, lengths: Any) -> Any:
    """The ids and lengths that :func:`pack` wrote (uint32 arrays to be filled); ``data`` holds the
    bytes of all. Returns the lengths' sum, or -1 if the escapes do not fit."""
    n = ids.shape[0]
    width = bits + LENGTH_BITS
    shift = np.uint64(bits)
    whole = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    part = (np.uint64(1) << shift) - np.uint64(1)
    escape = data.shape[0] - 4 * escapes
    waiting = _ZERO
    have = 0
    at = 0
    total: Any = 0
    for i in range(n):
        while have < width:
            waiting |= np.uint64(data[at]) << np.uint64(have)
            at += 1
            have += 8
        value = waiting & whole
        waiting >>= np.uint64(width)
        have -= width
        ids[i] = value & part
        length = value >> shift
        if length == LONG:
            if escape + 4 > data.shape[0]:
                return -1
            length = _ZERO
            for k in range(4):
                length |= np.uint64(data[escape + k]) << np.uint64(8 * k)
            escape += 4
        lengths[i] = length
        total += np.int64(length)
    if escape != data.shape[0]:
        return -1
    return total


@kernel
def copy(source: Any, start: Any, end: Any, target: Any, at: Any) -> Any:
    """The bytes ``[start, end)`` of one array to another one's byte ``at``; they do not overlap."""
    size = end - start
    if size < 8:
        for i in range(size):
            target[at + i] = source[start + i]
        return
    left = address_of(source) + np.uint64(start)
    right = address_of(target) + np.uint64(at)
    for i in range(size // 8):
        store_text(right, 8 * i, load_text(left, 8 * i))
    store_text(right, size - 8, load_text(left, size - 8))


@kernel
def write_page(ids: Any, lengths: Any, text: Any, room: Any, out: Any, at: Any) -> Any:
    """Write the record of a page to byte ``at``. Returns where it ends; -1 if ``out`` is too small
    or more than ``room`` bytes besides its head come of it."""
    n, size = ids.shape[0], text.shape[0]
    if at + HEAD + 9 * n + size > out.shape[0] or n > 0xFFFF:
        return -1
    packed, bits, escapes = pack(ids, lengths, out[at + HEAD :])
    if packed + size > room:
        return -1
    out[at] = 3
    out[at + 1] = bits
    out[at + 2] = n & 0xFF
    out[at + 3] = n >> 8
    out[at + 4] = escapes & 0xFF
    out[at + 5] = escapes >> 8
    value = size
    for i in range(4):
        out[at + 6 + i] = value & 0xFF
        value >>= 8
    at += HEAD + packed
    copy(text, 0, size, out, at)
    return at + size


@kernel
def cuts_of(ids: Any, lengths: Any, size: Any, room: Any) -> Any:
    """Where :func:`end_cuts` cuts these tokens over ``size`` bytes of text; no cuts where some
    token is too long for it, or the lengths do not sum to that."""
    total, longest, bits = measure(ids, lengths)
    cuts = end_cuts(lengths, bits + LENGTH_BITS, 8 * room)
    return cuts if total == size and longest <= room // 2 else cuts[:0]


@kernel
def place_of(lengths: Any, token: Any, byte: Any, rest: Any, least: Any) -> Any:
    """The last token, ``token`` at ``byte`` or one left of it, from which on there are ``least``
    bytes (``rest`` of them from ``token`` on) or all; and its byte."""
    while token > 0 and (rest < least or lengths[token - 1] == 0):
        token -= 1
        length = np.int64(lengths[token])
        byte -= length
        rest += length
    return token, byte


@kernel
def paginate(
    ids: Any, lengths: Any, text: Any, token: Any, byte: Any, room: Any, least: Any, out: Any,
    table: Any,
) -> Any:  # fmt: skip
    """Cut tokens at the end of a text, from ``token`` and ``byte`` on, into pages as
    :func:`end_cuts` says, and write their records.

    ``room`` is what a page may cost without its head, in bytes. ``out`` takes the records,
    ``table`` (uint64[pages, 6]) what they hold: tokens, bytes, characters, digest (not of the last
    page), and where the record starts and ends. The line behind them says from which token and byte
    on there are ``least`` bytes of text, or all, and the last page. Returns the number of pages; -1
    if there is no such cut, or no room in ``out`` or ``table``, or the lengths do not sum to the
    text's.
    """
    cuts = cuts_of(ids[token:], lengths[token:], text.shape[0] - byte, room)
    pages = cuts.shape[0]
    if pages >= table.shape[0] or (pages == 0 and (token < ids.shape[0] or byte < text.shape[0])):
        return -1
    at = 0
    first, start = token, byte
    for k in range(pages):
        last, end = token + cuts[k, 0], byte + cuts[k, 1]
        stop = write_page(ids[first:last], lengths[first:last], text[start:end], room, out, at)
        if stop < 0:
            return -1
        table[k, 0] = last - first
        table[k, 1] = end - start
        table[k, 2] = count_characters(text[start:end])
        table[k, 3] = 0
        if k < pages - 1:
            table[k, 3] = extend_kernel(_ZERO, ids[first:last])
        table[k, 4], table[k, 5] = at, stop
        at = stop
        if k < pages - 1:
            first, start = last, end
    token, byte = place_of(lengths, first, start, text.shape[0] - start, least)
    table[pages, 0], table[pages, 1] = token, byte
    return pages
