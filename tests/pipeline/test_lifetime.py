"""Sessions end by time, by quota, and by a full store; an ended session costs a reset, no more."""

from __future__ import annotations

import asyncio

from pipeline_harness import WITHIN_S, Running, make_settings

from toktier_stream.errors import Code
from toktier_stream.pipeline.ownership import CLAIM
from toktier_stream.wire.messages import Reset, Status


async def test_an_untouched_session_is_removed_everywhere(backend, state_dir, hands):
    """After its lifetime: state miss, tombstones in the changelog, and a reset begins anew."""
    settings = make_settings(backend, state_dir, session_ttl_s=0.5)
    async with Running(backend, settings):
        h = await hands(settings)
        await h.reset("s", 1, "a text that nobody comes back to")
        async with asyncio.timeout(WITHIN_S):
            while any(  # the newest record of each key is a tombstone
                value is not None
                for value in {
                    r.key: r.value
                    for r in await h.everything(settings.topic_sessions)
                    if not r.key.startswith(CLAIM)
                }.values()
            ):
                await asyncio.sleep(0.1)
        late = await h.append("s", 2, "late")
        assert (late.status, late.code) == (Status.NEED_RESET, Code.STATE_MISS)
        assert (await h.reset("s", 3, "again")).status is Status.OK


async def test_the_quota_keeps_the_recently_used(backend, state_dir, hands):
    """Beyond the quota the least recently touched sessions go, never the ones in use."""
    settings = make_settings(
        backend, state_dir, quota_bytes=1 << 20, hot_bytes=0, partitions=1, verify_rate=0
    )
    text = "words of a session that takes some room " * 500
    async with Running(backend, settings):
        h = await hands(settings)
        await h.reset("kept", 1, text)
        for i in range(60):
            await h.reset(f"s{i}", 1, text)
            assert (await h.append("kept", i + 2, " more")).status is Status.OK
        first = await h.append("s0", 2, " more")
        assert (first.status, first.code) == (Status.NEED_RESET, Code.STATE_MISS)


async def test_a_full_store_waits_and_loses_nothing(backend, state_dir, hands):
    """The map is full: the partition stops before it publishes, and goes on when there is room."""
    settings = make_settings(
        backend,
        state_dir,
        store_map_bytes=2 << 20,
        max_session_bytes=128 << 10,
        session_ttl_s=2,
        partitions=1,
        verify_rate=0,
    )
    text = "words of a session that takes some room " * 500
    async with Running(backend, settings):
        h = await hands(settings)
        for i in range(80):
            await h.event(f"s{i}", 1, Reset(text.encode()))
        await h.next(80)
    assert {a.status for a in h.answers} == {Status.OK}
    assert sorted({a.session_id for a in h.answers}) == sorted({f"s{i}" for i in range(80)})
    assert len(h.answers) == 80
