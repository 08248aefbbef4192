"""Worker processes on Apache Kafka: one killed in the middle, one joining and leaving."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from pipeline_harness import PARTITIONS, Hands, kafka_backend, make_settings

from toktier_stream.bench.generate import generate_session
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.client.producer import AppendProducer, ProducerOptions
from toktier_stream.client.replay import find_transcripts, session_of, sessions
from toktier_stream.pipeline.worker import topic_specs
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.wire.answers import decode_update
from toktier_stream.wire.messages import Status

pytestmark = [pytest.mark.kafka, pytest.mark.families, pytest.mark.timeout(600)]


class WorkerProcess:
    """A real worker process, as an operator starts it."""

    def __init__(self, settings, state_dir: Path, tokenizer: Path, log: Path):
        self._environment = {
            **os.environ,
            "TOKTIER_GROUP": settings.group,
            "TOKTIER_SESSION_TIMEOUT_S": "6",
            "TOKTIER_STORE_MAP_BYTES": str(1 << 30),
            **{
                f"TOKTIER_TOPIC_{t.upper()}": getattr(settings, f"topic_{t}")
                for t in ("appends", "tokens", "checks", "rejects", "sessions")
            },
        }
        self._arguments = [
            *(sys.executable, "-m", "toktier_stream", "worker"),
            *("--broker", settings.broker, "--state-dir", str(state_dir)),
            *("--tokenizer", f"model={tokenizer}"),
        ]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self):
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments, env=self._environment, stdout=log, stderr=log
            )

    async def running(self):
        """Wait until it runs a partition."""
        async with asyncio.timeout(120):
            while b"partition_running" not in self._log.read_bytes():
                await asyncio.sleep(0.05)

    async def end(self, number: int) -> int:
        """Send a signal and wait; returns the exit code."""
        self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), 60)


async def test_nothing_is_lost_or_answered_twice_over_a_kill_and_a_rebalance(
    kafka_bootstrap, family_file, transcripts, tmp_path
):
    """The transcripts over four partitions; worker A is killed and comes back, worker B joins and
    leaves. Every stream equals the reference, every event has exactly one answer."""
    backend = kafka_backend(kafka_bootstrap)
    settings = make_settings(backend, tmp_path / "unused")
    if transcripts is not None:
        found = list(sessions(find_transcripts([transcripts]), None))
    else:
        found = [session_of(generate_session(i, 30), f"generated-{i}") for i in range(15)]
    total = sum(len(s.texts) for s in found)
    tokenizer = family_file("qwen3")
    broker = backend.connect()
    await broker.start()
    await broker.ensure_topics(topic_specs(settings), create=True)
    a = WorkerProcess(settings, tmp_path / "a", tokenizer, tmp_path / "a.log")
    b = WorkerProcess(settings, tmp_path / "b", tokenizer, tmp_path / "b.log")
    await a.start()
    done = 0
    reached: dict[int, asyncio.Event] = {
        round(total * share): asyncio.Event() for share in (0.25, 0.5, 0.8)
    }
    joined = asyncio.Event()

    async def disturb():
        first, second, third = reached.values()
        await first.wait()
        await a.end(signal.SIGKILL)
        await a.start()
        await second.wait()
        await b.start()
        await b.running()
        joined.set()
        await third.wait()
        return await b.end(signal.SIGTERM)

    async def play(producer, session):
        nonlocal done
        for text in session.texts:
            if done > total * 0.65:
                await joined.wait()  # so that the second worker does a share of the work
            ticket = await producer.send_text(session.session_id, text)
            assert (await ticket.answer(120)).status is Status.OK
            done += 1
            for count, event in reached.items():
                if done >= count:
                    event.set()

    options = ProducerOptions(topic=settings.topic_appends, topic_tokens=settings.topic_tokens)
    consumer_options = ConsumerOptions(topic=settings.topic_tokens, from_start=True)
    async with (
        TokenConsumer(broker, consumer_options) as consumer,
        AppendProducer(broker, options) as producer,
    ):
        disturbing = asyncio.create_task(disturb())
        await asyncio.gather(*(play(producer, s) for s in found))
        assert await disturbing == 0
        assert producer.resets == 0
        reference = open_tokenizer(tokenizer).reference
        wanted = {s.session_id: reference.ids(s.texts[-1]).tolist() for s in found}
        last = {s.session_id: len(s.texts) for s in found}
        async with asyncio.timeout(120):
            async for tokens in consumer.updates():
                if tokens.revision == last[tokens.session_id]:
                    assert tokens.ids.tolist() == wanted.pop(tokens.session_id)
                if not wanted:
                    break
        assert consumer.diverged == 0
    assert await a.end(signal.SIGTERM) == 0
    assert (tmp_path / "a.log").read_bytes().count(b"worker_started") == 2
    records = await Hands(broker, settings).everything(settings.topic_tokens)
    answers = [decode_update(r.key, r.value, r.headers) for r in records]
    assert {u.status for u in answers} == {Status.OK}
    counts = Counter((u.session_id, u.revision) for u in answers if u.part == 0)
    assert set(counts.values()) == {1}
    assert len(counts) == total
    assert len({r.partition for r in records}) == PARTITIONS
    await broker.stop()
