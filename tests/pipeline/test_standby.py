"""Copies of partitions on other workers: a takeover replays only the tail."""

from __future__ import annotations

import asyncio

from pipeline_harness import WITHIN_S, Running, make_settings

from toktier_stream.broker.port import read_to_end
from toktier_stream.pipeline.partition import Partition
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import Edit, Reset, Status

REFERENCE = open_tokenizer(shipped_path()).reference
SESSIONS = 24


async def answered(h, count):
    """Read until that many answers have come in all."""
    while len(h.answers) < count:
        await h.next()


async def copied(running, settings, partitions):
    """Wait until a worker's copies are as far as the changelog's last record."""
    reader_of = running.broker.reader
    ends = {}
    for partition in partitions:
        reader = reader_of(settings.topic_sessions)
        records = [r async for r in read_to_end(reader, partition, 0, WITHIN_S)]
        await reader.stop()
        ends[partition] = records[-1].offset + 1
    async with asyncio.timeout(WITHIN_S):
        while not all(
            p in running.worker.standbys and running.worker.standbys[p].position >= end
            for p, end in ends.items()
        ):
            await asyncio.sleep(0.05)


async def shared_out(first, second):
    """Wait until two workers run two partitions each."""
    async with asyncio.timeout(WITHIN_S):
        while not len(first.worker.stats.partitions) == len(second.worker.stats.partitions) == 2:
            await asyncio.sleep(0.05)


async def test_a_takeover_replays_only_the_tail(backend, tmp_path, hands, monkeypatch):
    """Each of two workers follows what the other owns. One leaves: the other has the state, all
    but what came last, and nobody is asked for a reset."""
    replayed: dict[int, int] = {}
    restored = Partition._restoring

    def counting(life, progress):
        restored(life, progress)
        progresses.append((life.number, progress))

    progresses = []
    monkeypatch.setattr(Partition, "_restoring", counting)
    settings = make_settings(backend, tmp_path / "a", standby_replicas=1)
    other = settings.model_copy(update={"state_dir": tmp_path / "b"})
    texts = {f"s{i}": f"session {i} begins here and has some words. " * 30 for i in range(SESSIONS)}
    async with Running(backend, other) as b:
        async with Running(backend, settings) as a:
            h = await hands(settings)
            await shared_out(a, b)
            for session, text in texts.items():
                await h.event(session, 1, Reset(text.encode()))
            await answered(h, SESSIONS)
            moving = set(a.worker.stats.partitions)
            assert set(b.worker._standbys) == moving
            assert set(a.worker._standbys) == set(b.worker.stats.partitions)
            await copied(b, settings, moving)
            progresses.clear()
        async with asyncio.timeout(WITHIN_S):
            while len(b.worker.stats.partitions) < 4:
                await asyncio.sleep(0.05)
        assert not b.worker.standbys
        replayed = {p: progress.applied for p, progress in progresses if p in moving}
        assert replayed.keys() == moving
        assert set(replayed.values()) == {0}
        for session in texts:
            texts[session] += " more"
            await h.event(session, 2, Edit(b" more"))
        await answered(h, 2 * SESSIONS)
    assert {a.status for a in h.answers} == {Status.OK}
    for answer in h.answers[SESSIONS:]:
        assert answer.total_tokens == len(REFERENCE.ids(texts[answer.session_id]))


async def test_a_copy_begins_with_an_empty_disk_and_changes_hands(backend, tmp_path, hands):
    """A worker that joins late gets copies of what was there before, and a partition that goes
    back and forth is owned, followed and owned again by the same store."""
    settings = make_settings(backend, tmp_path / "a", standby_replicas=1, verify_rate=0)
    other = settings.model_copy(update={"state_dir": tmp_path / "b"})
    texts = {f"s{i}": f"session {i} begins here and has some words. " * 30 for i in range(SESSIONS)}
    revision = 1
    async with Running(backend, settings) as a:
        h = await hands(settings)
        for session, text in texts.items():
            await h.event(session, 1, Reset(text.encode()))
        await answered(h, SESSIONS)
        for _ in range(2):
            async with Running(backend, other) as b:
                await shared_out(a, b)
                await copied(b, settings, a.worker.stats.partitions)
                await copied(a, settings, b.worker.stats.partitions)
                revision += 1
                for session in texts:
                    texts[session] += f" {revision}"
                    await h.event(session, revision, Edit(b" %d" % revision))
                await answered(h, revision * SESSIONS)
                await copied(a, settings, b.worker.stats.partitions)
            async with asyncio.timeout(WITHIN_S):
                while len(a.worker.stats.partitions) < 4:
                    await asyncio.sleep(0.05)
    assert {a.status for a in h.answers} == {Status.OK}
    for answer in h.answers[-SESSIONS:]:
        assert answer.total_tokens == len(REFERENCE.ids(texts[answer.session_id]))
