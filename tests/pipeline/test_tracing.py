"""One request's path is one trace, and nothing but Kafka and the store ever holds its text."""

from __future__ import annotations

import json

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as semconv
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from pipeline_harness import Running, make_settings

from toktier_stream import telemetry
from toktier_stream.broker.port import OutRecord, Record
from toktier_stream.cli.otel import sampler
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.client.producer import AppendProducer, ProducerOptions
from toktier_stream.pipeline import tracing
from toktier_stream.wire.messages import Status

SECRET = "xylophone-7731-secret"


@pytest.fixture(scope="module")
def exported():
    """A real SDK that keeps what it would export."""
    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    reader = InMemoryMetricReader()
    patch = pytest.MonkeyPatch()
    patch.setattr(trace, "_TRACER_PROVIDER", tracing)
    patch.setattr(metrics._internal, "_METER_PROVIDER", MeterProvider(metric_readers=[reader]))
    yield spans, reader
    patch.undo()


async def test_a_request_is_one_trace_from_producer_to_consumer(backend, state_dir, exported):
    """Send, process with its stages, receive: one trace id, each a child of the one before."""
    spans, _ = exported
    spans.clear()
    settings = make_settings(backend, state_dir)
    broker = backend.connect()
    await broker.start()
    async with Running(backend, settings):
        options = ProducerOptions(topic=settings.topic_appends, topic_tokens=settings.topic_tokens)
        async with (
            TokenConsumer(broker, ConsumerOptions(topic=settings.topic_tokens)) as consumer,
            AppendProducer(broker, options) as producer,
        ):
            ticket = await producer.send_text("traced", "a text to be traced")
            assert (await ticket.answer(60)).status is Status.OK
            async for tokens in consumer.updates():
                assert tokens.session_id == "traced"
                break
    await broker.stop()
    finished = {s.name: s for s in spans.get_finished_spans()}
    send, process = finished[telemetry.SPAN_SEND], finished[telemetry.SPAN_PROCESS]
    assert process.parent.span_id == send.context.span_id
    for name in (
        telemetry.SPAN_DECODE,
        telemetry.SPAN_ROUTE,
        telemetry.SPAN_ENCODE,
        telemetry.SPAN_PUBLISH,
        telemetry.SPAN_STORE,
        telemetry.SPAN_RECEIVE,
    ):
        assert finished[name].context.trace_id == send.context.trace_id, name
        assert finished[name].parent.span_id == process.context.span_id, name
        assert finished[name].end_time >= finished[name].start_time
    assert process.attributes[telemetry.ATTR_STATUS] == "OK"
    # By the conventions: kinds, operations, and a batch that links to what made its events.
    assert send.kind is SpanKind.PRODUCER
    assert process.kind is SpanKind.CONSUMER
    assert finished[telemetry.SPAN_PUBLISH].kind is SpanKind.PRODUCER
    assert finished[telemetry.SPAN_RECEIVE].kind is SpanKind.CONSUMER
    poll = finished[telemetry.SPAN_POLL]
    assert poll.kind is SpanKind.CLIENT
    assert poll.parent is None
    assert [link.context.span_id for link in poll.links] == [send.context.span_id]
    assert poll.end_time <= finished[telemetry.SPAN_PUBLISH].start_time
    for span, operation, topic in (
        (send, "send", settings.topic_appends),
        (poll, "receive", settings.topic_appends),
        (process, "process", settings.topic_appends),
        (finished[telemetry.SPAN_PUBLISH], "send", settings.topic_tokens),
        (finished[telemetry.SPAN_RECEIVE], "process", settings.topic_tokens),
    ):
        assert span.attributes[semconv.MESSAGING_SYSTEM] == "kafka"
        assert span.attributes[semconv.MESSAGING_OPERATION_TYPE] == operation
        assert span.attributes[semconv.MESSAGING_OPERATION_NAME] == span.name.split()[0]
        assert span.attributes[semconv.MESSAGING_DESTINATION_NAME] == topic
    assert process.attributes[semconv.MESSAGING_KAFKA_OFFSET] == 0
    assert process.attributes[semconv.MESSAGING_DESTINATION_PARTITION_ID].isdecimal()
    assert poll.attributes[semconv.MESSAGING_CONSUMER_GROUP_NAME] == settings.group
    assert poll.attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] == 1
    assert finished[telemetry.SPAN_VERIFY].links[0].context.trace_id == send.context.trace_id


def test_sampling_follows_parents_then_links_then_the_ratio():
    """Nothing begun here is kept at ratio 0 but what links to a kept span; about half at 0.5."""

    def kept(ratio: float, *links: Link, count: int = 400) -> int:
        tracer = TracerProvider(sampler=sampler(ratio)).get_tracer("test")
        spans = [tracer.start_span("poll", links=links) for _ in range(count)]
        return sum(span.is_recording() for span in spans)

    def link(flags: int) -> Link:
        return Link(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(flags)))

    assert kept(0.0) == 0
    assert kept(0.0, link(0)) == 0
    assert kept(0.0, link(0), link(1)) == 400
    assert kept(1.0) == 400
    assert 100 < kept(0.5) < 300


def test_a_trace_that_its_producer_does_not_keep_is_not_begun(exported):
    """Told from the header alone, and always as the SDK reads it; odd headers are the SDK's."""
    spans, _ = exported
    spans.clear()
    trace_id, parent = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
    kept = 0
    for flags in (b"%02x" % n for n in range(256)):
        headers = (("x", b"y"), ("traceparent", b"-".join((b"00", trace_id, parent, flags))))
        context = trace.get_current_span(telemetry.context_from_headers(headers))
        begun = tracing.begin(Record("t", 0, 7, b"k", b"v", headers, 0))
        assert (begun is not None) == context.get_span_context().trace_flags.sampled
        if begun is not None:
            kept += 1
            assert begun.creation.span_id == int(parent, 16)
            begun.span.end()
    assert kept == len(spans.get_finished_spans()) == 128
    for odd in (b"", b"nonsense", b"00-" + trace_id, b"\xff" * 55):
        begun = tracing.begin(Record("t", 0, 7, b"k", b"v", (("traceparent", odd),), 0))
        assert begun is not None
        assert begun.creation is None
        begun.span.end()


async def test_no_text_leaves_kafka_and_the_store(
    backend, state_dir, hands, exported, capsys, tmp_path
):
    """A secret planted in transcripts and in bad events is in no log, span, metric or error."""
    spans, reader = exported
    spans.clear()
    telemetry.setup_logging("debug")
    settings = make_settings(
        backend, state_dir, log_level="debug", evidence_dir=tmp_path / "evidence"
    )
    async with Running(backend, settings):
        h = await hands(settings)
        text = f"<|im_start|>user\n{SECRET} é " + f"{SECRET} " * 100
        await h.reset("s", 1, text)
        await h.append("s", 2, SECRET)
        await h.append("s", 2, SECRET + "!")
        await h.append("s", 7, SECRET)
        await h.append("s", 3, SECRET, expect_bytes=1)
        await h.reset("s", 3, SECRET, tokenizer=SECRET)
        await h.send(
            OutRecord(settings.topic_appends, b"s", b"\xff" + SECRET.encode()),
            OutRecord(
                settings.topic_appends,
                b"s",
                json.dumps({"session_id": "s", "revision": "x", "edit": SECRET}).encode(),
                (("content-type", b"application/json"),),
            ),
        )
        await h.until(settings.topic_rejects, 3)
        errors = [a.message for a in h.answers]
    captured = capsys.readouterr()
    logged = captured.out + captured.err
    assert "event_rejected" in logged
    for line in captured.err.splitlines():
        json.loads(line)
    seen = logged + "\n".join(errors)
    seen += "".join(s.to_json() for s in spans.get_finished_spans())
    seen += reader.get_metrics_data().to_json()
    assert telemetry.SPAN_PROCESS in seen
    assert "toktier.events" in seen
    assert SECRET not in seen
    assert SECRET.split("-", maxsplit=1)[0] not in seen
