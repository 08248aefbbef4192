"""The synchronous heart of a partition: records in, everything one transaction publishes out.

Two lanes: full texts above a size go to the batcher and are applied when they come back, and their
session's later events after them (lanes.py); everything else is answered at once.

Runs in a worker thread, one call at a time per partition. It only computes: nothing it does is
durable until the transaction commits, and :meth:`Processor.commit` then makes the store follow.
If the transaction fails, this object is thrown away with the partition's life, and the next one
starts from what was committed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from toktier_stream import telemetry
from toktier_stream.broker.port import Committed, OutRecord, Record
from toktier_stream.config import Settings
from toktier_stream.errors import Code
from toktier_stream.pipeline import tracing
from toktier_stream.pipeline.batcher import Batcher, Miss
from toktier_stream.pipeline.lanes import Lanes, Step
from toktier_stream.pipeline.offsets import AnsweredOffsets
from toktier_stream.pipeline.replies import Replies, Work
from toktier_stream.pipeline.tracing import EventTrace
from toktier_stream.pipeline.verifier import Sampler
from toktier_stream.session.machine import Machine
from toktier_stream.session.prepared import Prepared
from toktier_stream.session.store import Store
from toktier_stream.wire.answers import encode_check
from toktier_stream.wire.codec import decode_event
from toktier_stream.wire.messages import AppendEvent, CheckRecord, Reset, Status, TokenUpdate
from toktier_stream.wire.parts import EventJoiner, Failure
from toktier_stream.wire.refusal import WireError

_EVICTED_AT_ONCE = 64
_EVICTED_BY_QUOTA = 8
_EVICTION_S = 5.0


class Processor:
    """Turns one partition's records into answers. Owns the partition's joiner and offsets."""

    def __init__(
        self,
        partition: int,
        settings: Settings,
        machine: Machine,
        store: Store,
        sampler: Sampler,
        instruments: telemetry.Instruments,
        answered: AnsweredOffsets,
        batcher: Batcher,
        wake: Callable[[], None],
    ) -> None:
        """``wake`` is called by a thread of the batcher when a text came back, so that
        :meth:`process` is called again."""
        self._partition = partition
        self._s = settings
        self._machine = machine
        self._store = store
        self._replies = Replies(partition, settings, machine, sampler, instruments)
        self._instruments = instruments
        self._answered = answered
        # At-least-once delivery: input below this offset was answered before, and may come again.
        self._answered_before = store.answered
        self._batcher = batcher
        self._wake = wake
        self._lanes: Lanes[Work] = Lanes(answered, self._defer)
        self._back: deque[tuple[str, Miss]] = deque()
        self._joiner: EventJoiner[int] = EventJoiner(
            max_bytes=settings.max_session_bytes,
            memory_bytes=settings.parts_memory_bytes,
            deadline_s=settings.parts_deadline_s,
        )
        # The parts that are held, by session: answered only with their revision.
        self._held: dict[str, list[Record]] = {}
        self._next = 0
        self._next_eviction = 0.0

    def has_duties(self) -> bool:
        """Whether there is something to look after without new records: texts that came back,
        open parts whose deadline passes, sessions whose lifetime does."""
        return (
            self.returned or self._joiner.open_sets > 0 or time.monotonic() >= self._next_eviction
        )

    @property
    def returned(self) -> bool:
        """Whether a full text came back that has not been applied."""
        return bool(self._back)

    @property
    def waiting(self) -> int:
        """Events that wait for a full text, or behind one."""
        return len(self._lanes)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the records that wait so."""
        return self._lanes.bytes

    def process(
        self,
        records: Sequence[Record],
        checks: Sequence[CheckRecord],
        quarantines: Sequence[str],
        *,
        caught_up: bool,
    ) -> Work | None:
        """Answer a batch; None if there is nothing to publish.

        ``caught_up``: everything polled so far is in ``records``, so that a revision whose parts
        are late is late by its own fault. Raises store errors only.
        """
        work = Work(self._store.begin(), Committed(0))
        tracing_on = telemetry.tracing_enabled()
        while self._back:
            self._lanes.ready(work, *self._back.popleft())
        for record in records:
            if 0 < self._next < record.offset:
                # Transaction markers of the producers: nothing is there to be answered.
                self._answered.add_range(self._next, record.offset)
            self._next = record.offset + 1
            if record.offset not in self._answered:
                self._one(work, record, tracing_on=tracing_on)
        if caught_up:
            for failure in self._joiner.expire(time.monotonic()):
                self._fail(work, failure)
        while self._answered.crowded and self._clear_oldest(work):
            self._answered.position(self._next, self._oldest())
        for session_id in quarantines:
            if self._machine.quarantine(work.batch, session_id.encode()):
                work.tally.add("toktier.quarantined", reason="verifier")
        if time.monotonic() >= self._next_eviction:
            self._evict(work)
        work.outputs.extend(
            OutRecord(self._s.topic_checks, *encode_check(check), partition=self._partition)
            for check in checks
        )
        work.changelog_from = len(work.outputs)
        size = 0
        # Raises STORE_FULL before anything is published: the partition stops, nothing is lost.
        for key, value in work.batch.changes():
            work.outputs.append(OutRecord(self._s.topic_sessions, key, value, (), self._partition))
            size += len(key) + len(value or b"")
        work.tally.add("toktier.changelog", size)
        if not records and not work.outputs:
            work.batch.discard()
            return None
        work.position = self._answered.position(self._next, self._oldest())
        work.answered = self._next
        return work

    def _oldest(self) -> int | None:
        """The lowest offset that is not answered: of a part that is held, or of what waits."""
        found = [o for o in (self._joiner.oldest_tag(), self._lanes.oldest()) if o is not None]
        return min(found, default=None)

    def _clear_oldest(self, work: Work) -> bool:
        """Answer what holds the mark back, whatever it takes. False if nothing does."""
        waits = self._lanes.oldest()
        held = self._joiner.oldest_tag()
        if waits is not None and (held is None or waits < held):
            self._instruments.add("toktier.misses.spilled", reason="offsets")
            self._lanes.finish_oldest(work)
            return True
        given_up = self._joiner.give_up_oldest()
        if given_up is not None:
            self._fail(work, given_up)
        return given_up is not None

    def _defer(self, work: Work, step: Step[Work]) -> Miss | None:
        """Hand the full text of an event to the batcher, if it has one that is worth it."""
        event = step.event
        if event is None or not isinstance(event.op, Reset):
            return None
        text = event.op.text
        if len(text) < self._s.miss_bytes:
            return None
        entry = self._machine.full_text(work.batch, event)
        if entry is None:
            return None
        miss = Miss(self._partition, entry.encoder, text, partial(self._came_back, step.session_id))
        if self._batcher.submit(miss):
            return miss
        self._instruments.add("toktier.misses.spilled", reason="queue")
        return None

    def _came_back(self, session_id: str, miss: Miss) -> None:
        """Called by a thread of the batcher."""
        self._back.append((session_id, miss))
        self._wake()

    def _evict(self, work: Work) -> None:
        """Remove sessions past their lifetime, and the least recently used beyond the quota."""
        self._measure_store()
        found = {
            "ttl": self._store.expired(time.time_ns() // 1_000_000, _EVICTED_AT_ONCE),
            "quota": self._store.evict_candidates(_EVICTED_BY_QUOTA)
            if self._store.over_quota() > 0
            else [],
        }
        removed: set[bytes] = set()
        for reason, session_ids in found.items():
            for session_id in session_ids:
                if session_id in work.touched or session_id in removed:
                    continue
                work.batch.remove(session_id)
                removed.add(session_id)
                work.tally.add("toktier.evicted", reason=reason)
        # Where something was removed there may be more.
        if not removed:
            wait = min(_EVICTION_S, self._s.session_ttl_s / 4)
            self._next_eviction = time.monotonic() + wait

    def _measure_store(self) -> None:
        used, partition = self._store.used_bytes(), str(self._partition)
        self._instruments.set("toktier.store.size", used, partition=partition)
        fill = used / self._s.store_map_bytes
        self._instruments.set("toktier.store.fill", fill, partition=partition)

    def commit(self, work: Work, published: Sequence[tuple[int, int]]) -> None:
        """Make the store follow a committed transaction: one LMDB transaction."""
        changelog = published[work.changelog_from :]
        offset = changelog[-1][1] + 1 if changelog else self._store.changelog_offset
        self._store.commit(work.batch, changelog_offset=offset, source_offset=work.position.offset)
        if self._store.over_quota():
            self._next_eviction = 0.0

    def _one(self, work: Work, record: Record, *, tracing_on: bool) -> None:
        started = time.time_ns()
        event_trace = tracing.begin(record) if tracing_on else None
        try:
            event = decode_event(
                record.key, record.value, record.headers, max_event_bytes=self._s.max_event_bytes
            )
        except WireError as error:
            self._refuse(work, record, error, event_trace)
            return
        step = self._joiner.add(event, record.offset, time.monotonic())
        own = False
        for failure in step.failed:
            own |= failure.revision == event.revision
            self._fail(work, failure, record if failure.revision == event.revision else None)
        if event_trace is not None:
            event_trace.mark(telemetry.SPAN_DECODE, started, time.time_ns())
        if self._held and event.part == 0:
            self._drop(event.session_id)  # parts of an attempt that this one replaces
        ready = step.ready
        if ready is not None:
            if not (isinstance(ready.op, Reset) or self._held or ready.session_id in self._lanes):
                # Most events: there is nothing to wait for, and only this record to be answered.
                self._apply(work, None, None, record=record, event=ready, event_trace=event_trace)
                self._answered.add(record.offset)
                return
            held = [*self._release(event.session_id), record]
            apply = partial(self._apply, record=record, event=ready, event_trace=event_trace)
            self._lanes.take(work, _step(event.session_id, held, apply, ready))
            return
        if event_trace is not None:
            work.traces.append(event_trace)
        if self._joiner.open_revision(event.session_id) == event.revision:
            self._held.setdefault(event.session_id, []).append(record)
        elif not own:
            self._answered.add(record.offset)

    def _apply(
        self,
        work: Work,
        miss: Miss | None,
        prepared: Prepared | None,
        *,
        record: Record,
        event: AppendEvent,
        event_trace: EventTrace | None,
    ) -> None:
        """Apply one event whose turn has come, and answer it."""
        began = time.time_ns()
        work.touched.add(event.session_id.encode())
        answer = self._machine.apply(work.batch, event, began // 1_000_000, prepared)
        if answer.code is Code.STALE_REVISION and record.offset < self._answered_before:
            # Not a producer's fault: this event was applied and answered, and then read again.
            answer = replace(answer, status=Status.DUPLICATE, code=None, message="")
        if event_trace is not None:
            event_trace.stages(answer, miss, began, time.time_ns())
            work.traces.append(event_trace)
        self._replies.count(work, event, answer)
        self._replies.answer(work, record, answer, event_trace, sent_at_us=event.sent_at_us)
        if answer.status is Status.REJECTED and answer.code is not None:
            self._replies.reject(work, record, answer.code, answer.message)
        if answer.status is Status.OK and not answer.closed:
            self._replies.sample(work, record, answer, event_trace)

    def _refuse(
        self, work: Work, record: Record, error: WireError, event_trace: EventTrace | None
    ) -> None:
        """A record that is not accepted: rejected, answered if it can be, and its log guarded."""
        failures = self._joiner.refuse(error, record.offset)
        own = False
        for failure in failures:
            if failure.revision == error.revision and not error.unreadable:
                own = True
                self._fail(work, failure, record, event_trace)
            else:
                self._fail(work, failure)
        if error.unreadable:
            guard = partial(self._guard, record=record, error=error, event_trace=event_trace)
            self._lanes.take(work, _step(error.session_id, [record], guard))
        elif not own:
            if event_trace is not None:
                work.traces.append(event_trace)
            self._answered.add(record.offset)

    def _guard(
        self,
        work: Work,
        _miss: Miss | None,
        _prepared: Prepared | None,
        *,
        record: Record,
        error: WireError,
        event_trace: EventTrace | None,
    ) -> None:
        """Reject a record that nobody can read, and set aside the log it stands in."""
        if event_trace is not None:
            work.traces.append(event_trace)
        self._replies.reject(work, record, error.code, str(error))
        if error.quarantines and self._machine.quarantine(work.batch, error.session_id.encode()):
            work.tally.add("toktier.quarantined", reason="poison")

    def _fail(
        self,
        work: Work,
        failure: Failure[int],
        record: Record | None = None,
        event_trace: EventTrace | None = None,
    ) -> None:
        """Answer a revision that will not be joined, and reject the records it consists of."""
        sources = self._release(failure.session_id)
        if record is not None:
            sources.append(record)
        tell = partial(self._tell, failure=failure, sources=sources, event_trace=event_trace)
        self._lanes.take(work, _step(failure.session_id, sources, tell))

    def _tell(
        self,
        work: Work,
        _miss: Miss | None,
        _prepared: Prepared | None,
        *,
        failure: Failure[int],
        sources: list[Record],
        event_trace: EventTrace | None,
    ) -> None:
        session_revision = self._machine.revision(work.batch, failure.session_id.encode())
        answer = TokenUpdate(
            session_id=failure.session_id,
            revision=failure.revision,
            status=Status.REJECTED,
            request_id=failure.request_id,
            tokenizer=failure.tokenizer,
            code=failure.code,
            message=failure.message,
            session_revision=session_revision,
        )
        if event_trace is not None:
            work.traces.append(event_trace)
        for source in sources:
            self._replies.reject(work, source, failure.code, failure.message)
        work.tally.add("toktier.events", status=answer.status.value, code=failure.code.value)
        self._replies.answer(work, sources[-1] if sources else None, answer, event_trace)

    def _release(self, session_id: str) -> list[Record]:
        """The session's held parts, held no longer: whoever asks answers them."""
        return self._held.pop(session_id, [])

    def _drop(self, session_id: str) -> None:
        """Count a session's held parts as answered."""
        for record in self._release(session_id):
            self._answered.add(record.offset)


def _step(
    session_id: str,
    records: Sequence[Record],
    run: Callable[[Work, Miss | None, Prepared | None], None],
    event: AppendEvent | None = None,
) -> Step[Work]:
    size = sum(len(record.value or b"") + 256 for record in records)
    return Step(session_id, tuple(record.offset for record in records), size, run, event)
