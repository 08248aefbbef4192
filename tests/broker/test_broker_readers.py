"""Readers without a group: from an offset, to the end, and past what nobody can read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from broker_harness import WITHIN_S, Bench, committed_at, unique, values

from toktier_stream.broker.port import OutRecord, Reader, Record, read_to_end
from toktier_stream.errors import Code, ToktierError


async def poll_all(reader: Reader, count: int, max_records: int = 100) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with asyncio.timeout(WITHIN_S):
        while len(found) < count:
            records = await reader.poll(1.0, max_records)
            assert len(records) <= max_records
            found += values(records)
    return found


async def collect(records: AsyncIterator[Record]) -> list[Record]:
    return [record async for record in records]


async def test_a_reader_starts_where_it_is_told(bench: Bench) -> None:
    """Positions are per partition, and grow with what was read."""
    topic = await bench.topic(2)
    for partition in range(2):
        await bench.send([OutRecord(topic, b"k", b"%d" % i, (), partition) for i in range(10)])
    reader = await bench.reader(topic, {0: 7, 1: 0})
    assert (reader.position(0), reader.position(1)) == (7, 0)
    found = await poll_all(reader, 13)
    assert sorted(found) == sorted([b"7", b"8", b"9"] + [b"%d" % i for i in range(10)])
    assert (reader.position(0), reader.position(1)) == (10, 10)
    assert (await reader.end(0), await reader.end(1)) == (10, 10)


async def test_a_reader_follows_the_end(bench: Bench) -> None:
    """A waiting poll is woken by new records, and small polls keep the order."""
    topic = await bench.topic()
    reader = await bench.reader(topic, {0: 0})
    assert await reader.poll(0.1, 10) == []
    waiting = asyncio.create_task(poll_all(reader, 50, max_records=7))
    await bench.send([OutRecord(topic, b"k", b"%d" % i) for i in range(50)])
    assert await waiting == [b"%d" % i for i in range(50)]


async def test_read_to_end_stops_at_the_end_it_had(bench: Bench) -> None:
    """It gives everything from the start offset, and nothing of an empty rest."""
    topic = await bench.topic()
    placed = await bench.send([OutRecord(topic, b"k", b"%d" % i) for i in range(2500)])
    end = placed[-1][1] + 1
    for start in (0, 1, 2499, end):
        reader = await bench.reader(topic)
        found = [r.offset async for r in read_to_end(reader, 0, start, WITHIN_S)]
        assert found == list(range(start, end))


async def test_read_to_end_leaves_out_what_came_later(bench: Bench) -> None:
    """Records written while it reads are not part of it."""
    topic = await bench.topic()
    await bench.send([OutRecord(topic, b"k", b"%d" % i) for i in range(10)])
    reader = await bench.reader(topic)
    found = []
    async for record in read_to_end(reader, 0, 0, WITHIN_S):
        if not found:
            await bench.send([OutRecord(topic, b"k", b"late")])
        found.append(record.value)
    assert found == [b"%d" % i for i in range(10)]


async def test_read_to_end_of_an_empty_partition_is_empty(bench: Bench) -> None:
    """A partition nobody wrote to is at its end at once."""
    topic = await bench.topic(2)
    await bench.send([OutRecord(topic, b"k", b"v", partition=0)])
    assert await bench.all_records(topic, 1) == []


async def test_a_marker_at_the_end_does_not_keep_a_reader_waiting(bench: Bench) -> None:
    """The log of a transactional topic ends in a marker: the end lies beyond the last record,
    and reading to the end returns quickly all the same."""
    source, topic = await bench.topic(), await bench.topic()
    transaction = await bench.transaction(unique("txn"))
    placed = []
    for i in range(3):
        placed += await transaction.publish(
            [OutRecord(topic, b"k", b"%d" % i)], unique("group"), source, 0, committed_at(i)
        )
    last = placed[-1][1]
    await bench.expect(topic, [b"0", b"1", b"2"])
    reader = await bench.reader(topic, {0: 0})
    assert await reader.end(0) == last + 2
    # From the start, from the last record, and from the marker itself.
    for start, wanted in ((0, [b"0", b"1", b"2"]), (last, [b"2"]), (last + 1, [])):
        reader = await bench.reader(topic)
        async with asyncio.timeout(5):
            assert values([r async for r in read_to_end(reader, 0, start, WITHIN_S)]) == wanted


async def test_reading_past_a_deadline_is_a_timeout(bench: Bench) -> None:
    """The deadline counts however slowly the caller takes the records."""
    topic = await bench.topic()
    await bench.send([OutRecord(topic, b"k", b"%d" % i) for i in range(3000)])
    reader = await bench.reader(topic)
    records = read_to_end(reader, 0, 0, 2.0)
    assert (await anext(records)).offset == 0
    await asyncio.sleep(2.1)
    with pytest.raises(TimeoutError):
        await collect(records)


async def test_an_offset_out_of_range_means_the_oldest_record(bench: Bench) -> None:
    """A position beyond the end (the topic was made anew) starts over with what is there."""
    topic = await bench.topic()
    await bench.send([OutRecord(topic, b"k", b"%d" % i) for i in range(3)])
    reader = await bench.reader(topic, {0: 1000})
    assert await poll_all(reader, 3) == [b"0", b"1", b"2"]


async def test_two_readers_and_a_second_connection_see_the_same(bench: Bench) -> None:
    """Connections to one cluster share everything."""
    topic = await bench.topic()
    await bench.send([OutRecord(topic, b"k", b"v")])
    other = await bench.another_broker()
    reader = other.reader(topic)
    await reader.start({0: 0})
    assert await poll_all(reader, 1) == [b"v"]
    await reader.stop()
    assert values(await bench.all_records(topic)) == [b"v"]


async def test_stop_ends_a_waiting_read(bench: Bench) -> None:
    """A poll that waits fails with CLIENT_CLOSED when its reader is stopped."""
    topic = await bench.topic()
    reader = await bench.reader(topic, {0: 0})
    poll = asyncio.create_task(reader.poll(2 * WITHIN_S, 10))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(WITHIN_S):
        await reader.stop()
        await reader.stop()
        with pytest.raises(ToktierError) as refused:
            await poll
    assert refused.value.code is Code.CLIENT_CLOSED


async def test_a_reader_of_what_is_missing_fails_at_start(bench: Bench) -> None:
    """A missing topic or partition is told at start, not by silence."""
    topic = await bench.topic()
    for name, partition in ((unique("missing"), 0), (topic, 3)):
        reader = bench.broker.reader(name)
        with pytest.raises(ToktierError) as refused:
            await reader.start({partition: 0})
        assert refused.value.code is Code.TOPIC_MISSING
        await reader.stop()
