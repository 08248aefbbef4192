"""One partition's life on this worker: fence, restore, run, stop.

    FENCING ──▶ RESTORING ──▶ RUNNING ──▶ STOPPING ──▶ STOPPED
       ▲______________│___________│
        (a failed transaction starts the life over while the partition is owned)

The order matters. Starting the transactional producer aborts what an earlier owner left open, so
only after that is the committed offset final; only after the changelog is replayed to its end is
the store what that offset says. Reading begins last.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from toktier_stream import telemetry
from toktier_stream.broker.port import Broker, GroupConsumer, OutRecord, Record
from toktier_stream.config import Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline import tracing
from toktier_stream.pipeline.batcher import Batcher
from toktier_stream.pipeline.changelog import CHUNK, Follower, Progress, restore
from toktier_stream.pipeline.delivery import Delivery, delivery_of
from toktier_stream.pipeline.health import PartitionFacts
from toktier_stream.pipeline.offsets import AnsweredOffsets
from toktier_stream.pipeline.pace import Pace
from toktier_stream.pipeline.processor import Processor
from toktier_stream.pipeline.reject_limit import RejectLimit
from toktier_stream.pipeline.replies import Work
from toktier_stream.pipeline.states import ALLOWED, FATAL, PATIENT, REPLACED, State
from toktier_stream.pipeline.verifier import Sample, Sampler, ShadowVerifier
from toktier_stream.session.machine import Machine
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.registry import Registry
from toktier_stream.wire.messages import CheckRecord, Verdict

_LOG = telemetry.logger(__name__)
_IDLE_S = 0.2
_RETRY_S = (0.1, 0.5, 1.0, 2.0, 5.0)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all partitions of a worker share."""

    settings: Settings
    broker: Broker
    consumer: GroupConsumer
    registry: Registry
    machine: Machine
    sampler: Sampler
    verifier: ShadowVerifier
    turns: Executor
    """Of what partitions compute. One thread: threads that call short kernels take the
    interpreter's lock from each other at each of them."""
    background: Executor
    """Of what must not keep others' turns waiting: restores."""
    batcher: Batcher
    pace: Pace
    instruments: telemetry.Instruments
    rejects: RejectLimit
    # What runs in a thread for a partition now: it outlives a life that was abandoned.
    threads: dict[int, asyncio.Future[Any]] = field(default_factory=dict)


class Partition:
    """Runs one partition as a task. Records are fed on the loop; answers leave in transactions."""

    def __init__(
        self,
        number: int,
        epoch: int,
        store: Store,
        shared: Shared,
        shadowed: frozenset[bytes] = frozenset(),
    ) -> None:
        """``shadowed``: keys of the changelog that a copy of it found to need writing again."""
        self.number = number
        self.epoch = epoch
        self.state = State.FENCING
        self.error: BaseException | None = None
        self._store = store
        self._shared = shared
        self._inbox: deque[Record] = deque()
        self._inbox_bytes = 0
        self._lane_bytes = 0  # of records that wait in the processor
        self._batch_limit = shared.settings.batch_records
        self._paused = False
        self._next_offset = 0
        self._done_offset = 0  # after the last record whose answer is committed
        self._waiting = 0  # records fed and not committed yet
        self._fed_ns = 0  # when the oldest record of the inbox was handed over
        self._began = 0.0  # the last turn, by the pace's clock
        self._attempts = 0  # lives in a row that ended before anything was committed
        self._wake = asyncio.Event()
        self.settled = asyncio.Event()  # everything fed so far is answered, stored and sampled
        self._checks: list[CheckRecord] = []
        self._quarantines: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.restore = Progress()  # of this life's replay
        self._shadowed = shadowed

    def facts(self) -> PartitionFacts:
        """Where it stands, for health and the watchdog."""
        return PartitionFacts(
            self.number, self.state.value, self.epoch, self._done_offset, self._waiting,
            self._attempts, self.restore.applied, self.restore.to_go,
        )  # fmt: skip

    def start(self) -> None:
        """Begin the life."""
        self._task = asyncio.create_task(self._live(), name=f"partition-{self.number}")
        self._task.add_done_callback(self._ended)

    async def stop(self, deadline_s: float) -> bool:
        """Finish the batch in flight within the deadline, or abandon it; then end. Whether it was
        finished."""
        if self.state not in (State.STOPPING, State.STOPPED, State.FAILED):
            self._move(State.STOPPING)
        self._wake.set()
        if self._task is None:
            return True
        _, pending = await asyncio.wait({self._task}, timeout=deadline_s)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        return not pending

    def feed(self, records: Sequence[Record]) -> None:
        """Hand over polled records. Those read before the seek of this life are dropped: the
        seek makes the consumer deliver them again."""
        if self.state is not State.RUNNING:
            return
        self.settled.clear()
        if not self._inbox:
            self._fed_ns = time.time_ns()
        for record in records:
            if record.offset >= self._next_offset:
                self._next_offset = record.offset + 1
                self._inbox.append(record)
                self._waiting += 1
                self._inbox_bytes += _size(record)
        if not self._paused and self._inflight() > self._shared.settings.inflight_bytes:
            self._paused = True
            self._shared.consumer.pause(self.number)
        self._wake.set()

    def _inflight(self) -> int:
        return self._inbox_bytes + self._lane_bytes

    def _relieve(self) -> None:
        """Read on once half of what made it stop is done: a pause drops what was fetched ahead."""
        if self._paused and self._inflight() < self._shared.settings.inflight_bytes // 2:
            self._paused = False
            self._shared.consumer.resume(self.number)

    def verdict(self, sample: Sample, record: CheckRecord) -> None:
        """Take a verifier's result; it leaves with the next transaction."""
        self._checks.append(record)
        if record.verdict is Verdict.MISMATCH:
            self._quarantines.append(sample.session_id)
        self._wake.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A life that ends by an error nobody foresaw ends the worker: see Worker.run."""
        if task.cancelled():
            self.state = State.STOPPED
        elif (error := task.exception()) is not None:
            self.error = error
            self.state = State.FAILED
            _LOG.error("partition_failed", partition=self.number, error=type(error).__name__)

    def _stopping(self) -> bool:
        return self.state is State.STOPPING

    def _move(self, state: State) -> None:
        if state not in ALLOWED[self.state]:
            raise RuntimeError(f"partition {self.number}: {self.state.value} to {state.value}")
        _LOG.debug("partition_state", partition=self.number, state=state.value)
        self.state = state

    async def _live(self) -> None:
        try:
            while self.state is not State.STOPPING:
                delivery = delivery_of(
                    self._shared.settings, self._shared.broker, self._shared.consumer, self.number
                )
                try:
                    await self._life(delivery)
                except (ToktierError, OSError, TimeoutError) as error:
                    if self._replaying(error):
                        self._attempts = 0
                    if not await self._retry(error, self._attempts):
                        return
                    self._attempts += 1
                finally:
                    await delivery.stop()
        finally:
            if self.state is State.STOPPING:
                self._move(State.STOPPED)

    def _replaying(self, error: Exception) -> bool:
        """Whether a replay is slow and moves: then it goes on, however often its time is over."""
        slow = isinstance(error, ToktierError) and error.code is Code.RESTORE_DEADLINE
        if not slow or self.restore.position == self.restore.start:
            return False
        limit, to_go = self._shared.settings.restore_deadline_s, self.restore.to_go
        _LOG.error("restore_slow", partition=self.number, to_go=to_go, seconds=limit)
        return True

    async def _retry(self, error: Exception, attempts: int) -> bool:
        """Whether to start the life over. A fenced partition belongs to somebody else."""
        code = error.code.value if isinstance(error, ToktierError) else type(error).__name__
        _LOG.warning("partition_interrupted", partition=self.number, code=code, attempt=attempts)
        self._shared.instruments.add("toktier.interruptions", code=code)
        if self._stopping():
            return True
        fenced = isinstance(error, ToktierError) and error.code in REPLACED
        fatal = isinstance(error, ToktierError) and error.code in FATAL
        full = isinstance(error, ToktierError) and error.code is Code.STORE_FULL
        if full:
            # What does not fit as a whole may fit in pieces, once sessions have made room.
            self._batch_limit = max(1, self._batch_limit // 4)
        patient = isinstance(error, ToktierError) and error.code in PATIENT
        if fatal or (attempts >= 20 and not patient):
            self.error = error
            self._move(State.FAILED)
            return False
        self._inbox.clear()
        self._inbox_bytes = self._lane_bytes = 0
        self._waiting = 0
        self._shared.consumer.pause(self.number)
        self._paused = False
        self._move(State.FENCING)
        # A fenced producer waits longer: if the partition is still ours, the other one stops.
        delay = 1.0 if fenced else _RETRY_S[min(attempts, len(_RETRY_S) - 1)]
        self._wake.clear()
        try:
            async with asyncio.timeout(delay):
                while not self._stopping():
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            pass
        return True

    async def _life(self, delivery: Delivery) -> None:
        shared, s = self._shared, self._shared.settings
        await delivery.start()
        committed = await shared.consumer.committed(self.number)
        claim = await delivery.claim(committed)
        earlier = self._shared.threads.get(self.number)
        if earlier is not None and not earlier.done():
            # An earlier life was abandoned in the middle: a store is used by one thread at a time.
            await asyncio.wait({earlier})
        if self._stopping():
            return
        self._move(State.RESTORING)
        end, follower = await restore(
            partial(shared.broker.reader, s.topic_sessions),
            self.number,
            self._store,
            self._in_background,
            s.restore_deadline_s,
            shared.instruments,
            claim=claim,
            told=self._restoring,
        )
        delivery.begin(end)
        await self._heal(delivery, follower)
        if self._stopping():
            return
        processor = Processor(
            self.number, s, shared.machine, self._store, shared.sampler, shared.instruments,
            AnsweredOffsets(committed), shared.batcher,
            self._waker(),
        )  # fmt: skip
        # Ended sessions go first: where the store is full, that makes the room for what follows.
        await self._turn(processor, delivery, [])
        if self._stopping():
            return
        self._next_offset = self._done_offset = committed.offset if committed else 0
        self._move(State.RUNNING)
        # Also where nothing was ever committed: this may be a later life, and its position beyond.
        shared.consumer.seek(self.number, self._next_offset)
        shared.consumer.resume(self.number)
        _LOG.info("partition_running", partition=self.number, offset=self._next_offset)
        while self.state is State.RUNNING:
            await self._next(processor, delivery)
        if self._stopping() and (self._checks or self._quarantines):
            await self._turn(processor, delivery, [])

    def _restoring(self, progress: Progress) -> None:
        self.restore = progress

    async def _heal(self, delivery: Delivery, follower: Follower) -> None:
        """Write again what a replaced owner has written over: compaction keeps the last record. And
        remove what belongs to no session: of a batch that was written in part."""
        shadowed = sorted(follower.lineage.shadowed | self._shadowed)
        for start in range(0, len(shadowed), CHUNK):
            keys = shadowed[start : start + CHUNK]
            values = await self._in_background(partial(_values, self._store, keys))
            await delivery.publish([], self._changes(keys, values), None, 0)
        self._shadowed = frozenset()
        if shadowed:
            _LOG.warning("changelog_healed", partition=self.number, records=len(shadowed))
        orphans = await self._in_background(self._store.orphans)
        for start in range(0, len(orphans), CHUNK):
            keys = orphans[start : start + CHUNK]
            await delivery.publish([], self._changes(keys, [None] * len(keys)), None, 0)
        if orphans:
            _LOG.warning("orphans_removed", partition=self.number, records=len(orphans))
        await self._in_background(partial(self._store.remove_orphans, orphans))

    def _changes(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[OutRecord]:
        topic = self._shared.settings.topic_sessions
        return [
            OutRecord(topic, key, value, (), self.number)
            for key, value in zip(keys, values, strict=True)
        ]

    def _waker(self) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake.set)

        return wake

    async def _next(self, processor: Processor, delivery: Delivery) -> None:
        """Wait for records or duties, then take a turn."""
        self._wake.clear()
        if not self._inbox and not processor.returned:
            if not processor.waiting:
                self.settled.set()
            try:
                async with asyncio.timeout(_IDLE_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
        await self._spread()
        if self.state is not State.RUNNING:
            return
        records = self._take()
        if not (records or self._checks or self._quarantines or processor.has_duties()):
            return
        await self._turn(processor, delivery, records)

    async def _spread(self) -> None:
        """Wait for more records where the worker is too busy for small turns."""
        pace = self._shared.pace
        while (
            self.state is State.RUNNING
            and len(self._inbox) < self._batch_limit
            and (left := pace.wait(self._began)) > 0
        ):
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()
        self._began = pace.now()

    async def _turn(self, processor: Processor, delivery: Delivery, records: list[Record]) -> None:
        """One batch: process, publish, store."""
        checks, self._checks = self._checks, []
        quarantines, self._quarantines = self._quarantines, []
        started = time.time_ns()
        work: Work | None = None
        try:
            work = await self._compute(
                partial(processor.process, records, checks, quarantines, caught_up=not self._inbox)
            )
            if work is None:
                return
            processed = time.time_ns()
            published = await self._publish(delivery, work)
        except BaseException:
            if work is not None:
                work.batch.discard()
                tracing.abandon(work.traces, "not committed")
            # Verdicts do not come again, as records do.
            self._checks = checks + self._checks
            self._quarantines = quarantines + self._quarantines
            raise
        sent = time.time_ns()
        await self._compute(partial(processor.commit, work, published))
        self._attempts = 0
        self._lane_bytes = processor.waiting_bytes
        self._relieve()
        self._waiting = len(self._inbox) + processor.waiting
        self._done_offset = work.position.offset
        self._shared.rejects.add(len(records), work.rejected)
        stored = time.time_ns()
        if work.traces:
            s = self._shared.settings
            way = tracing.Way(
                s.topic_appends, s.topic_tokens, self.number, s.group, work.events,
                (min(self._fed_ns, started), started), (processed, sent), (sent, stored),
            )  # fmt: skip
            tracing.finish(work.traces, way)
        self._batch_limit = min(2 * self._batch_limit, self._shared.settings.batch_records)
        for sample in work.samples:
            self._shared.verifier.offer(sample)
        self._measure(work, started, processed, sent, stored)

    async def _compute(self, call: Callable[[], T]) -> T:
        found, cpu_s = await self._in_thread(partial(_timed, call))
        self._shared.pace.computed(cpu_s)
        return found

    async def _in_background(self, call: Callable[[], T]) -> T:
        return await self._in_thread(call, self._shared.background)

    async def _in_thread(self, call: Callable[[], T], executor: Executor | None = None) -> T:
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(executor or self._shared.turns, call)
        running.add_done_callback(_told)  # where a life was abandoned, nobody asks
        self._shared.threads[self.number] = running
        return await asyncio.shield(running)

    def _take(self) -> list[Record]:
        s = self._shared.settings
        records: list[Record] = []
        size = 0
        while self._inbox and len(records) < self._batch_limit and size < s.batch_bytes:
            record = self._inbox.popleft()
            size += _size(record)
            records.append(record)
        self._inbox_bytes -= size
        self._relieve()
        return records

    async def _publish(self, delivery: Delivery, work: Work) -> list[tuple[int, int]]:
        cut = work.changelog_from
        return await delivery.publish(
            work.outputs[:cut], work.outputs[cut:], work.position, work.answered
        )

    def _measure(self, work: Work, started: int, processed: int, sent: int, stored: int) -> None:
        i = self._shared.instruments
        i.record("toktier.batch.duration", (processed - started) / 1e9, stage="process")
        i.record("toktier.batch.duration", (sent - processed) / 1e9, stage="publish")
        i.record("toktier.batch.duration", (stored - sent) / 1e9, stage="store")
        work.tally.give(i)
        i.record("toktier.batch.size", work.events)
        i.add("toktier.transactions", outcome="committed")
        for sent_at_us in work.sent_at_us:
            i.record("toktier.end_to_end", max(0.0, stored / 1e9 - sent_at_us / 1e6))


def _values(store: Store, keys: Sequence[bytes]) -> list[bytes | None]:
    return [store.value(key) for key in keys]


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and the CPU seconds it took."""
    began = time.thread_time()
    return call(), time.thread_time() - began


def _told(running: asyncio.Future[Any]) -> None:
    if not running.cancelled():
        running.exception()


def _size(record: Record) -> int:
    return len(record.value or b"") + 256
