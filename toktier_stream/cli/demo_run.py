"""The demo's run: sessions through producer, worker and consumer on the embedded broker."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.connect import open_broker
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.client.producer import AppendProducer, ProducerOptions, Ticket
from toktier_stream.client.replay import Session
from toktier_stream.config import load
from toktier_stream.pipeline.worker import Worker
from toktier_stream.session.engines import open_registry
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.wire.messages import Route, Status, TokenUpdate

_ALIAS = "demo"
_WINDOW_CHARS = 512


@dataclass(slots=True)
class SessionResult:
    """One session of the demo."""

    session_id: str
    events: int = 0
    chars: int = 0
    tokens: int = 0
    exact: bool = False
    notes: tuple[str, ...] = ()
    ids: npt.NDArray[np.uint32] | None = None


@dataclass(slots=True)
class DemoResult:
    """What the demo saw. Latencies in milliseconds, from send to the update applied."""

    tokenizer: str = ""
    engine: str = ""
    admission: str = ""
    sessions: list[SessionResult] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    first_window: int = 0
    widened: int = 0
    fallback: int = 0
    appends: int = 0
    appends_within_window: int = 0
    chars_context: int = 0
    chars_received: int = 0
    chars_tokenized: int = 0
    verified: int = 0
    verifier_dropped: int = 0
    verifier_mismatches: int = 0
    seconds: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether every session's ids equal the reference's, and the verifier agrees."""
        return (
            bool(self.sessions)
            and all(s.exact for s in self.sessions)
            and not self.verifier_mismatches
            and set(self.statuses) <= {Status.OK.value}
        )

    def quantile_ms(self, share: float) -> float:
        """A quantile of the latencies; 0 if there are none."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def median_ms(self) -> float:
        """The median latency."""
        return statistics.median(self.latencies_ms) if self.latencies_ms else 0.0


Progress = Callable[[int, int], None]


async def run(
    entry: Entry,
    sessions: list[Session],
    *,
    verify_rate: float,
    partitions: int,
    progress: Progress,
) -> DemoResult:
    """Stream the sessions through the whole pipeline in this process and check every id."""
    result = DemoResult(
        tokenizer=entry.name, engine=entry.encoder.engine, admission=entry.admission.path
    )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="toktier-demo-") as folder:
        settings = load(
            broker="local:",
            state_dir=Path(folder),
            partitions=partitions,
            create_topics=True,
            verify_rate=verify_rate,
            verify_queue=1024,
            store_map_bytes=4 << 30,
        )
        registry = open_registry({_ALIAS: entry.artifact.path}, _ALIAS)
        cluster = LocalCluster()
        worker = Worker(settings, open_broker(cluster), registry)
        running = asyncio.create_task(worker.run(), name="worker")
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            ready.cancel()
            running.result()
        streaming = asyncio.create_task(_stream(cluster, sessions, result, progress))
        try:
            # A worker that fails ends the demo at once, with its own error.
            await asyncio.wait({running, streaming}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            await streaming
            await worker.drain_verifier()
        finally:
            streaming.cancel()
            await asyncio.wait({streaming})
            stats = worker.stats
            worker.stop()
            await running
    result.verified, result.verifier_dropped = stats.verified, stats.verifier_dropped
    result.verifier_mismatches = stats.verifier_mismatches
    await asyncio.get_running_loop().run_in_executor(None, _judge, entry, sessions, result)
    result.seconds = time.monotonic() - started
    return result


async def _stream(
    cluster: LocalCluster, sessions: list[Session], result: DemoResult, progress: Progress
) -> None:
    applied: dict[tuple[str, int], asyncio.Future[None]] = {}
    total = sum(len(s.texts) for s in sessions)
    done = 0
    async with (
        AppendProducer(open_broker(cluster), ProducerOptions()) as producer,
        TokenConsumer(open_broker(cluster), ConsumerOptions(), producer.resync) as consumer,
    ):

        async def receive() -> None:
            async for tokens in consumer.updates():
                future = applied.get((tokens.session_id, tokens.revision))
                if future is not None and not future.done():
                    future.set_result(None)

        async def play(session: Session) -> SessionResult:
            nonlocal done
            outcome = SessionResult(session.session_id, notes=session.notes)
            for text in session.texts:
                sent_at = time.perf_counter()
                future = asyncio.get_running_loop().create_future()
                key = (session.session_id, outcome.events + 1)
                applied[key] = future
                ticket = await producer.send_text(session.session_id, text)
                update = await ticket.answer(120)
                if update.status is Status.OK and ticket.revision == key[1]:
                    await asyncio.wait_for(future, 120)
                del applied[key]
                result.latencies_ms.append((time.perf_counter() - sent_at) * 1000)
                _count(result, update, ticket, len(text))
                outcome.chars = len(text)
                outcome.events += 1
                done += 1
                progress(done, total)
            ids = consumer.ids(session.session_id)
            if ids is not None:
                outcome.tokens, outcome.ids = len(ids), ids.copy()
            return outcome

        receiving = asyncio.create_task(receive(), name="receive")
        try:
            result.sessions = list(await asyncio.gather(*map(play, sessions)))
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
            if not receiving.cancelled():
                receiving.result()


def _count(result: DemoResult, update: TokenUpdate, ticket: Ticket, context: int) -> None:
    result.statuses[update.status.value] += 1
    result.routes[update.route.value or "none"] += 1
    result.chars_context += context
    result.chars_received += ticket.chars
    evidence = update.evidence
    if evidence is None:
        return
    result.chars_tokenized += evidence.chars_encoded
    result.fallback += evidence.fallback
    if update.route is Route.SPLICE:
        result.first_window += not evidence.widenings
        result.widened += bool(evidence.widenings)
    if ticket.kind == "append":
        result.appends += 1
        result.appends_within_window += evidence.chars_encoded <= _WINDOW_CHARS + ticket.chars


def _judge(entry: Entry, sessions: list[Session], result: DemoResult) -> None:
    """Compare each session's final ids with the reference's on the complete text."""
    for session, outcome in zip(sessions, result.sessions, strict=True):
        expected = entry.reference.ids(session.texts[-1])
        outcome.exact = outcome.ids is not None and bool(np.array_equal(outcome.ids, expected))
        outcome.ids = None
