"""Full texts in a lane of their own: the same answers, and nobody waits for them."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from pipeline_harness import Running, make_settings, rebuilt

from toktier_stream.broker.port import OutRecord
from toktier_stream.config import GIB, MIB
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Reset, Status, TokenUpdate
from toktier_stream.wire.parts import split_event

ENCODER = open_tokenizer(shipped_path()).encoder
PART = 2048


def random_records(seed: int, sessions: int, count: int) -> list[tuple[bytes, bytes, tuple]]:
    """Events of every kind, sound and not, several sessions mixed, as encoded records."""
    rng = random.Random(seed)
    revisions: dict[str, int] = defaultdict(int)
    waiting: list[list[AppendEvent]] = []
    records: list[tuple[bytes, bytes, tuple]] = []

    def words(n: int) -> bytes:
        pieces = ("alpha", "42", "né", "\r\n", "<|im_end|>", "漢字")
        return " ".join(rng.choice(pieces) for _ in range(n)).encode()

    for _ in range(count):
        session = f"s{rng.randrange(sessions)}"
        kind = rng.random()
        revision = revisions[session] + 1
        if kind < 0.35:
            event = AppendEvent(session, revision, Reset(words(rng.randrange(1, 900))))
        elif kind < 0.75:
            event = AppendEvent(session, revision, Edit(words(rng.randrange(1, 6))))
        elif kind < 0.80:
            event = AppendEvent(session, revision, Close())
        elif kind < 0.85:
            event = AppendEvent(session, revision + 3, Edit(b"after a gap"))
            revision -= 1
        elif kind < 0.90:
            event = AppendEvent(session, max(1, revision - 1), Edit(b"too late"))
            revision -= 1
        elif kind < 0.95:
            event = AppendEvent(session, revision, Reset(words(300)), expect_bytes=7)
        else:
            records.append((session.encode(), b"\xff\xff not an event", ()))
            continue
        revisions[session] = revision
        waiting.append(list(split_event(event, PART)))
        rng.shuffle(waiting)
        while waiting and rng.random() < 0.8:
            records.append(encode_event(waiting[0].pop(0)))
            if not waiting[0]:
                waiting.pop(0)
    for parts in waiting:
        records += [encode_event(part) for part in parts]
    return records


async def answers_of(backend, settings, hands, records, count=None):
    """Send records to a fresh pipeline; the answers by session, in order and without what is
    measured, and what was rejected. Waits for ``count`` answers, or for that of the last event,
    which comes last where there is one lane."""
    async with Running(backend, settings):
        h = await hands(settings)
        await h.send(*(OutRecord(settings.topic_appends, *r, partition=0) for r in records))
        last = encode_event(AppendEvent("the end", 1, Reset(b"of it")))
        await h.send(OutRecord(settings.topic_appends, *last, partition=0))
        while len(h.answers) < (count or 1) or (
            not count and h.answers[-1].session_id != "the end"
        ):
            await h.next()
    rejects = await h.everything(settings.topic_rejects)
    by_session: dict[str, list[TokenUpdate]] = defaultdict(list)
    for answer in h.answers:
        by_session[answer.session_id].append(replace(answer, timings=None))
    return len(h.answers), by_session, sorted((r.key or b"", r.value or b"") for r in rejects)


@pytest.mark.parametrize("seed", range(3))
async def test_the_same_answers_in_the_same_order(backend, tmp_path, hands, seed):
    """One lane, two lanes, and two lanes with a bound that is met again and again."""
    records = random_records(seed, sessions=9, count=250)

    def settings(name, **lanes):
        return make_settings(
            backend, tmp_path / name, part_bytes=PART, verify_rate=0, partitions=1, **lanes
        )

    one = await answers_of(backend, settings("one", miss_bytes=GIB), hands, records)
    two = await answers_of(backend, settings("two", miss_bytes=0), hands, records, one[0])
    assert two == one
    bounded = settings("bounded", miss_bytes=512, miss_queue_bytes=8192, batch_records=7)
    assert await answers_of(backend, bounded, hands, records, one[0]) == one
    statuses = {a.status for answers in one[1].values() for a in answers}
    assert statuses >= set(Status) - {Status.DUPLICATE}


async def test_a_large_text_delays_no_other_session(backend, state_dir, hands):
    """Appends read after it are answered before it; the session's own wait for it, in order."""
    settings = make_settings(backend, state_dir, verify_rate=0, partitions=1)
    text = "a context that takes its time. " * (32 * MIB // 31)
    records = [encode_event(AppendEvent("quick", 1, Reset(b"quick")))]
    parts = split_event(AppendEvent("slow", 1, Reset(text.encode())), settings.part_bytes)
    records += [encode_event(part) for part in parts]
    for revision in range(2, 8):
        for session in ("slow", "quick"):
            records.append(encode_event(AppendEvent(session, revision, Edit(b" and more"))))
    async with Running(backend, settings):
        h = await hands(settings)
        await h.send(*(OutRecord(settings.topic_appends, *r, partition=0) for r in records))
        await h.next(14)
    order = [(a.session_id, a.revision) for a in h.answers]
    assert order == [("quick", n) for n in range(1, 8)] + [("slow", n) for n in range(1, 8)]
    assert {a.status for a in h.answers} == {Status.OK}
    final = [a for a in h.answers if a.session_id == "slow"][-1]
    assert final.total_bytes == len(text) + 6 * len(" and more")


async def test_a_worker_that_goes_away_with_texts_in_the_lane(backend, state_dir, hands):
    """What waited is read again by the next, answered once, and nothing else is answered twice."""
    settings = make_settings(backend, state_dir, verify_rate=0, partitions=1, miss_bytes=0)
    text = "a context that takes its time. " * (16 * MIB // 31)
    records = []
    for number in range(3):
        parts = split_event(AppendEvent(f"slow{number}", 1, Reset(text.encode())), 512 << 10)
        records += [encode_event(part) for part in parts]
        records.append(encode_event(AppendEvent(f"slow{number}", 2, Edit(b" and more"))))
        records.append(encode_event(AppendEvent(f"quick{number}", 1, Reset(b"quick"))))
    async with Running(backend, settings) as running:
        h = await hands(settings)
        await h.send(*(OutRecord(settings.topic_appends, *r, partition=0) for r in records))
        await h.next(1)
        assert not running.worker._lives[0].settled.is_set()
    async with Running(backend, settings):
        while len(h.answers) < 9:
            await h.next()
        await h.ask("the end", 1, Reset(b"of it"))
    ours = [(a.session_id, a.revision) for a in h.answers]
    assert len(ours) == len(set(ours)) == 10
    assert {a.status for a in h.answers} == {Status.OK}
    streams = rebuilt(
        {f"slow{n}": [a for a in h.answers if a.session_id == f"slow{n}"] for n in range(3)}
    )
    want = ENCODER.encode(f"{text} and more".encode()).ids.tolist()
    assert all(stream == want for stream in streams.values())
