"""Runs each contract test on both backends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
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


@pytest.fixture(scope="module")
def own_kafka(kafka_script: ModuleType) -> Iterator[Any]:
    """A handle on a broker that one test file may kill, pause and restart; it has SASL, too."""
    handle = kafka_script.start(sasl=True)
    handle.account = kafka_script.USER, kafka_script.PASSWORD
    yield handle
    handle.stop()
