"""What one batch came to, and how answers, rejects and samples get into it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from opentelemetry import trace

from toktier_stream import telemetry
from toktier_stream.broker.port import Committed, OutRecord, Record
from toktier_stream.config import KIB, Settings
from toktier_stream.errors import Code, ToktierError, describe
from toktier_stream.pipeline.tracing import EventTrace
from toktier_stream.pipeline.verifier import Sample, Sampler, emitted
from toktier_stream.session.machine import Machine
from toktier_stream.session.store import Batch
from toktier_stream.wire.answers import Told, encode_reject, encode_update
from toktier_stream.wire.headers import trace_context
from toktier_stream.wire.messages import (
    MAX_SESSION_ID_BYTES,
    AppendEvent,
    Close,
    Reject,
    Route,
    Status,
    Timings,
    TokenUpdate,
)
from toktier_stream.wire.split import split_update

_LOG = telemetry.logger(__name__)

_RECEIVED: Final = telemetry.series("toktier.received")
_ENCODED: Final = telemetry.series("toktier.encoded")


@cache
def _events(status: Status, code: Code | None) -> telemetry.Series:
    return telemetry.series(
        "toktier.events", status=status.value, code=code.value if code is not None else ""
    )


@cache
def _answers(route: Route) -> telemetry.Series:
    return telemetry.series("toktier.answers", route=route.value)


@dataclass(slots=True)
class Work:
    """What one batch came to. ``outputs`` and ``position`` are published as one transaction."""

    batch: Batch
    position: Committed
    outputs: list[OutRecord] = field(default_factory=list)
    changelog_from: int = 0
    answered: int = 0  # below this input offset everything is answered, except open revisions
    samples: list[Sample] = field(default_factory=list)
    traces: list[EventTrace] = field(default_factory=list)
    sent_at_us: list[int] = field(default_factory=list)
    events: int = 0
    rejected: int = 0
    touched: set[bytes] = field(default_factory=set)
    tally: telemetry.Tally = field(default_factory=telemetry.Tally)


class Replies:
    """Writes into the :class:`Work` of one partition's batches."""

    def __init__(
        self,
        partition: int,
        settings: Settings,
        machine: Machine,
        sampler: Sampler,
        instruments: telemetry.Instruments,
    ) -> None:
        self._partition = partition
        self._s = settings
        self._machine = machine
        self._sampler = sampler
        self._instruments = instruments

    def answer(
        self,
        work: Work,
        record: Record | None,
        answer: TokenUpdate,
        event_trace: EventTrace | None,
        sent_at_us: int = 0,
    ) -> None:
        """Put an answer, in parts if it is large, among what the batch publishes. ``record`` is
        the one it answers, the last if several."""
        work.events += 1
        told = None if record is None else _told(record, answer, sent_at_us)
        if sent_at_us:
            work.sent_at_us.append(sent_at_us)
        if event_trace is not None and record is not None:
            event_trace.answer = answer
            headers = event_trace.headers(record)
        else:
            headers = trace_context(record.headers) if record is not None else ()
        for part in split_update(answer, self._s.part_bytes):
            encoded = encode_update(part, trace=headers, told=told if part.part == 0 else None)
            work.outputs.append(OutRecord(self._s.topic_tokens, *encoded, self._partition))

    def reject(self, work: Work, record: Record, code: Code, message: str) -> None:
        """Keep a record that was not accepted, with everything about it and why."""
        work.rejected += 1
        work.tally.add("toktier.rejects", code=code.value)
        _LOG.warning(
            "event_rejected", code=code.value, partition=record.partition, offset=record.offset
        )
        reject = Reject(
            code=code,
            message=message or describe(code),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        size = len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if size > self._s.max_event_bytes + 64 * KIB:
            # The input topic admits more than the rejects topic, or the record came compressed:
            # a reject that cannot be published would stop the partition for good.
            note = f"{reject.message} Its {size} bytes are too many to be kept here."
            key = record.key if len(record.key or b"") <= MAX_SESSION_ID_BYTES else None
            reject = replace(reject, message=note, key=key, value=None, headers=())
        work.outputs.append(
            OutRecord(self._s.topic_rejects, *encode_reject(reject), self._partition)
        )

    def count(self, work: Work, event: AppendEvent, answer: TokenUpdate) -> None:
        """Count an event and how it was answered."""
        i = work.tally
        i.add_to(_events(answer.status, answer.code))
        if not isinstance(event.op, Close):
            i.add_to(_RECEIVED, len(event.op.text))
        e, t = answer.evidence, answer.timings
        if e is None or t is None:
            return
        i.add_to(_answers(answer.route))
        i.add_to(_ENCODED, e.chars_encoded)
        if e.widenings:
            i.add("toktier.widenings", e.widenings)
        if e.fallback:
            i.add("toktier.fallbacks")
        seconds = t.encode_us / 1e6
        self._instruments.record("toktier.encode.duration", seconds, route=answer.route.value)

    def sample(
        self, work: Work, record: Record, answer: TokenUpdate, event_trace: EventTrace | None
    ) -> None:
        """Take the answer for the verifier, if it is one of the sample."""
        if not self._sampler.wants(answer.session_id, answer.revision):
            return
        session = work.batch.session(answer.session_id.encode())
        if session is None or self._sampler.turned_away(session.bytes + 4 * session.tokens):
            return
        try:
            text, ids = session.text(), emitted(session.ids(), answer)
        except ToktierError as error:
            if error.code is not Code.STORE_CORRUPT:
                raise
            # A page that the answer did not need is damaged. The answer stands; the session does
            # not: its next event is a miss, as wherever else damage is found.
            work.batch.remove(answer.session_id.encode())
            return
        context: trace.SpanContext | None = None
        if event_trace is not None:
            context = event_trace.span.get_span_context()
        work.samples.append(
            Sample(
                partition=self._partition,
                offset=record.offset,
                session_id=answer.session_id,
                revision=answer.revision,
                tokenizer=answer.tokenizer,
                route=answer.route,
                engine=answer.evidence.engine if answer.evidence else "",
                text=text,
                ids=ids,
                reference=self._machine.reference(answer.tokenizer),
                context=context,
            )
        )


def _told(record: Record, answer: TokenUpdate, sent_at_us: int) -> Told:
    now_us = time.time_ns() // 1000
    encode = answer.timings.encode_us if answer.timings else 0
    queued = max(0, now_us - encode - record.timestamp_ms * 1000)
    total = max(0, now_us - sent_at_us) if sent_at_us else 0
    return Told(Timings(queued, encode, total), record.offset)
