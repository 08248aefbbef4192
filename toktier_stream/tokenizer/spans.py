"""Where a piece may be cut: between characters that no canonical token holds side by side.

If no token holds x and y next to each other, no merge ever crosses between them, so
BPE(left ∥ right) = BPE(left) ∥ BPE(right). Tokens may hold parts of characters at their edges.
Those are rare and blocked wholesale: a character to whose right some token ends inside the next
one is never cut behind, and so on. The set is kept as hashed bits: a collision forbids a cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.bpe import ANY_CHARACTER, SPAN_BITS, span_bit


def _size(lead: int) -> int:
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def span_bits(tokens: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """The bits that :func:`bpe.may_cut` reads: 2**SPAN_BITS hashed ones for adjacent characters,
    then 2**16 for (last byte, first byte) where a token holds parts of both characters only."""
    pairs: set[tuple[int, int]] = set()
    broken: set[int] = set()
    any_character = int(ANY_CHARACTER)
    for token in tokens:
        for at in range(1, len(token)):
            if token[at] & 0xC0 == 0x80:
                continue
            start = at - 1
            while start > 0 and token[start] & 0xC0 == 0x80:
                start -= 1
            left_whole = token[start] & 0xC0 != 0x80
            end = at + _size(token[at])
            right_whole = end <= len(token)
            left = int.from_bytes(token[start:at], "big")
            right = int.from_bytes(token[at:end], "big")
            if left_whole or right_whole:
                pairs.add(
                    (left if left_whole else any_character, right if right_whole else any_character)
                )
            else:
                broken.add(token[at - 1] << 8 | token[at])
    bits = np.zeros((1 << SPAN_BITS) + (1 << 16), dtype=np.uint8)
    if pairs:
        sides = np.array(sorted(pairs), dtype=np.uint64)
        bits[span_bit(sides[:, 0], sides[:, 1])] = 1
    bits[(1 << SPAN_BITS) + np.array(sorted(broken), dtype=np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint64)
