"""Records come back in order, whole, and in the partition that Kafka would choose."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import Bench, committed_at, incompressible, unique, values

from toktier_stream.broker.partitioner import partition_of
from toktier_stream.broker.port import OutRecord
from toktier_stream.errors import Code, ToktierError


async def test_records_of_a_partition_keep_their_order(bench: Bench) -> None:
    """What is sent one after the other is read one after the other, with growing offsets."""
    topic = await bench.topic()
    sent = [OutRecord(topic, b"k", b"%d" % i) for i in range(500)]
    placed = await bench.send(sent)

    records = await bench.all_records(topic)

    assert values(records) == [out.value for out in sent]
    assert [(r.partition, r.offset) for r in records] == placed
    assert [r.offset for r in records] == sorted({r.offset for r in records})


async def test_a_key_meets_the_partition_that_kafka_chooses(bench: Bench) -> None:
    """Both ways of publishing place a key where murmur2 says, for every partition count."""
    for partitions in (1, 3, 7):
        topic = await bench.topic(partitions)
        records = [OutRecord(topic, b"session-%d" % i, b"x") for i in range(40)]
        expected = [partition_of(r.key or b"", partitions) for r in records]
        transaction = await bench.transaction(unique("txn"))
        source = await bench.topic()

        by_publisher = await bench.send(records)
        by_transaction = await transaction.publish(
            records, unique("group"), source, 0, committed_at(0)
        )

        assert [partition for partition, _ in by_publisher] == expected
        assert [partition for partition, _ in by_transaction] == expected


async def test_a_named_partition_wins_over_the_key(bench: Bench) -> None:
    """A record that names its partition goes there, whatever its key hashes to."""
    topic = await bench.topic(4)
    placed = await bench.send([OutRecord(topic, b"same", b"x", partition=p) for p in range(4)])
    assert [partition for partition, _ in placed] == [0, 1, 2, 3]


async def test_a_record_without_a_key_lands_somewhere(bench: Bench) -> None:
    """Records without key and partition are spread; none is lost."""
    topic = await bench.topic(3)
    placed = await bench.send([OutRecord(topic, None, b"%d" % i) for i in range(30)])
    found = [value for p in range(3) for value in values(await bench.all_records(topic, p))]
    assert sorted(found) == sorted(b"%d" % i for i in range(30))
    assert all(0 <= partition < 3 for partition, _ in placed)


async def test_nulls_empties_and_headers_survive(bench: Bench) -> None:
    """A missing key or value stays missing, an empty one stays empty, headers keep their order
    and may repeat."""
    topic = await bench.topic()
    headers = (("a", b"1"), ("b", b""), ("a", b"\x00\xff"))
    sent = [
        OutRecord(topic, b"k", None),
        OutRecord(topic, b"k", b""),
        OutRecord(topic, None, b"v"),
        OutRecord(topic, b"", b"v", headers),
        OutRecord(topic, b"\x00\xff", bytes(range(256)), headers),
    ]
    await bench.send(sent)
    transaction = await bench.transaction(unique("txn"))
    await transaction.publish(sent, unique("group"), topic, 0, committed_at(0))

    records = await bench.expect(topic, [out.value for out in sent] * 2)
    wanted = [(out.key, out.value, out.headers) for out in sent]
    assert [(r.key, r.value, r.headers) for r in records] == wanted * 2
    assert all(r.topic == topic and r.timestamp_ms > 1_600_000_000_000 for r in records)


async def test_big_records_pass_up_to_the_limit(bench: Bench) -> None:
    """A record as large as its topic admits is written and read in both ways; one beyond it is
    refused with its own code, and the publisher goes on."""
    limit = 3 << 20
    topic = await bench.topic(max_record_bytes=limit)
    noise = incompressible(limit + (1 << 20))
    fits, too_large = OutRecord(topic, b"k", noise[: limit - 1]), OutRecord(topic, b"k", noise)
    publisher = await bench.publisher()
    transaction = await bench.transaction(unique("txn"))
    group = unique("group")

    await (await publisher.send(fits))
    await transaction.publish([fits], group, topic, 0, committed_at(1))
    with pytest.raises(ToktierError) as refused:
        await (await publisher.send(too_large))
    assert refused.value.code is Code.EVENT_TOO_LARGE
    with pytest.raises(ToktierError) as refused:
        await transaction.publish([fits, too_large], group, topic, 0, committed_at(2))
    assert refused.value.code is Code.EVENT_TOO_LARGE
    await (await publisher.send(OutRecord(topic, b"k", b"after")))

    await bench.expect(topic, [fits.value, fits.value, b"after"])


async def test_a_thousand_large_records_in_one_transaction(bench: Bench) -> None:
    """A transaction may hold more than one request's worth of records."""
    topic = await bench.topic(2)
    noise = incompressible(1 << 16)
    records = [OutRecord(topic, b"%d" % i, noise[i:], partition=i % 2) for i in range(300)]
    transaction = await bench.transaction(unique("txn"))

    placed = await transaction.publish(records, unique("group"), topic, 0, committed_at(7))

    for partition in range(2):
        found = await bench.expect(topic, [r.value for r in records[partition::2]], partition)
        assert [(r.partition, r.offset) for r in found] == placed[partition::2]


async def test_a_publisher_keeps_order_while_many_are_in_flight(bench: Bench) -> None:
    """Results may be awaited in any order or all at the end; flush waits for all of them."""
    topic = await bench.topic()
    publisher = await bench.publisher()
    waiting = [await publisher.send(OutRecord(topic, b"k", b"%d" % i)) for i in range(2000)]
    await publisher.flush()
    offsets = [offset for _, offset in await asyncio.gather(*waiting)]
    assert offsets == sorted(offsets)
    assert values(await bench.all_records(topic)) == [b"%d" % i for i in range(2000)]


async def test_an_unknown_topic_has_its_own_error(bench: Bench) -> None:
    """Publishing to a topic that does not exist fails with TOPIC_MISSING in both ways."""
    missing = unique("missing")
    publisher = await bench.publisher()
    transaction = await bench.transaction(unique("txn"))
    with pytest.raises(ToktierError) as refused:
        await (await publisher.send(OutRecord(missing, b"k", b"v")))
    assert refused.value.code is Code.TOPIC_MISSING
    topic = await bench.topic()
    with pytest.raises(ToktierError) as refused:
        await transaction.publish(
            [OutRecord(topic, b"k", b"v"), OutRecord(missing, b"k", b"v")],
            unique("group"),
            topic,
            0,
            committed_at(1),
        )
    assert refused.value.code is Code.TOPIC_MISSING
    assert await bench.all_records(topic) == []


async def test_a_stopped_publisher_says_so(bench: Bench) -> None:
    """After stop, sending fails with CLIENT_CLOSED; stopping twice is harmless."""
    topic = await bench.topic()
    publisher = await bench.publisher()
    await publisher.stop()
    await publisher.stop()
    with pytest.raises(ToktierError) as refused:
        await (await publisher.send(OutRecord(topic, b"k", b"v")))
    assert refused.value.code is Code.CLIENT_CLOSED


async def test_records_published_at_once_are_placed_and_ordered(bench: Bench) -> None:
    """Several topics and partitions, more than one batch of each: all acknowledged, in order."""
    first, second = await bench.topic(2), await bench.topic(2)
    publisher = await bench.publisher()
    records = [
        OutRecord(
            (first, second)[i % 2], b"k", b"%d " % i + incompressible(9000), partition=i // 99
        )
        for i in range(198)
    ]

    placed = await publisher.publish(records)

    assert [partition for partition, _ in placed] == [i // 99 for i in range(198)]
    for topic in (first, second):
        read = [r for p in (0, 1) for r in await bench.all_records(topic, p)]
        found = {(r.partition, r.offset): r.value for r in read}
        wanted = [(p, r) for p, r in zip(placed, records, strict=True) if r.topic == topic]
        assert found == {p: r.value for p, r in wanted}
        for partition in (0, 1):
            offsets = [offset for (p, offset), _ in wanted if p == partition]
            assert offsets == list(range(len(offsets)))


async def test_a_publisher_goes_on_after_records_that_were_refused(bench: Bench) -> None:
    """One record too large: the call fails and says why; the next one goes through."""
    topic = await bench.topic(max_record_bytes=1 << 20)
    publisher = await bench.publisher()
    large = OutRecord(topic, b"k", incompressible(5 << 20))
    with pytest.raises(ToktierError) as caught:
        await publisher.publish([large, OutRecord(topic, b"k", b"behind")])
    assert caught.value.code is Code.EVENT_TOO_LARGE
    await publisher.publish([OutRecord(topic, b"k", b"next")])
    assert values(await bench.all_records(topic))[-1] == b"next"
