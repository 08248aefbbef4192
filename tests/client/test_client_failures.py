"""Producers whose first sends meet an older run, lost state or a broker that fails: no ticket waits
for ever, and the pipeline ends up with the producer's text."""

from __future__ import annotations

import pytest
from pipeline_harness import Hands
from test_clients import Fleet, until_ids

from toktier_stream.broker.local import LocalGroupConsumer, LocalPublisher
from toktier_stream.broker.port import OutRecord
from toktier_stream.errors import Code, ToktierError
from toktier_stream.wire.messages import Status


async def poison(fleet, session):
    """Set a session aside: its next edit is answered NEED_RESET."""
    hands = Hands(fleet.backend.connect(), fleet.settings)
    await hands.send(OutRecord(fleet.settings.topic_appends, session.encode(), b"\xff\xff"))


async def test_a_young_session_of_an_older_run_is_not_continued(tmp_path):
    """An older run's revisions that the worker still remembers are answered REVISION_REUSED: what
    follows must not be appended to the older run's text."""
    fleet = Fleet(tmp_path)
    async with fleet.worker(), fleet.consumer() as consumer:
        async with fleet.producer() as producer:
            await (await producer.send_text("s", "an older run")).answer(60)
        async with fleet.producer() as producer:
            first = await (await producer.send_text("s", "another text")).answer(60)
            assert first.status is Status.OK
            await producer.append("s", " and more")
            await until_ids(consumer, "s", "another text and more")


async def test_a_repeat_of_an_older_runs_beginning_starts_over(tmp_path):
    """The same first text as an older run that went on: DUPLICATE is not the whole answer."""
    fleet = Fleet(tmp_path)
    async with fleet.worker():
        async with fleet.producer() as producer:
            await producer.send_text("s", "the same beginning")
            await (await producer.append("s", " and more")).answer(60)
        async with fleet.producer() as producer, fleet.consumer() as consumer:
            await producer.send_text("s", "the same beginning")
            await until_ids(consumer, "s", "the same beginning")


async def test_a_ticket_that_a_later_reset_covers_gets_its_answer(tmp_path):
    """NEED_RESET comes after the caller has sent a reset already: nobody waits for ever."""
    fleet = Fleet(tmp_path, producer={"max_memory_bytes": 4})
    async with fleet.worker(), fleet.producer() as producer:
        await (await producer.append("s", "a text too long to be kept")).answer(60)
        await poison(fleet, "s")
        refused = await producer.append("s", " more")
        covering = await producer.send_text("s", "a text too long to be kept, and more")
        assert (await covering.answer(60)).status is Status.OK
        assert await refused.answer(10) == await covering.answer()


async def test_a_session_of_an_older_run_can_be_closed(tmp_path):
    """The first close meets a stale revision and learns the session's own; the next one closes."""
    fleet = Fleet(tmp_path)
    async with fleet.worker():
        async with fleet.producer() as producer:
            for _ in range(7):
                await (await producer.append("s", "x")).answer(60)
        async with fleet.producer() as producer:
            assert (await (await producer.close("s")).answer(60)).code is Code.STALE_REVISION
            assert (await (await producer.close("s")).answer(60)).closed


async def test_the_answers_go_on_after_a_reset_that_could_not_be_sent(tmp_path, monkeypatch):
    """The refused event's ticket says NEED_RESET, the next event is met by a reset, and other
    sessions are answered as before."""
    fleet = Fleet(tmp_path)

    async def unreachable(publisher, record):
        raise ToktierError(Code.BROKER_UNREACHABLE, "a failure made for the test")

    async with fleet.worker(), fleet.producer() as producer, fleet.consumer() as consumer:
        await (await producer.send_text("s", "text")).answer(60)
        await poison(fleet, "s")
        ticket = await producer.append("s", " more")
        with monkeypatch.context() as patch:
            patch.setattr(LocalPublisher, "send", unreachable)
            assert (await ticket.answer(60)).status is Status.NEED_RESET
            with pytest.raises(ToktierError):
                await producer.send_text("s", "a text that never left")
        assert (await (await producer.send_text("other", "text")).answer(60)).status is Status.OK
        assert (await (await producer.append("s", " still")).answer(60)).status is Status.OK
        await until_ids(consumer, "s", "text more still")
        assert not producer._waiting


async def test_a_rebalance_between_poll_and_commit_does_not_end_a_consumer(tmp_path, monkeypatch):
    """The group moved on while a member committed: it goes on reading."""
    fleet = Fleet(tmp_path, consumer={"group": "fleet"})
    commit, lost = LocalGroupConsumer.commit, iter([True])

    async def lose(member, partition, position):
        if next(lost, False):
            raise ToktierError(Code.PARTITION_LOST, "a failure made for the test")
        await commit(member, partition, position)

    monkeypatch.setattr(LocalGroupConsumer, "commit", lose)
    async with fleet.worker(), fleet.producer() as producer, fleet.consumer() as consumer:
        await producer.send_text("s", "text")
        await until_ids(consumer, "s", "text")
    assert next(lost, None) is None


async def test_a_text_that_utf8_cannot_hold_is_refused_without_showing_it(tmp_path):
    """Our code, not the codec's exception, which carries the whole text with it."""
    fleet = Fleet(tmp_path, producer={"listen": False})
    async with fleet.worker(), fleet.producer() as producer:
        for send in (producer.send_text, producer.append):
            with pytest.raises(ToktierError) as caught:
                await send("s", "a secret \ud800")
            assert caught.value.code is Code.LONE_SURROGATE
            assert caught.value.__cause__ is caught.value.__context__ is None
