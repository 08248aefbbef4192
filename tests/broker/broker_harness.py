"""What the contract tests share: unique names, recorded rebalances, and polling with a limit."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toktier_stream.broker.kafka import KafkaOptions
from toktier_stream.broker.port import (
    Broker,
    Committed,
    GroupConsumer,
    OutRecord,
    Publisher,
    Reader,
    Record,
    TopicSpec,
    Transaction,
    read_to_end,
)

WITHIN_S = 30.0
"""How long anything that must happen may take; far above what it takes."""

_numbers = itertools.count()


def kafka_options(bootstrap: str, **settings: Any) -> KafkaOptions:
    """Settings for a broker on loopback: rebalances are noticed soon, big records pass."""
    usual: dict[str, Any] = {"heartbeat_interval_ms": 100, "max_request_size": 8 << 20}
    return KafkaOptions(bootstrap_servers=bootstrap, **usual | settings)


class Message:
    """As much of aiokafka's record as a consumer or a reader looks at."""

    topic, partition, key, headers, timestamp = "t", 0, b"k", (), 0

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.value = b"%d" % offset


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


def unique(prefix: str) -> str:
    """A name no other test uses, so that one cluster serves them all."""
    return f"{prefix}-{next(_numbers)}-{uuid.uuid4().hex[:8]}"


@dataclass
class Member:
    """A group consumer with everything its callbacks were told."""

    consumer: GroupConsumer
    assigned: list[frozenset[int]] = field(default_factory=list)
    revoked: list[frozenset[int]] = field(default_factory=list)
    unread: list[Record] = field(default_factory=list)

    @property
    def held(self) -> frozenset[int]:
        return self.assigned[-1] if self.assigned else frozenset()

    async def collect(self, count: int, max_records: int = 1000) -> list[Record]:
        """Poll until ``count`` records came."""
        async with asyncio.timeout(WITHIN_S):
            while len(self.unread) < count:
                await self._poll(1.0, max_records)
        found, self.unread = self.unread, []
        return found

    async def _poll(self, timeout: float, max_records: int) -> None:
        for records in (await self.consumer.poll(timeout, max_records)).values():
            self.unread += records

    async def silent(self, seconds: float = 0.3) -> bool:
        """Whether nothing is delivered for a moment."""
        return not await self.consumer.poll(seconds, 1000)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll (as every member must) until the callbacks have made ``condition`` true."""
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                await self._poll(0.05, 1000)


class Bench:
    """One test's connection to a cluster, and all it opened there."""

    def __init__(self, connect: Callable[[], Broker]) -> None:
        self._connect = connect
        self._open: list[_Stoppable] = []
        self.broker: Broker

    async def start(self) -> None:
        self.broker = await self.another_broker()

    async def stop(self) -> None:
        for each in reversed(self._open):
            await each.stop()

    async def another_broker(self) -> Broker:
        broker = self._connect()
        await broker.start()
        self._open.append(broker)
        return broker

    async def topic(self, partitions: int = 1, **settings: int | bool) -> str:
        name = unique("topic")
        spec = TopicSpec(name, partitions, **settings)  # type: ignore[arg-type]
        await self.broker.ensure_topics([spec], create=True)
        return name

    async def publisher(self) -> Publisher:
        publisher = self.broker.publisher()
        await publisher.start()
        self._open.append(publisher)
        return publisher

    async def send(self, records: Sequence[OutRecord]) -> list[tuple[int, int]]:
        """Publish records in order and wait for all of them."""
        publisher = await self.publisher()
        waiting = [await publisher.send(record) for record in records]
        return [await each for each in waiting]

    async def transaction(self, transactional_id: str) -> Transaction:
        transaction = self.broker.transaction(transactional_id)
        await transaction.start()
        self._open.append(transaction)
        return transaction

    async def member(self, topic: str, group: str, *, resume: bool = True) -> Member:
        """A started member; with ``resume`` it takes up every partition it is given."""

        def on_assigned(partitions: frozenset[int]) -> None:
            member.assigned.append(partitions)
            if resume:
                for partition in partitions:
                    member.consumer.resume(partition)

        def on_revoked(partitions: frozenset[int]) -> None:
            member.revoked.append(partitions)

        consumer = self.broker.group_consumer(
            topic, group, on_assigned=on_assigned, on_revoked=on_revoked
        )
        member = Member(consumer)
        await consumer.start()
        self._open.append(consumer)
        return member

    async def reader(self, topic: str, positions: dict[int, int] | None = None) -> Reader:
        reader = self.broker.reader(topic)
        if positions is not None:
            await reader.start(positions)
        self._open.append(reader)
        return reader

    async def all_records(self, topic: str, partition: int = 0) -> list[Record]:
        """Everything readable in a partition now."""
        reader = await self.reader(topic)
        return [record async for record in read_to_end(reader, partition, 0, WITHIN_S)]

    async def committed(self, topic: str, group: str, partition: int = 0) -> Committed | None:
        """What a group has committed, asked by a member that is new to it."""
        member = await self.member(topic, group, resume=False)
        try:
            return await member.consumer.committed(partition)
        finally:
            await member.consumer.stop()

    async def expect(
        self, topic: str, wanted: Sequence[bytes | None], partition: int = 0
    ) -> list[Record]:
        """Wait until exactly these values are readable: a transaction shows soon after its
        publish has returned."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = await self.all_records(topic, partition)
                if len(found) >= len(wanted):
                    assert values(found) == list(wanted)
                    return found

    async def expect_committed(
        self, topic: str, group: str, wanted: Committed, partition: int = 0
    ) -> None:
        """Wait until a group's position is this one; it may be behind, never ahead."""
        member = await self.member(topic, group, resume=False)
        async with asyncio.timeout(WITHIN_S):
            while (found := await member.consumer.committed(partition)) != wanted:
                assert found is None or found.offset < wanted.offset
        await member.consumer.stop()


def values(records: Sequence[Record]) -> list[bytes | None]:
    """The values alone, in order."""
    return [record.value for record in records]


def committed_at(offset: int) -> Committed:
    """A position without a note."""
    return Committed(offset)


def incompressible(size: int) -> bytes:
    """Bytes that no codec makes smaller, the same in every run."""
    return random.Random(size).randbytes(size)


async def nothing_left_running() -> None:
    """Fail if anything that was stopped has left a task behind."""
    for _ in range(5):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
