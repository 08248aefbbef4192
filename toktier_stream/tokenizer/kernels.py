"""The hot path: each piece into ids and byte lengths.

Two passes over a segment. The first (:mod:`marks`) writes piece starts; it is one chain of
dependent loads. The second, here, has no dependence between pieces: their look-ups overlap.

A piece of up to 15 bytes is a key of two words. It is looked up in the memo, then in the
vocabulary, and merged only when both miss. Whatever answers first, the answer is the same:
the memo compares whole keys and holds results only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from toktier_stream.tokenizer.bpe import (
    SCAN,
    SHORT,
    SIZE_SHIFT,
    may_cut,
    merge_by_heap,
    merge_by_scan,
    same_bytes,
    span_hash,
    word_hash,
    word_key,
)
from toktier_stream.tokenizer.jit import (
    Address,
    Bytes,
    Number,
    Places,
    Words,
    address_of,
    entry,
    forced,
    inner,
    load_u8,
    load_u32,
    load_u64,
    signed,
    store_u32,
    store_u64,
)
from toktier_stream.tokenizer.marks import Machine, mark, mark_two, next_boundary

BLOCK = 1 << 16
"""Bytes of text that are marked, then encoded, at a time."""
MEMO_SLOT = 4
"""uint64 per memo slot: two of key, two of result."""
MEMO_TOKENS = 5
"""Tokens that a memo slot holds at most: ids of 20 bits, lengths of 4."""
PART_TAG = np.uint64(0x80 << 56)
"""In a key: a part of a cut piece, which must not meet what is true of whole pieces only."""

_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_ID = np.uint64(0xFFFFF)
_LENGTH = np.uint64(15)
_COUNT = np.uint64(7)
_TOKENS_LOW = 3
_BIT_20 = np.uint64(20)
_BIT_32 = np.uint64(32)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class Bpe(NamedTuple):
    """The arrays of :class:`merges.MergeTables`, and what a call writes into, as addresses."""

    byte_pairs: np.uint64
    pairs: np.uint64
    pair_shift: np.uint64
    emit: np.uint64
    words: np.uint64
    word_shift: np.uint64
    long_words: np.uint64
    long_mask: np.uint64
    long_index: np.uint64
    blob: np.uint64
    spans: np.uint64
    part_tag: np.uint64
    memo: np.uint64
    memo_shift: np.uint64
    ids: np.uint64
    lengths: np.uint64
    symbols: np.uint64
    made: np.uint64


@forced
def _put(bpe: Bpe, out: int, token: Number, length: Number) -> None:
    store_u32(bpe.ids, out, token)
    store_u32(bpe.lengths, out, length)


@forced
def _remember(bpe: Bpe, place: Number, low: Number, high: Number, count: int, out: int) -> None:
    """Write the ``count`` tokens that end the output at ``out`` into a memo slot."""
    if count > MEMO_TOKENS:
        return
    first = out - count
    result = np.uint64(count) | (np.uint64(load_u32(bpe.ids, first)) << _THREE)
    more = np.uint64(0)
    for i in range(1, count):
        token = np.uint64(load_u32(bpe.ids, first + i))
        length = np.uint64(load_u32(bpe.lengths, first + i - 1))
        if i < _TOKENS_LOW:
            result |= token << np.uint64(3 + 20 * i)
        else:
            more |= token << np.uint64(20 * (i - _TOKENS_LOW))
        more |= length << np.uint64(36 + 4 * i)
    store_u64(bpe.memo, place, low)
    store_u64(bpe.memo, place + _ONE, high)
    store_u64(bpe.memo, place + _TWO, result)
    store_u64(bpe.memo, place + _THREE, more)


@forced
def _recall(bpe: Bpe, result: Number, more: Number, size: int, out: int) -> int:
    """Write the tokens of a memo slot to ``out``: the new end of the output."""
    count = signed(result & _COUNT)
    token = (result >> _THREE) & _ID
    rest = size
    for i in range(1, count):
        length = signed((more >> np.uint64(36 + 4 * i)) & _LENGTH)
        _put(bpe, out, token, length)
        rest -= length
        out += 1
        if i < _TOKENS_LOW:
            token = (result >> np.uint64(3 + 20 * i)) & _ID
        else:
            token = (more >> np.uint64(20 * (i - _TOKENS_LOW))) & _ID
    _put(bpe, out, token, rest)
    return out + 1


@inner
def _find_word(bpe: Bpe, low: Number, high: Number, mixed: Number) -> Any:
    """The id and flags of a short word, or 0xFFFFFFFFFFFFFFFF."""
    mask = _ALL >> bpe.word_shift
    at = mixed >> bpe.word_shift
    while True:
        place = at * _THREE
        second = load_u64(bpe.words, place + _ONE)
        if second == high and load_u64(bpe.words, place) == low:
            return load_u64(bpe.words, place + _TWO)
        if second == 0:
            return _ALL
        at = (at + _ONE) & mask


@inner
def _merge(text: Address, start: int, size: int, bpe: Bpe, out: int) -> int:
    """Ids of at most SCAN bytes by merging: the new end of the output."""
    count = merge_by_scan(
        text, start, size, bpe.byte_pairs, bpe.pairs, bpe.pair_shift, bpe.symbols, bpe.made
    )
    for i in range(count):
        token = load_u64(bpe.emit, load_u32(bpe.symbols, i))
        _put(bpe, out + i, token & _ID, token >> _BIT_32)
    return out + count


@inner
def _miss(
    text: Address,
    start: int,
    size: int,
    low: Number,
    high: Number,
    mixed: Number,
    place: Number,
    tag: Number,
    bpe: Bpe,
    out: int,
) -> int:
    """Ids of a short piece or part that the memo lacks: the new end of the output."""
    value = _find_word(bpe, low, high, mixed)
    # Bit 32 and above: absent, or a token that only whole pieces may take.
    if value >> _BIT_32 == 0 or (value >> _BIT_32 == 1 and tag == 0):
        _put(bpe, out, value & _ID, size)
        _remember(bpe, place, low, high | tag, signed(1), out + 1)
        return out + 1
    end = _merge(text, start, size, bpe, out)
    _remember(bpe, place, low, high | tag, end - out, end)
    return end


@forced
def _short(text: Address, start: int, size: int, tag: Number, bpe: Bpe, out: int) -> int:
    """Ids of a piece or part of 1 to SHORT bytes: the new end of the output."""
    low, high = word_key(text, start, size)
    high |= np.uint64(size) << SIZE_SHIFT
    mixed = word_hash(low, high)
    place = (mixed >> bpe.memo_shift) << _TWO
    if load_u64(bpe.memo, place) == low and load_u64(bpe.memo, place + _ONE) == high | tag:
        result = load_u64(bpe.memo, place + _TWO)
        if result & _COUNT == _ONE:
            _put(bpe, out, (result >> _THREE) & _ID, size)
            return out + 1
        return _recall(bpe, result, load_u64(bpe.memo, place + _THREE), size, out)
    return _miss(text, start, size, low, high, mixed, place, tag, bpe, out)


@inner
def _find_long_word(text: Address, start: int, size: int, bpe: Bpe) -> Any:
    """The id and flags of a word longer than SHORT, or 0xFFFFFFFFFFFFFFFF."""
    mixed = span_hash(text, start, size)
    at = mixed & bpe.long_mask
    while True:
        index = signed(load_u64(bpe.long_words, at * _TWO + _ONE)) - 1
        if index < 0:
            return _ALL
        if load_u64(bpe.long_words, at * _TWO) == mixed:
            place = load_u64(bpe.long_index, index * 3)
            known = signed(load_u64(bpe.long_index, index * 3 + 1))
            if known == size and same_bytes(text, start, bpe.blob, signed(place), size):
                return load_u64(bpe.long_index, index * 3 + 2)
        at = (at + _ONE) & bpe.long_mask


@inner
def _part(text: Address, start: int, size: int, tag: Number, bpe: Bpe, out: int) -> int:
    """Ids of a part of a long piece: the new end of the output."""
    if size <= SHORT:
        return _short(text, start, size, tag, bpe, out)
    if size <= SCAN:
        return _merge(text, start, size, bpe, out)
    symbols = merge_by_heap(text, start, size, bpe.byte_pairs, bpe.pairs, bpe.pair_shift)
    for i in range(symbols.size):
        token = load_u64(bpe.emit, symbols[i])
        _put(bpe, out + i, token & _ID, token >> _BIT_32)
    return out + symbols.size


@inner
def _long(text: Address, start: int, size: int, bpe: Bpe, out: int) -> int:
    """Ids of a piece longer than SHORT: the new end of the output.

    Whole first, then cut wherever no token can span (:mod:`spans`).
    """
    value = _find_long_word(text, start, size, bpe)
    if value >> _BIT_32 <= 1:
        _put(bpe, out, value & _ID, size)
        return out + 1
    end = start + size
    first = start
    at = start
    left = np.uint64(0)
    while at < end:
        right = np.uint64(load_u8(text, at))
        following = at + 1
        while following < end and load_u8(text, following) & 0xC0 == 0x80:
            right = (right << np.uint64(8)) | np.uint64(load_u8(text, following))
            following += 1
        if at > first and may_cut(bpe.spans, left, right):
            out = _part(text, first, at - first, bpe.part_tag, bpe, out)
            first = at
        left = right
        at = following
    return _part(text, first, end - first, bpe.part_tag, bpe, out)


@inner
def encode_pieces(text: Address, starts: Address, count: int, end: int, bpe: Bpe, out: int) -> int:
    """Ids and byte lengths of ``count`` pieces that lie end to end: the new end of the output.

    ``starts`` is int32[count + 1]; what stands last is written over.
    """
    store_u32(starts, count, end)
    start = signed(load_u32(starts, 0))
    for i in range(1, count + 1):
        stop = signed(load_u32(starts, i))
        size = stop - start
        if size <= SHORT:
            out = _short(text, start, size, np.uint64(0), bpe, out)
        else:
            out = _long(text, start, size, bpe, out)
        start = stop
    return out


@inner
def encode_stretch(
    text: Address,
    start: int,
    end: int,
    machine: Machine,
    registers: Address,
    starts: Address,
    bpe: Bpe,
    out: int,
) -> int:
    """Ids and byte lengths of text without added tokens: the new end of the output.

    In blocks, so that piece starts stay in the nearest cache, each cut in two halves.
    """
    while start < end:
        stop = next_boundary(text, start + BLOCK, end, machine)
        middle = next_boundary(text, start + (stop - start) // 2, stop, machine)
        if start < middle < stop:
            first, second = mark_two(text, start, middle, stop, machine, registers, starts)
            out = encode_pieces(text, starts, first, middle, bpe, out)
            further = starts + np.uint64(4 * (middle - start + 2))
            out = encode_pieces(text, further, second, stop, bpe, out)
        else:
            count = mark(text, start, stop, machine, registers, starts)
            out = encode_pieces(text, starts, count, stop, bpe, out)
        start = stop
    return out


@entry
def encode_segments(text: Bytes, segments: Places, tables: Words, work: Words, room: Words) -> int:
    """Encode ``text``, already divided by added tokens: the number of ids.

    ``text`` is padded by 16 bytes. ``segments`` is int64[k, 3]: start, end, and the id of an
    added token, or -1 for a stretch of text. The others hold addresses and numbers, in the order
    below (an argument less is a tenth of a microsecond less, and small appends are many): of the
    tokenizer (``FastEncoder``), of scratch and memo (``Workspace``), and of what grows with the
    text (``Room``: one entry per byte for ids and lengths, four more for starts). The caller keeps
    the arrays alive.
    """
    bpe = Bpe(
        byte_pairs=tables[0],
        pairs=tables[1],
        pair_shift=tables[2],
        emit=tables[3],
        words=tables[4],
        word_shift=tables[5],
        long_words=tables[6],
        long_mask=tables[7],
        long_index=tables[8],
        blob=tables[9],
        spans=tables[10],
        part_tag=tables[11],
        memo=work[0],
        memo_shift=work[1],
        ids=room[0],
        lengths=room[1],
        symbols=work[2],
        made=work[3],
    )
    machine = Machine(
        rows=tables[12],
        class_of=tables[13],
        classes=tables[14],
        program_start=tables[15],
        program=tables[16],
        two_sided=tables[17],
    )
    text_at, starts_at, registers_at = address_of(text), room[2], work[4]
    # A typed zero: a literal one would compile everything below twice.
    out: int = signed(0)
    for k in range(segments.shape[0]):
        start = segments[k, 0]
        end = segments[k, 1]
        if segments[k, 2] >= 0:
            _put(bpe, out, np.uint64(segments[k, 2]), end - start)
            out += 1
        else:
            out = encode_stretch(text_at, start, end, machine, registers_at, starts_at, bpe, out)
    return out
