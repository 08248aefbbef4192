"""What one running encode writes into: the memo of frequent pieces, scratch, and output room.

A workspace belongs to one call at a time. Calls take one from the pool and put it back; two
threads never share one, and nothing is locked. After a fork the child has the workspaces that
were in the pool, whole, and makes others as it needs them.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.bpe import SCAN, word_hash
from toktier_stream.tokenizer.kernels import MEMO_SLOT
from toktier_stream.tokenizer.memory import large
from toktier_stream.tokenizer.merge_build import WORD_SLOT
from toktier_stream.tokenizer.merges import PADDING, top_bits
from toktier_stream.tokenizer.tables import MAX_REGISTERS

MEMO_BITS: Final = 16
"""Log2 of the slots of a memo: 2 MiB, about what a core's own caches hold."""
KEPT_BYTES: Final = 1 << 22
"""Text up to this size is encoded in room that stays; room for longer text is given back."""

_ID: Final = np.uint64(0xFFFFF)
_hashes: Final = cast(Any, word_hash).py_func


def places(*items: npt.NDArray[Any] | np.integer[Any] | int) -> npt.NDArray[np.uint64]:
    """Arrays as addresses, numbers as they are; somebody else keeps the arrays alive."""
    return np.array(
        [item.ctypes.data if isinstance(item, np.ndarray) else int(item) for item in items],
        dtype=np.uint64,
    )


class Room:
    """Arrays that grow with the text: its padded copy, piece starts, ids and lengths."""

    def __init__(self, size: int) -> None:
        """Room for ``size`` bytes of text."""
        self.size = size
        self.text = np.empty(size + PADDING, dtype=np.uint8)
        self.starts = np.empty(size + 4, dtype=np.int32)
        self.ids = np.empty(size, dtype=np.uint32)
        self.lengths = np.empty(size, dtype=np.uint32)
        self.places = places(self.ids, self.lengths, self.starts)
        """For :func:`kernels.encode_segments`."""
        self._view = self.text.data
        self._spare: npt.NDArray[np.uint8] | None = None

    @property
    def spare(self) -> npt.NDArray[np.uint8]:
        """For another text of this size, padded; made when first asked for."""
        if self._spare is None:
            self._spare = np.empty(self.size + PADDING, dtype=np.uint8)
        return self._spare

    def fill(self, text: bytes | memoryview) -> None:
        """Copy the text in. What stands behind it is never used."""
        self._view[: len(text)] = text


def first_memo(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """What a memo holds at first: short words that are one token, of those that share a slot the
    one of lowest id. Ids fall with frequency, so a first text meets most of its words here.

    ``words`` is :attr:`merges.MergeTables.words`.
    """
    slots = 1 << MEMO_BITS
    memo = np.zeros((slots, MEMO_SLOT), dtype=np.uint64)
    table = words.reshape(-1, WORD_SLOT)
    table = table[np.argsort(table[:, 2] & _ID, kind="stable")]
    table = table[table[:, 1] != 0]
    place = _hashes(table[:, 0], table[:, 1]) >> top_bits(slots)
    taken, which = np.unique(place, return_index=True)
    memo[taken, :2] = table[which, :2]
    memo[taken, 2] = np.uint64(1) | ((table[which, 2] & _ID) << np.uint64(3))
    return memo.reshape(-1)


class Workspace:
    """See the module. ``room(n)`` gives arrays for n bytes of text."""

    def __init__(self, memo: npt.NDArray[np.uint64]) -> None:
        """``memo``: what :func:`first_memo` gave."""
        slots = 1 << MEMO_BITS
        self.memo = large(8 * MEMO_SLOT * slots).view(np.uint64)
        self.memo[:] = memo
        self.memo_shift = top_bits(slots)
        self.symbols = np.zeros(SCAN, dtype=np.uint32)
        self.made = np.zeros(SCAN, dtype=np.uint32)
        self.registers = np.zeros(2 * MAX_REGISTERS, dtype=np.int64)
        self.places = places(self.memo, self.memo_shift, self.symbols, self.made, self.registers)
        """For :func:`kernels.encode_segments`."""
        self._kept = Room(1 << 12)

    def room(self, size: int) -> Room:
        """Room for ``size`` bytes, from what is kept where that is enough."""
        if size > KEPT_BYTES:
            return Room(size)
        if size > self._kept.size:
            self._kept = Room(1 << (size - 1).bit_length())
        return self._kept


class Pool:
    """Workspaces at rest."""

    def __init__(self, memo: npt.NDArray[np.uint64]) -> None:
        """``memo``: what each new one begins with."""
        self._memo = memo
        self._idle: deque[Workspace] = deque()

    def take(self) -> Workspace:
        """An idle workspace, or a new one. Never waits."""
        try:
            return self._idle.pop()
        except IndexError:
            return Workspace(self._memo)

    def give(self, workspace: Workspace) -> None:
        """Put a workspace back. (After an error it is dropped instead.)"""
        self._idle.append(workspace)
