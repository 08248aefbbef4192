"""The narrow port through which pipeline, clients and tests speak to a broker.

Contract (one test suite holds both backends to it):

* A topic has a fixed number of partitions; records of one partition are totally ordered, and
  offsets grow (gaps are allowed: transaction markers take offsets on Kafka).
* A key always meets the same partition: murmur2 as Kafka's default partitioner has it.
* ``Transaction.publish`` makes all its records and the commit visible together, or none of them.
  A second transaction object with the same id fences the first: its next publish raises
  ``ToktierError(PRODUCER_FENCED)``.
* Consumers and readers see committed records only. Before the first commit, and where the
  position is out of range, they start with the oldest record.
* A record too large for its topic raises ``ToktierError(EVENT_TOO_LARGE)``, an object used before
  ``start`` or after ``stop`` ``ToktierError(CLIENT_CLOSED)``; a ``poll`` that ``stop`` interrupts
  raises it too.
* Every call can be cancelled. What a cancelled ``publish`` or ``send`` has done is not known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from toktier_stream.values import value

Headers = tuple[tuple[str, bytes], ...]


@value
class Record:
    """A record as consumed. ``timestamp_ms`` is milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@value
class OutRecord:
    """A record to publish. ``partition`` None: chosen from the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


@value
class Committed:
    """A group's position in a partition: the next offset to read, and what the committer noted."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that must exist. ``max_record_bytes`` is checked against the topic's limit."""

    name: str
    partitions: int
    compacted: bool = False
    max_record_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Copies:
    """What a member tells of state that it keeps beside a partition. ``count``: how many copies
    of each partition's state other members shall keep; ``warm``: the partitions it has state of."""

    count: int = 0
    warm: Callable[[], frozenset[int]] = frozenset


RebalanceCallback = Callable[[frozenset[int]], None]
"""Called on the loop with the whole set of partitions; must return at once and never raise.

Rebalancing is eager: each one revokes everything held, then assigns the new share (which may be
empty). Nothing is called for an empty set of revoked partitions, nor by ``stop``. The member may
call ``pause``, ``resume`` and ``seek`` from the callback of an assignment."""


class GroupConsumer(Protocol):
    """A member of a consumer group on one topic. Only one task may poll it.

    Partitions stay where they are as far as equal shares allow. Members that tell their
    :class:`Copies` get those that move where a copy of their state is.

    ``pause``, ``resume`` and ``seek`` of a partition that is not held now do nothing: a rebalance
    can always come first, so callers tag their work with the assignment it belongs to.
    """

    async def start(self) -> None:
        """Join the group and wait for the first assignment. Raises ``BROKER_UNREACHABLE`` or
        ``TOPIC_MISSING``."""
        ...

    @property
    def standby(self) -> frozenset[int]:
        """The partitions of other members whose state this one shall keep a copy of, as of the
        latest assignment. Set before ``on_assigned`` is called."""
        ...

    async def poll(self, timeout: float, max_records: int) -> Mapping[int, Sequence[Record]]:
        """Records by partition, at most ``max_records`` per partition; empty after ``timeout``
        seconds. Paused partitions deliver nothing but must be polled on."""
        ...

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int) -> None: ...

    def seek(self, partition: int, offset: int) -> None:
        """The next record of this partition is the first at or after ``offset``."""
        ...

    async def committed(self, partition: int) -> Committed | None:
        """What the group committed last, read from the broker; None if never."""
        ...

    async def commit(self, partition: int, position: Committed) -> None:
        """Commit outside a transaction (``at_least_once``). Raises ``PARTITION_LOST`` when the
        partition is not, or no longer, this member's."""
        ...

    async def lag(self, partition: int) -> int:
        """Records between this member's position and the end, as far as known."""
        ...

    async def stop(self) -> None:
        """Leave the group."""
        ...


class Transaction(Protocol):
    """A transactional publisher, one per input partition."""

    async def start(self) -> None:
        """Fence older holders of the id, abort what they left open, and wait until what they
        committed is visible: a position read after this is the last one of theirs."""
        ...

    async def publish(
        self,
        records: Sequence[OutRecord],
        group: str,
        topic: str,
        partition: int,
        position: Committed | None,
    ) -> list[tuple[int, int]]:
        """Publish ``records`` and commit ``position`` of ``topic``/``partition`` for ``group`` as
        one transaction (None: no position, only the records). Returns (partition, offset) of each
        record, in order; all of it shows together, soon after this has returned.

        Raises ``PRODUCER_FENCED`` if fenced. After ``BROKER_UNREACHABLE`` or a cancellation it is
        not known whether the transaction took effect; after any other error it did not. The
        object may be used again after ``start``, once the committed position has been read."""
        ...

    async def stop(self) -> None: ...


class Publisher(Protocol):
    """An idempotent publisher without transactions."""

    async def start(self) -> None: ...

    async def send(self, record: OutRecord) -> Awaitable[tuple[int, int]]:
        """Queue a record (waits while the buffer is full). Await the result for
        (partition, offset) once it is acknowledged."""
        ...

    async def publish(self, records: Sequence[OutRecord]) -> list[tuple[int, int]]:
        """Publish records and wait until all are acknowledged; returns (partition, offset) of
        each, in order. Records of one partition keep their order. After an error or a
        cancellation some of them may be there, of each partition a leading part."""
        ...

    async def flush(self) -> None: ...

    async def stop(self) -> None: ...


class Reader(Protocol):
    """Reads one topic's partitions from given offsets, without a group."""

    async def start(self, positions: Mapping[int, int]) -> None: ...

    async def poll(self, timeout: float, max_records: int) -> Sequence[Record]: ...

    def position(self, partition: int) -> int:
        """The next offset to read."""
        ...

    async def end(self, partition: int) -> int:
        """The end offset (last stable), now."""
        ...

    def drained(self, partition: int, end: int) -> bool:
        """Whether the broker has told that no record stands between the position and ``end``.

        So a reader knows that it is done where the position cannot reach the end: transaction
        markers and compacted records take offsets too. True only of something polled."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class Broker(Protocol):
    """A connection to a cluster."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def ensure_topics(self, topics: Sequence[TopicSpec], *, create: bool) -> None:
        """Check (and with ``create`` make) topics. Raises ``TOPIC_MISSING``, ``TOPIC_LIMIT``."""
        ...

    async def partitions(self, topic: str) -> int:
        """Number of partitions. Raises ``TOPIC_MISSING``."""
        ...

    def group_consumer(
        self,
        topic: str,
        group: str,
        *,
        on_assigned: RebalanceCallback,
        on_revoked: RebalanceCallback,
        instance_id: str = "",
        copies: Copies | None = None,
    ) -> GroupConsumer:
        """A new member of ``group``; either all members tell their ``copies`` or none. Newly
        assigned partitions start paused: whoever restored their state seeks and resumes them."""
        ...

    def transaction(self, transactional_id: str) -> Transaction: ...

    def publisher(self, *, linger_ms: int = 0) -> Publisher: ...

    def reader(self, topic: str) -> Reader: ...


async def read_to_end(
    reader: Reader, partition: int, start: int, deadline: float
) -> AsyncIterator[Record]:
    """Records of one partition from ``start`` to the end it had when called.

    Starts the reader; stopping it is the caller's job. Ends when the position reaches that end,
    or when the broker has told that nothing stands before it (see :meth:`Reader.drained`): a
    slow broker is waited for. ``deadline`` is in seconds; past it a ``TimeoutError`` is raised.
    """
    limit = time.monotonic() + deadline
    async with asyncio.timeout(deadline):
        await reader.start({partition: start})
        end = await reader.end(partition)
    while reader.position(partition) < end and not reader.drained(partition, end):
        left = limit - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"partition {partition}: {reader.position(partition)} of {end}")
        for record in await reader.poll(min(left, 1.0), 1000):
            if record.offset >= end:
                return
            yield record
