"""Compiled loops of the session room: digests, token runs, page cuts, and the packing of ids.

Plain loops in numba, each with a slow twin in the tests. Everything they compile to stands in this
one file, so numba's cache on disk can tell by the file whether it is up to date.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

from toktier_stream.wire import digest

F = TypeVar("F", bound=Callable[..., Any])

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.uint32]
Cuts = npt.NDArray[np.int64]


def _kernel(function: F) -> F:
    return cast(F, njit(nogil=True, cache=True)(function))


_P: Final = np.uint64(digest.PRIME)
_BASE: Final = np.uint64(digest.BASE)
_INVERSE: Final = np.uint64(pow(digest.BASE, -1, digest.PRIME))
_ONE: Final = np.uint64(1)
_ZERO: Final = np.uint64(0)
_S61: Final = np.uint64(61)


def _multiplied(context: Any, a: Any, b: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        left, right = (builder.zext(x, wide) for x in arguments)
        product = builder.mul(left, right)
        low = builder.and_(builder.trunc(product, word), ir.Constant(word, digest.PRIME))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 61)), word)
        return builder.add(low, high)

    return types.uint64(types.uint64, types.uint64), generate


_product: Any = intrinsic(_multiplied)
"""The low 61 bits of a · b plus what stands above them, for a · b below 2^125: congruent to the
product modulo 2^61 - 1. One 128-bit multiplication."""


def _eight_more(context: Any, value: Any, *ids: Any) -> Any:
    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        total = builder.add(builder.zext(arguments[8], wide), ir.Constant(wide, _SUM_OF_POWERS))
        for i, argument in enumerate(arguments[:8]):
            factor = ir.Constant(wide, pow(digest.BASE, 8 - i, digest.PRIME))
            total = builder.add(total, builder.mul(builder.zext(argument, wide), factor))
        low = builder.and_(builder.trunc(total, word), ir.Constant(word, digest.PRIME))
        high = builder.trunc(builder.lshr(total, ir.Constant(wide, 61)), word)
        return builder.add(low, high)

    return types.uint64(*(types.uint64,) * 9), generate


def _eight_typed(
    context: Any, value: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any
) -> Any:
    return _eight_more(context, value, a, b, c, d, e, f, g, h)


# Each id counts one more than it is: what that adds for eight of them.
_SUM_OF_POWERS: Final = sum(pow(digest.BASE, i, digest.PRIME) for i in range(8))

_eight: Any = intrinsic(_eight_typed)
"""The digest of a stream after eight more ids, from one below 2^62: below 2^63 and congruent.
All products are summed, then reduced once."""


@_kernel
def _mul(a: Any, b: Any) -> Any:
    """a · b modulo 2^61 - 1, below it, for a · b below 2^124."""
    total = _product(a, b)
    total = (total & _P) + (total >> _S61)
    if total >= _P:
        total -= _P
    return total


@_kernel
def _power(base: Any, exponent: Any) -> Any:
    result = _ONE
    while exponent > 0:
        if exponent & 1:
            result = _mul(result, base)
        base = _mul(base, base)
        exponent >>= 1
    return result


@_kernel
def _extend(value: Any, ids: Any) -> Any:
    n = ids.shape[0]
    i = 0
    # Eight tokens at a time: one multiplication waits for another only once in eight.
    while i + 8 <= n:
        value = _eight(
            value,
            np.uint64(ids[i]),
            np.uint64(ids[i + 1]),
            np.uint64(ids[i + 2]),
            np.uint64(ids[i + 3]),
            np.uint64(ids[i + 4]),
            np.uint64(ids[i + 5]),
            np.uint64(ids[i + 6]),
            np.uint64(ids[i + 7]),
        )
        value = (value & _P) + (value >> _S61)
        i += 8
    if value >= _P:
        value -= _P
    while i < n:
        value = _mul(value, _BASE) + np.uint64(ids[i]) + _ONE
        if value >= _P:
            value -= _P
        i += 1
    return value


@_kernel
def _replace_suffix(value: Any, dropped: Any, ids: Any) -> Any:
    suffix = _extend(_ZERO, dropped)
    value = value + (_P - suffix)
    if value >= _P:
        value -= _P
    value = _mul(value, _power(_INVERSE, dropped.shape[0]))
    return _extend(value, ids)


@_kernel
def _fold(tokens: Any, digests: Any) -> Any:
    value = _ZERO
    for i in range(tokens.shape[0]):
        value = _mul(value, _power(_BASE, np.int64(tokens[i]))) + digests[i]
        if value >= _P:
            value -= _P
    return value


def extend(value: int, ids: Ids) -> int:
    """The digest of a stream with digest ``value`` after appending ``ids``."""
    return int(_extend(np.uint64(value), ids))


def replace_suffix(value: int, dropped: Ids, ids: Ids) -> int:
    """The digest of a stream after its suffix ``dropped`` was replaced by ``ids``."""
    return int(_replace_suffix(np.uint64(value), dropped, ids))


def fold(tokens: npt.NDArray[np.int64], digests: npt.NDArray[np.uint64]) -> int:
    """The digest of a concatenation, from token counts and digests of its parts."""
    return int(_fold(tokens, digests))


@_kernel
def boundary_index(lengths: Any, position: Any) -> Any:
    """How many tokens end at or before byte ``position``; -1 if one of them spans it.

    Tokens of length 0 at ``position`` belong to the character on its right and do not count.
    """
    if position == 0:
        return 0
    total: Any = 0
    for i in range(lengths.shape[0]):
        total += np.int64(lengths[i])
        if total == position:
            return i + 1
        if total > position:
            return -1
    return -1


@_kernel
def run_right(
    old_ids: Any, old_lengths: Any, old: Any, new_ids: Any, new_lengths: Any, new: Any, room: Any
) -> Any:  # fmt: skip
    """Tokens equal in id and length from indices ``old`` and ``new`` on, within ``room`` bytes.

    A run never ends between tokens of length 0 and the token that completes their character.
    Returns (tokens, bytes).
    """
    count = 0
    used: Any = 0
    whole = 0
    limit = min(old_ids.shape[0] - old, new_ids.shape[0] - new)
    while count < limit:
        i, j = old + count, new + count
        if old_ids[i] != new_ids[j] or old_lengths[i] != new_lengths[j]:
            break
        length: Any = np.int64(old_lengths[i])
        if used + length > room:
            break
        used += length
        count += 1
        if length > 0:
            whole = count
    return whole, used


@_kernel
def run_left(
    old_ids: Any, old_lengths: Any, old: Any, new_ids: Any, new_lengths: Any, new: Any,
    room: Any, old_low: Any, new_low: Any,
) -> Any:  # fmt: skip
    """The same to the left of indices ``old`` and ``new``, not below ``old_low``/``new_low``."""
    count = 0
    used: Any = 0
    whole = 0
    whole_used: Any = 0
    limit = min(old - old_low, new - new_low)
    while count < limit:
        i, j = old - count - 1, new - count - 1
        if old_ids[i] != new_ids[j] or old_lengths[i] != new_lengths[j]:
            break
        length: Any = np.int64(old_lengths[i])
        if used + length > room:
            break
        used += length
        count += 1
        if (i == 0 or old_lengths[i - 1] > 0) and (j == 0 or new_lengths[j - 1] > 0):
            whole, whole_used = count, used
    return whole, whole_used


@_kernel
def match(
    old_ids: Any, old_lengths: Any, old_position: Any, new_ids: Any, new_lengths: Any,
    new_position: Any, room_left: Any, room_right: Any,
) -> Any:  # fmt: skip
    """The run of equal tokens around one position, given in bytes of the old and the new tokens.

    Returns (old index, new index, tokens and bytes of the run to the left, tokens and bytes to the
    right); the old index is -1 if the position is no token boundary on both sides.
    """
    old = boundary_index(old_lengths, old_position)
    new = boundary_index(new_lengths, new_position)
    if old < 0 or new < 0:
        return -1, -1, 0, 0, 0, 0
    left, left_bytes = run_left(
        old_ids, old_lengths, old, new_ids, new_lengths, new, room_left, 0, 0
    )
    right, right_bytes = run_right(old_ids, old_lengths, old, new_ids, new_lengths, new, room_right)
    return old, new, left, left_bytes, right, right_bytes


@_kernel
def measure(ids: Any, lengths: Any) -> Any:
    """(sum of lengths, longest length, largest id)."""
    total: Any = 0
    longest: Any = 0
    largest: Any = 0
    for i in range(lengths.shape[0]):
        length = np.int64(lengths[i])
        total += length
        longest = max(longest, length)
        largest = max(largest, np.int64(ids[i]))
    return total, longest, largest


@_kernel
def match_end(
    old_ids: Any, old_lengths: Any, old_position: Any, new_ids: Any, new_lengths: Any,
    new_position: Any, room_left: Any, room_right: Any, value: Any, window: Any,
) -> Any:  # fmt: skip
    """As :func:`match` for tokens at the end of a stream with digest ``value``; ``window`` is the
    text under the fresh ones. Further: the digest once these take over at the end of the run, how
    many bytes they all cover, and the characters of the run and of the window."""
    old, new, left, left_bytes, right, right_bytes = match(
        old_ids, old_lengths, old_position, new_ids, new_lengths, new_position,
        room_left, room_right,
    )  # fmt: skip
    covered: Any = 0
    run_chars = 0
    after = np.uint64(value)
    if old >= 0:
        after = _replace_suffix(after, old_ids[old + right :], new_ids[new + right :])
        for i in range(new_lengths.shape[0]):
            covered += np.int64(new_lengths[i])
        for i in range(new_position - left_bytes, new_position + right_bytes):
            if window[i] & 0xC0 != 0x80:
                run_chars += 1
    chars = count_characters(window)
    return old, new, left, right, right_bytes, after, covered, run_chars, chars


@_kernel
def page_cuts(lengths: Any, per_token: Any, target: Any, limit: Any) -> Any:
    """Where to cut a run of tokens into pages: int64[pages, 2], the token index and the byte at
    which each page ends; the last is the end of all.

    A page is closed once it costs ``target`` (encoded bytes without the page's own head), and
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
        extra = length + per_token
        if length > 254:
            extra += 4
        cost += extra
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


@_kernel
def count_characters(text: Any) -> Any:
    """Characters of UTF-8 bytes: those that are not continuation bytes."""
    count = 0
    for i in range(text.shape[0]):
        if text[i] & 0xC0 != 0x80:
            count += 1
    return count


@_kernel
def left_offset(text: Any, characters: Any) -> Any:
    """The byte at which the last ``characters`` characters of ``text`` start; 0 if fewer."""
    i = text.shape[0]
    while i > 0:
        i -= 1
        if text[i] & 0xC0 != 0x80:
            characters -= 1
            if characters == 0:
                return i
    return 0


@_kernel
def right_offset(text: Any, characters: Any) -> Any:
    """The byte at which the first ``characters`` characters of ``text`` end."""
    i = 0
    while i < text.shape[0]:
        if text[i] & 0xC0 != 0x80:
            if characters == 0:
                return i
            characters -= 1
        i += 1
    return i


@_kernel
def pack(ids: Any, lengths: Any, out: Any) -> Any:
    """Write ids, lengths and escapes as page.py has them into ``out`` (9 bytes a token suffice).

    Returns (bytes written, bytes per id, number of escapes).
    """
    n = ids.shape[0]
    width = 3
    for i in range(n):
        if ids[i] >= 1 << 24:
            width = 4
    at = 0
    for i in range(n):
        value = np.int64(ids[i])
        for _ in range(width):
            out[at] = value & 0xFF
            value >>= 8
            at += 1
    escape = n * (width + 1)
    for i in range(n):
        value = np.int64(lengths[i])
        if value > 254:
            out[at] = 255
            for _ in range(4):
                out[escape] = value & 0xFF
                value >>= 8
                escape += 1
        else:
            out[at] = value
        at += 1
    return escape, width, (escape - n * (width + 1)) // 4


@_kernel
def paginate(ids: Any, lengths: Any, text: Any, room: Any, out: Any, table: Any) -> Any:
    """Cut tokens at the end of a text into full pages and a last one, and write their records.

    ``room`` is what a page may cost without its head. ``out`` takes the records, ``table``
    (uint64[pages, 6]) what they hold: tokens, bytes, characters, digest, and where the record
    starts and ends. Returns the number of pages; -1 if there is no such cut, or no room in ``out``
    or ``table``, or the lengths do not sum to the text's.
    """
    total, longest, largest = measure(ids, lengths)
    if total != text.shape[0] or longest > room // 2:
        return -1
    per_token = 4 if largest < 1 << 24 else 5
    cuts = page_cuts(lengths, per_token, room, room)
    pages = cuts.shape[0]
    if pages > table.shape[0]:
        return -1
    at = 0
    first = 0
    start: Any = 0
    for k in range(pages):
        last, end = cuts[k, 0], cuts[k, 1]
        n = last - first
        if at + 10 + 9 * n + end - start > out.shape[0]:
            return -1
        size, width, escapes = pack(ids[first:last], lengths[first:last], out[at + 10 :])
        if size + end - start > room or n > 0xFFFF:
            return -1
        table[k, 0] = n
        table[k, 1] = end - start
        table[k, 3] = _extend(_ZERO, ids[first:last])
        table[k, 4] = at
        out[at] = 1
        out[at + 1] = width
        out[at + 2] = n & 0xFF
        out[at + 3] = n >> 8
        out[at + 4] = escapes & 0xFF
        out[at + 5] = escapes >> 8
        value = end - start
        for i in range(4):
            out[at + 6 + i] = value & 0xFF
            value >>= 8
        at += 10 + size
        characters = 0
        for i in range(start, end):
            byte = text[i]
            out[at] = byte
            at += 1
            if byte & 0xC0 != 0x80:
                characters += 1
        table[k, 2] = characters
        table[k, 5] = at
        first, start = last, end
    return pages


@_kernel
def unpack_ids(data: Any, width: Any, out: Any) -> Any:
    """The ids that :func:`pack` wrote: fills ``out`` (uint32)."""
    at = 0
    for i in range(out.shape[0]):
        value = np.uint32(0)
        shift = np.uint32(0)
        for _ in range(width):
            value |= np.uint32(data[at]) << shift
            shift += np.uint32(8)
            at += 1
        out[i] = value


@_kernel
def unpack_lengths(data: Any, escapes: Any, out: Any) -> Any:
    """The lengths that :func:`pack` wrote. Returns the sum, or -1 if the escapes do not fit."""
    count = 0
    total: Any = 0
    for i in range(out.shape[0]):
        value = np.uint32(data[i])
        if value == 255:
            if count == escapes.shape[0]:
                return -1
            value = np.uint32(escapes[count])
            count += 1
        out[i] = value
        total += np.int64(value)
    if count != escapes.shape[0]:
        return -1
    return total


def characters(text: bytes) -> int:
    """Characters of UTF-8 bytes (a piece may start or end inside one: lead bytes count)."""
    if text.isascii():
        return len(text)
    return int(count_characters(np.frombuffer(text, dtype=np.uint8)))
