"""What a group that rebalances eagerly, and a client that fences by transactional id only, ask of
the worker: the order of taking over, callbacks that only note, work tagged with its assignment.

Each test fails when the remedy that its docstring names is taken out.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from pipeline_harness import WITHIN_S, Running, make_settings

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.kafka.transaction import KafkaTransaction
from toktier_stream.broker.local import LocalTransaction
from toktier_stream.broker.port import Committed, Copies, OutRecord
from toktier_stream.pipeline import partition as partitions
from toktier_stream.pipeline.states import State
from toktier_stream.session.store import Store
from toktier_stream.wire.messages import Edit, Reset, Status


async def rebalance(running, settings):
    """Make the group revoke and assign everything anew: a member comes and goes."""
    cluster = getattr(running.broker, "cluster", None)
    if isinstance(cluster, LocalCluster):
        cluster._rebalance(cluster.group(settings.group))
        return
    member = running.broker.group_consumer(
        settings.topic_appends,
        settings.group,
        on_assigned=lambda _: None,
        on_revoked=lambda _: None,
        copies=Copies(),
    )
    await member.start()
    await member.stop()


async def all_running(running, count):
    """Until every partition of the assignment runs."""
    async with asyncio.timeout(WITHIN_S):
        while len(running.worker.stats.partitions) < count:
            await asyncio.sleep(0.01)


async def test_what_an_earlier_owner_commits_until_it_is_fenced_counts(
    backend, state_dir, hands, monkeypatch
):
    """First the fence, then the committed position: an owner that was slow commits a batch just
    before the producer of the new one starts, and nothing of that batch is answered again."""
    settings = make_settings(backend, state_dir, partitions=1)
    kinds = {"LocalBroker": LocalTransaction, "KafkaBroker": KafkaTransaction}
    kind = kinds[type(backend.connect()).__name__]
    start, slow = kind.start, []

    async def start_late(transaction):
        while slow:
            earlier = slow.pop()
            await earlier.publish(
                [OutRecord(settings.topic_rejects, b"k", b"by the earlier owner", (), 0)],
                settings.group,
                settings.topic_appends,
                0,
                Committed(1),
            )
        await start(transaction)

    async with Running(backend, settings) as running:
        h = await hands(settings)
    earlier = h.broker.transaction(f"{settings.group}-{settings.topic_appends}-0")
    await earlier.start()
    await h.send(OutRecord(settings.topic_appends, b"s", b"\xff\xff"))
    slow.append(earlier)
    monkeypatch.setattr(kind, "start", start_late)
    async with Running(backend, settings) as running:
        await all_running(running, 1)
        assert (await h.reset("s", 1, "some text")).status is Status.OK
        rejects = await h.everything(settings.topic_rejects)
    assert [r.value for r in rejects] == [b"by the earlier owner"]
    await earlier.stop()


async def test_the_group_is_served_while_partitions_restore(backend, state_dir, hands, monkeypatch):
    """Callbacks only note the assignment and restore runs in a task: aiokafka sends no heartbeat
    while a callback runs, so the worker must poll on, however long a changelog takes."""
    settings = make_settings(backend, state_dir, partitions=2)
    restore, held = partitions.restore, asyncio.Event()

    async def slow(*arguments, **named):
        await held.wait()
        return await restore(*arguments, **named)

    monkeypatch.setattr(partitions, "restore", slow)
    starting = Running(backend, settings)
    entering = asyncio.create_task(starting.__aenter__())
    polls = 0
    async with asyncio.timeout(WITHIN_S):
        while starting.worker.facts().assigned != {0, 1}:
            await asyncio.sleep(0.01)
        consumer = starting.worker._consumer
        poll = consumer.poll

        async def counted(*arguments):
            nonlocal polls
            polls += 1
            return await poll(*arguments)

        monkeypatch.setattr(consumer, "poll", counted)
        while polls < 3:
            await asyncio.sleep(0.01)
        assert {life.state for life in starting.worker._lives.values()} <= {
            State.FENCING,
            State.RESTORING,
        }
        assert not starting.worker.ready.is_set()
        held.set()
        running = await entering
    h = await hands(settings)
    assert (await h.reset("s", 1, "some text")).status is Status.OK
    await running.__aexit__(None, None, None)


async def test_nothing_is_lost_or_repeated_over_rebalances(backend, state_dir, hands):
    """Lives carry their assignment's epoch: each rebalance ends them, what was polled before is
    dropped, and the seek of the next life brings it back."""
    settings = make_settings(backend, state_dir, partitions=2, verify_rate=0)
    sessions, rounds = [f"s{i}" for i in range(6)], 5
    async with Running(backend, settings) as running:
        h = await hands(settings)
        for name in sessions:
            await h.event(name, 1, Reset(b"some text"))
        for revision in range(2, 2 + rounds):
            disturbing = asyncio.create_task(rebalance(running, settings))
            for name in sessions:
                await h.event(name, revision, Edit(b" and more"))
            await disturbing
            if revision % 2:
                await h.next(len(sessions))
        total = len(sessions) * (rounds + 1)
        await h.next(total - len(h.answers))
        assert {a.status for a in h.answers} == {Status.OK}
        counts = Counter((a.session_id, a.revision) for a in h.answers)
        assert len(counts) == total
        assert set(counts.values()) == {1}


async def test_a_store_stays_open_over_a_rebalance(backend, state_dir, hands, monkeypatch):
    """Every rebalance revokes everything: closing a store then would cost its memory of live
    sessions each time. It is opened once, and its next life begins where it stood."""
    settings = make_settings(backend, state_dir, partitions=2, verify_rate=0)
    opened, open_ = [], Store.open.__func__

    def counted(cls, path, **named):
        opened.append(path)
        return open_(cls, path, **named)

    monkeypatch.setattr(Store, "open", classmethod(counted))
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.reset("s", 1, "some text")
        before = running.worker._epoch
        for _ in range(2):
            await rebalance(running, settings)
        async with asyncio.timeout(WITHIN_S):
            while running.worker._epoch < before + 4:
                await asyncio.sleep(0.01)
        await all_running(running, 2)
        assert (await h.append("s", 2, " more")).status is Status.OK
    stores = Counter(path.name for path in opened if path.parent == state_dir)
    assert len(stores) == 2
    assert set(stores.values()) == {1}


async def test_a_fenced_partition_that_is_still_owned_is_taken_up_again(backend, state_dir, hands):
    """A fenced producer stays dead, so a new one is made, once the position was read again."""
    settings = make_settings(backend, state_dir, partitions=1)
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.reset("s", 1, "some text")
        other = h.broker.transaction(f"{settings.group}-{settings.topic_appends}-0")
        await other.start()
        assert (await h.append("s", 2, " more")).status is Status.OK
        await other.stop()
        assert not running.task.done()


async def test_a_fenced_partition_that_went_elsewhere_is_let_go(backend, state_dir, hands):
    """Whoever lost a partition never starts a producer for it again: that would fence the new
    owner."""
    settings = make_settings(backend, state_dir, partitions=1)
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.reset("s", 1, "some text")
        heir = h.broker.transaction(f"{settings.group}-{settings.topic_appends}-0")
        await heir.start()
        life = running.worker._lives[0]
        await h.event("s", 2, Edit(b" more"))
        async with asyncio.timeout(WITHIN_S):
            while life.state is State.RUNNING:
                await asyncio.sleep(0.001)
        await life.stop(10)  # as the rebalance does that gives it away
        assert life.state is State.STOPPED
        await heir.publish([], settings.group, settings.topic_appends, 0, Committed(2))
        await heir.stop()


async def test_a_silent_worker_with_records_before_it_is_not_alive(
    backend, state_dir, hands, monkeypatch
):
    """Lag and a position that does not move: the watchdog tells, since heartbeats go on."""
    settings = make_settings(
        backend,
        state_dir,
        partitions=1,
        stall_limit_s=0.5,
        transaction_timeout_s=0.4,
        session_timeout_s=6,
    )
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.reset("s", 1, "some text")
        consumer = running.worker._consumer
        monkeypatch.setattr(consumer, "resume", lambda partition: None)
        for life in running.worker._lives.values():
            consumer.pause(life.number)
        await h.event("s", 2, Edit(b" more"))
        async with asyncio.timeout(WITHIN_S):
            while running.worker._health.live().ok:
                await asyncio.sleep(0.05)
