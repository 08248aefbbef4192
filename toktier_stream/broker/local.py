"""The embedded broker: the port's objects over a :class:`LocalCluster`, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

from toktier_stream.broker.cluster import LocalCluster, Topic
from toktier_stream.broker.port import (
    Committed,
    Copies,
    OutRecord,
    RebalanceCallback,
    Record,
    TopicSpec,
)
from toktier_stream.errors import Code, ToktierError


class _Poller:
    """What group consumers and readers share: positions, and a poll that waits for an event."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._cluster = cluster
        self._name = topic
        self._wake = asyncio.Event()
        self._positions: dict[int, int] = {}
        self._open = False

    @property
    def topic(self) -> str:
        return self._name

    def _logs(self) -> Topic:
        return self._cluster.topic(self._name)

    def _listen(self) -> None:
        self._logs().listeners.add(self._wake)
        self._open = True

    def _unlisten(self) -> None:
        topic = self._cluster.find(self._name)
        if topic is not None:
            topic.listeners.discard(self._wake)
        self._open = False
        self._wake.set()

    def _require_open(self) -> None:
        if not self._open:
            raise ToktierError(Code.CLIENT_CLOSED, f"no consumer of {self._name}")

    def _take(self, partition: int, max_records: int) -> Sequence[Record]:
        log = self._logs().logs[partition]
        position = self._positions[partition]
        if not log.start <= position <= log.end:
            position = log.start  # what Kafka calls auto.offset.reset=earliest
        records = log.read(position, max_records)
        # Without a record to give, the position passes the markers that close the log.
        self._positions[partition] = records[-1].offset + 1 if records else log.end
        return records

    async def _wait(self, until: float) -> bool:
        """Wait for something new; False once the time is over."""
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True


class LocalGroupConsumer(_Poller):
    """A member of a group; see :class:`toktier_stream.broker.port.GroupConsumer`."""

    def __init__(
        self,
        cluster: LocalCluster,
        topic: str,
        group: str,
        on_assigned: RebalanceCallback,
        on_revoked: RebalanceCallback,
        instance_id: str,
        copies: Copies | None = None,
    ) -> None:
        super().__init__(cluster, topic)
        self._copies = copies or Copies()
        self._standby: frozenset[int] = frozenset()
        self._group = group
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._instance_id = instance_id
        self._paused: set[int] = set()

    @property
    def instance_id(self) -> str:
        return self._instance_id

    @property
    def held(self) -> frozenset[int]:
        """The partitions assigned to this member now."""
        return frozenset(self._positions)

    @property
    def copies(self) -> Copies:
        """What this member tells of its state."""
        return self._copies

    @property
    def standby(self) -> frozenset[int]:
        return self._standby

    async def start(self) -> None:
        self._listen()
        self._cluster.join(self._group, self)

    async def poll(self, timeout: float, max_records: int) -> Mapping[int, Sequence[Record]]:
        await asyncio.sleep(0)  # a poll that finds records must let others run as well
        until = asyncio.get_running_loop().time() + timeout
        while True:
            self._require_open()
            self._wake.clear()
            found: dict[int, Sequence[Record]] = {}
            for partition in self._positions.keys() - self._paused:
                records = self._take(partition, max_records)
                if records:
                    found[partition] = records
            if found:
                self._logs().wake_publishers()
            if found or not await self._wait(until):
                return found

    def pause(self, partition: int) -> None:
        if partition in self._positions:
            self._paused.add(partition)

    def resume(self, partition: int) -> None:
        self._paused.discard(partition)
        self._wake.set()

    def seek(self, partition: int, offset: int) -> None:
        if partition in self._positions:
            self._positions[partition] = offset
            self._logs().wake_publishers()
            self._wake.set()

    async def committed(self, partition: int) -> Committed | None:
        return self._cluster.group(self._group).committed.get((self._name, partition))

    async def commit(self, partition: int, position: Committed) -> None:
        if partition not in self._positions:
            raise ToktierError(Code.PARTITION_LOST, f"{self._name}/{partition}")
        self._cluster.commit(self._group, self._name, partition, position)

    async def lag(self, partition: int) -> int:
        position = self._positions.get(partition)
        return 0 if position is None else max(0, self._logs().logs[partition].end - position)

    async def stop(self) -> None:
        if self._open:
            self._unlisten()
            self._cluster.leave(self._group, self)
            self._positions.clear()
            self._paused.clear()

    # What the cluster calls.

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def revoke(self) -> None:
        held = self.held
        self._positions.clear()
        self._paused.clear()
        if held:
            self._on_revoked(held)

    def assign(self, partitions: frozenset[int], standby: frozenset[int]) -> None:
        group = self._cluster.group(self._group)
        self._positions = {p: group.position(self._logs(), p) for p in partitions}
        self._paused = set(partitions)
        self._standby = standby
        self._wake.set()
        self._on_assigned(partitions)

    def evict(self) -> None:
        self._unlisten()


class LocalReader(_Poller):
    """Reads without a group; see :class:`toktier_stream.broker.port.Reader`."""

    async def start(self, positions: Mapping[int, int]) -> None:
        count = len(self._logs().logs)
        for partition in positions:
            if not 0 <= partition < count:
                raise ToktierError(
                    Code.TOPIC_MISSING, f"{self._name} has {count} partitions, not {partition}"
                )
        self._positions = dict(positions)
        self._listen()

    async def poll(self, timeout: float, max_records: int) -> Sequence[Record]:
        await asyncio.sleep(0)  # a poll that finds records must let others run as well
        until = asyncio.get_running_loop().time() + timeout
        while True:
            self._require_open()
            self._wake.clear()
            found: list[Record] = []
            for partition in self._positions:
                if len(found) < max_records:
                    found += self._take(partition, max_records - len(found))
            if found or not await self._wait(until):
                return found

    def position(self, partition: int) -> int:
        return self._positions[partition]

    async def end(self, partition: int) -> int:
        return self._logs().logs[partition].end

    def drained(self, partition: int, end: int) -> bool:
        return not self._logs().logs[partition].read(self._positions[partition], 1)

    async def stop(self) -> None:
        self._unlisten()


class LocalTransaction:
    """A transactional publisher; see :class:`toktier_stream.broker.port.Transaction`."""

    def __init__(self, cluster: LocalCluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._epoch = 0

    async def start(self) -> None:
        self._epoch = self._cluster.next_epoch(self._id)

    async def publish(
        self,
        records: Sequence[OutRecord],
        group: str,
        topic: str,
        partition: int,
        position: Committed | None,
    ) -> list[tuple[int, int]]:
        await asyncio.sleep(0)
        if self._epoch == 0:
            raise ToktierError(Code.CLIENT_CLOSED, f"transaction {self._id}")
        if self._epoch != self._cluster.epoch(self._id):
            raise ToktierError(Code.PRODUCER_FENCED, self._id)
        placed = self._cluster.append(records, marked=self._cluster.options.transaction_markers)
        if position is not None:
            self._cluster.commit(group, topic, partition, position)
        return placed

    async def stop(self) -> None:
        self._epoch = 0


class LocalPublisher:
    """A plain publisher; see :class:`toktier_stream.broker.port.Publisher`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._wake = asyncio.Event()
        self._started = False

    async def start(self) -> None:
        self._started = True

    async def send(self, record: OutRecord) -> Awaitable[tuple[int, int]]:
        await asyncio.sleep(0)
        topic = self._cluster.topic(record.topic)
        partition = topic.place(record)
        bound = self._cluster.options.max_unconsumed_bytes
        while bound and self._cluster.unconsumed_bytes(topic, partition) > bound:
            self._require_open()
            topic.waiting_for_room.add(self._wake)
            self._wake.clear()
            await self._wake.wait()
        self._require_open()
        placed = OutRecord(record.topic, record.key, record.value, record.headers, partition)
        acknowledged: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(self._cluster.append([placed], marked=False)[0])
        return acknowledged

    async def publish(self, records: Sequence[OutRecord]) -> list[tuple[int, int]]:
        await asyncio.sleep(0)
        self._require_open()
        return self._cluster.append(records, marked=False)

    async def flush(self) -> None:
        self._require_open()

    async def stop(self) -> None:
        self._started = False
        self._wake.set()

    def _require_open(self) -> None:
        if not self._started:
            raise ToktierError(Code.CLIENT_CLOSED, "publisher")


class LocalBroker:
    """A connection to a :class:`LocalCluster`; see :class:`toktier_stream.broker.port.Broker`."""

    def __init__(self, cluster: LocalCluster | None = None) -> None:
        self.cluster = cluster or LocalCluster()

    async def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing to disconnect from: the cluster lives as long as somebody holds it."""

    async def ensure_topics(self, topics: Sequence[TopicSpec], *, create: bool) -> None:
        for spec in topics:
            topic = self.cluster.find(spec.name)
            if topic is None:
                if not create:
                    raise ToktierError(Code.TOPIC_MISSING, spec.name)
                topic = self.cluster.create(spec)
            if len(topic.logs) != spec.partitions:
                raise ToktierError(
                    Code.TOPIC_MISSING,
                    f"{spec.name} has {len(topic.logs)} partitions, not {spec.partitions}",
                )
            if topic.max_record_bytes < spec.max_record_bytes:
                raise ToktierError(
                    Code.TOPIC_LIMIT,
                    f"{spec.name} admits {topic.max_record_bytes} bytes, not"
                    f" {spec.max_record_bytes}",
                )
            if spec.compacted and not topic.spec.compacted:
                raise ToktierError(Code.CONFIG_INVALID, f"topic {spec.name} is not compacted")

    async def partitions(self, topic: str) -> int:
        return len(self.cluster.topic(topic).logs)

    def group_consumer(
        self,
        topic: str,
        group: str,
        *,
        on_assigned: RebalanceCallback,
        on_revoked: RebalanceCallback,
        instance_id: str = "",
        copies: Copies | None = None,
    ) -> LocalGroupConsumer:
        return LocalGroupConsumer(
            self.cluster, topic, group, on_assigned, on_revoked, instance_id, copies
        )

    def transaction(self, transactional_id: str) -> LocalTransaction:
        return LocalTransaction(self.cluster, transactional_id)

    def publisher(self, *, linger_ms: int = 0) -> LocalPublisher:
        return LocalPublisher(self.cluster)

    def reader(self, topic: str) -> LocalReader:
        return LocalReader(self.cluster, topic)
