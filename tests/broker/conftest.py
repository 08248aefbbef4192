"""Runs each contract test on both backends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from broker_harness import Bench

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.local import LocalBroker


@pytest_asyncio.fixture(params=["local"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A started connection to a cluster of either backend."""
    cluster = LocalCluster()
    bench = Bench(lambda: LocalBroker(cluster))
    await bench.start()
    yield bench
    await bench.stop()
