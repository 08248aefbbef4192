"""Compiled loops of the session room: digests, token runs, characters. Those of pages are in
packing.py. Plain loops in numba, each with a slow twin in the tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from toktier_stream.incremental.jit import source_hash
from toktier_stream.tokenizer import jit
from toktier_stream.tokenizer.jit import address_of, load_text
from toktier_stream.wire import digest

F = TypeVar("F", bound=Callable[..., Any])

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.uint32]


@cache
def _source_hash() -> str:
    """A hash over all kernels of this room, and those of the rooms below."""
    found = hashlib.sha256(source_hash().encode())
    for name in ("kernels.py", "packing.py", "sealing.py", "appending.py", "continuing.py"):
        found.update((Path(__file__).parent / name).read_bytes())
    return found.hexdigest()[:24]


def kernel(function: F) -> F:
    """Compile a function to machine code, kept on disk; it releases the GIL while it runs."""
    return jit.cached(function, _source_hash())


_P: Final = np.uint64(digest.PRIME)
_BASE: Final = np.uint64(digest.BASE)
_INVERSE: Final = np.uint64(pow(digest.BASE, -1, digest.PRIME))
_ONE: Final = np.uint64(1)
_ZERO: Final = np.uint64(0)
_S61: Final = np.uint64(61)
_SIX: Final = np.uint64(6)
_SEVEN: Final = np.uint64(7)
_TOP_BYTE: Final = np.uint64(56)
_ONES: Final = np.uint64(0x0101_0101_0101_0101)


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


@kernel
def _mul(a: Any, b: Any) -> Any:
    """a · b modulo 2^61 - 1, below it, for a · b below 2^124."""
    total = _product(a, b)
    total = (total & _P) + (total >> _S61)
    if total >= _P:
        total -= _P
    return total


@kernel
def _power(base: Any, exponent: Any) -> Any:
    result = _ONE
    while exponent > 0:
        if exponent & 1:
            result = _mul(result, base)
        base = _mul(base, base)
        exponent >>= 1
    return result


_BLOCK: Final = 128
"""Tokens that :func:`extend_kernel` adds at once."""
_LIMB: Final = 21
_powers = [pow(digest.BASE, _BLOCK - 1 - i, digest.PRIME) for i in range(_BLOCK)]
_limbs = [[p >> _LIMB * k & (1 << _LIMB) - 1 for p in _powers] for k in range(3)]
# A product of an id and a limb is below 2^53, a sum over a block below 2^60.
_LOW, _MIDDLE, _TOP = (np.array(limbs, dtype=np.uint32) for limbs in _limbs)
_SHIFT_ONE: Final = np.uint64(1 << _LIMB)
_SHIFT_TWO: Final = np.uint64(1 << 2 * _LIMB)
_OF_BLOCK: Final = np.uint64(pow(digest.BASE, _BLOCK, digest.PRIME))
_BLOCK_ONES: Final = np.uint64(sum(_powers) % digest.PRIME)


@kernel
def _extend_block(value: Any, ids: Any) -> Any:
    """The digest of a stream after ``_BLOCK`` more ids: the ids times powers of the
    base, a limb of these at a time, so that the processor does several ids in one step."""
    low, middle, top = _ZERO, _ZERO, _ZERO
    for i in range(_BLOCK):
        token = np.uint64(ids[i])
        low += token * np.uint64(_LOW[i])
        middle += token * np.uint64(_MIDDLE[i])
        top += token * np.uint64(_TOP[i])
    value = _mul(value, _OF_BLOCK) + _BLOCK_ONES + low
    value = (value & _P) + (value >> _S61)
    value += _mul(middle, _SHIFT_ONE) + _mul(top, _SHIFT_TWO)
    value = (value & _P) + (value >> _S61)
    if value >= _P:
        value -= _P
    return value


@kernel
def extend_kernel(value: Any, ids: Any) -> Any:
    n = ids.shape[0]
    i = 0
    while i + _BLOCK <= n:
        value = _extend_block(value, ids[i : i + _BLOCK])
        i += _BLOCK
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


@kernel
def replace_suffix_kernel(value: Any, dropped: Any, ids: Any) -> Any:
    suffix = extend_kernel(_ZERO, dropped)
    value = value + (_P - suffix)
    if value >= _P:
        value -= _P
    value = _mul(value, _power(_INVERSE, dropped.shape[0]))
    return extend_kernel(value, ids)


@kernel
def _fold(tokens: Any, digests: Any) -> Any:
    value = _ZERO
    for i in range(tokens.shape[0]):
        value = _mul(value, _power(_BASE, np.int64(tokens[i]))) + digests[i]
        if value >= _P:
            value -= _P
    return value


def extend(value: int, ids: Ids) -> int:
    """The digest of a stream with digest ``value`` after appending ``ids``."""
    return int(extend_kernel(np.uint64(value), ids))


def replace_suffix(value: int, dropped: Ids, ids: Ids) -> int:
    """The digest of a stream after its suffix ``dropped`` was replaced by ``ids``."""
    return int(replace_suffix_kernel(np.uint64(value), dropped, ids))


def fold(tokens: npt.NDArray[np.int64], digests: npt.NDArray[np.uint64]) -> int:
    """The digest of a concatenation, from token counts and digests of its parts."""
    return int(_fold(tokens, digests))


@kernel
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


@kernel
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


@kernel
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


@kernel
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


@kernel
def match_end(
    old_ids: Any, old_lengths: Any, old_position: Any, ids: Any, lengths: Any, room: Any,
    new_position: Any, room_left: Any, room_right: Any, value: Any, window: Any,
) -> Any:  # fmt: skip
    """As :func:`match` for tokens at the end of a stream with digest ``value``, and the tokens that
    then end it.

    The fresh tokens stand in ``ids`` and ``lengths`` behind ``room`` free entries, at least as many
    as there are old ones; ``window`` is the text under them. Before those that take over at the end
    of the run the old ones are written that stay. Returns the tokens of the run, its characters,
    how many old tokens stay, how many fresh ones are left out, the run's bytes right of the
    position, the digest then, the bytes that all fresh tokens cover, and the characters of the
    window. With no run nothing is written, and the number of its tokens is 0.
    """
    new_ids, new_lengths = ids[room:], lengths[room:]
    old, new, left, left_bytes, right, right_bytes = match(
        old_ids, old_lengths, old_position, new_ids, new_lengths, new_position,
        room_left, room_right,
    )  # fmt: skip
    covered: Any = 0
    run_chars = 0
    after = np.uint64(value)
    keep, first = 0, 0
    if old >= 0:
        keep, first = old + right, new + right
        after = replace_suffix_kernel(after, old_ids[keep:], new_ids[first:])
        for i in range(new_lengths.shape[0]):
            covered += np.int64(new_lengths[i])
        for i in range(new_position - left_bytes, new_position + right_bytes):
            if window[i] & 0xC0 != 0x80:
                run_chars += 1
        # At last: what is left out of the fresh ones is written over.
        head = room + first - keep
        for i in range(keep):
            ids[head + i] = old_ids[i]
            lengths[head + i] = old_lengths[i]
    chars = count_characters(window)
    return left + right, run_chars, keep, first, right_bytes, after, covered, chars


@kernel
def count_characters(text: Any) -> Any:
    """Characters of UTF-8 bytes: those that are not continuation bytes."""
    n = text.shape[0]
    at = address_of(text)
    inside = _ZERO
    for i in range(n // 8):
        word = load_text(at, 8 * i)
        inside += ((word >> _SEVEN & ~(word >> _SIX) & _ONES) * _ONES) >> _TOP_BYTE
    count = n - np.int64(inside)
    for i in range(n - n % 8, n):
        count -= text[i] & 0xC0 == 0x80
    return count


@kernel
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


@kernel
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


def characters(text: bytes) -> int:
    """Characters of UTF-8 bytes (a piece may start or end inside one: lead bytes count)."""
    if text.isascii():
        return len(text)
    return int(count_characters(np.frombuffer(text, dtype=np.uint8)))
