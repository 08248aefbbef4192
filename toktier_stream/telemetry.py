"""Every span, metric and log field of the system, named in one place, and how they are switched on.

Nothing here ever carries transcript text: attributes are ids, counts, positions, hashes and names.
Spans follow the OpenTelemetry messaging conventions (poll CLIENT, process CONSUMER, send PRODUCER).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from weakref import WeakSet

import structlog
from opentelemetry import metrics, trace
from opentelemetry.metrics import Counter, Histogram
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SCOPE: Final = "toktier_stream"

# Spans, in the order of one event's way.
# Those of messaging name the topic as it is by default; the attribute has the topic as it is.
SPAN_SEND: Final = "send toktier.appends"  # client, PRODUCER: the event leaves
SPAN_POLL: Final = "poll toktier.appends"  # worker, CLIENT: a batch, with links to its events
SPAN_PROCESS: Final = "process toktier.appends"  # worker, CONSUMER: all work on one event
SPAN_DECODE: Final = "decode"  # bytes to a checked event, parts joined
SPAN_ROUTE: Final = "route"  # session looked up, revision and guards checked
SPAN_QUEUED: Final = "miss queue"  # a full text waits for the slow lane
SPAN_ENCODE: Final = "encode"  # splice or full encode
SPAN_PUBLISH: Final = "send toktier.tokens"  # worker, PRODUCER: the batch's transaction
SPAN_STORE: Final = "store"  # the batch's LMDB commit
SPAN_RECEIVE: Final = "process toktier.tokens"  # client, CONSUMER: the update is applied
SPAN_VERIFY: Final = "verify"  # shadow verifier, linked to the event's trace
SPAN_RESTORE: Final = "restore"  # a partition's changelog replay

# Attributes of the spans above (messaging.* as in the conventions).
ATTR_SESSION: Final = "toktier.session_id"
ATTR_REVISION: Final = "toktier.revision"
ATTR_STATUS: Final = "toktier.status"
ATTR_CODE: Final = "toktier.code"
ATTR_ROUTE: Final = "toktier.route"
ATTR_BYTES: Final = "toktier.bytes_received"
ATTR_CHARS: Final = "toktier.chars_encoded"
ATTR_WIDENINGS: Final = "toktier.widenings"
ATTR_BATCH: Final = "messaging.batch.message_count"
ATTR_PARTITION: Final = "messaging.destination.partition.id"
ATTR_OFFSET: Final = "messaging.kafka.offset"
ATTR_TOPIC: Final = "messaging.destination.name"
ATTR_GROUP: Final = "messaging.consumer.group.name"
ATTR_SYSTEM: Final = "messaging.system"
ATTR_OPERATION: Final = "messaging.operation.name"
ATTR_OPERATION_TYPE: Final = "messaging.operation.type"

Kind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: what it counts, in which unit, by which attributes."""

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()


# What alerts and dashboards in ops/ may name: a test holds them to this list. On a page for
# Prometheus the names have underscores, and end in the unit and, for counters, in _total.
METRICS: Final = (
    # The work.
    Metric("toktier.events", "counter", "{event}", "Answered events", ("status", "code")),
    Metric("toktier.rejects", "counter", "{event}", "Events sent to the rejects topic", ("code",)),
    Metric("toktier.answers", "counter", "{answer}", "Answers with ids, by route", ("route",)),
    Metric("toktier.received", "counter", "By", "Bytes of text received in events"),
    Metric("toktier.encoded", "counter", "{char}", "Characters tokenized to answer them"),
    Metric("toktier.widenings", "counter", "{widening}", "Windows doubled in search of a cut"),
    Metric("toktier.fallbacks", "counter", "{event}", "Splices given up for a full encode"),
    Metric("toktier.encode.duration", "histogram", "s", "Time to compute one answer", ("route",)),
    Metric("toktier.batch.duration", "histogram", "s", "One batch by stage", ("stage",)),
    Metric("toktier.batch.size", "histogram", "{event}", "Events in one transaction"),
    Metric("toktier.end_to_end", "histogram", "s", "From the producer's clock to the commit"),
    Metric(
        "toktier.transactions", "counter", "{transaction}", "Transactions, by outcome", ("outcome",)
    ),
    # The slow lane: full texts.
    Metric("toktier.misses", "counter", "{text}", "Full texts encoded there", ("route",)),
    Metric(
        "toktier.misses.spilled", "counter", "{text}",
        "Full texts that took a slower way than meant, by reason", ("reason",),
    ),
    Metric("toktier.miss.wait", "histogram", "s", "Time a full text waited for its turn"),
    Metric("toktier.device.batch", "histogram", "{event}", "Texts in one launch of the device"),
    Metric("toktier.device.encoded", "counter", "By", "Text that the device encoded"),
    Metric("toktier.device.duration", "histogram", "s", "One launch, with its copies"),
    # A partition's life.
    Metric("toktier.partitions", "gauge", "{partition}", "Partitions held, by state", ("state",)),
    Metric("toktier.ready", "gauge", "{worker}", "1 when /readyz would say so, else 0"),
    Metric(
        "toktier.lag", "gauge", "{record}",
        "Records not answered yet: behind the end, or read and waiting", ("partition",),
    ),
    Metric("toktier.stalled", "gauge", "{partition}", "Partitions with work that stand still"),
    Metric(
        "toktier.interruptions", "counter", "{interruption}",
        "Partition lives that ended by an error and began anew", ("code",),
    ),
    Metric("toktier.restored", "counter", "{record}", "Changelog records replayed"),
    Metric(
        "toktier.standby.lag", "gauge", "{record}",
        "Changelog records that a copy of another worker's partition is behind", ("partition",),
    ),
    # State.
    Metric("toktier.changelog", "counter", "By", "Bytes written to the changelog"),
    Metric("toktier.store.size", "gauge", "By", "Bytes of live records", ("partition",)),
    Metric("toktier.store.fill", "gauge", "{share}", "Share of its map in use", ("partition",)),
    Metric("toktier.evicted", "counter", "{session}", "Sessions removed, by reason", ("reason",)),
    Metric(
        "toktier.quarantined", "counter", "{session}", "Sessions set aside, by reason", ("reason",)
    ),
    # The shadow verifier.
    Metric("toktier.checks", "counter", "{check}", "Samples verified, by verdict", ("verdict",)),
    Metric("toktier.checks.dropped", "counter", "{check}", "Samples dropped: verifier queue full"),
    # The process.
    Metric("toktier.loop.delay", "histogram", "s", "How late the event loop was for its own beat"),
    Metric(
        "toktier.gc.pause", "histogram", "s", "Time in Python's garbage collector", ("generation",)
    ),
    Metric("toktier.memory", "gauge", "By", "Resident memory of the process"),
)  # fmt: skip


# The SDK's default buckets begin at 5; ours must tell 20 microseconds from 50 milliseconds.
_BUCKETS: Final[dict[str, tuple[float, ...]]] = {
    "s": (
        20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3,
        200e-3, 500e-3, 1.0, 2.0, 5.0, 10.0, 30.0,
    ),
    "{event}": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
}  # fmt: skip


Series = tuple[str, tuple[tuple[str, str], ...]]
"""A counter's name and its attributes."""


def series(name: str, **attributes: str) -> Series:
    """One series of a counter, for :meth:`Tally.add_to`."""
    return name, tuple(attributes.items())


class Tally:
    """Counts of a batch, to be given to the instruments at once: each of their calls takes some
    microseconds, and what a failed batch counted must not stay."""

    def __init__(self) -> None:
        self._counts: dict[Series, float] = {}

    def add(self, name: str, amount: float = 1, **attributes: str) -> None:
        """Count, as :meth:`Instruments.add` does."""
        self.add_to(series(name, **attributes), amount)

    def add_to(self, key: Series, amount: float = 1) -> None:
        """The same for a series that is known: for what is counted with every event."""
        self._counts[key] = self._counts.get(key, 0) + amount

    def give(self, instruments: Instruments) -> None:
        """Add everything counted."""
        for (name, attributes), amount in self._counts.items():
            instruments.add(name, amount, **dict(attributes))
        self._counts.clear()


class Instruments:
    """The instruments of :data:`METRICS`, by name. No-ops until an SDK is set up.

    One call of the SDK takes 5 to 7 microseconds: so counts are summed here, and handed over by
    :meth:`flush`, which the worker calls once a second, and :func:`flush_all` before a page is
    shown. Safe from any thread.
    """

    def __init__(self) -> None:
        _LIVE.add(self)
        meter = metrics.get_meter(SCOPE)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, Any] = {}
        self._sums: dict[Series, float] = {}
        self._lock = threading.Lock()
        for m in METRICS:
            if m.kind == "counter":
                self._counters[m.name] = meter.create_counter(m.name, m.unit, m.description)
            elif m.kind == "histogram":
                self._histograms[m.name] = meter.create_histogram(
                    m.name,
                    m.unit,
                    m.description,
                    explicit_bucket_boundaries_advisory=_BUCKETS[m.unit],
                )
            else:
                self._gauges[m.name] = meter.create_gauge(m.name, m.unit, m.description)

    def add(self, name: str, amount: float = 1, **attributes: str) -> None:
        """Count. The name must be in :data:`METRICS`; that is seen when it is handed over."""
        key = series(name, **attributes)
        with self._lock:
            self._sums[key] = self._sums.get(key, 0) + amount

    def flush(self) -> None:
        """Hand the sums over."""
        with self._lock:
            sums, self._sums = self._sums, {}
        for (name, attributes), amount in sums.items():
            self._counters[name].add(amount, dict(attributes))

    def record(self, name: str, value: float, **attributes: str) -> None:
        """Record one value of a histogram."""
        self._histograms[name].record(value, attributes)

    def set(self, name: str, value: float, **attributes: str) -> None:
        """Set a gauge. What no longer holds is set to 0: a series does not go away by itself."""
        self._gauges[name].set(value, attributes)


_TYPES: Final = {"send": "send", "poll": "receive", "process": "process"}


def messaging(operation: str, topic: str) -> dict[str, str]:
    """What every span of messaging tells: ``operation`` is send, poll or process."""
    return {
        ATTR_SYSTEM: "kafka",
        ATTR_OPERATION: operation,
        ATTR_OPERATION_TYPE: _TYPES[operation],
        ATTR_TOPIC: topic,
    }


_LIVE: Final[WeakSet[Instruments]] = WeakSet()


def flush_all() -> None:
    """Hand over the sums of all instruments of the process."""
    for instruments in list(_LIVE):
        instruments.flush()


def tracer() -> trace.Tracer:
    """The tracer of this package; no-op until an SDK is set up."""
    return trace.get_tracer(SCOPE)


def tracing_enabled() -> bool:
    """Whether an SDK is set up, so that spans go anywhere at all."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


_PROPAGATOR = TraceContextTextMapPropagator()


def context_from_headers(headers: tuple[tuple[str, bytes], ...]) -> Any:
    """The W3C trace context of a record's headers, to be a span's parent."""
    carrier = {
        k: v.decode("ascii", "replace") for k, v in headers if k in ("traceparent", "tracestate")
    }
    return _PROPAGATOR.extract(carrier)


def headers_from_span(span: trace.Span) -> tuple[tuple[str, bytes], ...]:
    """``traceparent`` (and ``tracestate``) headers that continue a span."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return tuple((k, v.encode("ascii")) for k, v in carrier.items())


def _add_trace_ids(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event.setdefault("trace_id", format(context.trace_id, "032x"))
        event.setdefault("span_id", format(context.span_id, "016x"))
    return event


class _StandardError(logging.StreamHandler[Any]):
    """Writes to whatever standard error is at the time, not at set-up."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)
        super().emit(record)


def setup_logging(level: str = "info", *, json: bool = True) -> None:
    """structlog to standard error: one JSON object a line, with trace ids; or for people.

    What libraries log by the standard library goes the same way, from warnings up.
    """
    renderer: Any = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=False)
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace_ids,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        # Asked for at each use: whoever redirects standard error gets the log too.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = _StandardError()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [h for h in root.handlers if not isinstance(h, _StandardError)]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


def logger(name: str) -> Any:
    """A structured logger. Bind ids and counts to it, never text."""
    return structlog.get_logger(name)
