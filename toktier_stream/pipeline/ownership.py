"""Who wrote a record of the changelog, and whose records count.

Delivery at least once has no transaction that would fence a worker that was thought dead and wakes
up. So whoever begins to own a partition first writes a *claim* into its changelog, under a key
that is never used again; the claim's offset is the owner's number, unique and growing. Every
record of the changelog carries its owner's number. Records of an older owner behind a newer claim
are *foreign*: nobody applies them. Claims are written through the partition's transactional id,
which fences, so a late claim of an older owner fails.

Compaction keeps claims, but of a key only the last record: a foreign one takes the place of the
owner's. Who restores may then know that the value is lost, never what it was. :class:`Lineage`
therefore keeps what the store has under such a key only as long as it has read every offset, so
that nothing can be missing; else the key is forgotten, and its session asks for a reset at its next
event. An owner that meets foreign records writes the keys again, which heals the changelog.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final

from toktier_stream.broker.port import Headers, OutRecord, Record

CLAIM: Final = b"O"
"""The first byte of a claim's key, beside those of session/batch.py."""

NOBODY: Final = -1
"""The owner of records from before there were claims."""

_HEADER: Final = "owner"
_STAMP: Final = struct.Struct("<qQ")
_SHADOWED_KEPT: Final = 20_000


class StaleStore(Exception):
    """The store has passed a claim without having seen it: it must not be continued."""


def claim_record(topic: str, partition: int) -> OutRecord:
    """The record that begins an ownership; its offset is the owner's number."""
    return OutRecord(topic, CLAIM + os.urandom(8), b"1", (), partition)


def stamped(records: Sequence[OutRecord], owner: int, answered: int) -> list[OutRecord]:
    """Records of the changelog with their owner, and with the input offset below which every
    event was answered before they were written (0: the input's committed position tells)."""
    headers: Headers = ((_HEADER, _STAMP.pack(owner, answered)),)
    return [OutRecord(r.topic, r.key, r.value, headers, r.partition) for r in records]


def read_stamp(record: Record) -> tuple[int, int]:
    """(owner, answered) of a record."""
    for name, value in record.headers:
        if name == _HEADER and value is not None and len(value) == _STAMP.size:
            owner, answered = _STAMP.unpack(value)
            return owner, answered
    return NOBODY, 0


class Lineage:
    """Decides, record by record, what of a changelog a store applies.

    ``owner`` and ``answered`` are what the store knows at its offset ``start``. Read the partition
    from there on and apply what :meth:`take` returns.
    """

    def __init__(self, start: int, owner: int, answered: int) -> None:
        self.owner = owner
        self.answered = answered
        self.foreign = 0
        self.shadowed: set[bytes] = set()
        """Keys whose last record is foreign, while the store has their right value."""
        self._start = start
        self._next = start
        self._complete = True
        self._after_claim = owner == start - 1

    def take(self, record: Record) -> tuple[bytes, bytes | None] | None:
        """What to apply of a record: key and value, or nothing. Raises :class:`StaleStore`."""
        # A claim is a transaction of one record, and its marker takes the next offset.
        skipped = record.offset - self._next
        if skipped > 0 and not (self._after_claim and skipped == 1):
            self._complete = False
        self._next = record.offset + 1
        self._after_claim = False
        key = record.key
        if key is None:
            return None
        if key.startswith(CLAIM):
            if record.value is not None:
                self.owner = max(self.owner, record.offset)
                self._after_claim = True
            return None
        owner, answered = read_stamp(record)
        if owner > self.owner:
            if owner < self._start:
                raise StaleStore(f"owner {owner} before {self._start}")
            self.owner = owner
        if owner < self.owner:
            return self._foreign(key)
        self.answered = max(self.answered, answered)
        self.shadowed.discard(key)
        return key, record.value

    def _foreign(self, key: bytes) -> tuple[bytes, None] | None:
        self.foreign += 1
        if not self._complete:
            return key, None
        if len(self.shadowed) < _SHADOWED_KEPT:
            self.shadowed.add(key)
        return None
