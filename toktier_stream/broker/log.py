"""One partition's log in memory: ordered records, offsets with gaps, a bounded size."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from toktier_stream.broker.port import OutRecord, Record

RECORD_OVERHEAD_BYTES = 64
"""What a record costs beside key, value and headers, so that empty records count as well."""

_COMPACT_SLACK_BYTES = 1 << 20


def payload_of(record: OutRecord | Record) -> int:
    """Bytes of key, value and headers: what a topic's limit is about."""
    return (
        len(record.key or b"")
        + len(record.value or b"")
        + sum(len(name) + len(value) for name, value in record.headers)
    )


def size_of(record: OutRecord | Record) -> int:
    """Bytes a record counts for in the bounds of memory."""
    return RECORD_OVERHEAD_BYTES + payload_of(record)


class PartitionLog:
    """Records in order. ``start`` is the oldest offset that may still be there, ``end`` the next.

    A compacted log keeps the last record of each key; any other drops its oldest records when
    it holds more than ``retention_bytes`` (None: never) and the caller allows it.
    """

    def __init__(
        self, topic: str, partition: int, *, compacted: bool, retention_bytes: int | None
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._compacted = compacted
        self._retention_bytes = retention_bytes
        self._records: list[Record] = []
        self._offsets: list[int] = []
        self._totals: list[int] = []  # bytes ever appended, up to and with this record
        self._appended_bytes = 0
        self._dropped_bytes = 0
        self._live: dict[bytes | None, int] = {}  # compacted only: bytes of each key's last record
        self._live_bytes = 0
        self._compacted_to = 0
        self.start = 0
        self.end = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def held_bytes(self) -> int:
        """Bytes of the records held now."""
        return self._appended_bytes - self._dropped_bytes

    def append(self, out: OutRecord) -> int:
        """Append a record and return its offset."""
        offset = self.end
        size = size_of(out)
        self._records.append(
            Record(
                self._topic,
                self._partition,
                offset,
                out.key,
                out.value,
                out.headers,
                time.time_ns() // 1_000_000,
            )
        )
        self._offsets.append(offset)
        self._appended_bytes += size
        self._totals.append(self._appended_bytes)
        self.end = offset + 1
        if self._compacted:
            self._live_bytes += size - self._live.get(out.key, 0)
            self._live[out.key] = size
        return offset

    def mark(self) -> None:
        """Take one offset for a transaction marker, which no reader sees."""
        self.end += 1

    def read(self, offset: int, max_records: int) -> Sequence[Record]:
        """At most ``max_records`` records at or after ``offset``."""
        index = bisect_left(self._offsets, offset)
        return self._records[index : index + max_records]

    def bytes_from(self, offset: int) -> int:
        """Bytes of the records at or after ``offset``."""
        index = bisect_left(self._offsets, offset)
        if index == len(self._offsets):
            return 0
        return self._appended_bytes - self._totals[index] + size_of(self._records[index])

    def shrink(self, consumed: int) -> None:
        """Drop what the bound asks for: records before ``consumed``, or superseded ones.

        Work is done only when half of what is held can go, so appends pay O(1) on average.
        """
        if self._compacted:
            if self.held_bytes > 2 * self._live_bytes + _COMPACT_SLACK_BYTES:
                self._compact()
        elif self._retention_bytes is not None and self.held_bytes > 2 * self._retention_bytes:
            excess = self._dropped_bytes + self.held_bytes - self._retention_bytes
            oldest = bisect_left(self._totals, excess) + 1
            count = min(oldest, bisect_left(self._offsets, consumed))
            if count:
                self._dropped_bytes = self._totals[count - 1]
                self.start = self._offsets[count - 1] + 1
                del self._records[:count], self._offsets[:count], self._totals[:count]

    def _compact(self) -> None:
        last = {record.key: record.offset for record in self._records}
        # A tombstone survives one compaction, so that a reader that saw the value sees it too.
        kept = [
            record
            for record in self._records
            if last[record.key] == record.offset
            and (record.value is not None or record.offset >= self._compacted_to)
        ]
        self._compacted_to = self.end
        self._records = kept
        self._offsets = [record.offset for record in kept]
        self._live = {record.key: size_of(record) for record in kept}
        self._live_bytes = sum(self._live.values())
        self._totals, total = [], 0
        for record in kept:
            total += size_of(record)
            self._totals.append(total)
        self._appended_bytes, self._dropped_bytes = total, 0
