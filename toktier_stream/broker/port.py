"""The narrow port through which pipeline, clients and tests speak to a broker.

Contract (one test suite holds both backends to it):

* A topic has a fixed number of partitions; records of one partition are totally ordered, and
  offsets grow (gaps are allowed: transaction markers take offsets on Kafka).
* A key always meets the same partition: murmur2 as Kafka's default partitioner has it.
* ``Transaction.publish`` makes all its records and the commit visible together, or none of them.
  A second transaction object with the same id fences the first: its next publish raises
  ``ToktierError(PRODUCER_FENCED)``.
* Consumers and readers see committed records only.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as consumed. ``timestamp_ms`` is milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class OutRecord:
    """A record to publish. ``partition`` None: chosen from the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
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


RebalanceCallback = Callable[[frozenset[int]], None]
"""Called on the loop with the whole set of partitions; must return at once and never raise."""


class GroupConsumer(Protocol):
    """A member of a consumer group on one topic. Not safe for use by two tasks at once."""

    async def start(self) -> None:
        """Join the group. Raises ``BROKER_UNREACHABLE`` or ``TOPIC_MISSING``."""
        ...

    async def poll(
        self, timeout: float, max_records: int
    ) -> Mapping[int, Sequence[Record]]:
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
        """Commit outside a transaction (``at_least_once``)."""
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
        """Fence older holders of the id and abort what they left open."""
        ...

    async def publish(
        self, records: Sequence[OutRecord], group: str, topic: str, partition: int, position: Committed
    ) -> list[tuple[int, int]]:
        """Publish ``records`` and commit ``position`` of ``topic``/``partition`` for ``group`` as
        one transaction. Returns (partition, offset) of each record, in order. Raises
        ``PRODUCER_FENCED`` if fenced; on any other error nothing was made visible and the
        object may be used again after ``start``."""
        ...

    async def stop(self) -> None: ...


class Publisher(Protocol):
    """An idempotent publisher without transactions."""

    async def start(self) -> None: ...

    async def send(self, record: OutRecord) -> Awaitable[tuple[int, int]]:
        """Queue a record (waits while the buffer is full). Await the result for
        (partition, offset) once it is acknowledged."""
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
    ) -> GroupConsumer:
        """A new member of ``group``. Newly assigned partitions start paused: whoever restored
        their state seeks and resumes them."""
        ...

    def transaction(self, transactional_id: str) -> Transaction: ...

    def publisher(self, *, linger_ms: int = 0) -> Publisher: ...

    def reader(self, topic: str) -> Reader: ...


async def read_to_end(
    reader: Reader, partition: int, start: int, deadline: float
) -> AsyncIterator[Record]:
    """Records of one partition from ``start`` to the end it had when called.

    Ends when the position reaches that end, or when nothing came for a while: the position can
    stay one short of the end when the log closes with a transaction marker. ``deadline`` is in
    seconds; past it a ``TimeoutError`` is raised.
    """
    limit = time.monotonic() + deadline
    await reader.start({partition: start})
    end = await reader.end(partition)
    idle = 0
    while reader.position(partition) < end and idle < 3:
        if time.monotonic() > limit:
            raise TimeoutError(f"partition {partition}: {reader.position(partition)} of {end}")
        records = await reader.poll(0.2, 1000)
        idle = 0 if records else idle + 1
        for record in records:
            yield record
