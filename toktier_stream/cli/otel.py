"""Switches the OpenTelemetry SDK on for a process, from the settings."""

from __future__ import annotations

import socket
from collections.abc import Callable

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from toktier_stream import __version__
from toktier_stream.config import Settings


def setup(settings: Settings, service: str) -> Callable[[], None]:
    """Send spans and metrics to the collector, if one is configured; returns how to end that."""
    if not settings.otlp_endpoint:
        return lambda: None
    resource = Resource.create(
        {
            "service.name": service,
            "service.version": __version__,
            "service.instance.id": settings.instance_id or socket.gethostname(),
        }
    )
    endpoint = settings.otlp_endpoint.rstrip("/")
    tracing = TracerProvider(
        resource=resource, sampler=ParentBased(TraceIdRatioBased(settings.trace_ratio))
    )
    tracing.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces"))
    )
    trace.set_tracer_provider(tracing)
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics"),
        export_interval_millis=settings.metrics_interval_s * 1000,
    )
    measuring = MeterProvider(metric_readers=[reader], resource=resource)
    metrics.set_meter_provider(measuring)

    def end() -> None:
        tracing.shutdown()
        measuring.shutdown()

    return end
