"""The registry of metrics, and how counts reach the SDK."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from toktier_stream.telemetry import METRICS, Instruments, flush_all


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    """A real SDK that keeps what it is told."""
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", MeterProvider([reader]))
    return reader


def counted(reader: InMemoryMetricReader) -> dict[tuple[str, ...], float]:
    """Name and attribute values to the sum, of all counters."""
    data = reader.get_metrics_data()
    return {
        (metric.name, *(str(v) for _, v in sorted(point.attributes.items()))): point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }


def test_each_metric_is_explained_once():
    """Names are unique and ours, and say what, in which unit."""
    assert len({m.name for m in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("toktier.")
        assert metric.unit
        assert metric.description[0].isupper() or metric.description[0].isdigit()


def test_counts_of_many_threads_arrive_whole(reader):
    """Threads count while another flushes: after the last flush every count is there, once."""
    instruments = Instruments()
    wanted: Counter[tuple[str, ...]] = Counter()
    lock = threading.Lock()
    done = threading.Event()

    def count(seed: int) -> None:
        rng = random.Random(seed)
        mine: Counter[tuple[str, ...]] = Counter()
        for _ in range(3000):
            status, amount = rng.choice("abc"), rng.randrange(5)
            instruments.add("toktier.events", amount, status=status, code="")
            instruments.add("toktier.received", amount)
            mine["toktier.events", "", status] += amount
            mine["toktier.received",] += amount
        with lock:
            wanted.update(mine)

    def flush() -> None:
        while not done.is_set():
            instruments.flush()

    threads = [threading.Thread(target=count, args=(n,)) for n in range(4)]
    flusher = threading.Thread(target=flush)
    for thread in (*threads, flusher):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    flusher.join()
    instruments.flush()
    assert counted(reader) == wanted


def test_a_count_of_nothing_shows_its_series(reader):
    """An alert on an increase needs the zero before it."""
    instruments = Instruments()
    instruments.add("toktier.checks", 0, verdict="mismatch")
    assert counted(reader) == {}
    instruments.flush()
    assert counted(reader) == {("toktier.checks", "mismatch"): 0}


def test_all_instruments_are_flushed_before_a_page_is_shown(reader):
    """Those of the worker and of the process; what is gone is no trouble."""
    one, two = Instruments(), Instruments()
    one.add("toktier.received", 3)
    two.add("toktier.received", 4)
    Instruments()
    flush_all()
    assert counted(reader) == {("toktier.received",): 7}


def test_gauges_are_seen_at_once(reader):
    """No flush in between."""
    instruments = Instruments()
    instruments.set("toktier.lag", 7, partition="3")
    assert counted(reader) == {("toktier.lag", "3"): 7}
