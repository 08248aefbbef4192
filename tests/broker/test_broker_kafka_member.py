"""What a Kafka group member keeps, delivers and forgets, with aiokafka replaced by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from broker_harness import Message, values

from toktier_stream.broker.kafka import KafkaOptions
from toktier_stream.broker.kafka.admin import KafkaAdmin
from toktier_stream.broker.kafka.consumer import KafkaGroupConsumer
from toktier_stream.broker.port import Committed
from toktier_stream.errors import Code, ToktierError

ZERO = TopicPartition("t", 0)


class FakeConsumer:
    """Hands out what ``arrive`` was given, to a waiting call at once; notes what it was told."""

    def __init__(self) -> None:
        self.buffer: list[Message] = []
        self.told: list[tuple[Any, ...]] = []
        self.before_return = lambda: None
        self._arrived = asyncio.Event()

    def arrive(self, *offsets: int) -> None:
        self.buffer += map(Message, offsets)
        self._arrived.set()

    async def getmany(
        self, *tps: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, Sequence[Message]]:
        if timeout_ms and not self.buffer:
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), timeout_ms / 1000)
        if ZERO not in tps or not self.buffer:
            return {}
        taken, self.buffer = self.buffer[:max_records], self.buffer[max_records:]
        self.before_return()
        return {ZERO: taken}

    def pause(self, *tps: TopicPartition) -> None:
        self.told.append(("pause", *tps))

    def resume(self, *tps: TopicPartition) -> None:
        self.told.append(("resume", *tps))

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.told.append(("seek", offset))
        self.buffer.clear()


class FakeAdmin(KafkaAdmin):
    """Answers the committed position from a list; exceptions are raised."""

    def __init__(self, *answers: Committed | Exception | None) -> None:
        super().__init__(KafkaOptions())
        self.answers = list(answers)

    async def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def member_of(
    consumer: FakeConsumer, *committed: Committed | Exception | None
) -> KafkaGroupConsumer:
    """A member that was just assigned partition 0."""
    member = KafkaGroupConsumer(
        KafkaOptions(), FakeAdmin(*committed), "t", "g", lambda _: None, lambda _: None, ""
    )
    member._consumer = consumer
    member.assigned([ZERO])
    return member


async def cancelled_with_records(
    member: KafkaGroupConsumer, consumer: FakeConsumer, *offsets: int
) -> None:
    """Cancel a waiting poll in the very moment in which records reach it."""
    poll = asyncio.create_task(member.poll(10.0, 10))
    for _ in range(5):
        await asyncio.sleep(0)
    consumer.before_return = poll.cancel
    consumer.arrive(*offsets)
    with pytest.raises(asyncio.CancelledError):
        await poll
    consumer.before_return = lambda: None
    assert not consumer.buffer


async def test_what_a_cancelled_poll_has_taken_comes_with_the_next() -> None:
    """Records are lost neither by the cancellation nor by a pause after it."""
    consumer = FakeConsumer()
    member = member_of(consumer, None)
    member.resume(0)
    await cancelled_with_records(member, consumer, 0, 1, 2)
    member.pause(0)
    assert await member.poll(0, 10) == {}
    member.resume(0)
    assert values((await member.poll(0, 2))[0]) == [b"0", b"1"]
    assert values((await member.poll(0, 2))[0]) == [b"2"]
    consumer.arrive(3)
    assert values((await member.poll(0, 2))[0]) == [b"3"]


async def test_a_seek_forgets_what_was_taken_before() -> None:
    """Records from before the seek never follow it."""
    consumer = FakeConsumer()
    member = member_of(consumer, None)
    member.resume(0)
    await cancelled_with_records(member, consumer, 0, 1, 2)
    member.seek(0, 7)
    assert ("seek", 7) in consumer.told
    consumer.arrive(7)
    assert values((await member.poll(0, 10))[0]) == [b"7"]


async def test_a_rebalance_forgets_what_was_taken_before() -> None:
    """A partition that comes back starts from its commit, paused, and with nothing old."""
    consumer = FakeConsumer()
    member = member_of(consumer, None, Committed(1))
    member.resume(0)
    await cancelled_with_records(member, consumer, 0, 1, 2)
    member.revoked([ZERO])
    member.assigned([ZERO])
    assert await member.poll(0, 10) == {}
    member.resume(0)
    assert await member.poll(0, 10) == {}
    assert consumer.told[-2:] == [("seek", 1), ("resume", ZERO)]
    consumer.arrive(1)
    assert values((await member.poll(0, 10))[0]) == [b"1"]


async def test_the_commit_is_looked_up_before_anything_is_delivered() -> None:
    """Until the broker has told the position, a resumed partition stays paused in aiokafka, and
    polls return empty; then it starts there."""
    consumer = FakeConsumer()
    away = ToktierError(Code.BROKER_UNREACHABLE)
    member = member_of(consumer, away, away, Committed(5))
    member.resume(0)
    consumer.arrive(0)
    for _ in range(2):
        assert await member.poll(0, 10) == {}
        assert consumer.told == [("pause", ZERO)]
    await member.poll(0, 10)
    assert consumer.told == [("pause", ZERO), ("seek", 5), ("resume", ZERO)]


async def test_a_refused_lookup_is_raised() -> None:
    """What waiting does not cure is not waited for."""
    member = member_of(FakeConsumer(), ToktierError(Code.BROKER_ERROR))
    member.resume(0)
    with pytest.raises(ToktierError) as refused:
        await member.poll(0, 10)
    assert refused.value.code is Code.BROKER_ERROR


async def test_a_seek_makes_the_lookup_needless() -> None:
    """Whoever seeks knows better; nobody is asked."""
    consumer = FakeConsumer()
    member = member_of(consumer)
    member.seek(0, 3)
    member.resume(0)
    consumer.arrive(3)
    assert values((await member.poll(0, 10))[0]) == [b"3"]
