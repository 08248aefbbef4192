"""What only the embedded broker has: shared clusters, bounded publishers, equal shares."""

from __future__ import annotations

import asyncio
import gc

import pytest
from broker_harness import unique, values
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.broker.cluster import LocalCluster, LocalOptions
from toktier_stream.broker.connect import open_broker
from toktier_stream.broker.local import LocalBroker
from toktier_stream.broker.port import Committed, OutRecord, TopicSpec
from toktier_stream.broker.shares import share_out
from toktier_stream.errors import Code, ToktierError


def ignore(partitions: frozenset[int]) -> None:
    """A callback for members that are told nothing of interest."""


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 8))
def test_shares_are_equal_complete_and_sticky(owners: list[int], members: int) -> None:
    """Sizes differ by one at most, nobody shares a partition, and a member keeps as many of its
    partitions as its share allows."""
    partitions = len(owners)
    held = [frozenset(p for p, o in enumerate(owners) if o == m) for m in range(members)]
    shares = share_out(held, partitions)
    assert sorted(p for share in shares for p in share) == list(range(partitions))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    for had, share in zip(held, shares, strict=True):
        assert len(had & share) == min(len(had), len(share))


async def bounded(max_unconsumed_bytes: int) -> LocalBroker:
    broker = LocalBroker(LocalCluster(LocalOptions(max_unconsumed_bytes=max_unconsumed_bytes)))
    await broker.ensure_topics([TopicSpec("t", 1), TopicSpec("u", 1)], create=True)
    return broker


async def send_many(broker: LocalBroker, count: int, sent: list[int]) -> None:
    publisher = broker.publisher()
    await publisher.start()
    for i in range(count):
        await (await publisher.send(OutRecord("t", b"k", bytes(1000))))
        sent.append(i)


async def settle(sent: list[int]) -> int:
    """How far a sender gets on its own."""
    before = -1
    while before != len(sent):
        before = len(sent)
        for _ in range(20):
            await asyncio.sleep(0)
    return before


async def test_a_publisher_waits_for_the_slowest_group() -> None:
    """Beyond the bound a sender stands still; every poll of the slowest group lets it go on."""
    broker = await bounded(10_000)
    slow = broker.group_consumer("t", "slow", on_assigned=ignore, on_revoked=ignore)
    fast = broker.group_consumer("t", "fast", on_assigned=ignore, on_revoked=ignore)
    for consumer in (slow, fast):
        await consumer.start()
        consumer.resume(0)
    sent: list[int] = []
    sending = asyncio.create_task(send_many(broker, 40, sent))
    assert await settle(sent) == 10
    await fast.poll(1.0, 100)
    assert await settle(sent) == 10
    await slow.poll(1.0, 4)
    assert await settle(sent) == 14
    await slow.stop()
    assert await settle(sent) == 14  # what a group has not committed is still to come for it
    broker.cluster.commit("slow", "t", 0, Committed(40))
    assert await settle(sent) == 20
    await fast.poll(1.0, 100)
    assert await settle(sent) == 30
    await fast.poll(1.0, 100)
    await sending


async def test_a_topic_without_groups_has_no_bound() -> None:
    """Nobody is late where nobody consumes: a changelog must not block its writer."""
    broker = await bounded(10_000)
    sent: list[int] = []
    async with asyncio.timeout(5):
        await send_many(broker, 100, sent)


async def test_transactions_do_not_wait_for_room() -> None:
    """A worker's outputs never wait for their readers, so that no circle can stand still."""
    broker = await bounded(1000)
    consumer = broker.group_consumer("t", "g", on_assigned=ignore, on_revoked=ignore)
    await consumer.start()
    transaction = broker.transaction("x")
    await transaction.start()
    async with asyncio.timeout(5):
        for i in range(10):
            await transaction.publish(
                [OutRecord("t", b"k", bytes(1000))], "g2", "u", 0, Committed(i)
            )


async def test_stopping_a_publisher_frees_its_waiting_sends() -> None:
    """A send that waits for room fails when its publisher is stopped."""
    broker = await bounded(10)
    consumer = broker.group_consumer("t", "g", on_assigned=ignore, on_revoked=ignore)
    await consumer.start()
    publisher = broker.publisher()
    await publisher.start()
    await publisher.send(OutRecord("t", b"k", b"first"))
    waiting = asyncio.create_task(publisher.send(OutRecord("t", b"k", b"second")))
    await settle([])
    assert not waiting.done()
    await publisher.stop()
    with pytest.raises(ToktierError) as refused:
        await waiting
    assert refused.value.code is Code.CLIENT_CLOSED
    assert values(broker.cluster.topic("t").logs[0].read(0, 10)) == [b"first"]


async def test_the_same_instance_id_evicts_the_older_member() -> None:
    """Two processes with one instance id cannot both own partitions."""
    broker = await bounded(0)
    revoked: list[frozenset[int]] = []
    older = broker.group_consumer(
        "t", "g", on_assigned=ignore, on_revoked=revoked.append, instance_id="w1"
    )
    await older.start()
    newer = broker.group_consumer("t", "g", on_assigned=ignore, on_revoked=ignore, instance_id="w1")
    await newer.start()
    assert revoked == [frozenset({0})]
    assert newer.held == {0}
    with pytest.raises(ToktierError) as refused:
        await older.poll(0.1, 1)
    assert refused.value.code is Code.CLIENT_CLOSED
    await older.stop()
    assert newer.held == {0}


async def test_local_addresses_share_a_cluster_by_name() -> None:
    """The same name is the same cluster while somebody uses it; another name is another one."""
    name = unique("shared")
    one, two = open_broker(f"local:{name}"), open_broker(f"local:{name}")
    other = open_broker("local:")
    await one.ensure_topics([TopicSpec("t", 3)], create=True)
    assert await two.partitions("t") == 3
    with pytest.raises(ToktierError):
        await other.partitions("t")
    del one, two
    gc.collect()
    with pytest.raises(ToktierError):
        await open_broker(f"local:{name}").partitions("t")


def test_an_address_of_no_known_kind_is_refused() -> None:
    """The message says what addresses look like."""
    for address in ("", "localhost:9092", "redis://x"):
        with pytest.raises(ToktierError) as refused:
            open_broker(address)
        assert refused.value.code is Code.CONFIG_INVALID
        assert "kafka://" in refused.value.detail
