"""Compiled loops of pages: where tokens are cut into pages, and their packing (page.py has the
record). Costs are in bits, and leave out a page's head.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from toktier_stream.session.kernels import count_characters, extend_kernel, kernel

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
_WORD: Final = np.uint64(0xFFFF_FFFF)
_32: Final = np.uint64(32)


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
    most = 2
    out = np.empty((most, 2), dtype=np.int64)
    pages = 0
    start = 0
    begin: Any = 0
    while start < n:
        i = start
        size: Any = begin
        cost: Any = 0
        while i < n and cost < limit:
            length = np.int64(lengths[i])
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
    cost = rest_cost + 8 * (end - begin)
    for i in range(start, last):
        cost += per_token + 32 * (lengths[i] >= LONG)
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
    shift = np.uint64(bits)
    width = bits + LENGTH_BITS
    at = (n * width + 7) // 8
    words = np.empty(at // 4 + 1, dtype=np.uint32)
    waiting = _ZERO
    have = 0  # bits that wait, below 32
    word = 0
    escapes = 0
    for i in range(n):
        code = np.uint64(lengths[i])
        if code >= LONG:
            code = np.uint64(LONG)
            escapes += 1
        waiting |= np.uint64(ids[i]) << np.uint64(have)
        if bits > 28:
            have += bits
            if have >= 32:
                words[word] = waiting & _WORD
                waiting >>= _32
                have -= 32
                word += 1
            waiting |= code << np.uint64(have)
            have += LENGTH_BITS
        else:
            waiting |= code << (np.uint64(have) + shift)
            have += width
        if have >= 32:
            words[word] = waiting & _WORD
            waiting >>= _32
            have -= 32
            word += 1
    if have > 0:
        words[word] = waiting & _WORD
    out[:at] = words.view(np.uint8)[:at]
    if escapes > 0:
        for i in range(n):
            value = np.uint64(lengths[i])
            if value >= LONG:
                for _ in range(4):
                    out[at] = value & _BYTE
                    value >>= _EIGHT
                    at += 1
    return at, bits, escapes


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
    all_lengths, all_bytes = lengths, text.shape[0]
    lengths = lengths[token:]
    ids = ids[token:]
    text = text[byte:]
    total, longest, bits = measure(ids, lengths)
    if total != text.shape[0] or longest > room // 2:
        return -1
    cuts = end_cuts(lengths, bits + LENGTH_BITS, 8 * room)
    pages = cuts.shape[0]
    if pages >= table.shape[0]:
        return -1
    at = 0
    first = 0
    start: Any = 0
    for k in range(pages):
        last, end = cuts[k, 0], cuts[k, 1]
        n = last - first
        if at + HEAD + 9 * n + end - start > out.shape[0]:
            return -1
        size, bits, escapes = pack(ids[first:last], lengths[first:last], out[at + HEAD :])
        if size + end - start > room or n > 0xFFFF:
            return -1
        table[k, 0] = n
        table[k, 1] = end - start
        table[k, 2] = count_characters(text[start:end])
        table[k, 3] = 0
        if k < pages - 1:
            table[k, 3] = extend_kernel(_ZERO, ids[first:last])
        table[k, 4] = at
        out[at] = 3
        out[at + 1] = bits
        out[at + 2] = n & 0xFF
        out[at + 3] = n >> 8
        out[at + 4] = escapes & 0xFF
        out[at + 5] = escapes >> 8
        value = end - start
        for i in range(4):
            out[at + 6 + i] = value & 0xFF
            value >>= 8
        at += HEAD + size
        out[at : at + end - start] = text[start:end]
        at += end - start
        table[k, 5] = at
        if k < pages - 1:
            first, start = last, end
    token += first
    byte += start
    while token > 0 and (all_bytes - byte < least or all_lengths[token - 1] == 0):
        token -= 1
        byte -= np.int64(all_lengths[token])
    table[pages, 0] = token
    table[pages, 1] = byte
    return pages
