"""Transactions: all or nothing, with the position of the input; fencing by id."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import WITHIN_S, Bench, committed_at, unique, values

from toktier_stream.broker.port import Committed, OutRecord
from toktier_stream.errors import Code, ToktierError


async def test_records_and_position_appear_together(bench: Bench) -> None:
    """One publish writes to several topics and commits the position with its note."""
    source, tokens, changelog = [await bench.topic() for _ in range(3)]
    group = unique("group")
    transaction = await bench.transaction(unique("txn"))
    records = [
        OutRecord(tokens, b"s", b"t1", partition=0),
        OutRecord(changelog, b"s", b"c1", partition=0),
        OutRecord(tokens, b"s", b"t2"),
    ]
    placed = await transaction.publish(records, group, source, 0, Committed(17, "note"))
    assert [partition for partition, _ in placed] == [0, 0, 0]
    for topic, wanted in ((tokens, [b"t1", b"t2"]), (changelog, [b"c1"])):
        await bench.expect(topic, wanted)
    await bench.expect_committed(source, group, Committed(17, "note"))


async def test_many_transactions_follow_each_other(bench: Bench) -> None:
    """Order across transactions is the order of publishing, with growing offsets."""
    source, topic = await bench.topic(), await bench.topic()
    group = unique("group")
    transaction = await bench.transaction(unique("txn"))
    offsets = []
    for i in range(30):
        placed = await transaction.publish(
            [OutRecord(topic, b"k", b"%d" % i)], group, source, 0, committed_at(i + 1)
        )
        offsets.append(placed[0][1])
    records = await bench.expect(topic, [b"%d" % i for i in range(30)])
    assert [r.offset for r in records] == offsets
    await bench.expect_committed(source, group, committed_at(30))


async def test_a_publish_may_only_move_the_position(bench: Bench) -> None:
    """Without records a publish commits the position all the same."""
    source = await bench.topic()
    group = unique("group")
    transaction = await bench.transaction(unique("txn"))
    assert await transaction.publish([], group, source, 0, committed_at(3)) == []
    await bench.expect_committed(source, group, committed_at(3))


async def test_a_publish_may_leave_the_position_alone(bench: Bench) -> None:
    """Without a position the records alone are published."""
    source, topic = await bench.topic(), await bench.topic()
    group = unique("group")
    transaction = await bench.transaction(unique("txn"))
    await transaction.publish([], group, source, 0, committed_at(3))
    await transaction.publish([OutRecord(topic, b"k", b"v")], group, source, 0, None)
    await bench.expect(topic, [b"v"])
    await bench.expect_committed(source, group, committed_at(3))


async def test_a_failed_publish_leaves_nothing_behind(bench: Bench) -> None:
    """When one record is refused, no other is visible and the position stays; after start the
    same object works again."""
    source, topic = await bench.topic(), await bench.topic()
    group = unique("group")
    transaction = await bench.transaction(unique("txn"))
    await transaction.publish(
        [OutRecord(topic, b"k", b"before")], group, source, 0, committed_at(1)
    )
    with pytest.raises(ToktierError) as refused:
        await transaction.publish(
            [OutRecord(topic, b"k", b"lost"), OutRecord(topic, b"k", b"x", partition=9)],
            group,
            source,
            0,
            committed_at(2),
        )
    assert refused.value.code is Code.TOPIC_MISSING
    await bench.expect(topic, [b"before"])
    await bench.expect_committed(source, group, committed_at(1))
    await transaction.start()
    await transaction.publish([OutRecord(topic, b"k", b"after")], group, source, 0, committed_at(2))
    await bench.expect(topic, [b"before", b"after"])
    await bench.expect_committed(source, group, committed_at(2))


async def test_a_newer_holder_of_the_id_fences_the_older(bench: Bench) -> None:
    """The fenced one can publish nothing and move no position, now or later."""
    source, topic = await bench.topic(), await bench.topic()
    group, name = unique("group"), unique("txn")
    older = await bench.transaction(name)
    await older.publish([OutRecord(topic, b"k", b"old")], group, source, 0, committed_at(1))
    newer = await bench.transaction(name)
    await newer.publish([OutRecord(topic, b"k", b"new")], group, source, 0, committed_at(2))
    for _ in range(2):
        with pytest.raises(ToktierError) as refused:
            await older.publish(
                [OutRecord(topic, b"k", b"zombie")], group, source, 0, committed_at(1)
            )
        assert refused.value.code is Code.PRODUCER_FENCED
    await newer.publish([OutRecord(topic, b"k", b"new2")], group, source, 0, committed_at(3))
    await bench.expect(topic, [b"old", b"new", b"new2"])
    await bench.expect_committed(source, group, committed_at(3))


async def test_a_fenced_holder_that_never_published_is_fenced_too(bench: Bench) -> None:
    """Fencing counts from start, not from the first publish."""
    source, topic = await bench.topic(), await bench.topic()
    name = unique("txn")
    older = await bench.transaction(name)
    await bench.transaction(name)
    with pytest.raises(ToktierError) as refused:
        await older.publish(
            [OutRecord(topic, b"k", b"zombie")], unique("group"), source, 0, committed_at(1)
        )
    assert refused.value.code is Code.PRODUCER_FENCED
    assert await bench.all_records(topic) == []


async def test_other_ids_do_not_fence_each_other(bench: Bench) -> None:
    """Two partitions' transactions publish side by side into the same topic."""
    source, topic = await bench.topic(2), await bench.topic()
    group = unique("group")
    one, two = [await bench.transaction(unique("txn")) for _ in range(2)]

    async def run(transaction, partition):  # type: ignore[no-untyped-def]
        for i in range(10):
            await transaction.publish(
                [OutRecord(topic, b"k", b"%d:%d" % (partition, i))],
                group,
                source,
                partition,
                committed_at(i + 1),
            )

    await asyncio.gather(run(one, 0), run(two, 1))
    async with asyncio.timeout(WITHIN_S):
        while len(found := values(await bench.all_records(topic))) < 20:
            pass
    for partition in range(2):
        mine = [v for v in found if v is not None and v.startswith(b"%d:" % partition)]
        assert mine == [b"%d:%d" % (partition, i) for i in range(10)]
        await bench.expect_committed(source, group, committed_at(10), partition)


async def test_consumers_of_a_group_read_what_transactions_publish(bench: Bench) -> None:
    """A member that waits is woken by a commit and gets each record once."""
    source, topic = await bench.topic(), await bench.topic()
    member = await bench.member(topic, unique("group"))
    waiting = asyncio.create_task(member.collect(10))
    transaction = await bench.transaction(unique("txn"))
    for i in range(5):
        pair = [OutRecord(topic, b"k", b"%d%s" % (i, half)) for half in (b"a", b"b")]
        await transaction.publish(pair, unique("group"), source, 0, committed_at(i))
    wanted = [b"%d%s" % (i, half) for i in range(5) for half in (b"a", b"b")]
    assert values(await waiting) == wanted


async def test_a_transaction_must_be_started(bench: Bench) -> None:
    """Before start and after stop a publish fails with CLIENT_CLOSED; stop may be repeated."""
    source = await bench.topic()
    transaction = bench.broker.transaction(unique("txn"))
    for _ in range(2):
        with pytest.raises(ToktierError) as refused:
            await transaction.publish([], unique("group"), source, 0, committed_at(1))
        assert refused.value.code is Code.CLIENT_CLOSED
        await transaction.start()
        await transaction.stop()
        await transaction.stop()
