"""Reads ``ops/``: manifests, alerts, dashboard, runbooks, and the names that a worker really shows.

As in ``docker_files``: checks take parsed files and return sentences, none when all is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import prometheus_client
import promql_parser
import pytest
import yaml
from docker_files import REPOSITORY, Yaml
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client.parser import text_string_to_metric_families

from toktier_stream import telemetry

OPS = REPOSITORY / "ops"
KUBERNETES = OPS / "kubernetes"
ALERTS = OPS / "alerts" / "toktier.rules.yaml"
DASHBOARD = OPS / "grafana" / "toktier.json"
RUNBOOKS = OPS / "runbooks"

# What Prometheus itself makes, and the labels it gives to everything it scrapes.
_FOREIGN = {"up": {"job", "instance"}}
_SCRAPED = {"job", "instance", "le"}

_QUANTITIES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "": 1}


def quantity(text: str) -> int:
    """``6Gi`` in bytes, or a plain number."""
    number = text.rstrip("KMGi")
    return int(number) * _QUANTITIES[text[len(number) :]]


def documents(name: str) -> list[Yaml]:
    """The documents of one manifest."""
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """What a schema's types have dropped or changed: names that they do not know."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            problem
            for key, value in before.items()
            for problem in (
                lost(value, after[key], f"{path}.{key}") if key in after else [f"{path}.{key}"]
            )
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [problem for n, (a, b) in pairs for problem in lost(a, b, f"{path}[{n}]")]
    return [] if before == after else [path]


def page_names() -> dict[str, set[str]]:
    """Sample name to its labels, as ``/metrics`` shows every metric of the registry."""
    reader = PrometheusMetricReader()
    with pytest.MonkeyPatch.context() as patch:
        provider = MeterProvider(metric_readers=[reader])
        patch.setattr(metrics._internal, "_METER_PROVIDER", provider)
        instruments = telemetry.Instruments()
    for metric in telemetry.METRICS:
        attributes = dict.fromkeys(metric.attributes, "x")
        if metric.kind == "counter":
            instruments.add(metric.name, 1, **attributes)
        elif metric.kind == "histogram":
            instruments.record(metric.name, 1.0, **attributes)
        else:
            instruments.set(metric.name, 1.0, **attributes)
    instruments.flush()
    page = prometheus_client.generate_latest().decode()
    provider.shutdown()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith("toktier"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Every selector of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for attribute in ("vector_selector", "expr", "lhs", "rhs", "param"):
        if (child := getattr(node, attribute, None)) is not None:
            yield from selectors(child)
    for child in getattr(node, "args", None) or []:
        yield from selectors(child)


def grouped_by(node: Any) -> Iterator[str]:
    """Every label that an aggregation keeps."""
    if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
        yield from node.modifier.labels
    for attribute in ("vector_selector", "expr", "lhs", "rhs", "param"):
        if (child := getattr(node, attribute, None)) is not None:
            yield from grouped_by(child)
    for child in getattr(node, "args", None) or []:
        yield from grouped_by(child)


def expression_problems(expression: str, names: Mapping[str, set[str]]) -> list[str]:
    """Metrics and labels of an expression that nothing shows; or that it cannot be parsed."""
    try:
        parsed = promql_parser.parse(expression)
    except ValueError as error:
        return [f"{expression}: {error}"]
    known = {**_FOREIGN, **names}
    problems, labels = [], set[str]()
    for selector in selectors(parsed):
        if selector.name not in known:
            problems.append(f"no metric {selector.name}")
            continue
        labels |= known[selector.name]
        problems += [
            f"{selector.name} has no label {matcher.name}"
            for matcher in selector.matchers.matchers
            if matcher.name not in known[selector.name] | _SCRAPED
        ]
    problems += [
        f"nothing in {expression} has a label {label}"
        for label in grouped_by(parsed)
        if label not in labels | _SCRAPED
    ]
    return problems
