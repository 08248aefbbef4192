"""Which events of a partition are answered: a low-water offset and ranges above it.

A revision that travels in parts keeps the low-water mark at its first part while events behind it
are answered. After a restart the worker reads again from the mark and must not answer those twice,
so the committed offset carries the answered ranges above it as the commit's metadata: ``v1:`` and,
in base64, pairs of variable-length integers (gap, length) from the mark on: 2.7 bytes a range.
Kafka keeps up to 4096 bytes of metadata: :attr:`AnsweredOffsets.crowded` tells the caller to give
up the oldest open revision before that.
"""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right

from toktier_stream.broker.port import Committed

_PREFIX = "v1:"
_CROWDED_BYTES = 3072
_FEW_RANGES = 128  # that many fit whatever their size


class AnsweredOffsets:
    """The set of answered offsets of one partition, as sorted disjoint ranges above a mark."""

    def __init__(self, committed: Committed | None) -> None:
        """Start from what the group committed. Raises ValueError on foreign metadata."""
        self._mark = committed.offset if committed else 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        text = committed.metadata if committed else ""
        if text:
            if not text.startswith(_PREFIX):
                raise ValueError("the committed offset carries metadata of another application")
            numbers = _numbers(base64.b64decode(text[len(_PREFIX) :], validate=True))
            position = self._mark
            for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
                position += gap
                self._starts.append(position)
                position += length
                self._ends.append(position)

    def __contains__(self, offset: int) -> bool:
        if offset < self._mark:
            return True
        if not self._ends or offset >= self._ends[-1]:
            return False
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, offset: int) -> None:
        """Mark one offset as answered."""
        if self._ends and self._ends[-1] == offset >= self._mark:
            self._ends[-1] = offset + 1  # in their order, as most are
        else:
            self.add_range(offset, offset + 1)

    def add_range(self, start: int, end: int) -> None:
        """Mark ``[start, end)`` as answered; offsets that the log does not hold count as such."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        if end > self._mark and start < end:
            self._starts[first:last] = [start]
            self._ends[first:last] = [end]

    def position(self, next_offset: int, oldest_open: int | None) -> Committed:
        """What to commit once everything read so far, below ``next_offset``, is answered except
        the open parts from ``oldest_open`` on. Offsets that the log skips (transaction markers)
        below the mark count as answered."""
        mark = next_offset if oldest_open is None else min(oldest_open, next_offset)
        self._mark = max(self._mark, mark)
        while self._ends and self._ends[0] <= self._mark:
            del self._starts[0], self._ends[0]
        if self._starts and self._starts[0] < self._mark:
            self._starts[0] = self._mark
        return Committed(self._mark, self._encode())

    @property
    def crowded(self) -> bool:
        """Whether the metadata nears its limit, so that the mark must move."""
        return len(self._starts) > _FEW_RANGES and len(self._encode()) > _CROWDED_BYTES

    def _encode(self) -> str:
        if not self._starts:
            return ""
        out, position = bytearray(), self._mark
        for start, end in zip(self._starts, self._ends, strict=True):
            _put(out, start - position)
            _put(out, end - start)
            position = end
        return _PREFIX + base64.b64encode(out).decode()


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(0x80 | number & 0x7F)
        number >>= 7
    out.append(number)


def _numbers(data: bytes) -> list[int]:
    numbers, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    return numbers
