"""Consumer groups: shares, rebalances, pause, resume, seek, and committed positions."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import WITHIN_S, Bench, Member, committed_at, unique, values

from toktier_stream.broker.port import Committed, OutRecord
from toktier_stream.errors import Code, ToktierError


def numbered(topic: str, count: int, partition: int | None = None) -> list[OutRecord]:
    return [OutRecord(topic, b"k%d" % i, b"%d" % i, partition=partition) for i in range(count)]


async def test_a_lone_member_gets_every_partition_and_every_record(bench: Bench) -> None:
    """The first assignment is the whole topic, and is there when start returns."""
    topic = await bench.topic(3)
    await bench.send(numbered(topic, 60))
    member = await bench.member(topic, unique("group"))
    assert member.assigned == [frozenset({0, 1, 2})]
    assert member.revoked == []
    assert sorted(values(await member.collect(60))) == sorted(b"%d" % i for i in range(60))


async def test_records_of_each_partition_are_delivered_in_order(bench: Bench) -> None:
    """Small polls over several partitions never reorder one of them."""
    topic = await bench.topic(3)
    for partition in range(3):
        await bench.send(numbered(topic, 50, partition))
    member = await bench.member(topic, unique("group"))
    records = await member.collect(150, max_records=7)
    for partition in range(3):
        found = [r for r in records if r.partition == partition]
        assert values(found) == [b"%d" % i for i in range(50)]


async def test_a_poll_is_bounded_per_partition_and_serves_all_of_them(bench: Bench) -> None:
    """No partition gives more than asked for, and a full one does not starve the others."""
    topic = await bench.topic(3)
    for partition in range(3):
        await bench.send(numbered(topic, 200, partition))
    member = await bench.member(topic, unique("group"))
    seen: dict[int, int] = dict.fromkeys(range(3), 0)
    async with asyncio.timeout(WITHIN_S):
        while min(seen.values()) < 50:
            for partition, records in (await member.consumer.poll(1.0, 10)).items():
                assert 0 < len(records) <= 10
                seen[partition] += len(records)
    assert max(seen.values()) <= 200


async def test_newly_assigned_partitions_are_paused(bench: Bench) -> None:
    """Nothing is delivered before somebody resumes the partition."""
    topic = await bench.topic(2)
    await bench.send(numbered(topic, 5, 0) + numbered(topic, 5, 1))
    member = await bench.member(topic, unique("group"), resume=False)
    assert await member.silent()
    member.consumer.resume(1)
    assert {r.partition for r in await member.collect(5)} == {1}
    assert await member.silent()


async def test_pause_and_resume_lose_and_repeat_nothing(bench: Bench) -> None:
    """A paused partition keeps its place, also in the middle of what was fetched."""
    topic = await bench.topic(2)
    await bench.send(numbered(topic, 100, 0) + numbered(topic, 100, 1))
    member = await bench.member(topic, unique("group"))
    first = await member.collect(10, max_records=5)
    member.consumer.pause(0)
    while more := await member.consumer.poll(0.3, 1000):
        assert set(more) == {1}
        first += more[1]
    member.consumer.resume(0)
    first += await member.collect(200 - len(first))
    for partition in range(2):
        found = [r for r in first if r.partition == partition]
        assert values(found) == [b"%d" % i for i in range(100)]


async def test_resume_ends_a_waiting_poll(bench: Bench) -> None:
    """A poll that waits on paused partitions delivers as soon as one is resumed."""
    topic = await bench.topic()
    await bench.send(numbered(topic, 3))
    member = await bench.member(topic, unique("group"), resume=False)
    asyncio.get_running_loop().call_later(0.2, member.consumer.resume, 0)
    async with asyncio.timeout(WITHIN_S):
        found = await member.consumer.poll(2 * WITHIN_S, 10)
    assert values(found[0]) == [b"0", b"1", b"2"]


async def test_seek_goes_back_and_forth(bench: Bench) -> None:
    """After a seek the next record is the first at or after the offset."""
    topic = await bench.topic()
    placed = await bench.send(numbered(topic, 20))
    member = await bench.member(topic, unique("group"))
    await member.collect(20)
    member.consumer.seek(0, placed[5][1])
    assert values(await member.collect(15))[:2] == [b"5", b"6"]
    member.consumer.seek(0, placed[19][1])
    assert values(await member.collect(1)) == [b"19"]
    member.consumer.seek(0, 0)
    assert values(await member.collect(20, max_records=3)) == [b"%d" % i for i in range(20)]


async def test_seek_while_paused_counts_after_resume(bench: Bench) -> None:
    """The order of a restore: assigned (paused), seek, resume."""
    topic = await bench.topic()
    placed = await bench.send(numbered(topic, 10))
    member = await bench.member(topic, unique("group"), resume=False)
    member.consumer.seek(0, placed[7][1])
    member.consumer.resume(0)
    assert values(await member.collect(3)) == [b"7", b"8", b"9"]


async def test_partitions_that_are_not_held_are_ignored(bench: Bench) -> None:
    """Pause, resume and seek of a partition that went elsewhere do nothing; a commit is refused,
    and the lag is not known."""
    topic = await bench.topic()
    member = await bench.member(topic, unique("group"))
    member.consumer.pause(5)
    member.consumer.resume(5)
    member.consumer.seek(5, 3)
    with pytest.raises(ToktierError) as refused:
        await member.consumer.commit(5, committed_at(3))
    assert refused.value.code is Code.PARTITION_LOST
    assert await member.consumer.lag(5) == 0


async def test_a_commit_comes_back_with_its_note(bench: Bench) -> None:
    """Offset and metadata survive the member that committed them, per group and partition."""
    topic = await bench.topic(2)
    await bench.send(numbered(topic, 10, 0) + numbered(topic, 10, 1))
    group = unique("group")
    member = await bench.member(topic, group)
    assert await member.consumer.committed(0) is None
    note = '{"changelog": 12345, "ö": "…"}'
    await member.consumer.commit(0, Committed(4, note))
    assert await member.consumer.committed(0) == Committed(4, note)
    assert await member.consumer.committed(1) is None
    await member.consumer.stop()
    assert await bench.committed(topic, group) == Committed(4, note)
    assert await bench.committed(topic, unique("group")) is None


async def test_a_new_member_goes_on_from_the_committed_offset(bench: Bench) -> None:
    """Without a seek, reading starts at the commit, or at the oldest record without one."""
    topic = await bench.topic(2)
    await bench.send(numbered(topic, 10, 0) + numbered(topic, 10, 1))
    group = unique("group")
    member = await bench.member(topic, group)
    await member.collect(20)
    await member.consumer.commit(0, committed_at(6))
    await member.consumer.stop()
    again = await bench.member(topic, group)
    records = await again.collect(14)
    assert values([r for r in records if r.partition == 0]) == [b"6", b"7", b"8", b"9"]
    assert len([r for r in records if r.partition == 1]) == 10


async def two_members(bench: Bench, topic: str, group: str) -> tuple[Member, Member]:
    """One that had everything, and one that came later."""
    first = await bench.member(topic, group)
    polling = asyncio.create_task(first.until(lambda: len(first.assigned) > 1))
    second = await bench.member(topic, group)
    await polling
    return first, second


async def test_a_second_member_takes_over_half(bench: Bench) -> None:
    """Joining revokes everything, then shares are equal, disjoint and complete."""
    topic = await bench.topic(4)
    group = unique("group")
    first, second = await two_members(bench, topic, group)
    assert first.revoked == [frozenset({0, 1, 2, 3})]
    assert len(first.held) == len(second.held) == 2
    assert first.held | second.held == {0, 1, 2, 3}


async def test_the_rest_gets_what_a_leaving_member_had(bench: Bench) -> None:
    """After a member stops, the other holds everything and continues from its commits."""
    topic = await bench.topic(2)
    group = unique("group")
    first, second = await two_members(bench, topic, group)
    (theirs,) = second.held
    await bench.send(numbered(topic, 10, theirs))
    polling = asyncio.create_task(first.until(lambda: len(first.held) == 2))
    assert len(await second.collect(10)) == 10
    await second.consumer.commit(theirs, committed_at(8))
    callbacks = len(second.assigned), len(second.revoked)
    await second.consumer.stop()
    await polling
    assert (len(second.assigned), len(second.revoked)) == callbacks
    assert values(await first.collect(2)) == [b"8", b"9"]


async def test_a_member_beyond_the_partitions_gets_an_empty_share(bench: Bench) -> None:
    """An empty assignment is told, and its member's polls wait and deliver nothing."""
    topic = await bench.topic()
    group = unique("group")
    first, second = await two_members(bench, topic, group)
    assert {first.held, second.held} == {frozenset({0}), frozenset()}
    idle = second if not second.held else first
    assert await idle.silent()


async def test_partitions_stay_where_they_were_as_far_as_they_can(bench: Bench) -> None:
    """Assignment is sticky: who joins takes only what the balance asks for."""
    topic = await bench.topic(6)
    group = unique("group")
    members = [await bench.member(topic, group)]
    for joining in (2, 3):
        before = {id(m): m.held for m in members}
        waits = [asyncio.create_task(m.until(_assigned_again(m))) for m in members]
        members.append(await bench.member(topic, group))
        await asyncio.gather(*waits)
        assert sorted(p for m in members for p in m.held) == list(range(6))
        assert {len(m.held) for m in members} == {6 // joining}
        for member in members[:-1]:
            assert member.held <= before[id(member)]


def _assigned_again(member):  # type: ignore[no-untyped-def]
    count = len(member.assigned)
    return lambda: len(member.assigned) > count


async def test_a_member_whose_partition_went_elsewhere_cannot_commit(bench: Bench) -> None:
    """A commit that a rebalance has overtaken fails with PARTITION_LOST and changes nothing."""
    topic = await bench.topic(2)
    group = unique("group")
    first = await bench.member(topic, group)
    await first.consumer.commit(0, committed_at(1))
    await first.consumer.commit(1, committed_at(1))
    polling = asyncio.create_task(first.until(lambda: len(first.assigned) > 1))
    second = await bench.member(topic, group)
    await polling
    (lost,) = second.held
    with pytest.raises(ToktierError) as refused:
        await first.consumer.commit(lost, committed_at(99))
    assert refused.value.code is Code.PARTITION_LOST
    assert await second.consumer.committed(lost) == committed_at(1)


async def test_two_groups_do_not_see_each_other(bench: Bench) -> None:
    """Each group gets every record and has its own positions."""
    topic = await bench.topic()
    await bench.send(numbered(topic, 5))
    one = await bench.member(topic, unique("group"))
    two = await bench.member(topic, unique("group"))
    assert values(await one.collect(5)) == values(await two.collect(5))
    await one.consumer.commit(0, committed_at(5))
    assert await two.consumer.committed(0) is None


async def test_lag_is_what_is_left_to_read(bench: Bench) -> None:
    """Lag counts down to zero as records are delivered, and up as new ones arrive."""
    topic = await bench.topic()
    await bench.send(numbered(topic, 10))
    member = await bench.member(topic, unique("group"))
    await member.collect(10, max_records=4)
    assert await member.consumer.lag(0) == 0
    await bench.send(numbered(topic, 4))
    await member.collect(1, max_records=1)
    assert await member.consumer.lag(0) == 3


async def test_markers_of_transactions_are_no_lag(bench: Bench) -> None:
    """Where the log ends in a transaction, nothing is left to read behind its last record: a
    watchdog must not take that for a partition that stands still."""
    source, topic, group = await bench.topic(), await bench.topic(), unique("group")
    member = await bench.member(topic, unique("group"))
    transaction = await bench.transaction(unique("txn"))
    for n in range(3):
        await transaction.publish(
            [OutRecord(topic, b"k", b"%d" % n)], group, source, 0, committed_at(n)
        )
    await member.collect(3)
    async with asyncio.timeout(WITHIN_S):
        while await member.consumer.lag(0):
            await member.consumer.poll(0.1, 10)
    assert await member.silent()
    assert await member.consumer.lag(0) == 0


async def test_an_empty_poll_takes_its_time_and_no_longer(bench: Bench) -> None:
    """Without records a poll returns empty after about its timeout."""
    topic = await bench.topic()
    member = await bench.member(topic, unique("group"))
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await member.consumer.poll(0.25, 10) == {}
    assert 0.2 <= loop.time() - before < 5


async def test_stop_ends_a_waiting_poll(bench: Bench) -> None:
    """A poll that waits fails with CLIENT_CLOSED when its consumer is stopped."""
    topic = await bench.topic()
    member = await bench.member(topic, unique("group"))
    poll = asyncio.create_task(member.consumer.poll(2 * WITHIN_S, 10))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(WITHIN_S):
        await member.consumer.stop()
        with pytest.raises(ToktierError) as refused:
            await poll
    assert refused.value.code is Code.CLIENT_CLOSED
    with pytest.raises(ToktierError) as refused:
        await member.consumer.poll(0.1, 10)
    assert refused.value.code is Code.CLIENT_CLOSED


async def test_a_cancelled_poll_loses_nothing(bench: Bench) -> None:
    """Polls cancelled at any moment neither lose nor repeat a record."""
    topic = await bench.topic()
    member = await bench.member(topic, unique("group"))
    sending = asyncio.create_task(bench.send(numbered(topic, 300)))
    found: list[bytes | None] = []
    async with asyncio.timeout(WITHIN_S):
        while len(found) < 300:
            poll = asyncio.create_task(member.consumer.poll(1.0, 3))
            await asyncio.sleep(0.0005)
            poll.cancel()
            await asyncio.wait([poll])
            if not poll.cancelled():
                found += values(poll.result().get(0, []))
            elif len(found) >= 100:
                found += values((await member.consumer.poll(0.5, 50)).get(0, []))
    await sending
    assert found == [b"%d" % i for i in range(300)]


async def test_joining_a_topic_that_does_not_exist_fails(bench: Bench) -> None:
    """start raises TOPIC_MISSING instead of waiting for somebody to create the topic."""
    with pytest.raises(ToktierError) as refused:
        await bench.member(unique("missing"), unique("group"))
    assert refused.value.code is Code.TOPIC_MISSING
