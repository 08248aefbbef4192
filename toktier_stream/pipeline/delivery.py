"""How one partition's answers, changelog and position leave the worker: exactly or at least once.

Order of a life: :meth:`Delivery.start` (nobody else's transaction is open any more, so the
committed position is final), :meth:`Delivery.claim` (from here on changelog records of older owners
are foreign), restore, :meth:`Delivery.begin`, then :meth:`Delivery.publish` for each batch.

*Exactly once*: one Kafka transaction for everything. *At least once*: answers, then changelog, then
position, each acknowledged before the next. A crash in between leaves events that were answered and
are read again. Their answers are repeats that can be told: the same revision and source offset,
and either status DUPLICATE or the same ids. The changelog records say up to where the input was
answered before they were written, so that a replay knows which events those are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from toktier_stream.broker.port import (
    Broker,
    Committed,
    GroupConsumer,
    OutRecord,
    Publisher,
    Transaction,
)
from toktier_stream.config import Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.ownership import claim_record, stamped

Placed = list[tuple[int, int]]


class Delivery(Protocol):
    """See the module. Made anew for each life of a partition."""

    async def start(self) -> None:
        """Fence. Raises ``BROKER_UNREACHABLE``."""
        ...

    async def claim(self, committed: Committed | None) -> int:
        """Begin to own the changelog; returns the owner's number. ``committed`` is the position
        read since :meth:`start`. Raises ``PARTITION_LOST`` or ``PRODUCER_FENCED``."""
        ...

    def begin(self, end: int) -> None:
        """The changelog is applied up to the offset ``end``."""
        ...

    async def publish(
        self,
        answers: Sequence[OutRecord],
        changes: Sequence[OutRecord],
        position: Committed | None,
        answered: int,
    ) -> Placed:
        """Publish a batch and commit its position, if any; returns (partition, offset) of the
        answers, then of the changes. ``answered``: every event below is answered with this
        batch, except those that ``position`` leaves open. After an error the life is over, and
        the batch must not be stored."""
        ...

    async def stop(self) -> None: ...


def delivery_of(
    settings: Settings, broker: Broker, consumer: GroupConsumer, partition: int
) -> Delivery:
    """The delivery that the settings ask for."""
    if settings.delivery == "at_least_once":
        return AtLeastOnce(settings, broker, consumer, partition)
    return ExactlyOnce(settings, broker, partition)


def _transaction(settings: Settings, broker: Broker, partition: int) -> Transaction:
    # aiokafka cannot fence by consumer group, so this id is the fence: one per input partition.
    return broker.transaction(f"{settings.group}-{settings.topic_appends}-{partition}")


class ExactlyOnce:
    """One transaction for each batch."""

    def __init__(self, settings: Settings, broker: Broker, partition: int) -> None:
        self._s = settings
        self._partition = partition
        self._transaction = _transaction(settings, broker, partition)
        self._owner = -1

    async def start(self) -> None:
        await self._transaction.start()

    async def claim(self, committed: Committed | None) -> int:
        self._owner = await _claim(self._transaction, self._s, self._partition)
        return self._owner

    def begin(self, end: int) -> None:
        """Nothing to prepare: the transactional id fences."""

    async def publish(
        self,
        answers: Sequence[OutRecord],
        changes: Sequence[OutRecord],
        position: Committed | None,
        answered: int,
    ) -> Placed:
        # The position that is committed with them says what is answered.
        records = [*answers, *stamped(changes, self._owner, 0)]
        return await self._transaction.publish(
            records, self._s.group, self._s.topic_appends, self._partition, position
        )

    async def stop(self) -> None:
        await self._transaction.stop()


class AtLeastOnce:
    """Acknowledged step by step, without transactions. What fences here: an owner that was replaced
    cannot commit its position, finds foreign records between its own, and its own are foreign to
    everybody else."""

    def __init__(
        self, settings: Settings, broker: Broker, consumer: GroupConsumer, partition: int
    ) -> None:
        self._s = settings
        self._partition = partition
        self._consumer = consumer
        self._transaction = _transaction(settings, broker, partition)
        self._publisher: Publisher = broker.publisher()
        self._owner = -1
        self._next = -1  # where the next record of the changelog must come to stand

    async def start(self) -> None:
        # Workers may have been exactly_once before: this ends a transaction they left open.
        await self._transaction.start()
        await self._publisher.start()

    async def claim(self, committed: Committed | None) -> int:
        if committed is not None:
            # Only a member that holds the partition can do this: a worker that was stopped and
            # wakes up must not claim what belongs to another one.
            await self._consumer.commit(self._partition, committed)
        self._owner = await _claim(self._transaction, self._s, self._partition)
        await self._transaction.stop()
        return self._owner

    def begin(self, end: int) -> None:
        self._next = end

    async def publish(
        self,
        answers: Sequence[OutRecord],
        changes: Sequence[OutRecord],
        position: Committed | None,
        answered: int,
    ) -> Placed:
        placed = await self._publisher.publish(answers) if answers else []
        # Only now: whoever finds these records knows that their events are answered.
        if changes:
            written = await self._publisher.publish(stamped(changes, self._owner, answered))
            self._expect(written)
            placed = [*placed, *written]
        if position is not None:
            await self._consumer.commit(self._partition, position)
        return placed

    def _expect(self, written: Placed) -> None:
        """Without transactions a single writer's offsets have no gaps."""
        for _, offset in written:
            if offset != self._next:
                raise ToktierError(
                    Code.PRODUCER_FENCED,
                    f"partition {self._partition}: another worker wrote to its changelog",
                )
            self._next += 1

    async def stop(self) -> None:
        await self._publisher.stop()
        await self._transaction.stop()


async def _claim(transaction: Transaction, s: Settings, partition: int) -> int:
    record = claim_record(s.topic_sessions, partition)
    placed = await transaction.publish([record], s.group, s.topic_appends, partition, None)
    return placed[0][1]
