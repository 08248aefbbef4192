"""A member of a consumer group on Kafka."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import OffsetAndMetadata

from toktier_stream.broker.kafka.admin import KafkaAdmin
from toktier_stream.broker.kafka.assignor import StatefulAssignor
from toktier_stream.broker.kafka.closing import close_consumer
from toktier_stream.broker.kafka.failures import translated, within
from toktier_stream.broker.kafka.options import KafkaOptions
from toktier_stream.broker.port import Committed, Copies, RebalanceCallback, Record
from toktier_stream.errors import Code, ToktierError

# A cancelled getmany leaves aiokafka's count of callers too high, which switches its
# max.poll.interval off for good. So it is off from the start: who is alive is told by heartbeats,
# and who makes no progress by the worker's own watchdog.
_NO_POLL_INTERVAL_MS: Final = 2**31 - 1

_PLACEMENT_S: Final = 1.0


def to_record(message: Any) -> Record:
    """A record of this system from aiokafka's."""
    return Record(
        message.topic,
        message.partition,
        message.offset,
        message.key,
        message.value,
        message.headers,
        message.timestamp,
    )


class KafkaGroupConsumer:
    """A member of a group; see :class:`toktier_stream.broker.port.GroupConsumer`.

    With an instance id (static membership) ``stop`` does not leave the group: the partitions wait
    for the same instance until the session times out, as Kafka has it.
    """

    def __init__(
        self,
        options: KafkaOptions,
        admin: KafkaAdmin,
        topic: str,
        group: str,
        on_assigned: RebalanceCallback,
        on_revoked: RebalanceCallback,
        instance_id: str,
        copies: Copies | None = None,
    ) -> None:
        self._options = options
        self._admin = admin
        self._topic = topic
        self._group = group
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._instance_id = instance_id
        # Assignors keep their memory in their class; members of one process must not share it.
        self._assignor: Any = (
            type("MemberAssignor", (StickyPartitionAssignor,), {"member_assignment": None})
            if copies is None
            else type("MemberAssignor", (StatefulAssignor,), {"copies": copies})
        )
        self._consumer: Any = None
        self._joined = asyncio.Event()
        self._callback_failed = False
        self._held: frozenset[int] = frozenset()
        self._epoch = 0
        self._paused: set[int] = set()
        self._unplaced: set[int] = set()  # no position yet: neither sought nor looked up
        self._fetched: dict[int, list[Record]] = {}  # taken from aiokafka and not delivered yet
        self._waiting: asyncio.Timeout | None = None  # for records, in a poll

    async def start(self) -> None:
        if self._consumer is not None:
            raise ToktierError(Code.CLIENT_CLOSED, f"consumer of {self._topic} started twice")
        await self._admin.partitions(self._topic)
        consumer = AIOKafkaConsumer(
            **self._options.consumer_arguments(),
            group_id=self._group,
            group_instance_id=self._instance_id or None,
            partition_assignment_strategy=(self._assignor,),
            session_timeout_ms=self._options.session_timeout_ms,
            heartbeat_interval_ms=self._options.heartbeat_interval_ms,
            rebalance_timeout_ms=self._options.rebalance_timeout_ms,
            max_poll_interval_ms=_NO_POLL_INTERVAL_MS,
        )
        consumer.subscribe([self._topic], listener=_Listener(self))
        self._consumer = consumer
        # Members that died hold a join up until their session has timed out.
        limit = self._options.rebalance_timeout_ms / 1000 + self._options.connect_timeout_s
        started = False
        try:
            async with within(limit, f"group {self._group}"):
                await consumer.start()
                # aiokafka returns before it calls back.
                await self._joined.wait()
            self._require_open()
            started = True
        finally:
            if not started:
                await self.stop()

    @property
    def standby(self) -> frozenset[int]:
        found: frozenset[int] = getattr(self._assignor, "standby", frozenset())
        return found

    async def poll(self, timeout: float, max_records: int) -> Mapping[int, Sequence[Record]]:
        await asyncio.sleep(0)  # a poll that finds records must let others run as well
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            consumer = self._require_open()
            await self._place(consumer, until)
            found = await self._take(consumer, max_records)
            left = until - loop.time()
            if found or left <= 0:
                return found
            await self._fetch(consumer, left, max_records)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                await asyncio.sleep(0)  # ends here: what was taken comes with the next poll
            # What has just come is handed on at once; the next poll asks for all the others.
            if self._consumer is consumer and (found := self._given(max_records)):
                return found

    def pause(self, partition: int) -> None:
        if partition in self._held:
            self._paused.add(partition)
            self._consumer.pause(self._tp(partition))

    def resume(self, partition: int) -> None:
        if partition in self._held:
            self._paused.discard(partition)
            if partition not in self._unplaced:
                self._consumer.resume(self._tp(partition))
            self._interrupt()

    def seek(self, partition: int, offset: int) -> None:
        if partition in self._held:
            self._fetched.pop(partition, None)
            self._consumer.seek(self._tp(partition), offset)
            self._unplaced.discard(partition)
            if partition not in self._paused:
                self._consumer.resume(self._tp(partition))
            self._interrupt()

    async def committed(self, partition: int) -> Committed | None:
        self._require_open()
        return await self._admin.committed(self._group, self._topic, partition)

    async def commit(self, partition: int, position: Committed) -> None:
        consumer = self._require_open()
        if partition not in self._held:
            raise ToktierError(Code.PARTITION_LOST, f"{self._topic}/{partition}")
        async with within(self._options.delivery_timeout_s, f"commit of {self._topic}/{partition}"):
            await consumer.commit(
                {self._tp(partition): OffsetAndMetadata(position.offset, position.metadata)}
            )

    async def lag(self, partition: int) -> int:
        consumer = self._require_open()
        if partition not in self._held:
            return 0
        tp = self._tp(partition)
        async with within(self._options.connect_timeout_s, f"lag of {self._topic}/{partition}"):
            end: int = (await consumer.end_offsets([tp]))[tp]
            if partition not in self._held:
                return 0
            waiting = self._fetched.get(partition)
            position: int = waiting[0].offset if waiting else await consumer.position(tp)
        return max(0, end - position)

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._held = frozenset()
        self._interrupt()
        if consumer is not None:
            await close_consumer(consumer, self._options.stop_timeout_s)

    # What the listener calls, on the loop and between two awaits of aiokafka.

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget everything about the partitions held so far and tell the owner."""
        self._epoch += 1
        self._held = frozenset()
        self._paused.clear()
        self._unplaced.clear()
        self._fetched.clear()
        self._interrupt()
        held = frozenset(tp.partition for tp in partitions)
        if held and self._consumer is not None:
            self._call(self._on_revoked, held)

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Hold ``partitions``, all paused, and tell the owner."""
        if self._consumer is None:
            return
        tps = list(partitions)
        self._consumer.pause(*tps)
        self._epoch += 1
        self._held = frozenset(tp.partition for tp in tps)
        self._paused = set(self._held)
        self._unplaced = set(self._held)
        self._interrupt()
        self._joined.set()
        self._call(self._on_assigned, self._held)

    def _call(self, callback: RebalanceCallback, partitions: frozenset[int]) -> None:
        # aiokafka swallows what a callback raises; the next poll must not go on as if it had not.
        self._callback_failed = True
        callback(partitions)
        self._callback_failed = False

    def _require_open(self) -> Any:
        if self._consumer is None:
            raise ToktierError(Code.CLIENT_CLOSED, f"consumer of {self._topic}")
        if self._callback_failed:
            raise RuntimeError("a rebalance callback raised; aiokafka has logged what")
        return self._consumer

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def _interrupt(self) -> None:
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def _place(self, consumer: Any, until: float) -> None:
        """Give resumed partitions that nobody sought the position that the group committed.

        aiokafka would do it, but takes a coordinator that just moved for "never committed"."""
        for partition in sorted(self._unplaced - self._paused):
            epoch = self._epoch
            limit = max(until, asyncio.get_running_loop().time() + _PLACEMENT_S)
            try:
                async with asyncio.timeout_at(limit):
                    committed = await self.committed(partition)
            except TimeoutError:
                return  # the next poll tries again
            except ToktierError as error:
                if error.code is Code.BROKER_UNREACHABLE:
                    return
                raise
            if self._epoch == epoch and partition in self._unplaced:
                self._unplaced.discard(partition)
                if committed is not None:
                    consumer.seek(self._tp(partition), committed.offset)
                if partition not in self._paused:
                    consumer.resume(self._tp(partition))

    async def _take(self, consumer: Any, max_records: int) -> dict[int, Sequence[Record]]:
        """What is there already, of each partition on its own. Never suspends.

        Partitions that are paused are not asked for: aiokafka would drop what it has of them."""
        for partition in self._held - self._paused - self._unplaced - self._fetched.keys():
            self._keep(await self._getmany(consumer, [self._tp(partition)], 0, max_records))
        return self._given(max_records)

    def _given(self, max_records: int) -> dict[int, Sequence[Record]]:
        """What was taken from aiokafka, so many of each partition at most."""
        found: dict[int, Sequence[Record]] = {}
        for partition in self._fetched.keys() - self._paused - self._unplaced:
            waiting = self._fetched.pop(partition)
            found[partition] = waiting[:max_records]
            if len(waiting) > max_records:
                self._fetched[partition] = waiting[max_records:]
        return found

    async def _fetch(self, consumer: Any, seconds: float, max_records: int) -> None:
        """Wait until records come, something changes, or the time is over."""
        active = [self._tp(p) for p in self._held - self._paused - self._unplaced]
        # With nothing to wait for the call still tells when the group is in trouble.
        wanted = active or [self._tp(-1)]
        with suppress(TimeoutError):
            try:
                # During a rebalance getmany waits beyond its timeout. Where it is cut short, what
                # has come stays with aiokafka.
                async with asyncio.timeout(seconds) as self._waiting:
                    timeout_ms = math.ceil(seconds * 1000)
                    self._keep(await self._getmany(consumer, wanted, timeout_ms, max_records))
            finally:
                self._waiting = None

    async def _getmany(
        self, consumer: Any, tps: Sequence[TopicPartition], timeout_ms: int, max_records: int
    ) -> Mapping[TopicPartition, Sequence[Any]]:
        with translated(f"consumer of {self._topic}"):
            got: Mapping[TopicPartition, Sequence[Any]] = await consumer.getmany(
                *tps, timeout_ms=timeout_ms, max_records=max_records
            )
            return got

    def _keep(self, got: Mapping[TopicPartition, Sequence[Any]]) -> None:
        for tp, messages in got.items():
            if tp.partition in self._held:
                self._fetched.setdefault(tp.partition, []).extend(map(to_record, messages))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: KafkaGroupConsumer) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._member.revoked(revoked)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._member.assigned(assigned)
