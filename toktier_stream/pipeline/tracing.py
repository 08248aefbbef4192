"""One event's spans: cheap marks on the hot path, spans made from them after the commit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode

from toktier_stream import telemetry
from toktier_stream.broker.port import Headers, Record
from toktier_stream.pipeline.batcher import Miss
from toktier_stream.wire.headers import trace_context
from toktier_stream.wire.messages import Status as AnswerStatus
from toktier_stream.wire.messages import TokenUpdate

_FAILURES = (AnswerStatus.REJECTED, AnswerStatus.CONFLICT)


@dataclass(slots=True)
class EventTrace:
    """The process span of one event and the marks for its children (nanoseconds)."""

    span: trace.Span
    started: int
    marks: list[tuple[str, int, int]] = field(default_factory=list)
    answer: TokenUpdate | None = None
    creation: trace.SpanContext | None = None

    def mark(self, name: str, start: int, end: int) -> None:
        """Remember one stage."""
        self.marks.append((name, start, end))

    def stages(self, answer: TokenUpdate, miss: Miss | None, began: int, applied: int) -> None:
        """Remember the stages of an applied event. Where its text was encoded ahead, that came
        before ``began``."""
        if miss is not None and miss.ended:
            self.mark(telemetry.SPAN_QUEUED, miss.submitted, miss.began)
            self.mark(telemetry.SPAN_ENCODE, miss.began, miss.ended)
            self.mark(telemetry.SPAN_ROUTE, began, applied)
            return
        encode = answer.timings.encode_us * 1000 if answer.timings else 0
        self.mark(telemetry.SPAN_ROUTE, began, max(began, applied - encode))
        if encode:
            self.mark(telemetry.SPAN_ENCODE, max(began, applied - encode), applied)

    def headers(self, record: Record) -> Headers:
        """What the answer carries on: this span's context, or the producer's if tracing is off."""
        if self.span.get_span_context().is_valid and self.span.is_recording():
            return telemetry.headers_from_span(self.span)
        return trace_context(record.headers)


def begin(record: Record) -> EventTrace | None:
    """Open the process span as a child of the event's own trace context; None if its trace is not
    kept. Where the producer has decided so, the SDK is not even asked: that alone would take a
    tenth of the whole work on an event."""
    if any(n == "traceparent" and not _sampled(v) for n, v in record.headers):
        return None
    now = time.time_ns()
    span = telemetry.tracer().start_span(
        telemetry.SPAN_PROCESS,
        context=telemetry.context_from_headers(record.headers) if record.headers else None,
        kind=SpanKind.CONSUMER,
        start_time=now,
    )
    if not span.is_recording():
        return None
    span.set_attributes(
        {
            **telemetry.messaging("process", record.topic),
            telemetry.ATTR_PARTITION: str(record.partition),
            telemetry.ATTR_OFFSET: record.offset,
        }
    )
    return EventTrace(span, now, creation=_creation(record))


def _sampled(traceparent: bytes) -> bool:
    """Whether a W3C trace context says that its trace is kept; true of what is none."""
    flags = traceparent[53:55]
    return len(flags) != 2 or flags[1:] not in b"02468aceACE"


def _creation(record: Record) -> trace.SpanContext | None:
    """The span that made this record, if its producer told one."""
    context = trace.get_current_span(
        telemetry.context_from_headers(record.headers)
    ).get_span_context()
    return context if context.is_valid else None


@dataclass(frozen=True, slots=True)
class Way:
    """A batch's way, in nanoseconds: from its first record handed over to all of it stored.
    ``events``: all that it answered, kept in traces or not."""

    topic: str
    topic_tokens: str
    partition: int
    group: str
    events: int
    polled: tuple[int, int]
    published: tuple[int, int]
    stored: tuple[int, int]


def finish(traces: list[EventTrace], way: Way) -> None:
    """Emit the batch's span and the children, and close the process spans, once it is durable."""
    if traces:
        _poll(traces, way)
    for event in traces:
        context = trace.set_span_in_context(event.span)
        stages = [
            *event.marks,
            (telemetry.SPAN_PUBLISH, *way.published),
            (telemetry.SPAN_STORE, *way.stored),
        ]
        for name, start, end in stages:
            kind = SpanKind.PRODUCER if name == telemetry.SPAN_PUBLISH else SpanKind.INTERNAL
            child = telemetry.tracer().start_span(name, context, kind, start_time=start)
            if name == telemetry.SPAN_PUBLISH:
                child.set_attributes(telemetry.messaging("send", way.topic_tokens))
                child.set_attribute(telemetry.ATTR_BATCH, way.events)
            child.end(end)
        _describe(event)
        event.span.end()


def _poll(traces: list[EventTrace], way: Way) -> None:
    """A batch has no parent: it begins a trace of its own, with links to those of its events."""
    links = [trace.Link(e.creation or e.span.get_span_context()) for e in traces]
    span = telemetry.tracer().start_span(
        telemetry.SPAN_POLL, Context(), SpanKind.CLIENT, start_time=way.polled[0], links=links
    )
    span.set_attributes(
        {
            **telemetry.messaging("poll", way.topic),
            telemetry.ATTR_PARTITION: str(way.partition),
            telemetry.ATTR_GROUP: way.group,
            telemetry.ATTR_BATCH: way.events,
        }
    )
    span.end(way.polled[1])


def abandon(traces: list[EventTrace], reason: str) -> None:
    """Close the spans of a batch that was not committed; its events are processed again."""
    for event in traces:
        event.span.set_status(Status(StatusCode.ERROR, reason))
        event.span.end()


def _describe(event: EventTrace) -> None:
    answer = event.answer
    if answer is None:
        return
    attributes: dict[str, str | int] = {
        telemetry.ATTR_SESSION: answer.session_id,
        telemetry.ATTR_REVISION: answer.revision,
        telemetry.ATTR_STATUS: answer.status.value,
        telemetry.ATTR_ROUTE: answer.route.value,
    }
    if answer.code is not None:
        attributes[telemetry.ATTR_CODE] = answer.code.value
    if answer.evidence is not None:
        attributes[telemetry.ATTR_CHARS] = answer.evidence.chars_encoded
        attributes[telemetry.ATTR_WIDENINGS] = answer.evidence.widenings
    event.span.set_attributes(attributes)
    if answer.status in _FAILURES:
        code = answer.code.value if answer.code else answer.status.value
        event.span.set_status(Status(StatusCode.ERROR, code))
