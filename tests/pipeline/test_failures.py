"""Publishing and storing that fail, again and again: every event is answered, once, in order."""

from __future__ import annotations

import asyncio
import threading
from itertools import count

import pytest
from pipeline_harness import Hands, Running, local_backend, make_settings

from toktier_stream.broker.local import LocalTransaction
from toktier_stream.broker.port import OutRecord
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.batch import Batch
from toktier_stream.session.machine import Machine
from toktier_stream.session.store import Store
from toktier_stream.wire.answers import decode_reject
from toktier_stream.wire.messages import Edit, Reset, Status


@pytest.fixture
def backend():
    """What fails here is put into the embedded broker."""
    return local_backend()


def fail_publish(monkeypatch, fails, error=None):
    """Let publish number ``n`` of a position fail where ``fails(n)``, and try again at once."""
    numbers, publish = count(), LocalTransaction.publish

    async def failing(self, *args):
        if args[-1] is not None and fails(next(numbers)):
            raise error or ToktierError(Code.BROKER_UNREACHABLE, "a failure made for the test")
        return await publish(self, *args)

    monkeypatch.setattr(LocalTransaction, "publish", failing)
    monkeypatch.setattr("toktier_stream.pipeline.partition._RETRY_S", (0.0,))


async def test_failures_with_success_between_them_do_not_add_up(
    backend, state_dir, hands, monkeypatch
):
    """Only failures in a row end a worker: one that is interrupted now and then runs for years."""
    fail_publish(monkeypatch, lambda n: n % 2 == 1, OSError("made for the test"))
    settings = make_settings(backend, state_dir, verify_rate=0)
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.reset("s", 1, "x")
        for revision in range(2, 32):
            assert (await h.append("s", revision, " y")).status is Status.OK
        assert not running.task.done()
    assert [a.revision for a in h.answers] == list(range(1, 32))


async def test_failures_in_a_row_end_the_worker(backend, state_dir, hands, monkeypatch):
    """Whatever it is that fails again and again: somebody else may do better."""
    fail_publish(monkeypatch, lambda n: n >= 1, OSError("made for the test"))
    settings = make_settings(backend, state_dir, verify_rate=0, partitions=1)
    running = Running(backend, settings)
    await running.__aenter__()
    h = await hands(settings)
    await h.reset("s", 1, "x")
    await h.event("s", 2, Edit(b" y"))
    with pytest.raises(OSError, match="made for the test"):
        async with asyncio.timeout(30):
            await running.task
    await running.broker.stop()


async def test_a_broker_that_is_away_for_long_is_waited_for(backend, state_dir, hands, monkeypatch):
    """However often in a row nothing could be published: the worker lives, and then answers."""
    fail_publish(monkeypatch, lambda n: 1 <= n < 40)
    settings = make_settings(backend, state_dir, verify_rate=0, partitions=1)
    async with Running(backend, settings) as running:
        h = await hands(settings)
        assert (await h.reset("s", 1, "x")).status is Status.OK
        assert (await h.append("s", 2, " y")).status is Status.OK
        assert not running.task.done()
    assert [a.revision for a in h.answers] == [1, 2]


async def test_damage_that_only_a_sample_meets_costs_a_reset(backend, state_dir, hands):
    """The verifier reads pages that the splice did not: a damaged one must not stop the partition,
    which would meet it again in every life."""
    settings = make_settings(backend, state_dir, partitions=1)
    text = "a long text with many pages, " * 20000
    async with Running(backend, settings):
        h = await hands(settings)
        await h.reset("s", 1, text)
    path = state_dir / f"{settings.topic_appends}-0"
    with Store.open(path, map_bytes=1 << 30) as store, store._env.begin(write=True) as txn:
        key, page = list(txn.cursor(store._pages))[1]
        txn.put(key, bytes([*page[:-1], page[-1] ^ 1]), db=store._pages)
    async with Running(backend, settings):
        async with asyncio.timeout(10):
            assert (await h.append("s", 2, " more")).status is Status.OK
        lost = await h.append("s", 3, " and more")
        assert (lost.status, lost.code) == (Status.NEED_RESET, Code.STATE_MISS)
        assert (await h.reset("s", 4, text)).status is Status.OK


async def test_a_damaged_file_ends_the_worker_and_the_next_restores(backend, state_dir, hands):
    """Damage below the records cannot be cured in place: the worker ends with its code, the next
    one begins with an empty store, and the changelog gives everything back."""
    settings = make_settings(backend, state_dir, partitions=1, verify_rate=0)
    text = "a text of some pages, " * 2000
    running = await Running(backend, settings).__aenter__()
    h = await hands(settings)
    await h.reset("s", 1, text)
    with (state_dir / f"{settings.topic_appends}-0" / "data.mdb").open("r+b") as file:
        pages = file.seek(0, 2) // 4096
        file.seek(2 * 4096)
        file.write(bytes((pages - 2) * 4096))
    await h.event("s", 2, Edit(b" more"))
    async with asyncio.timeout(20):
        await asyncio.wait({running.task})
    with pytest.raises(ToktierError) as ended:
        await running.__aexit__(None, None, None)
    assert ended.value.code is Code.STORE_DAMAGED
    async with Running(backend, settings):
        assert (await h.next())[0].status is Status.OK
        assert (await h.append("s", 3, " and more")).status is Status.OK
    assert [a.revision for a in h.answers] == [1, 2, 3]


async def test_after_a_crash_of_the_machine_the_changelog_gives_everything_back(
    backend, state_dir, hands
):
    """A worker's commits are left to the system; a mark of another boot tells that the system
    ended with them. What is on the disk may look sound: here it is even older than it says."""
    settings = make_settings(backend, state_dir, partitions=1, verify_rate=0)
    folder = state_dir / f"{settings.topic_appends}-0"
    async with Running(backend, settings):
        h = await hands(settings)
        await h.reset("s", 1, "a text of some pages, " * 2000)
        assert (folder / "unsynced").exists()
    assert not (folder / "unsynced").exists()
    older = (folder / "data.mdb").read_bytes()
    async with Running(backend, settings):
        await h.append("s", 2, " more")
    (folder / "data.mdb").write_bytes(older)
    (folder / "unsynced").write_text("another boot")
    async with Running(backend, settings):
        assert (await h.append("s", 3, " and more")).status is Status.OK
        assert (folder / "damaged-data.mdb").exists()
    assert [a.revision for a in h.answers] == [1, 2, 3]


async def test_a_session_set_aside_does_not_repeat_its_ids(backend, state_dir, hands):
    """What the verifier found wrong, or what misses an event, is not sent again: not even to who
    repeats an event and asks for the full stream."""
    async with Running(backend, settings := make_settings(backend, state_dir)):
        h = await hands(settings)
        await h.reset("s", 1, "some text")
        assert (await h.reset("s", 1, "some text", want_full=True)).token_ids
        await h.send(OutRecord(settings.topic_appends, b"s", b"\xff\xff"))
        refused = await h.reset("s", 1, "some text", want_full=True)
        assert (refused.status, refused.code) == (Status.NEED_RESET, Code.QUARANTINED)
        assert not refused.token_ids


async def test_a_record_too_large_for_the_rejects_topic_does_not_stop_the_partition(
    state_dir,
):
    """An input topic may admit more than the worker, and compression lets in more than its limit
    says: the reject then names the record without its bytes."""
    backend = local_backend()
    broker = backend.connect()
    settings = make_settings(backend, state_dir, partitions=1)
    async with Running(backend, settings):
        broker.cluster.topic(settings.topic_appends).max_record_bytes = 1 << 30
        h = Hands(broker, settings)
        await h.open()
        headers = (("note", b"x" * (2 << 20)),)
        await h.send(
            OutRecord(settings.topic_appends, b"bad", b"x" * (4 << 20)),
            OutRecord(settings.topic_appends, b"k" * (2 << 20), b"x", headers),
        )
        async with asyncio.timeout(10):
            assert (await h.reset("good", 1, "still served")).status is Status.OK
        found = [
            decode_reject(r.key, r.value, r.headers)
            for r in await h.until(settings.topic_rejects, 2)
        ]
        assert [(r.offset, r.key, r.value) for r in found] == [(0, b"bad", None), (1, None, None)]
        assert f"{(4 << 20) + 3} bytes" in found[0].message


async def test_verdicts_outlive_a_batch_that_could_not_be_processed(
    backend, state_dir, hands, monkeypatch
):
    """A full store fails the batch before it is published: the verifier's results in it are not
    made again, so they wait for the next."""
    settings = make_settings(backend, state_dir)
    changes, failures = Batch.changes, iter([False, True])

    def full_once(batch):
        if next(failures, False):
            raise ToktierError(Code.STORE_FULL, "a failure made for the test")
        return changes(batch)

    monkeypatch.setattr(Batch, "changes", full_once)
    monkeypatch.setattr("toktier_stream.pipeline.partition._RETRY_S", (0.0,))
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.reset("s", 1, "some text")
        await running.worker.drain_verifier()
        async with asyncio.timeout(10):
            await h.until(settings.topic_checks, 1)
    assert next(failures, None) is None


async def test_a_partition_may_be_stopped_by_two_at_once(backend, state_dir):
    """A rebalance and the end of the worker may both ask for it: both wait, none fails."""
    async with Running(backend, make_settings(backend, state_dir)) as running:
        lives = list(running.worker._lives.values())
        await asyncio.gather(*(life.stop(10) for life in lives for _ in range(2)))
        assert {life.state.value for life in lives} == {"stopped"}


async def test_a_life_waits_for_the_thread_of_one_that_was_abandoned(
    backend, state_dir, hands, monkeypatch
):
    """A batch longer than the shutdown deadline goes on in its thread after a rebalance: the same
    partition's next life must not touch the store before it has ended."""
    settings = make_settings(backend, state_dir, partitions=1, shutdown_deadline_s=0.1)
    apply, inside, together, held = Machine.apply, [0], [0], threading.Event()

    def slow(machine, *arguments):
        inside[0] += 1
        together[0] = max(together[0], inside[0])
        try:
            held.wait(1.0)
            return apply(machine, *arguments)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(Machine, "apply", slow)
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.event("s", 1, Reset(b"some text"))
        while not inside[0]:
            await asyncio.sleep(0.01)
        cluster = running.broker.cluster
        cluster._rebalance(cluster.group(settings.group))
        assert (await h.next())[0].status is Status.OK
        held.set()
        assert (await h.append("s", 2, " more")).status is Status.OK
    assert together == [1]
