"""Both deliveries: restarts that switch between them, failures between the steps of delivery at
least once, and a replaced owner that still writes."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import defaultdict

import pytest
from pipeline_harness import WITHIN_S, Hands, Running, local_backend, make_settings

from toktier_stream.broker.local import LocalGroupConsumer, LocalPublisher
from toktier_stream.broker.port import OutRecord
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.ownership import CLAIM, read_stamp, stamped
from toktier_stream.session.batch import SESSION, page_key, session_key
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Reset, Status

REFERENCE = open_tokenizer(shipped_path()).reference


async def consumed(running, settings, wanted):
    """Read everything from the start, until each session has its last revision; returns the
    consumer. ``wanted``: session to (revision, text)."""
    left = dict(wanted)
    options = ConsumerOptions(topic=settings.topic_tokens, from_start=True)
    async with TokenConsumer(running.broker, options) as consumer, asyncio.timeout(WITHIN_S):
        async for tokens in consumer.updates():
            revision, text = wanted[tokens.session_id]
            assert tokens.revision <= revision
            if tokens.revision == revision:
                assert tokens.ids.tolist() == REFERENCE.ids(text).tolist()
                left.pop(tokens.session_id, None)
            if not left:
                break
    assert consumer.diverged == 0
    return consumer


async def test_the_delivery_may_change_with_every_restart(backend, state_dir, hands):
    """Each reads the changelog and the position of the other, with its disk and without; nothing
    is asked for again, and nothing is answered twice."""
    first = make_settings(backend, state_dir)
    texts = {f"s{i}": f"session {i} begins here and has some words. " * 20 for i in range(8)}
    revision = 0
    for life, delivery in enumerate(("at", "at", "exactly", "at", "exactly")):
        mode = {"at": "at_least_once", "exactly": "exactly_once"}[delivery]
        settings = first.model_copy(update={"delivery": mode})
        if life in (2, 3):
            shutil.rmtree(state_dir)
        async with Running(backend, settings) as running:
            h = await hands(settings)
            for session in texts:
                addition = f" life {life} of {session}\n"
                op = Reset(texts[session].encode()) if life == 0 else Edit(addition.encode())
                texts[session] += addition if life else ""
                await h.event(session, revision + 1, op)
            while len(h.answers) < len(texts) * (life + 1):
                await h.next()
            await h.close()
            revision += 1
            assert {a.status for a in h.answers} == {Status.OK}
            wanted = {session: (revision, text) for session, text in texts.items()}
            consumer = await consumed(running, settings, wanted)
            assert consumer.duplicates == 0


STEPS = ("answers", "changelog", "position", "after the position")


@pytest.mark.parametrize("chosen", STEPS)
async def test_a_failure_at_any_step_repeats_answers_that_can_be_told(
    state_dir, monkeypatch, chosen
):
    """What was interrupted is done again: each event has at least one answer, further ones are
    identical or DUPLICATE, no event is rejected, and a consumer sees each revision once."""
    backend, random_ = local_backend(), random.Random(chosen)
    settings = make_settings(backend, state_dir, delivery="at_least_once", batch_records=64)
    publish, commit = LocalPublisher.publish, LocalGroupConsumer.commit
    failed = []

    def fail(step):
        if len(failed) < 15 and random_.random() < (0.7 if step == chosen else 0.05):
            failed.append(step)
            raise ToktierError(Code.BROKER_UNREACHABLE, "a failure made for the test")

    async def failing_publish(self, records):
        step = "changelog" if records[0].topic == settings.topic_sessions else "answers"
        if random_.random() < 0.3 and step == "changelog":
            # A torn one, between two sessions: each ends with its header.
            ends = [i + 1 for i, r in enumerate(records) if r.key[:1] == SESSION]
            await publish(self, records[: random_.choice([0, *ends])])
        fail(step)
        return await publish(self, records)

    async def failing_commit(self, partition, position):
        fail("position")
        await commit(self, partition, position)
        fail("after the position")

    monkeypatch.setattr("toktier_stream.pipeline.partition._RETRY_S", (0.0,))
    monkeypatch.setattr("toktier_stream.pipeline.partition.REPLACED", frozenset())
    texts = {f"s{i}": f"session {i} begins. " * 10 for i in range(6)}
    events = [(s, 1, Reset(t.encode())) for s, t in texts.items()]
    for revision in range(2, 40):
        for session in texts:
            addition = f" revision {revision} of {session}\n"
            texts[session] += addition
            events.append((session, revision, Edit(addition.encode())))
    async with Running(backend, settings) as running:
        h = Hands(running.broker, settings)
        await h.open()
        monkeypatch.setattr(LocalPublisher, "publish", failing_publish)
        monkeypatch.setattr(LocalGroupConsumer, "commit", failing_commit)
        sent = 0
        while sent < len(events):
            count = random_.choice((1, 20, 80))
            topic = settings.topic_appends
            await h.send(
                *(
                    OutRecord(topic, *encode_event(AppendEvent(*e)))
                    for e in events[sent : sent + count]
                )
            )
            sent += count
        told = defaultdict(list)
        while len(told) < len(events):
            for answer in await h.next():
                told[answer.session_id, answer.revision].append(answer)
        await consumed(running, settings, {s: (39, t) for s, t in texts.items()})
        assert chosen in failed
    for answers in told.values():
        applied = [a for a in answers if a.status is Status.OK]
        assert applied, answers
        assert {a.status for a in answers} <= {Status.OK, Status.DUPLICATE}
        assert len({(a.digest, a.total_tokens, a.source_offset) for a in applied}) == 1
        assert {a.digest for a in answers if a.status is Status.DUPLICATE} <= {applied[0].digest, 0}
    assert not await h.everything(settings.topic_rejects)


async def test_what_a_replaced_owner_writes_counts_nowhere(backend, state_dir, hands):
    """Records of an owner that was replaced stand last under their keys: the owner notices at its
    next batch, nobody applies them, the owner writes those keys again, and an empty disk gets the
    right sessions."""
    settings = make_settings(backend, state_dir, delivery="at_least_once", partitions=1)
    topic = settings.topic_sessions
    texts = {f"s{i}": f"session {i} begins here. " * 20 for i in range(4)}
    async with Running(backend, settings):
        h = await hands(settings)
        for session, text in texts.items():
            await h.reset(session, 1, text)
    async with Running(backend, settings):
        for session in texts:
            texts[session] += " second"
            await h.append(session, 2, " second")
    log = await h.everything(topic)
    claims = [r.offset for r in log if r.key.startswith(CLAIM)]
    assert len(claims) == 2
    old = [r for r in log if r.offset < claims[1] and r.key[:1] == SESSION]
    async with Running(backend, settings):
        # The first owner wakes up: a header of its time, and a removal.
        late = [
            OutRecord(topic, old[0].key, old[0].value, partition=0),
            OutRecord(topic, old[1].key, None, partition=0),
        ]
        await h.send(*stamped(late, claims[0], 0))
        others = texts.keys() - {old[0].key[1:].decode(), old[1].key[1:].decode()}
        for session in others:
            texts[session] += " third"
            await h.event(session, 3, Edit(b" third"))
        while {a.session_id for a in h.answers if a.revision == 3} != others:
            await h.next()
        told = {a.status for a in h.answers if a.revision == 3}
        assert Status.OK in told <= {Status.OK, Status.DUPLICATE}
        assert len(others) == 2
        # One batch may have answered both: then the owner has not noticed yet.
        newest = dict.fromkeys([r.key for r in old[:2]], claims[0])
        while claims[0] in {newest[r.key] for r in old[:2]}:
            log = await h.everything(topic)
            newest = {r.key: read_stamp(r)[0] for r in log if not r.key.startswith(CLAIM)}
    shutil.rmtree(state_dir)
    async with Running(backend, settings) as running:
        revisions = {session: 3 + (session in others) for session in texts}
        for session, revision in revisions.items():
            texts[session] += " last"
            await h.event(session, revision, Edit(b" last"))
        await consumed(running, settings, {s: (revisions[s], t) for s, t in texts.items()})


async def test_records_without_a_session_are_removed(backend, state_dir, hands):
    """A batch of which only pages reached the changelog: the next owner removes them here and
    there, with its disk and without."""
    settings = make_settings(backend, state_dir, delivery="at_least_once", partitions=1)
    topic, text = settings.topic_sessions, "a session with some pages begins here. " * 400
    path = state_dir / f"{settings.topic_appends}-0"
    torn = [page_key(session_key(name), 1 << 20) for name in (b"s", b"other")]
    async with Running(backend, settings):
        h = await hands(settings)
        assert (await h.reset("s", 1, text)).status is Status.OK
    for revision in (2, 3):
        owner = max(r.offset for r in await h.everything(topic) if r.key.startswith(CLAIM))
        await h.send(*stamped([OutRecord(topic, k, b"x", partition=0) for k in torn], owner, 0))
        if revision == 3:
            shutil.rmtree(state_dir)
        async with Running(backend, settings):
            text += " more"
            assert (await h.append("s", revision, " more")).status is Status.OK
        log = await h.everything(topic)
        assert {r.key: r.value for r in log if r.key in torn} == dict.fromkeys(torn)
        with Store.open(path, map_bytes=1 << 30) as store:
            report = store.check()
            assert (report.sessions, report.damaged, report.orphans) == (1, (), 0)
            session = store.load(b"s")
            assert session.ids().tolist() == REFERENCE.ids(text).tolist()


async def test_a_store_of_another_history_is_restored_in_full(backend, state_dir, hands):
    """A store that claims to have passed offsets which its owner cannot have written, or that is
    ahead of a changelog that was made anew, is emptied and restored, not continued."""
    settings = make_settings(backend, state_dir, partitions=1)
    async with Running(backend, settings):
        h = await hands(settings)
        await h.reset("s", 1, "the text that the changelog knows")
    async with Running(backend, settings):
        await h.append("s", 2, " and more")
    path = state_dir / f"{settings.topic_appends}-0"
    for owner, offset in ((0, None), (None, 1 << 40)):
        with Store.open(path, map_bytes=1 << 30) as store:
            store.begin().discard()
            standing = store.changelog_offset - 1 if offset is None else offset
            store.restore([(SESSION + b"s", None)], standing, owner=owner)
        async with Running(backend, settings):
            answer = await h.append("s", 3 if offset is None else 4, ".")
            assert answer.status is Status.OK
