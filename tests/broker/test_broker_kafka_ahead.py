"""Transactions whose first steps are taken ahead: as exact as others, whatever comes between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from broker_harness import (
    WITHIN_S,
    Bench,
    committed_at,
    kafka_options,
    nothing_left_running,
    unique,
)

from toktier_stream.broker.kafka import KafkaBroker
from toktier_stream.broker.kafka.transaction import KafkaTransaction
from toktier_stream.broker.port import OutRecord
from toktier_stream.errors import Code, ToktierError

pytestmark = pytest.mark.kafka


@pytest_asyncio.fixture
async def bench(kafka_bootstrap: str) -> AsyncIterator[Bench]:
    """A connection whose open transactions are ended after half a second of idleness."""
    options = kafka_options(
        kafka_bootstrap, delivery_timeout_s=4.0, transaction_timeout_ms=5_000,
        request_timeout_ms=4_000,
    )  # fmt: skip
    bench = Bench(lambda: KafkaBroker(options))
    await bench.start()
    yield bench
    await bench.stop()
    await nothing_left_running()


async def test_an_idle_producer_is_not_fenced_by_its_own_timeout(bench: Bench) -> None:
    """The coordinator ends a transaction that is open for 5 s and fences its producer; one that
    was opened ahead ends before, and publishing goes on."""
    source, topic, group = await bench.topic(), await bench.topic(), unique("group")
    transaction = await bench.transaction(unique("txn"))
    await transaction.publish([OutRecord(topic, b"k", b"1")], group, source, 0, committed_at(1))
    await asyncio.sleep(17)  # the coordinator looks every 10 s
    await transaction.publish([OutRecord(topic, b"k", b"2")], group, source, 0, committed_at(2))
    await bench.expect(topic, [b"1", b"2"])
    await bench.expect_committed(source, group, committed_at(2))


async def test_partitions_that_were_not_foreseen_join_in_time(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction goes where the last ones went, or elsewhere, or nowhere. The broker refuses
    no batch meanwhile: that would cost a backoff of its own."""
    source, group = await bench.topic(), unique("group")
    topics = [await bench.topic() for _ in range(3)]
    transaction = await bench.transaction(unique("txn"))
    wanted: dict[str, list[bytes]] = {name: [] for name in topics}
    with caplog.at_level(logging.WARNING, "aiokafka"):
        for i in range(24):
            chosen = [topics[0]] if i % 4 else topics[: i // 4 % 3 + 1]
            for name in chosen if i != 13 else []:
                wanted[name].append(b"%d" % i)
            records = [OutRecord(t, b"k", b"%d" % i) for t in chosen] if i != 13 else []
            await transaction.publish(records, group, source, 0, committed_at(i))
    for name in topics:
        await bench.expect(name, wanted[name])
    await bench.expect_committed(source, group, committed_at(23))
    assert not [r for r in caplog.records if "produce response" in r.getMessage()]


async def test_an_open_transaction_keeps_no_reader_waiting(bench: Bench) -> None:
    """What others publish behind it is read at once, and a stop leaves nothing open: the next
    holder of the id begins without waiting for a timeout."""
    source, topic, group, name = await bench.topic(), await bench.topic(), unique("g"), unique("t")
    transaction = await bench.transaction(name)
    await transaction.publish([OutRecord(topic, b"k", b"1")], group, source, 0, committed_at(1))
    other = await bench.transaction(unique("txn"))
    await other.publish([OutRecord(topic, b"k", b"2")], unique("g"), source, 0, committed_at(1))
    await bench.expect(topic, [b"1", b"2"])
    await transaction.stop()
    began = time.monotonic()
    await transaction.start()
    await transaction.publish([OutRecord(topic, b"k", b"3")], group, source, 0, committed_at(2))
    assert time.monotonic() - began < 4
    await bench.expect(topic, [b"1", b"2", b"3"])


async def test_nothing_is_opened_behind_a_publish_without_a_position(bench: Bench) -> None:
    """A claim is followed by one marker, its own: who reads the changelog to its end and then
    writes without transactions counts on offsets without gaps."""
    source, topic = await bench.topic(), await bench.topic()
    transaction, publisher = await bench.transaction(unique("txn")), await bench.publisher()
    placed = await transaction.publish([OutRecord(topic, b"k", b"1")], unique("g"), source, 0, None)
    await asyncio.sleep(0.5)  # whatever was begun has joined by now
    await transaction.stop()
    await asyncio.sleep(0.5)
    written = await publisher.publish([OutRecord(topic, b"k", b"2")])
    assert (placed, written) == ([(0, 0)], [(0, 2)])


async def test_a_zombie_that_was_idle_is_told_that_it_is_fenced(bench: Bench) -> None:
    """Not that the broker is away: that it would wait for."""
    source, topic, group, name = await bench.topic(), await bench.topic(), unique("g"), unique("t")
    older = await bench.transaction(name)
    await older.publish([OutRecord(topic, b"k", b"1")], group, source, 0, committed_at(1))
    newer = await bench.transaction(name)
    await newer.publish([OutRecord(topic, b"k", b"2")], group, source, 0, committed_at(2))
    await asyncio.sleep(1)  # the older one has tried to end its open transaction
    with pytest.raises(ToktierError) as refused:
        await older.publish([OutRecord(topic, b"k", b"z")], group, source, 0, committed_at(1))
    assert refused.value.code is Code.PRODUCER_FENCED
    await bench.expect(topic, [b"1", b"2"])


async def test_a_zombie_that_was_fenced_while_partitions_joined_is_told_so(bench: Bench) -> None:
    """aiokafka learns it in the background then, and afterwards only asserts that the transaction
    is in no state to go on."""
    source, topic, group, name = await bench.topic(), await bench.topic(), unique("g"), unique("t")
    late = TopicPartition(await bench.topic(), 0)
    older = await bench.transaction(name)
    assert isinstance(older, KafkaTransaction)
    await older.publish([OutRecord(topic, b"k", b"1")], group, source, 0, committed_at(1))
    manager = older._producer._txn_manager
    while not manager.is_in_transaction() or manager.partitions_to_add():
        await asyncio.sleep(0.001)
    newer = await bench.transaction(name)
    await newer.publish([OutRecord(topic, b"k", b"2")], group, source, 0, committed_at(2))
    manager.maybe_add_partition_to_txn(late)
    async with asyncio.timeout(WITHIN_S):
        while not manager.is_fatal_error():
            await asyncio.sleep(0.001)
    with pytest.raises(ToktierError) as refused:
        await older.publish([OutRecord(topic, b"k", b"z")], group, source, 0, committed_at(1))
    assert refused.value.code is Code.PRODUCER_FENCED
    await bench.expect(topic, [b"1", b"2"])
