"""Switches the OpenTelemetry SDK on for a process, from the settings: to a collector, to a page
that Prometheus reads, to both, or to nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import prometheus_client
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from toktier_stream import __version__, telemetry
from toktier_stream.config import Settings
from toktier_stream.pipeline.health_http import Page

_EXPORT_S: Final = 5.0  # a collector that hangs must not hold up the end of the process


@dataclass(frozen=True, slots=True)
class Exported:
    """``end`` sends what is left and closes; ``page`` is ``/metrics``, None if that is off."""

    end: Callable[[], None]
    page: Callable[[], Page] | None = None


class LinkedOrRatio(Sampler):
    """For spans that begin a trace: those that link to a sampled one, and a share of the others.

    A batch has no parent; it is worth keeping when one of the events in it is."""

    def __init__(self, ratio: float) -> None:
        self._ratio = TraceIdRatioBased(ratio)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        linked = any(link.context.trace_flags.sampled for link in links or ())
        sampler = ALWAYS_ON if linked else self._ratio
        return sampler.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state
        )

    def get_description(self) -> str:
        return f"LinkedOrRatio({self._ratio.get_description()})"


def sampler(ratio: float) -> Sampler:
    """Whoever began a trace has decided; traces begun here are kept at ``ratio``."""
    return ParentBased(LinkedOrRatio(ratio))


def setup(settings: Settings, service: str) -> Exported:
    """Send spans and metrics where the settings say."""
    if not settings.otlp_endpoint and not settings.health_listen:
        return Exported(lambda: None)
    resource = Resource.create(
        {
            "service.name": service,
            "service.version": __version__,
            "service.instance.id": settings.instance_id or socket.gethostname(),
        }
    )
    ends: list[Callable[[], object]] = []
    readers: list[MetricReader] = []
    if settings.otlp_endpoint:
        endpoint = settings.otlp_endpoint.rstrip("/")
        tracing = TracerProvider(resource=resource, sampler=sampler(settings.trace_ratio))
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_EXPORT_S)
        tracing.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(tracing)
        ends.append(tracing.shutdown)
        readers.append(
            PeriodicExportingMetricReader(
                OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=_EXPORT_S),
                export_interval_millis=settings.metrics_interval_s * 1000,
            )
        )
    if settings.health_listen:
        readers.append(PrometheusMetricReader())
    measuring = MeterProvider(metric_readers=readers, resource=resource)
    metrics.set_meter_provider(measuring)
    ends.append(measuring.shutdown)

    def end() -> None:
        for each in ends:
            each()

    return Exported(end, metrics_page if settings.health_listen else None)


def metrics_page() -> Page:
    """Everything that is counted until now, in Prometheus' text form."""
    telemetry.flush_all()
    return Page(
        HTTPStatus.OK,
        prometheus_client.CONTENT_TYPE_LATEST,
        prometheus_client.generate_latest(),
    )
