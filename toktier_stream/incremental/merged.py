"""The rules of a byte-level model as the exact engine keeps them (tokenizer/merges.py).

The engine keeps one rule for each canonical token, its last, in rank order: all that a result can
depend on. So every-prefix BPE can be built from a loaded encoder, without the tokenizer's file.
"""

from __future__ import annotations

import numpy as np

from toktier_stream.incremental.rules import Rules
from toktier_stream.tokenizer.bpe import EMPTY, SYMBOL_BITS
from toktier_stream.tokenizer.merges import NOT_CANONICAL, MergeTables

_SYMBOL = np.uint64((1 << SYMBOL_BITS) - 1)
_BITS = np.uint64(SYMBOL_BITS)
_FLAG = np.uint64(NOT_CANONICAL)
_ID = np.uint64(0xFFFFFFFF)


def from_tables(merges: MergeTables) -> Rules:
    """Rows are the engine's symbols, then the words that only a whole piece can be."""
    slots = merges.pairs[merges.pairs != EMPTY]
    slots = slots[np.argsort(slots & _SYMBOL)]
    made = (slots & _SYMBOL).astype(np.int32)
    right = (slots >> _BITS & _SYMBOL).astype(np.int32)
    left = (slots >> _BITS >> _BITS).astype(np.int32)

    sizes = (merges.emit >> np.uint64(32)).astype(np.int64)
    spelled = [bytes((b,)) if b < 256 else b"" for b in range(len(sizes))]
    # Sides are shorter than what they make; their rank need not be lower.
    for i in np.argsort(sizes[made], kind="stable").tolist():
        spelled[made[i]] = spelled[left[i]] + spelled[right[i]]
    ids = (merges.emit & _ID).astype(np.uint32).tolist()
    for word, token in _whole_words(merges):
        spelled.append(word)
        ids.append(token)
    starts = np.zeros(len(spelled) + 1, dtype=np.int64)
    np.cumsum([len(word) for word in spelled], out=starts[1:])
    return Rules(
        bytewise=True,
        ignore_merges=merges.separate,
        points=np.arange(256, dtype=np.int32),
        atoms=np.where(sizes[:256] == 1, np.arange(256), -1).astype(np.int32),
        ids=np.array(ids, dtype=np.uint32),
        spelling=np.frombuffer(b"".join(spelled), dtype=np.uint8).astype(np.int32),
        starts=starts,
        lefts=left,
        rights=right,
        products=made,
    )


def _whole_words(merges: MergeTables) -> list[tuple[bytes, int]]:
    if not merges.separate:
        return []
    short = merges.words.reshape(-1, 3)
    short = short[(short[:, 1] != 0) & (short[:, 2] & _FLAG != 0)]
    found = []
    for low, high, value in short.tolist():
        text = low.to_bytes(8, "little") + high.to_bytes(8, "little")[:7]
        found.append((text[: high >> 56], value & 0xFFFFFFFF))
    blob = merges.blob.tobytes()
    for place, size, value in merges.long_index.tolist():
        if value & NOT_CANONICAL:
            found.append((blob[place : place + size], value & 0xFFFFFFFF))
    return found
