"""A worker that is stopped for longer than the session timeout and wakes up: with delivery at least
once, where no transaction fences it, and exactly once, where its producer is."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict

import pytest
from pipeline_harness import PARTITIONS, WITHIN_S, Hands, Running, kafka_backend, make_settings
from test_kafka_workers import WorkerProcess

from toktier_stream.broker.port import OutRecord
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.pipeline.ownership import CLAIM, read_stamp
from toktier_stream.pipeline.worker import topic_specs
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Reset, Status

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
SESSIONS = 24


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_worker_that_wakes_up_after_it_was_replaced_does_no_harm(
    kafka_bootstrap, tmp_path, delivery
):
    """It is stopped with work in hand. Another one takes its partitions, then it goes on. Every
    event is answered as the delivery says, further answers can be told, consumers get the
    reference's ids, and a worker with an empty disk restores the right sessions."""
    backend = kafka_backend(kafka_bootstrap)
    settings = make_settings(
        backend, tmp_path / "fresh", delivery=delivery, session_timeout_s=6, verify_rate=0
    )
    broker = backend.connect()
    await broker.start()
    await broker.ensure_topics(topic_specs(settings), create=True)
    workers = [
        WorkerProcess(settings, tmp_path / name, shipped_path(), tmp_path / f"{name}.log")
        for name in "ab"
    ]
    for worker in workers:
        worker._environment["TOKTIER_DELIVERY"] = delivery
        await worker.start()
        await worker.running()
    texts = {f"s{i}": f"session {i} begins here. " * 20 for i in range(SESSIONS)}
    hands = Hands(broker, settings)
    await hands.open()
    revision = 1
    await send(hands, texts, revision, texts)
    told = defaultdict(list)

    async def until_answered():
        while len(told) < SESSIONS * revision:
            for answer in await hands.next():
                told[answer.session_id, answer.revision].append(answer)

    async def grow(rounds):
        nonlocal revision
        for _ in range(rounds):
            revision += 1
            additions = {s: f" revision {revision} of {s}\n" for s in texts}
            for session, addition in additions.items():
                texts[session] += addition
            await send(hands, additions, revision, ())

    await until_answered()
    await grow(5)
    before = running(workers[0])
    workers[0]._process.send_signal(signal.SIGSTOP)
    await grow(20)
    async with asyncio.timeout(WITHIN_S):  # the other one has everything, and goes on
        await until_answered()
    workers[0]._process.send_signal(signal.SIGCONT)
    await grow(20)
    async with asyncio.timeout(WITHIN_S):
        await until_answered()
        while running(workers[0]) == before:  # it has partitions again
            await asyncio.sleep(0.1)
    await grow(5)
    await until_answered()
    for worker in workers:
        assert await worker.end(signal.SIGTERM) == 0

    for answers in told.values():
        applied = [a for a in answers if a.status is Status.OK]
        assert applied
        assert {a.status for a in answers} <= {Status.OK, Status.DUPLICATE}
        assert delivery == "at_least_once" or len(answers) == 1
        assert len({(a.digest, a.source_offset) for a in applied}) == 1
    assert not await hands.everything(settings.topic_rejects)
    log = await hands.everything(settings.topic_sessions)
    assert sum(r.key.startswith(CLAIM) for r in log) >= 2 * PARTITIONS
    assert {read_stamp(r)[0] for r in log if not r.key.startswith(CLAIM)} != {-1}

    async with Running(backend, settings):
        await grow(1)
        await until_answered()
        assert {a.status for s in texts for a in told[s, revision]} == {Status.OK}
    reference = open_tokenizer(shipped_path()).reference
    wanted = {s: reference.ids(text).tolist() for s, text in texts.items()}
    options = ConsumerOptions(topic=settings.topic_tokens, from_start=True)
    async with TokenConsumer(broker, options) as consumer, asyncio.timeout(WITHIN_S):
        seen = dict.fromkeys(texts, 0)
        async for tokens in consumer.updates():
            assert tokens.revision == seen[tokens.session_id] + 1
            seen[tokens.session_id] = tokens.revision
            if tokens.revision == revision:
                assert tokens.ids.tolist() == wanted.pop(tokens.session_id)
            if not wanted:
                break
        assert consumer.diverged == 0
    await hands.close()
    await broker.stop()


async def send(hands, additions, revision, whole):
    """One event for each session, in one go."""
    topic = hands.settings.topic_appends
    await hands.send(
        *(
            OutRecord(
                topic,
                *encode_event(
                    AppendEvent(
                        session, revision, (Reset if session in whole else Edit)(text.encode())
                    )
                ),
            )
            for session, text in additions.items()
        )
    )


def running(worker):
    """How many times a worker began to run a partition."""
    return worker._log.read_bytes().count(b"partition_running")
