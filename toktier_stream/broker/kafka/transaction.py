"""A transactional publisher on Kafka: one per input partition, fenced by its transactional id.

aiokafka cannot fence by consumer group, so the transactional id names the input partition and
whoever starts a producer under it ends all older ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.producer import sender
from aiokafka.structs import OffsetAndMetadata

from toktier_stream.broker.kafka.admin import KafkaAdmin
from toktier_stream.broker.kafka.ahead import BACKOFF_S, Ahead
from toktier_stream.broker.kafka.batches import Batches
from toktier_stream.broker.kafka.closing import close_producer
from toktier_stream.broker.kafka.failures import FAILURES, within
from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.broker.port import Committed, OutRecord
from toktier_stream.errors import Code, ToktierError

_GIVE_UP_S: Final = 1.0

_IDLE_S: Final = 5.0

sender.BACKOFF_OVERRIDE = BACKOFF_S


class KafkaTransaction:
    """See :class:`toktier_stream.broker.port.Transaction`. One publish at a time.

    After any failure the producer is given up: aiokafka's sequence numbers are then ahead of the
    broker's. ``start`` makes a new one.
    """

    def __init__(self, options: KafkaOptions, admin: KafkaAdmin, transactional_id: str) -> None:
        self._options = options
        self._admin = admin
        self._id = transactional_id
        self._producer: Any = None
        self._ahead: Ahead | None = None
        self._fenced = False
        self._giving_up: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.stop()
        producer = AIOKafkaProducer(
            **self._options.producer_arguments(),
            transactional_id=self._id,
            transaction_timeout_ms=self._options.transaction_timeout_ms,
        )
        started = False
        try:
            async with within(self._options.connect_timeout_s, f"transaction {self._id}"):
                await producer.start()
            started = True
        finally:
            if not started:
                await close_producer(producer, _GIVE_UP_S)
        self._producer = producer
        self._fenced = False

    async def publish(
        self,
        records: Sequence[OutRecord],
        group: str,
        topic: str,
        partition: int,
        position: Committed | None,
    ) -> list[tuple[int, int]]:
        if self._fenced:
            raise ToktierError(Code.PRODUCER_FENCED, self._id)
        producer = self._producer
        if producer is None:
            raise ToktierError(Code.CLIENT_CLOSED, f"transaction {self._id}")
        ahead = self._ahead
        if ahead is None:
            ahead = self._ahead = Ahead(producer, self._idle_s())
        # Everything that can be refused is refused before the transaction begins.
        batches = await Batches.of(records, producer, self._admin)
        ended = False
        committing = False
        try:
            async with (
                within(self._options.delivery_timeout_s, f"transaction {self._id}"),
                _explained(ahead),
            ):
                await ahead.opened(group if position is not None else "", batches.partitions)
                # A batch that failed must be seen before the commit: aiokafka would commit without
                # it. And the offsets wait for the batches: sent together, they now and then meet
                # in the broker (it asks the coordinator about both), and the batch is then tried
                # again only after a backoff.
                placed = await batches.deliver()
                if position is not None:
                    consumed = OffsetAndMetadata(position.offset, position.metadata)
                    await producer.send_offsets_to_transaction(
                        {TopicPartition(topic, partition): consumed}, group
                    )
                committing = True
                await producer.commit_transaction()
            ended = True
            if position is not None:
                # Not behind a claim or a healing: the changelog's reader must find its end there,
                # not before the marker of a transaction that was opened for nothing.
                ahead.begin()
        except ToktierError as error:
            self._fenced = error.code is Code.PRODUCER_FENCED
            raise
        finally:
            if not ended:
                self._give_up(producer, abort=not committing and not self._fenced)
        return placed

    def _idle_s(self) -> float:
        """So that a publish that takes all its time ends before the broker ends its transaction."""
        options = self._options
        return min(_IDLE_S, options.transaction_timeout_ms / 2000 - options.delivery_timeout_s / 2)

    async def stop(self) -> None:
        producer, self._producer = self._producer, None
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.stop(end=True)
        if producer is not None:
            await close_producer(producer, self._options.stop_timeout_s)
        if self._giving_up:
            await asyncio.wait(self._giving_up)

    def _give_up(self, producer: Any, *, abort: bool) -> None:
        # In a task of its own, since a cancelled publish must not wait; start and stop do.
        self._producer = None
        ahead, self._ahead = self._ahead, None
        task = asyncio.ensure_future(self._abort_and_close(producer, ahead, abort=abort))
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    async def _abort_and_close(self, producer: Any, ahead: Ahead | None, *, abort: bool) -> None:
        if ahead is not None:
            await ahead.stop()
        if abort:
            # So that readers do not wait for the next start, or for the transaction's timeout.
            try:
                async with asyncio.timeout(self._options.stop_timeout_s):
                    await producer.abort_transaction()
            except FAILURES:
                pass  # aiokafka asserts that a transaction can still be aborted
        await close_producer(producer, _GIVE_UP_S)


@asynccontextmanager
async def _explained(ahead: Ahead) -> AsyncIterator[None]:
    """What ended the transaction, in the place of what aiokafka then says of its state: a producer
    that was fenced between two steps must not look like a broker that is away."""
    try:
        yield
    except FAILURES as error:
        cause = ahead.failure()
        if cause is None or cause is error:
            raise
        raise cause from error
