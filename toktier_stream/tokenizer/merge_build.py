"""Compiled helpers that build the merge tables: derivations of tokens, and hash tables filled."""

from __future__ import annotations

import numpy as np

from toktier_stream.tokenizer.bpe import (
    EMPTY,
    NONE,
    SHORT,
    SIZE_SHIFT,
    find_pair,
    pair_hash,
    span_hash,
    word_hash,
    word_key,
)
from toktier_stream.tokenizer.jit import (
    Bytes,
    Ids,
    Number,
    Places,
    Words,
    address_of,
    entry,
    signed,
)

WORD_SLOT = 3
"""uint64 per slot of the table of short words: two of key, one of value."""
LONG_SLOT = 2
"""uint64 per slot of the table of long words: hash, and index + 1 of the word (0: unused)."""

_BITS = np.uint64(20)
_ONE = np.uint64(1)


@entry
def fill_pairs(pairs: Words, shift: Number, left: Ids, right: Ids, made: Ids) -> None:
    """Enter ``(left[k], right[k]) -> made[k]`` into an EMPTY table. Pairs are distinct."""
    mask = np.uint64(pairs.size - 1)
    for k in range(left.size):
        key = (np.uint64(left[k]) << _BITS) | np.uint64(right[k])
        at = pair_hash(key, shift)
        while pairs[at] != EMPTY:
            at = (at + _ONE) & mask
        pairs[at] = (key << _BITS) | np.uint64(made[k])


@entry
def derive(
    blob: Bytes,
    offsets: Places,
    byte_token: Ids,
    pairs: Words,
    shift: Number,
    result: Ids,
    last_rule: Places,
) -> None:
    """For each token the rule (in rank order) that its own BPE fires last.

    ``pairs`` maps pairs of tokens to rules, ``result`` rules to tokens. ``last_rule`` becomes -2
    for single bytes, and -1 for tokens whose BPE is not themselves.
    """
    table = address_of(pairs)
    longest = 1
    for t in range(last_rule.size):
        longest = max(longest, offsets[t + 1] - offsets[t])
    symbols = np.empty(longest, np.uint32)
    made = np.empty(longest, np.uint32)
    for t in range(last_rule.size):
        start = offsets[t]
        count = offsets[t + 1] - start
        last = -2
        for i in range(count):
            symbols[i] = byte_token[blob[start + i]]
        for i in range(count - 1):
            made[i] = find_pair(table, shift, symbols[i], symbols[i + 1])
        while True:
            best = NONE
            at = 0
            for i in range(count - 1):
                if made[i] < best:
                    best = made[i]
                    at = i
            if best == NONE:
                break
            last = signed(best)
            symbols[at] = result[best]
            count -= 1
            for i in range(at + 1, count):
                symbols[i] = symbols[i + 1]
                made[i - 1] = made[i]
            if at > 0:
                made[at - 1] = find_pair(table, shift, symbols[at - 1], symbols[at])
            if at + 1 < count:
                made[at] = find_pair(table, shift, symbols[at], symbols[at + 1])
        last_rule[t] = last if count == 1 else -1


@entry
def fill_words(
    words: Words, word_shift: Number, long_words: Words, blob: Bytes, offsets: Places, value: Words
) -> None:
    """Enter words by their bytes: short ones into ``words``, longer ones into ``long_words``.

    ``blob`` is padded by 16 bytes. Words are distinct; a word's index is its place in
    ``offsets``. Slots are as WORD_SLOT and LONG_SLOT say.
    """
    text = address_of(blob)
    mask = np.uint64(words.size // WORD_SLOT - 1)
    long_mask = np.uint64(long_words.size // LONG_SLOT - 1)
    for t in range(value.size):
        start = offsets[t]
        size = offsets[t + 1] - start
        if size <= SHORT:
            low, high = word_key(text, start, size)
            high |= np.uint64(size) << SIZE_SHIFT
            at = word_hash(low, high) >> word_shift
            while words[at * np.uint64(WORD_SLOT) + _ONE] != 0:
                at = (at + _ONE) & mask
            place = at * np.uint64(WORD_SLOT)
            words[place] = low
            words[place + _ONE] = high
            words[place + np.uint64(2)] = value[t]
        else:
            mixed = span_hash(text, start, size)
            at = mixed & long_mask
            while long_words[at * np.uint64(LONG_SLOT) + _ONE] != 0:
                at = (at + _ONE) & long_mask
            place = at * np.uint64(LONG_SLOT)
            long_words[place] = mixed
            long_words[place + _ONE] = np.uint64(t + 1)
