"""The state of the embedded broker: topics, consumer groups and transactional ids, in memory.

One event loop owns a cluster. Nothing here awaits, so every change is atomic: a transaction's
records and its offset appear in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from toktier_stream.broker.log import PartitionLog, payload_of
from toktier_stream.broker.partitioner import partition_of
from toktier_stream.broker.port import Committed, Copies, OutRecord, TopicSpec
from toktier_stream.broker.shares import share_out, stand_by
from toktier_stream.errors import Code, ToktierError

DEFAULT_MAX_RECORD_BYTES: Final = 1 << 20
"""Kafka's usual limit of one record, for topics that were created without one."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Settings of an embedded cluster.

    ``max_unconsumed_bytes``: a publisher waits while a partition holds more than this that some
    consumer group of its topic has not been given yet; 0: no bound. Transactions never wait.
    ``retention_bytes``: a partition that is not compacted drops its oldest records beyond this,
    once every group has consumed them; None: it keeps everything.
    ``transaction_markers``: a transaction takes one offset more in each partition, as on Kafka.
    """

    max_unconsumed_bytes: int = 0
    retention_bytes: int | None = 256 << 20
    transaction_markers: bool = True


class Member(Protocol):
    """A member of a group, as the cluster sees it."""

    @property
    def topic(self) -> str: ...

    @property
    def instance_id(self) -> str: ...

    @property
    def held(self) -> frozenset[int]: ...

    @property
    def copies(self) -> Copies: ...

    def position(self, partition: int) -> int: ...

    def revoke(self) -> None:
        """Give up everything held and say so to the owner."""
        ...

    def assign(self, partitions: frozenset[int], standby: frozenset[int]) -> None:
        """Take ``partitions``, all paused, note ``standby``, and say so to the owner."""
        ...

    def evict(self) -> None:
        """Another member has taken over the same instance id."""
        ...


class Topic:
    """A topic's logs, who listens to it, and who waits for room in it."""

    def __init__(self, spec: TopicSpec, options: LocalOptions) -> None:
        self.spec = spec
        self.max_record_bytes = spec.max_record_bytes or DEFAULT_MAX_RECORD_BYTES
        self.logs = [
            PartitionLog(
                spec.name,
                partition,
                compacted=spec.compacted,
                retention_bytes=options.retention_bytes,
            )
            for partition in range(spec.partitions)
        ]
        self.listeners: set[asyncio.Event] = set()
        self.waiting_for_room: set[asyncio.Event] = set()
        self._next_without_key = 0

    def place(self, record: OutRecord) -> int:
        """The partition of a record. Raises ``TOPIC_MISSING`` for one the topic has not, and
        ``EVENT_TOO_LARGE`` beyond the topic's limit."""
        if payload_of(record) > self.max_record_bytes:
            raise ToktierError(
                Code.EVENT_TOO_LARGE, f"{payload_of(record)} bytes for topic {self.spec.name}"
            )
        count = len(self.logs)
        if record.partition is not None:
            if not 0 <= record.partition < count:
                raise ToktierError(
                    Code.TOPIC_MISSING,
                    f"{self.spec.name} has {count} partitions, not number {record.partition}",
                )
            return record.partition
        if record.key is None:
            self._next_without_key = (self._next_without_key + 1) % count
            return self._next_without_key
        return partition_of(record.key, count)

    def wake_listeners(self) -> None:
        """Tell everyone who polls this topic that there is something new."""
        for event in self.listeners:
            event.set()

    def wake_publishers(self) -> None:
        """Tell those who wait for room that a group went on."""
        for event in self.waiting_for_room:
            event.set()


class Group:
    """A consumer group: members in the order they joined, and committed positions."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.committed: dict[tuple[str, int], Committed] = {}
        self.topics: set[str] = set()

    def position(self, topic: Topic, partition: int) -> int:
        """Up to where the group was given records of this partition."""
        name = topic.spec.name
        for member in self.members:
            if member.topic == name and partition in member.held:
                return member.position(partition)
        committed = self.committed.get((name, partition))
        return committed.offset if committed else topic.logs[partition].start


class LocalCluster:
    """An embedded cluster. Any number of :class:`LocalBroker` connections may share it."""

    def __init__(self, options: LocalOptions | None = None) -> None:
        self.options = options or LocalOptions()
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._epochs: dict[str, int] = {}

    def create(self, spec: TopicSpec) -> Topic:
        """Create a topic that does not exist yet."""
        if spec.partitions < 1:
            raise ToktierError(Code.CONFIG_INVALID, f"topic {spec.name} needs a partition")
        topic = self._topics[spec.name] = Topic(spec, self.options)
        return topic

    def find(self, name: str) -> Topic | None:
        """A topic, or None."""
        return self._topics.get(name)

    def topic(self, name: str) -> Topic:
        """A topic. Raises ``TOPIC_MISSING``."""
        topic = self._topics.get(name)
        if topic is None:
            raise ToktierError(Code.TOPIC_MISSING, name)
        return topic

    def group(self, name: str) -> Group:
        """A consumer group, made when first named."""
        return self._groups.setdefault(name, Group())

    def next_epoch(self, transactional_id: str) -> int:
        """Take over a transactional id: older epochs are fenced from now on."""
        self._epochs[transactional_id] = self.epoch(transactional_id) + 1
        return self._epochs[transactional_id]

    def epoch(self, transactional_id: str) -> int:
        """The newest epoch of a transactional id; 0: never used."""
        return self._epochs.get(transactional_id, 0)

    def append(self, records: Sequence[OutRecord], *, marked: bool) -> list[tuple[int, int]]:
        """Append all records or, when one is refused, none. Returns (partition, offset) of each.

        ``marked``: each partition written to takes one offset more, for the marker."""
        placed = [
            (topic, topic.place(record))
            for topic, record in ((self.topic(record.topic), record) for record in records)
        ]
        offsets = [
            (partition, topic.logs[partition].append(record))
            for (topic, partition), record in zip(placed, records, strict=True)
        ]
        for topic, partition in set(placed):
            if marked:
                topic.logs[partition].mark()
            topic.logs[partition].shrink(self._consumed(topic, partition))
        for topic in {topic for topic, _ in placed}:
            topic.wake_listeners()
        return offsets

    def unconsumed_bytes(self, topic: Topic, partition: int) -> int:
        """Bytes that the slowest group of this topic has not been given; 0 without groups."""
        return topic.logs[partition].bytes_from(self._consumed(topic, partition))

    def commit(self, group: str, topic: str, partition: int, position: Committed) -> None:
        """Note a group's position."""
        state = self.group(group)
        state.committed[topic, partition] = position
        state.topics.add(topic)
        self.topic(topic).wake_publishers()

    def join(self, group: str, member: Member) -> None:
        """Add a member and rebalance; a member with the same instance id is evicted."""
        state = self.group(group)
        for other in list(state.members):
            if member.instance_id and other.instance_id == member.instance_id:
                state.members.remove(other)
                other.revoke()
                other.evict()
        state.members.append(member)
        state.topics.add(member.topic)
        self._rebalance(state)

    def leave(self, group: str, member: Member) -> None:
        """Remove a member and rebalance the others."""
        state = self.group(group)
        if member in state.members:
            state.members.remove(member)
            self.topic(member.topic).wake_publishers()
            self._rebalance(state)

    def _consumed(self, topic: Topic, partition: int) -> int:
        groups = [group for group in self._groups.values() if topic.spec.name in group.topics]
        end = topic.logs[partition].end
        return min((group.position(topic, partition) for group in groups), default=end)

    def _rebalance(self, group: Group) -> None:
        # Eager, as aiokafka does it: everyone gives up everything, then gets a new share.
        shares: list[tuple[Member, frozenset[int], frozenset[int]]] = []
        for name in {member.topic for member in group.members}:
            members = [member for member in group.members if member.topic == name]
            warm = [m.copies.warm() for m in members]
            active = share_out([m.held for m in members], len(self.topic(name).logs), warm)
            standing = stand_by(active, max(m.copies.count for m in members), warm)
            shares += zip(members, active, standing, strict=True)
        for member, _, _ in shares:
            member.revoke()
        for member, partitions, standby in shares:
            member.assign(partitions, standby)
