"""One pipeline under test: a worker in this process on either broker, and hands to drive it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from toktier_stream.broker.cluster import LocalCluster
from toktier_stream.broker.connect import open_broker
from toktier_stream.broker.port import Broker, OutRecord, Reader, Record, read_to_end
from toktier_stream.config import Settings, load
from toktier_stream.pipeline.devices import OpenCard
from toktier_stream.pipeline.worker import Worker
from toktier_stream.session.engines import open_registry
from toktier_stream.tokenizer.registry import Registry
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.answers import decode_update
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Operation, Reset, TokenUpdate
from toktier_stream.wire.parts import UpdateJoiner

WITHIN_S = 60.0
READY_S = 240.0
"""A worker's start: on a fresh machine the kernels are compiled first."""
PARTITIONS = 4


@dataclass
class Backend:
    """A cluster: how to connect to it, and the address a worker process is given."""

    connect: Callable[[], Broker]
    address: str


def local_backend() -> Backend:
    """A new embedded cluster."""
    cluster = LocalCluster()
    return Backend(lambda: open_broker(cluster), "local:")


def kafka_backend(bootstrap: str) -> Backend:
    """A real Apache Kafka."""
    address = f"kafka://{bootstrap}"
    return Backend(lambda: open_broker(address), address)


def make_settings(backend: Backend, state_dir: Path, **overrides: object) -> Settings:
    """Settings with topics of their own, so that one cluster serves every test."""
    name = uuid.uuid4().hex[:10]
    values: dict[str, object] = {
        "broker": backend.address,
        "group": f"workers-{name}",
        "partitions": PARTITIONS,
        "create_topics": True,
        "state_dir": state_dir,
        "store_map_bytes": 1 << 30,
        "tokenizers": {"small": shipped_path()},
        "default_tokenizer": "small",
        "verify_rate": 1.0,
        "verify_load": 1.0,
        **{
            f"topic_{t}": f"{t}-{name}"
            for t in ("appends", "tokens", "checks", "rejects", "sessions")
        },
        **overrides,
    }
    return load(None, **values)


class Running(AbstractAsyncContextManager["Running"]):
    """A worker that is ready inside the ``async with``."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        registry: Registry | None = None,
        open_card: OpenCard | None = None,
    ) -> None:
        self.broker = backend.connect()
        registry = registry or open_registry(settings.tokenizers, settings.default_tokenizer)
        self.worker = Worker(settings, self.broker, registry, open_card=open_card)
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.broker.start()
        self.task = asyncio.create_task(self.worker.run())
        ready = asyncio.create_task(self.worker.ready.wait())
        async with asyncio.timeout(READY_S):
            await asyncio.wait({self.task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            ready.cancel()
            self.task.result()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.worker.stop()
        if self.task is not None:
            await self.task
        await self.broker.stop()


@dataclass
class Hands:
    """Sends raw events and reads what comes out, as another language's client would."""

    broker: Broker
    settings: Settings
    sent: int = 0
    answers: list[TokenUpdate] = field(default_factory=list)
    _reader: Reader | None = None
    _joiner: UpdateJoiner[int] = field(
        default_factory=lambda: UpdateJoiner(
            max_bytes=1 << 30, memory_bytes=1 << 30, deadline_s=600
        )
    )

    async def open(self) -> None:
        """Read answers from the beginning of the topic."""
        self._reader = self.broker.reader(self.settings.topic_tokens)
        await self._reader.start(dict.fromkeys(range(self.settings.partitions), 0))

    async def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            await self._reader.stop()

    async def send(self, *records: OutRecord) -> None:
        """Publish raw records and wait until they are acknowledged."""
        publisher = self.broker.publisher()
        await publisher.start()
        for acknowledged in [await publisher.send(r) for r in records]:
            await acknowledged
        await publisher.stop()

    async def event(self, session: str, revision: int, op: Operation, **fields: object) -> None:
        """Publish one event."""
        event = AppendEvent(session, revision, op, **fields)  # type: ignore[arg-type]
        await self.send(OutRecord(self.settings.topic_appends, *encode_event(event)))

    async def next(self, count: int = 1) -> list[TokenUpdate]:
        """The next answers, in order of arrival."""
        found: list[TokenUpdate] = []
        reader = self._reader
        if reader is None:
            raise RuntimeError("open() first")
        async with asyncio.timeout(WITHIN_S):
            while len(found) < count:
                for record in await reader.poll(0.2, 1000):
                    update = decode_update(record.key, record.value, record.headers)
                    step = self._joiner.add(update, record.offset, 0.0)
                    if step.ready is not None:
                        found.append(step.ready)
        self.answers += found
        return found

    async def ask(
        self, session: str, revision: int, op: Operation, **fields: object
    ) -> TokenUpdate:
        """Send one event and return its answer."""
        await self.event(session, revision, op, **fields)
        (answer,) = await self.next()
        return answer

    async def reset(self, session: str, revision: int, text: str, **fields: object) -> TokenUpdate:
        """Send a full text."""
        return await self.ask(session, revision, Reset(text.encode()), **fields)

    async def append(self, session: str, revision: int, text: str, **fields: object) -> TokenUpdate:
        """Send an append."""
        return await self.ask(session, revision, Edit(text.encode()), **fields)

    async def everything(self, topic: str) -> list[Record]:
        """All records of a topic, by partition and offset."""
        records: list[Record] = []
        for partition in range(self.settings.partitions):
            reader = self.broker.reader(topic)
            records += [r async for r in read_to_end(reader, partition, 0, WITHIN_S)]
            await reader.stop()
        return records

    async def until(self, topic: str, count: int) -> list[Record]:
        """Wait until a topic has at least ``count`` records."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                records = await self.everything(topic)
                if len(records) >= count:
                    return records
                await asyncio.sleep(0.05)


def rebuilt(answers: Mapping[str, list[TokenUpdate]]) -> dict[str, list[int]]:
    """Each session's ids after its answers, by plain list splicing: the slow consumer."""
    import numpy as np

    streams: dict[str, list[int]] = {}
    for session, updates in answers.items():
        ids: list[int] = []
        for u in updates:
            new = np.frombuffer(u.token_ids, dtype="<u4").tolist()
            ids = ids[: u.keep] + new + (ids[len(ids) - u.tail :] if u.tail else [])
        streams[session] = ids
    return streams
