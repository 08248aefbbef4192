"""A worker that goes away loses nothing: with its disk, without it, and in the middle of parts."""

from __future__ import annotations

import shutil

from pipeline_harness import Running, make_settings, rebuilt

from toktier_stream.broker.port import OutRecord
from toktier_stream.errors import Code
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Reset, Route, Status
from toktier_stream.wire.parts import split_event

REFERENCE = open_tokenizer(shipped_path()).reference


async def test_sessions_go_on_over_restarts_with_and_without_the_disk(backend, state_dir, hands):
    """After each restart appends are spliced on, not asked for again; an empty disk is filled
    from the changelog."""
    settings = make_settings(backend, state_dir)
    texts = {f"s{i}": f"session {i} begins here and has some words. " * 30 for i in range(12)}
    history: dict[str, list] = {s: [] for s in texts}
    revision = 1
    for life in range(4):
        if life == 2:
            shutil.rmtree(state_dir)
        async with Running(backend, settings):
            h = await hands(settings)
            h.answers.clear()
            for session in texts:
                if life == 0:
                    await h.event(session, revision, Reset(texts[session].encode()))
                else:
                    addition = f" life {life} of {session}\n"
                    texts[session] += addition
                    await h.event(session, revision, Edit(addition.encode()))
            while len(h.answers) < len(texts) * (life + 1):
                await h.next()
            await h.close()
        for answer in (a for a in h.answers if a.revision == revision):
            assert answer.status is Status.OK
            assert life == 0 or answer.route is Route.SPLICE
            history[answer.session_id].append(answer)
        revision += 1
    for session, stream in rebuilt(history).items():
        assert stream == REFERENCE.ids(texts[session]).tolist()


async def test_events_behind_unfinished_parts_are_not_answered_twice(backend, state_dir, hands):
    """Parts hold the committed offset back; what was answered behind them is remembered."""
    settings = make_settings(backend, state_dir, part_bytes=2048)
    text = "a long context in many parts, " * 400
    parts = [
        OutRecord(settings.topic_appends, *encode_event(p), partition=0)
        for p in split_event(AppendEvent("big", 1, Reset(text.encode())), 2048)
    ]
    async with Running(backend, settings):
        h = await hands(settings)
        await h.send(*parts[:2])
        for revision, op in ((1, Reset(b"small")), (2, Edit(b" and more"))):
            event = encode_event(AppendEvent("small", revision, op))
            await h.send(OutRecord(settings.topic_appends, *event, partition=0))
        assert [a.status for a in await h.next(2)] == [Status.OK, Status.OK]
    async with Running(backend, settings):
        await h.send(*parts[2:])
        event = encode_event(AppendEvent("small", 3, Edit(b".")))
        await h.send(OutRecord(settings.topic_appends, *event, partition=0))
        late = await h.next(2)
    everything = await h.everything(settings.topic_tokens)
    assert {(a.session_id, a.revision, a.status) for a in late} == {
        ("big", 1, Status.OK),
        ("small", 3, Status.OK),
    }
    assert len({(r.key, a.revision) for r in everything for a in h.answers}) >= 4
    assert len(h.answers) == 4


async def test_a_place_that_cannot_be_kept_any_longer_is_given_up(backend, state_dir, hands):
    """Thousands of revisions in parts at once: before Kafka would refuse the commit's metadata the
    oldest is answered PARTS_INCOMPLETE, and every other event still exactly once."""
    settings = make_settings(backend, state_dir)
    count = 2500
    records = []
    for i in range(count):
        first = AppendEvent(f"open{i}", 1, Reset(b"never finished"), part=0, parts=2)
        done = AppendEvent(f"done{i}", 1, Reset(b"short"))
        records += [
            OutRecord(settings.topic_appends, *encode_event(e), partition=0) for e in (first, done)
        ]
    async with Running(backend, settings):
        h = await hands(settings)
        await h.send(*records)
        while sum(a.status is Status.OK for a in h.answers) < count:
            await h.next()
    given_up = [a for a in h.answers if a.status is Status.REJECTED]
    assert {a.code for a in given_up} == {Code.PARTS_INCOMPLETE}
    assert 0 < len(given_up) < count
    async with Running(backend, settings):
        event = encode_event(AppendEvent("after", 1, Reset(b"still served")))
        await h.send(OutRecord(settings.topic_appends, *event, partition=0))
        while h.answers[-1].session_id != "after":
            await h.next()
    assert len({(a.session_id, a.revision) for a in h.answers}) == len(h.answers)
