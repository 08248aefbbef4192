"""The last cut of a text that is one in every continuation, and the tokens left of it, for families
with cuts; why there is one is told in session/settled.py."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from toktier_stream.incremental.jit import Packed, kernel, pointer
from toktier_stream.incremental.rules import Longs, Symbols
from toktier_stream.tokenizer.cuts import find_cut
from toktier_stream.tokenizer.encoder import Compiled, FastEncoder
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.literals import grows_from
from toktier_stream.tokenizer.utf8 import character_start

WINDOW: Final = 512
"""Bytes at the end of a text that are looked at, besides the reach of added tokens."""


class Settling:
    """Looks for such cuts. Immutable, safe for threads; for tokenizers that look for added tokens
    in the text as it comes."""

    def __init__(self, compiled: Compiled) -> None:
        literals, m = compiled.added.any, compiled.matcher
        kinds = np.zeros(0, dtype=np.uint8)
        if compiled.normalizer is not None:
            kinds = compiled.normalizer.kinds
        numbers = np.array((int(literals.shift), literals.reach), dtype=np.int64)
        added = np.zeros(int(literals.final.max(initial=0)) + 1, dtype=np.bool_)
        added[literals.final[literals.final >= 0]] = True
        self._packed = Packed(
            (m.class_of, np.uint8), (m.one_sided, np.bool_), (kinds, np.uint8),
            (literals.first, np.bool_), (literals.edges, np.uint64), (literals.final, np.int64),
            (numbers, np.int64), (added, np.bool_),
        )  # fmt: skip

    @property
    def plan(self) -> Longs:
        """For :func:`count_settled`."""
        return self._packed.plan

    def tokens(self, text: bytes, ids: Ids, lengths: Ids, *, whole: bool) -> int:
        """How many of these tokens stay in every continuation, as far as the end of ``text`` tells;
        -1 where it tells nothing. They are all tokens of ``text``, of which the first may cover
        more, and whose first character may be cut off; ``whole``: nothing stands left of it."""
        data = np.frombuffer(text, dtype=np.uint8)
        return int(count_settled(data, ids, lengths, whole, self.plan))

    def last(self, text: bytes, low: int) -> tuple[int, int]:
        """The cut at ``low`` or behind it, -1 if there is none; and the first place where an added
        token may begin that ends behind the text (its size: nowhere)."""
        # A copy that can be written: numba takes such arrays much faster.
        data = np.frombuffer(bytearray(text), dtype=np.uint8)
        cut, limit = _last(data, low, self._packed.plan)
        return cut, limit


_settlings: WeakKeyDictionary[FastEncoder, Settling | None] = WeakKeyDictionary()


def settling_of(encoder: FastEncoder) -> Settling | None:
    """Made when first asked for; None where added tokens are looked for in normalized text."""
    try:
        return _settlings[encoder]
    except KeyError:
        compiled = encoder.compiled
        wide = compiled.normalizer is not None and compiled.added.normalized.reach > 0
        return _settlings.setdefault(encoder, None if wide else Settling(compiled))


@kernel
def count_settled(text: Symbols, ids: Ids, lengths: Ids, whole: bool, plan: Longs) -> Any:
    """See :meth:`Settling.tokens`; ``plan`` is the :class:`Settling`'s."""
    numbers = carray(pointer(plan[6, 0]), (plan[6, 1],), np.int64)
    added = carray(pointer(plan[7, 0]), (plan[7, 1],), np.bool_)
    reach = numbers[1]
    start = max(0, len(text) - WINDOW - 2 * reach)
    at_start = whole and start == 0
    while start < len(text) and text[start] & 0xC0 == 0x80:
        start += 1
    cut, limit = _last(text[start:], 1 if at_start else reach, plan)
    if limit == 0:
        return -1
    stop = start + max(cut, 0)
    place: Any = len(text)
    i = len(ids)
    # Back to the cut, or to the end of an added token that is decided.
    while i > 0 and place > stop:
        i -= 1
        place -= np.int64(lengths[i])
        if place < start + limit and ids[i] < len(added) and added[ids[i]]:
            return i + 1
    if cut < 0 or place != stop:
        return -1
    # Tokens without bytes at the cut belong to the character on its right.
    while i > 0 and lengths[i - 1] == 0:
        i -= 1
    return i


@kernel
def _last(text: Symbols, low: int, plan: Longs) -> Any:
    class_of = carray(pointer(plan[0, 0]), (plan[0, 1],), np.uint8)
    boundary = carray(pointer(plan[1, 0]), (plan[1, 1], plan[1, 2]), np.bool_)
    kinds = carray(pointer(plan[2, 0]), (plan[2, 1],), np.uint8)
    first = carray(pointer(plan[3, 0]), (plan[3, 1],), np.bool_)
    edges = carray(pointer(plan[4, 0]), (plan[4, 1],), np.uint64)
    final = carray(pointer(plan[5, 0]), (plan[5, 1],), np.int64)
    numbers = carray(pointer(plan[6, 0]), (plan[6, 1],), np.int64)
    shift, reach = np.uint64(numbers[0]), numbers[1]
    size = len(text)
    limit = grows_from(text, size - reach + 1, first, edges, shift, final)
    high = limit - 1
    if len(kinds):
        # A whole character behind the right one, which could compose with what follows.
        last = character_start(text, size - 1)
        high = min(high, character_start(text, last - 1) if last > 0 else 0)
    cut = find_cut(
        text, low, high, -1, class_of, boundary, kinds, reach, False, first, edges, shift, final
    )
    return cut, limit
