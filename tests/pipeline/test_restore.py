"""A replay that takes longer than its deadline: it goes on as long as it moves."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter

import pytest
from pipeline_harness import Hands, Running, local_backend, make_settings

from toktier_stream.broker.local import LocalReader
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.partition import Partition
from toktier_stream.wire.messages import Edit, Reset, Status

REPLAYS = 70


@pytest.fixture
def backend():
    """What is slow here is put into the embedded broker."""
    return local_backend()


async def filled(backend, settings):
    """A changelog of many records, and no disk."""
    async with Running(backend, settings) as running:
        h = Hands(running.broker, settings)
        await h.open()
        for i in range(REPLAYS):
            await h.event(f"s{i}", 1, Reset(b"text %d" % i))
        await h.next(REPLAYS)
    shutil.rmtree(settings.state_dir)
    return h


async def test_a_slow_replay_that_moves_is_told_and_goes_on(backend, state_dir, monkeypatch):
    """Its time is over far more often than a worker tries what does not move. Events wait for it;
    then every session is there, and nobody was asked for a reset."""
    settings = make_settings(backend, state_dir, partitions=1, verify_rate=0)
    h = await filled(backend, settings)
    poll, deadlines, given = LocalReader.poll, [], Counter()

    async def slow(self, timeout, max_records):
        if self.topic == settings.topic_sessions:
            given[self] += 1
            if given[self] > 4:
                raise TimeoutError  # as the deadline does
            return await poll(self, timeout, 1)
        return await poll(self, timeout, max_records)

    replaying = Partition._replaying

    def counted(self, error):
        moving = replaying(self, error)
        deadlines.append((error.code, moving, self.facts().restored, self.facts().to_restore))
        return moving

    monkeypatch.setattr(Partition, "_replaying", counted)
    monkeypatch.setattr("toktier_stream.pipeline.partition._RETRY_S", (0.0,))
    monkeypatch.setattr(LocalReader, "poll", slow)
    async with Running(backend, settings):
        monkeypatch.setattr(LocalReader, "poll", poll)
        for i in range(REPLAYS):
            await h.event(f"s{i}", 2, Edit(b" more"))
        assert {a.status for a in await h.next(REPLAYS)} == {Status.OK}
    assert len(deadlines) > 20
    assert {(code, moving) for code, moving, _, _ in deadlines} == {(Code.RESTORE_DEADLINE, True)}
    assert deadlines[0][2] > 0  # records applied
    assert deadlines[0][3] > deadlines[-1][3] > 0  # offsets to go


async def test_a_replay_that_does_not_move_ends_the_worker(backend, state_dir, monkeypatch):
    """Whoever restarts it may find a broker that answers."""
    settings = make_settings(
        backend, state_dir, partitions=1, verify_rate=0, restore_deadline_s=0.02
    )
    await filled(backend, settings)

    async def silent(self, timeout, max_records):
        await asyncio.sleep(timeout)
        return []

    monkeypatch.setattr("toktier_stream.pipeline.partition._RETRY_S", (0.0,))
    monkeypatch.setattr(LocalReader, "poll", silent)
    monkeypatch.setattr(LocalReader, "drained", lambda self, partition, end: False)
    with pytest.raises(ToktierError) as caught:
        async with Running(backend, settings):
            pass
    assert caught.value.code is Code.RESTORE_DEADLINE
