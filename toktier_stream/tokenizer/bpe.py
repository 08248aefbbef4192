"""The merge kernels: pairs looked up in one table, short pieces by scanning, long ones on a heap.

Symbols are not token ids. Symbol b < 256 is byte b; symbol 256 + k is the token of the k-th rule,
in rank order. So the rule that fires next is simply the smallest symbol that two neighbours make,
leftmost first: the reference's (rank, position).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from toktier_stream.tokenizer.jit import (
    Address,
    Ids,
    Number,
    Words,
    forced,
    inner,
    load_text,
    load_u8,
    load_u32,
    load_u64,
    signed,
    store_u32,
)

SYMBOL_BITS = 20
NONE = np.uint32((1 << SYMBOL_BITS) - 1)
"""No rule merges this pair. Fewer symbols than this, by admission."""
EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
"""An unused slot of a table of pairs."""

SPAN_BITS = 20
"""Log2 of the hashed bits in a span table; 65,536 direct ones follow."""
ANY_CHARACTER = np.uint64(0)
"""Stands for every character on one side of a span. (U+0000 packs to 0 as well: it then only
forbids cuts.)"""

SHORT = 15
"""Bytes of a piece that fits a two-word key: 15 of text, the last byte holds length and tag."""
SIZE_SHIFT = np.uint64(56)
"""Where the size of a two-word key stands in its second word."""
SCAN = 48
"""Bytes up to which scanning for the smallest symbol beats the heap."""

_SPAN_SHIFT = np.uint64(64 - SPAN_BITS)
_SPAN_LOW = np.uint64(63)
_SIX = np.uint64(6)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_LOW_SYMBOL = np.uint64((1 << SYMBOL_BITS) - 1)
_BITS = np.uint64(SYMBOL_BITS)
_BIT_20 = np.uint64(20)
_BIT_32 = np.uint64(32)
_BIT_29 = np.uint64(29)
_ONE = np.uint64(1)
_EIGHT = np.uint64(8)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def span_bit(left: Number, right: Number) -> Any:
    """The bit of two adjacent characters, each packed as its bytes in one number (uint64)."""
    return ((left * _MIX_A + right) * _GOLDEN) >> _SPAN_SHIFT


_span_bit = forced(span_bit)


@forced
def _bit_is_set(bits: Address, at: Number) -> Any:
    return (load_u64(bits, at >> _SIX) >> (at & _SPAN_LOW)) & _ONE != 0


@inner
def may_cut(spans: Address, left: Number, right: Number) -> bool:
    """Whether no token holds these two characters side by side, not even parts of them."""
    if _bit_is_set(spans, _span_bit(left, right)):
        return False
    if _bit_is_set(spans, _span_bit(left, ANY_CHARACTER)):
        return False
    if _bit_is_set(spans, _span_bit(ANY_CHARACTER, right)):
        return False
    first = right
    while first > np.uint64(0xFF):
        first >>= _EIGHT
    broken = np.uint64(1 << SPAN_BITS) + (((left & np.uint64(0xFF)) << _EIGHT) | first)
    return not _bit_is_set(spans, broken)


@forced
def pair_hash(key: Number, shift: Number) -> Any:
    """The slot of a pair's key in a table of ``2 ** (64 - shift)`` slots."""
    return (key * _GOLDEN) >> shift


@forced
def find_pair(pairs: Address, shift: Number, left: Number, right: Number) -> Any:
    """The symbol that the pair makes, or NONE. A slot is left, right and result, 20 bits each.

    ``pairs`` is the table's address; it has ``2 ** (64 - shift)`` slots."""
    key = (np.uint64(left) << _BITS) | np.uint64(right)
    mask = _ALL >> shift
    at = pair_hash(key, shift)
    while True:
        slot = load_u64(pairs, at)
        if (slot >> _BITS) == key:
            return np.uint32(slot & _LOW_SYMBOL)
        if slot == EMPTY:
            return NONE
        at = (at + _ONE) & mask


@forced
def word_key(text: Address, start: int, size: int) -> tuple[Any, Any]:
    """Two words that hold ``size`` bytes (1 to SHORT); the top byte of the second is free for
    size and tag. Reads up to 15 bytes behind the range, of which nothing enters the key."""
    low = load_text(text, start)
    if size <= 8:
        return low & (_ALL >> np.uint64(64 - 8 * size)), np.uint64(0)
    return low, load_text(text, start + 8) & (_ALL >> np.uint64(128 - 8 * size))


@forced
def word_hash(low: Number, high: Number) -> Any:
    """64 well-mixed bits of a two-word key; tables take the top ones."""
    mixed = (low ^ (low >> _BIT_32)) * _MIX_A + high
    return (mixed ^ (mixed >> _BIT_29)) * _MIX_B


@inner
def span_hash(text: Address, start: int, size: int) -> Any:
    """64 bits over ``text[start : start + size]``; may read up to 7 bytes behind it, of which
    nothing enters the hash."""
    mixed = np.uint64(size) * _GOLDEN
    at = start
    rest = size
    while rest >= 8:
        word = load_text(text, at)
        mixed = (mixed ^ word) * _MIX_A
        mixed ^= mixed >> _BIT_32
        at += 8
        rest -= 8
    if rest > 0:
        word = load_text(text, at) & (_ALL >> (np.uint64(8 - rest) * _EIGHT))
        mixed = (mixed ^ word) * _MIX_A
        mixed ^= mixed >> _BIT_32
    return mixed * _MIX_B


@inner
def same_bytes(text: Address, start: int, other: Address, at: int, size: int) -> bool:
    """Whether two byte ranges are equal."""
    for i in range(size):  # noqa: SIM110 - a generator does not compile
        if load_u8(text, start + i) != load_u8(other, at + i):
            return False
    return True


@inner
def merge_by_scan(
    text: Address,
    start: int,
    size: int,
    byte_pairs: Address,
    pairs: Address,
    shift: Number,
    symbols: Address,
    made: Address,
) -> int:
    """BPE of a few bytes: ``symbols[:count]`` are the result, ``count`` is returned.

    All arrays are addresses. ``symbols`` and ``made`` are uint32 scratch of at least ``size``
    entries. Quadratic in ``size``, and faster than anything cleverer below some dozens of bytes.
    """
    count = size
    before = np.uint64(load_u8(text, start))
    store_u32(symbols, 0, before)
    for i in range(1, size):
        here = np.uint64(load_u8(text, start + i))
        store_u32(symbols, i, here)
        store_u32(made, i - 1, load_u32(byte_pairs, (before << _EIGHT) | here))
        before = here
    while True:
        best = NONE
        at = 0
        for i in range(count - 1):
            candidate = load_u32(made, i)
            if candidate < best:
                best = candidate
                at = i
        if best == NONE:
            return count
        count -= 1
        store_u32(symbols, at, best)
        for i in range(at + 1, count):
            store_u32(symbols, i, load_u32(symbols, i + 1))
            store_u32(made, i - 1, load_u32(made, i))
        if at > 0:
            left = load_u32(symbols, at - 1)
            store_u32(made, at - 1, find_pair(pairs, shift, left, best))
        if at + 1 < count:
            right = load_u32(symbols, at + 1)
            store_u32(made, at, find_pair(pairs, shift, best, right))


@forced
def _sift_down(heap: Words, size: int, at: int) -> None:
    item = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= item:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@forced
def _sift_up(heap: Words, at: int) -> None:
    item = heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= item:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = item


@inner
def merge_by_heap(
    text: Address, start: int, size: int, byte_pairs: Address, pairs: Address, shift: Number
) -> Ids:
    """BPE of many bytes in O(size log size): the symbols left, uint32.

    A heap of ``symbol << 32 | position``; an entry counts only while the pair at its position
    still makes that symbol.
    """
    symbols = np.empty(size, np.uint32)
    made = np.empty(size, np.uint32)
    after = np.empty(size, np.int32)
    before = np.empty(size, np.int32)
    heap = np.empty(2 * size, np.uint64)
    waiting = 0
    for i in range(size):
        byte = np.uint64(load_u8(text, start + i))
        symbols[i] = byte
        after[i] = i + 1
        before[i] = i - 1
        made[i] = NONE
        if i + 1 < size:
            following = np.uint64(load_u8(text, start + i + 1))
            made[i] = load_u32(byte_pairs, (byte << _EIGHT) | following)
            if made[i] != NONE:
                heap[waiting] = (np.uint64(made[i]) << _BIT_32) | np.uint64(i)
                waiting += 1
    for i in range(waiting // 2 - 1, -1, -1):
        _sift_down(heap, waiting, i)
    count = size
    while waiting > 0:
        top = heap[0]
        waiting -= 1
        if waiting > 0:
            heap[0] = heap[waiting]
            _sift_down(heap, waiting, signed(0))
        at = signed(top & np.uint64(0xFFFFFFFF))
        merged = np.uint32(top >> _BIT_32)
        if made[at] != merged:
            continue
        gone = after[at]
        right = after[gone]
        symbols[at] = merged
        made[gone] = NONE
        after[at] = right
        made[at] = NONE
        count -= 1
        if right < size:
            before[right] = at
            made[at] = find_pair(pairs, shift, merged, symbols[right])
            if made[at] != NONE:
                heap[waiting] = (np.uint64(made[at]) << _BIT_32) | np.uint64(at)
                _sift_up(heap, waiting)
                waiting += 1
        left = before[at]
        if left >= 0:
            made[left] = find_pair(pairs, shift, symbols[left], merged)
            if made[left] != NONE:
                heap[waiting] = (np.uint64(made[left]) << _BIT_32) | np.uint64(left)
                _sift_up(heap, waiting)
                waiting += 1
    result = np.empty(count, np.uint32)
    at = signed(0)
    for i in range(count):
        result[i] = symbols[at]
        at = after[at]
    return result
