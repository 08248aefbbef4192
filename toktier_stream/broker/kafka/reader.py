"""Reads partitions of a Kafka topic from given offsets, without a group."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from toktier_stream.broker.kafka.admin import KafkaAdmin
from toktier_stream.broker.kafka.closing import close_consumer
from toktier_stream.broker.kafka.consumer import to_record
from toktier_stream.broker.kafka.failures import translated, within
from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.broker.port import Record
from toktier_stream.errors import Code, ToktierError

_FIRST_WAIT_S: Final = 0.005
_LONGEST_WAIT_S: Final = 0.16


class KafkaReader:
    """A reader; see :class:`toktier_stream.broker.port.Reader`."""

    def __init__(self, options: KafkaOptions, admin: KafkaAdmin, topic: str) -> None:
        self._options = options
        self._admin = admin
        self._topic = topic
        self._consumer: Any = None
        self._positions: dict[int, int] = {}
        self._drained_to: int | None = None
        self._behind = False  # aiokafka's positions may be beyond ours

    async def start(self, positions: Mapping[int, int]) -> None:
        if self._consumer is not None:
            raise ToktierError(Code.CLIENT_CLOSED, f"reader of {self._topic} started twice")
        count = await self._admin.partitions(self._topic)
        for partition in positions:
            if not 0 <= partition < count:
                raise ToktierError(
                    Code.TOPIC_MISSING, f"{self._topic} has {count} partitions, not {partition}"
                )
        consumer = AIOKafkaConsumer(**self._options.consumer_arguments())
        consumer.assign([self._tp(partition) for partition in positions])
        self._positions = dict(positions)
        started = False
        try:
            async with within(self._options.connect_timeout_s, f"reader of {self._topic}"):
                await consumer.start()
            for partition, offset in positions.items():
                consumer.seek(self._tp(partition), offset)
            started = True
        finally:
            if not started:
                await close_consumer(consumer, self._options.stop_timeout_s)
        self._consumer = consumer

    async def poll(self, timeout: float, max_records: int) -> Sequence[Record]:
        """Empty after ``timeout`` seconds, or at once when only markers were passed."""
        await asyncio.sleep(0)  # a poll that finds records must let others run as well
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        if self._behind:
            # Markers behind the last records are told at once, too.
            self._behind = False
            if await self._note_positions():
                until = loop.time()
        wait = _FIRST_WAIT_S
        answered_before, self._drained_to = self._answered_ms(), None
        while True:
            # aiokafka does not return when it has fetched markers alone, so it is asked again
            # after short waits; records end a wait at once.
            left = until - loop.time()
            found = await self._getmany(min(wait, max(0.0, left)), max_records)
            if found:
                # Who waits for records need not wait for what stands behind them.
                self._positions.update((record.partition, record.offset + 1) for record in found)
                self._behind = True
                return found
            moved = await self._note_positions()
            if not moved and left <= 0:
                return await self._last_look(answered_before, max_records)
            if moved:
                return []
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def position(self, partition: int) -> int:
        return self._positions[partition]

    async def end(self, partition: int) -> int:
        consumer = self._require_open()
        tp = self._tp(partition)
        async with within(self._options.connect_timeout_s, f"end of {self._topic}/{partition}"):
            # Read-committed, so this is the last stable offset.
            return int((await consumer.end_offsets([tp]))[tp])

    def drained(self, partition: int, end: int) -> bool:
        return self._drained_to is not None and self._drained_to >= end

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer, self._options.stop_timeout_s)

    def _require_open(self) -> Any:
        if self._consumer is None:
            raise ToktierError(Code.CLIENT_CLOSED, f"reader of {self._topic}")
        return self._consumer

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    async def _getmany(self, timeout_s: float, max_records: int) -> list[Record]:
        consumer = self._require_open()
        with translated(f"reader of {self._topic}"):
            got = await consumer.getmany(
                timeout_ms=math.ceil(timeout_s * 1000), max_records=max_records
            )
        self._require_open()
        return [to_record(message) for messages in got.values() for message in messages]

    async def _note_positions(self) -> bool:
        """Take over aiokafka's positions, which have passed markers; whether any has changed."""
        before = dict(self._positions)
        for partition in before:
            try:
                # It waits only while an offset that was out of range is looked up anew.
                async with asyncio.timeout(0):
                    position = await self._consumer.position(self._tp(partition))
                self._positions[partition] = position
            except TimeoutError:
                continue
        return before != self._positions

    def _answered_ms(self) -> int | None:
        """When the broker last answered a fetch; None if never, or if it would tell nothing: of
        several partitions a fetch leaves out those that exceed its size."""
        if len(self._positions) != 1:
            return None
        (partition,) = self._positions
        answered: int | None = self._require_open().last_poll_timestamp(self._tp(partition))
        return answered

    async def _last_look(self, answered_before: int | None, max_records: int) -> list[Record]:
        """At the end of an empty poll: learn whether the broker has nothing more.

        aiokafka passes markers by itself. What it cannot pass is a tail that compaction has
        emptied; there only the broker's own answer helps: a fetch of this partition, answered
        during this poll, that brought no record and whose last stable offset lies at the end.
        """
        answered = self._answered_ms()
        # What that answer brought was stored in the same step, so it is found here.
        found = await self._getmany(0, max_records)
        moved = await self._note_positions()
        if not found and not moved and answered is not None and answered != answered_before:
            (partition,) = self._positions
            self._drained_to = self._consumer.last_stable_offset(self._tp(partition))
        return found
