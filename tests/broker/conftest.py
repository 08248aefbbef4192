"""Runs each contract test on both backends."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
from broker_harness import Bench, kafka_options, nothing_left_running

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.kafka import KafkaBroker
from toktier_stream.broker.local import LocalBroker


@pytest_asyncio.fixture(params=["local", pytest.param("kafka", marks=pytest.mark.kafka)])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A started connection to a cluster of either backend."""
    if request.param == "local":
        cluster = LocalCluster()
        bench = Bench(lambda: LocalBroker(cluster))
    else:
        options = kafka_options(request.getfixturevalue("kafka_bootstrap"))
        bench = Bench(lambda: KafkaBroker(options))
    forgotten: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: forgotten.append(context))
    await bench.start()
    yield bench
    await bench.stop()
    await nothing_left_running()
    gc.collect()
    assert not forgotten


def _kafka_script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "ops" / "kafka.py"
    spec = importlib.util.spec_from_file_location("ops_kafka", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ops_kafka"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[Any]:
    """A handle on a broker that one test file may kill, pause and restart; it has SASL, too."""
    script = _kafka_script()
    handle = script.start(sasl=True)
    handle.account = script.USER, script.PASSWORD
    yield handle
    handle.stop()
