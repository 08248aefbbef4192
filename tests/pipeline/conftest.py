"""The pipeline's tests run on both brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from pipeline_harness import Backend, Hands, kafka_backend, local_backend

from toktier_stream.config import Settings


@pytest.fixture(params=["local", pytest.param("kafka", marks=pytest.mark.kafka)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The embedded broker, and Apache Kafka."""
    if request.param == "local":
        return local_backend()
    return kafka_backend(request.getfixturevalue("kafka_bootstrap"))


@pytest_asyncio.fixture
async def hands(backend: Backend) -> AsyncIterator[Callable[[Settings], Awaitable[Hands]]]:
    """Makes raw clients of the pipeline's topics; call it once the topics exist."""
    broker = backend.connect()
    await broker.start()
    opened: list[Hands] = []

    async def make(settings: Settings) -> Hands:
        made = Hands(broker, settings)
        await made.open()
        opened.append(made)
        return made

    yield make
    for made in opened:
        await made.close()
    await broker.stop()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A fresh state directory."""
    return tmp_path / "state"
