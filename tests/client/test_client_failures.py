"""Producers whose first sends meet an older run, lost state or a broker that fails: no ticket waits
for ever, and the pipeline ends up with the producer's text."""

from __future__ import annotations

from test_clients import Fleet, until_ids

from toktier_stream.wire.messages import Status


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
