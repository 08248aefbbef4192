"""What only a real Kafka can show: zombies, evictions, moved log starts, static members."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from broker_harness import (
    WITHIN_S,
    Bench,
    Member,
    committed_at,
    kafka_options,
    nothing_left_running,
    unique,
    values,
)

from toktier_stream.broker.kafka import KafkaBroker
from toktier_stream.broker.port import OutRecord, TopicSpec, read_to_end
from toktier_stream.errors import Code, ToktierError

pytestmark = pytest.mark.kafka


@pytest_asyncio.fixture
async def kafka(kafka_bootstrap: str) -> AsyncIterator[Bench]:
    """A started connection to Kafka."""
    bench = Bench(lambda: KafkaBroker(kafka_options(kafka_bootstrap)))
    await bench.start()
    yield bench
    await bench.stop()
    await nothing_left_running()


async def zombie(bootstrap: str, transactional_id: str, topic: str) -> AIOKafkaProducer:
    """A producer that died in the middle of a transaction."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
    )
    await producer.start()
    await producer.begin_transaction()
    await (await producer.send(topic, b"half done", b"k", partition=0))
    return producer


async def test_a_zombies_open_transaction_is_aborted_by_its_successor(
    kafka: Bench, kafka_bootstrap: str
) -> None:
    """What a dead worker left open hides everything behind it, until a producer of the same id
    starts: then it is gone, and the end is the last stable offset again."""
    source, topic = await kafka.topic(), await kafka.topic()
    name, group = unique("txn"), unique("group")
    await kafka.send([OutRecord(topic, b"k", b"before")])
    dead = await zombie(kafka_bootstrap, name, topic)
    try:
        await kafka.send([OutRecord(topic, b"k", b"behind")])
        reader = await kafka.reader(topic, {0: 0})
        assert await reader.end(0) == 1
        assert values(await kafka.all_records(topic)) == [b"before"]

        heir = await kafka.transaction(name)

        assert values(await kafka.all_records(topic)) == [b"before", b"behind"]
        await heir.publish([OutRecord(topic, b"k", b"heir")], group, source, 0, committed_at(1))
        await kafka.expect(topic, [b"before", b"behind", b"heir"])
    finally:
        await dead.stop()


async def test_aborted_records_do_not_stop_a_reader(kafka: Bench) -> None:
    """A log that ends in aborted records and their marker is read to its end quickly."""
    topic, source = await kafka.topic(), await kafka.topic()
    await kafka.send([OutRecord(topic, b"k", b"kept")])
    transaction = await kafka.transaction(unique("txn"))
    publish = asyncio.create_task(
        transaction.publish(
            [OutRecord(topic, b"k", b"%d" % i) for i in range(100)],
            unique("group"),
            source,
            0,
            committed_at(1),
        )
    )
    while not publish.done():
        # Cancelled as soon as the records are written; what happened then is settled by stop.
        reader = await kafka.reader(topic, {0: 0})
        if await reader.end(0) > 1 or await _high_watermark(kafka, topic) > 1:
            publish.cancel()
        await reader.stop()
        await asyncio.wait({publish}, timeout=0.001)
    await transaction.stop()
    async with asyncio.timeout(5):
        found = values(await kafka.all_records(topic))
    assert found in ([b"kept"], [b"kept", *[b"%d" % i for i in range(100)]])


async def _high_watermark(kafka: Bench, topic: str) -> int:
    reader = await kafka.reader(topic, {0: 0})
    await reader.poll(0.02, 1)
    mark = reader._consumer.highwater(TopicPartition(topic, 0))  # type: ignore[attr-defined]
    await reader.stop()
    return mark or 0


async def test_a_publish_cancelled_at_any_moment_is_whole_or_nothing(kafka: Bench) -> None:
    """Whenever it is cancelled, after the next start records and position agree, and the
    publisher works."""
    source, topic = await kafka.topic(), await kafka.topic()
    group, name = unique("group"), unique("txn")
    transaction = await kafka.transaction(name)
    done = 0
    for i in range(12):
        publish = asyncio.create_task(
            transaction.publish(
                [OutRecord(topic, b"k", b"%d:%d" % (i, j)) for j in range(2)],
                group,
                source,
                0,
                committed_at(i + 1),
            )
        )
        await asyncio.wait({publish}, timeout=0.002 * i)
        publish.cancel()
        await asyncio.wait({publish})
        # Whoever starts under the id waits until what was done under it is settled.
        await transaction.start()
        found = values(await kafka.all_records(topic))
        position = await kafka.committed(source, group)
        if found[done:]:
            assert found[done:] == [b"%d:0" % i, b"%d:1" % i]
            assert position == committed_at(i + 1)
            done += 2
        else:
            assert publish.cancelled()
            assert position is None or position.offset < i + 1
    assert done > 0


async def test_records_deleted_before_the_position_are_passed_over(
    kafka: Bench, kafka_bootstrap: str
) -> None:
    """When the log starts later than the position, reading begins with what is left."""
    topic = await kafka.topic()
    await kafka.send([OutRecord(topic, b"k", b"%d" % i) for i in range(10)])
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        for before, left in ((6, [b"6", b"7", b"8", b"9"]), (10, [])):
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})
            reader = await kafka.reader(topic)
            async with asyncio.timeout(10):
                assert values([r async for r in read_to_end(reader, 0, 2, WITHIN_S)]) == left
            member = await kafka.member(topic, unique("group"))
            if left:
                assert values(await member.collect(len(left))) == left
    finally:
        await admin.close()


async def test_an_evicted_member_is_revoked_cannot_commit_and_comes_back(
    kafka_bootstrap: str,
) -> None:
    """A loop that was blocked for longer than the session loses its partitions: the commit is
    refused, the revocation is told late, and then the partitions are assigned anew."""
    options = kafka_options(kafka_bootstrap, session_timeout_ms=800)
    kafka = Bench(lambda: KafkaBroker(options))
    await kafka.start()
    topic = await kafka.topic()
    member = await kafka.member(topic, unique("group"))
    await kafka.send([OutRecord(topic, b"k", b"v")])
    await member.collect(1)
    time.sleep(2.0)
    with pytest.raises(ToktierError) as refused:
        await member.consumer.commit(0, committed_at(1))
    assert refused.value.code is Code.PARTITION_LOST
    await member.until(lambda: len(member.assigned) == 2)
    assert member.revoked == [frozenset({0})]
    assert values(await member.collect(1)) == [b"v"]
    await member.consumer.commit(0, committed_at(1))
    await kafka.stop()
    await nothing_left_running()


async def test_a_static_member_restarts_without_a_rebalance(kafka: Bench) -> None:
    """With instance ids a member that stops keeps its partitions until its session times out,
    and the others do not notice its restart."""
    topic, group = await kafka.topic(4), unique("group")
    told: dict[str, list[frozenset[int]]] = {"a": [], "b": []}

    async def join(name: str) -> Member:
        consumer = kafka.broker.group_consumer(
            topic,
            group,
            on_assigned=told[name].append,
            on_revoked=lambda _: None,
            instance_id=name,
        )
        await consumer.start()
        return Member(consumer, told[name])

    first = await join("a")
    waiting = asyncio.create_task(first.until(lambda: len(told["a"]) == 2))
    second = await join("b")
    await waiting
    before = told["b"][-1]
    await second.consumer.stop()
    second = await join("b")
    assert told["b"][-1] == before
    await first.until(lambda: len(told["a"]) == 2)
    assert await first.silent(1.0)
    assert len(told["a"]) == 2
    await first.consumer.stop()
    await second.consumer.stop()


async def test_a_callback_that_raises_is_not_passed_over(kafka: Bench) -> None:
    """aiokafka swallows what callbacks raise; the member's next poll fails instead of going on
    with partitions that nobody took up."""

    def broken(partitions: frozenset[int]) -> None:
        raise ValueError(partitions)

    topic = await kafka.topic()
    consumer = kafka.broker.group_consumer(
        topic, unique("group"), on_assigned=broken, on_revoked=lambda _: None
    )
    with pytest.raises(RuntimeError, match="callback"):
        await consumer.start()
    await consumer.stop()


async def test_texts_do_not_reach_the_log(kafka: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Even with aiokafka's loggers at DEBUG, values of records are in no line."""
    caplog.set_level(logging.DEBUG, logger="aiokafka")
    topic, source = await kafka.topic(), await kafka.topic()
    record = OutRecord(topic, b"k", b"a private transcript")
    await kafka.send([record])
    transaction = await kafka.transaction(unique("txn"))
    await transaction.publish([record], unique("group"), source, 0, committed_at(1))
    member = await kafka.member(topic, unique("group"))
    await member.collect(2)
    assert caplog.records
    assert "private transcript" not in caplog.text


async def test_a_topic_below_the_batch_size_is_found_at_the_start(
    kafka: Bench, kafka_bootstrap: str
) -> None:
    """Batches and requests larger than a topic admits would fail later, one by one."""
    name = await kafka.topic(max_record_bytes=1 << 20)
    too_much = [
        kafka_options(kafka_bootstrap, batch_bytes=4 << 20),
        kafka_options(kafka_bootstrap, max_request_size=1 << 19),
    ]
    for options in too_much:
        broker = KafkaBroker(options)
        await broker.start()
        with pytest.raises(ToktierError) as refused:
            await broker.ensure_topics([TopicSpec(name, 1, max_record_bytes=1 << 20)], create=False)
        assert refused.value.code is Code.TOPIC_LIMIT
        await broker.stop()


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "snappy", "zstd"])
async def test_every_codec_is_written_and_read(kafka_bootstrap: str, codec: str) -> None:
    """Each codec round-trips through Kafka in both ways of publishing."""
    kafka = Bench(lambda: KafkaBroker(kafka_options(kafka_bootstrap, compression=codec)))
    await kafka.start()
    topic, source = await kafka.topic(), await kafka.topic()
    records = [OutRecord(topic, b"k", b"%d " % i * 500) for i in range(20)]
    await kafka.send(records)
    transaction = await kafka.transaction(unique("txn"))
    await transaction.publish(records, unique("group"), source, 0, committed_at(1))
    await kafka.expect(topic, [r.value for r in records] * 2)
    await kafka.stop()


async def test_an_aborted_transaction_is_no_lag(kafka_bootstrap: str) -> None:
    """Records that nobody may read, and the marker behind them, are passed without a delivery."""
    bench = Bench(lambda: KafkaBroker(kafka_options(kafka_bootstrap)))
    await bench.start()
    topic = await bench.topic()
    member = await bench.member(topic, unique("group"))
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap, transactional_id=unique("foreign")
    )
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"never", partition=0)
    await producer.abort_transaction()
    await producer.stop()
    async with asyncio.timeout(WITHIN_S):
        while await member.consumer.lag(0):
            assert await member.consumer.poll(0.1, 10) == {}
    await bench.stop()
