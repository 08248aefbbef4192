"""An open loop of requests against a running pipeline, timed from when each was due.

The sender never waits for an answer. A request's latency runs from its scheduled time to the
moment its complete update is in the client's hands, so what waits anywhere (in this client, in the
broker, in the worker) is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toktier_stream.bench.workload import Request
from toktier_stream.broker.partitioner import partition_of
from toktier_stream.broker.port import Broker, OutRecord, Publisher, Reader
from toktier_stream.wire.answers import decode_update
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Reset, TokenUpdate
from toktier_stream.wire.parts import UpdateJoiner, split_event

_PART_BYTES = 512 << 10
_POLL_S = 0.05


@dataclass(slots=True)
class Answered:
    """One request and its answer; times are seconds since the epoch."""

    request: Request
    revision: int
    due: float
    sent: float = 0.0
    received: float = 0.0
    update: TokenUpdate | None = None

    @property
    def latency(self) -> float:
        """Seconds from when it was due."""
        return self.received - self.due


@dataclass
class History:
    """What a session was sent since its full context: slices of the pool."""

    revision: int = 0
    slices: list[tuple[int, int]] = field(default_factory=list)


class Client:
    """Sends requests when they are due and receives every update. Use as ``async with``."""

    def __init__(
        self, broker: Broker, pool: str, topics: tuple[str, str], tokenizer: str, name: str
    ) -> None:
        self._broker = broker
        self._pool = pool
        self._topic, self._topic_tokens = topics
        self._tokenizer = tokenizer
        self._name = name
        self._publisher: Publisher
        self._reader: Reader
        self._partitions = 0
        self._waiting: dict[tuple[str, int], Answered] = {}
        self._moved = asyncio.Event()
        self._joiner: UpdateJoiner[int] = UpdateJoiner(
            max_bytes=1 << 30, memory_bytes=1 << 30, deadline_s=600
        )
        self._receiver: asyncio.Task[None]
        self._acks: set[asyncio.Future[tuple[int, int]]] = set()
        self.histories: dict[int, History] = {}
        self.repeated = 0

    async def __aenter__(self) -> Client:
        self._partitions = await self._broker.partitions(self._topic)
        self._publisher = self._broker.publisher()
        await self._publisher.start()
        self._reader = self._broker.reader(self._topic_tokens)
        await self._reader.start(dict.fromkeys(range(self._partitions), 0))
        self._receiver = asyncio.create_task(self._receive(), name="bench-receiver")
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._receiver.cancel()
        await asyncio.wait({self._receiver})
        await self._reader.stop()
        await self._publisher.stop()

    def session_id(self, session: int) -> str:
        """The id that a session has on the wire."""
        return f"{self._name}-{session}"

    def text(self, session: int) -> str:
        """What a session's text is after everything sent."""
        slices = self.histories[session].slices
        return "".join(self._pool[start : start + chars] for start, chars in slices)

    async def run(
        self, requests: Sequence[Request], drain_s: float, *, window: int = 0
    ) -> list[Answered]:
        """Send everything when it is due and wait for the answers, ``drain_s`` after the last.

        ``window``: at most so many unanswered at a time (a closed loop, to set up sessions).
        Answers that are still missing are left open. Raises ``CLIENT_CLOSED`` and other errors of
        the broker."""
        queues: list[asyncio.Queue[Answered | None]] = [
            asyncio.Queue() for _ in range(self._partitions)
        ]
        senders = [asyncio.create_task(self._send(queue)) for queue in queues]
        gc.collect()
        gc.freeze()  # what is here stays here; the collector need not look at it again
        begun = time.time() + 0.05
        tickets: list[Answered] = []
        try:
            for request in requests:
                due = begun + request.at
                await asyncio.sleep(max(0.0, due - time.time()))
                if window:
                    await self._fewer_than(window, drain_s)
                ticket = self._ticket(request, due)
                tickets.append(ticket)
                key = self.session_id(request.session).encode()
                queues[partition_of(key, self._partitions)].put_nowait(ticket)
            for queue in queues:
                queue.put_nowait(None)
            await asyncio.gather(*senders)
            await self.finish(drain_s)
        finally:
            gc.unfreeze()
            for sender in senders:
                sender.cancel()
        return tickets

    async def finish(self, seconds: float) -> None:
        """Wait for the answers that are missing, so long at most."""
        await self._fewer_than(1, seconds)
        if self._receiver.done():
            self._receiver.result()

    async def _fewer_than(self, count: int, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self._waiting) >= count:
                    self._moved.clear()
                    await self._moved.wait()

    def _ticket(self, request: Request, due: float) -> Answered:
        history = self.histories.get(request.session)
        if history is None or request.full:
            history = self.histories[request.session] = History(history.revision if history else 0)
        history.revision += 1
        history.slices.append((request.start, request.chars))
        ticket = Answered(request, history.revision, due)
        self._waiting[self.session_id(request.session), history.revision] = ticket
        return ticket

    async def _send(self, queue: asyncio.Queue[Answered | None]) -> None:
        """One partition's sender: a full context holds up nobody else's appends here."""
        while (ticket := await queue.get()) is not None:
            r = ticket.request
            text = self._pool[r.start : r.start + r.chars].encode()
            ticket.sent = time.time()
            event = AppendEvent(
                session_id=self.session_id(r.session),
                revision=ticket.revision,
                op=Reset(text) if r.full else Edit(text),
                tokenizer=self._tokenizer,
                sent_at_us=int(ticket.sent * 1e6),
            )
            for part in split_event(event, _PART_BYTES):
                ack = await self._publisher.send(OutRecord(self._topic, *encode_event(part)))
                future = asyncio.ensure_future(ack)
                self._acks.add(future)
                future.add_done_callback(self._acks.discard)

    async def _receive(self) -> None:
        while True:
            for record in await self._reader.poll(_POLL_S, 10_000):
                now = time.time()
                update = decode_update(record.key, record.value, record.headers)
                ready = self._joiner.add(update, record.offset, now).ready
                if ready is None:
                    continue
                ticket = self._waiting.pop((ready.session_id, ready.revision), None)
                if ticket is None:
                    self.repeated += 1
                    continue
                ticket.received, ticket.update = now, ready
            self._moved.set()


def sessions_of(tickets: Sequence[Answered]) -> Mapping[int, list[Answered]]:
    """Requests by session, in the order sent."""
    found: dict[int, list[Answered]] = {}
    for ticket in tickets:
        found.setdefault(ticket.request.session, []).append(ticket)
    return found
