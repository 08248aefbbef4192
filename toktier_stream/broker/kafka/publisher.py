"""An idempotent publisher on Kafka, without transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer

from toktier_stream.broker.kafka.admin import KafkaAdmin
from toktier_stream.broker.kafka.batches import Batches
from toktier_stream.broker.kafka.closing import close_producer
from toktier_stream.broker.kafka.failures import known_offset, translated, within
from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.broker.port import OutRecord
from toktier_stream.errors import Code, ToktierError


class _Acknowledgement(Awaitable[tuple[int, int]]):
    """(partition, offset) of a record, once the broker has it."""

    __slots__ = ("_future", "_topic")

    def __init__(self, topic: str, future: asyncio.Future[Any]) -> None:
        self._topic = topic
        self._future = future

    def __await__(self) -> Generator[Any, None, tuple[int, int]]:
        with translated(f"record for {self._topic}"):
            metadata = yield from self._future.__await__()
        return metadata.partition, known_offset(metadata)


class KafkaPublisher:
    """See :class:`toktier_stream.broker.port.Publisher`.

    A record that the broker refuses spoils its producer, whose sequence numbers are then ahead of
    the broker's: what is queued behind it in the same partition fails too, and the next ``send``
    goes through a new producer.
    """

    def __init__(self, options: KafkaOptions, admin: KafkaAdmin, linger_ms: int) -> None:
        self._options = options
        self._admin = admin
        self._linger_ms = linger_ms or options.linger_ms
        self._producer: Any = None
        self._started = False
        self._spoiled = False
        self._renewing = asyncio.Lock()

    async def start(self) -> None:
        if not self._started:
            self._producer = await self._new_producer()
            self._started = True

    async def send(self, record: OutRecord) -> Awaitable[tuple[int, int]]:
        partition = await self._admin.place(record)
        if self._spoiled:
            await self._renew()
        producer = self._require_open()
        with translated(f"record for {record.topic}"):
            future = await producer.send(
                record.topic,
                record.value,
                record.key,
                partition=partition,
                headers=list(record.headers),
            )
        future.add_done_callback(self._note)
        return _Acknowledgement(record.topic, future)

    async def publish(self, records: Sequence[OutRecord]) -> list[tuple[int, int]]:
        if self._spoiled:
            await self._renew()
        batches = await Batches.of(records, self._require_open(), self._admin)
        delivered = False
        try:
            async with within(self._options.delivery_timeout_s, "records"):
                placed = await batches.deliver()
            delivered = True
        finally:
            self._spoiled = self._spoiled or not delivered
        return placed

    async def flush(self) -> None:
        producer = self._require_open()
        with translated("flush"):
            await producer.flush()

    async def stop(self) -> None:
        self._started = False
        producer, self._producer = self._producer, None
        if producer is not None:
            await close_producer(producer, self._options.stop_timeout_s)

    def _require_open(self) -> Any:
        if not self._started:
            raise ToktierError(Code.CLIENT_CLOSED, "publisher")
        return self._producer

    def _note(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self._spoiled = True

    async def _renew(self) -> None:
        async with self._renewing:
            if self._spoiled and self._started:
                await close_producer(self._producer, self._options.stop_timeout_s)
                self._producer = await self._new_producer()
                self._spoiled = False

    async def _new_producer(self) -> Any:
        producer = AIOKafkaProducer(**self._options.producer_arguments(), linger_ms=self._linger_ms)
        started = False
        try:
            async with within(self._options.connect_timeout_s, "publisher"):
                await producer.start()
            started = True
        finally:
            if not started:
                await close_producer(producer, self._options.stop_timeout_s)
        return producer
