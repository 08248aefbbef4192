"""A worker comes back: time and bytes from an empty disk, and with the disk of yesterday.

Sessions are opened through the pipeline; after a share of them the state directory is copied, as
the disk of a worker that was away while the rest happened. Then a worker starts on nothing, and one
on the copy. Each is timed from its assignment to its last partition running, and must continue
sessions with the reference's ids.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from toktier_stream.bench.generate import generate_context
from toktier_stream.bench.pipeline_load import Client
from toktier_stream.bench.pipeline_worker import WorkerHere
from toktier_stream.bench.workload import Request
from toktier_stream.broker.connect import open_broker
from toktier_stream.broker.port import Broker, Reader, Record
from toktier_stream.client.buffers import TokenBuffer
from toktier_stream.config import Settings, load
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.worker import topic_specs
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.wire.messages import Status, TokenUpdate

_ALIAS: Final = "model"
_POOL: Final = 4_000_000
_WINDOW: Final = 64
_DEADLINE_S: Final = 3600.0

Result = dict[str, Any]


class _Counted:
    """A reader that counts the bytes of keys and values."""

    def __init__(self, reader: Reader, seen: list[int]) -> None:
        self._reader = reader
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def poll(self, timeout: float, max_records: int) -> Sequence[Record]:
        records = await self._reader.poll(timeout, max_records)
        self._seen[0] += sum(len(r.key or b"") + len(r.value or b"") for r in records)
        return records


class _Counting:
    """A broker whose readers count."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.seen = [0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def reader(self, topic: str) -> Any:
        return _Counted(self._broker.reader(topic), self.seen)


def run(
    path: Path,
    broker: str,
    *,
    sessions: int = 10_000,
    chars: int = 50_000,
    share: float = 0.9,
    partitions: int = 4,
    checked: int = 8,
    seed: int = 1,
    folder: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """Measure. ``share`` of the sessions are on the disk of yesterday; ``checked`` sessions are
    continued after each start and compared with the reference. Raises what brokers raise."""
    with tempfile.TemporaryDirectory(prefix="toktier-bench-", dir=folder) as name:
        bench = _Bench(path, broker, Path(name), partitions, checked, progress)
        result = asyncio.run(bench.measure(generate_context(seed, _POOL), sessions, chars, share))
    return {
        "broker": broker.partition(":")[0],
        "sessions": sessions,
        "chars": chars,
        "partitions": partitions,
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        **result,
    }


class _Bench:
    def __init__(
        self,
        tokenizer: Path,
        address: str,
        folder: Path,
        partitions: int,
        checked: int,
        progress: Callable[[str], None],
    ) -> None:
        self._entry = open_tokenizer(tokenizer)
        self._address = address
        self._folder = folder
        self._checked = checked
        self._progress = progress
        name = uuid.uuid4().hex[:10]
        topics = ("appends", "tokens", "checks", "rejects", "sessions")
        self._name = name
        self._values: dict[str, Any] = {
            "broker": address,
            "group": f"bench-{name}",
            "partitions": partitions,
            "tokenizers": {_ALIAS: tokenizer},
            "default_tokenizer": _ALIAS,
            "verify_rate": 0,
            **{f"topic_{t}": f"bench-{t}-{name}" for t in topics},
        }
        self._buffers: dict[int, TokenBuffer] = {}

    async def measure(self, pool: str, sessions: int, chars: int, share: float) -> Result:
        """Fill, then come back twice."""
        broker = open_broker(self._address)
        await broker.start()
        settings = self._settings("first")
        try:
            await broker.ensure_topics(topic_specs(settings), create=True)
            topics = settings.topic_appends, settings.topic_tokens
            async with Client(broker, pool, topics, _ALIAS, self._name) as client:
                step = max(1, (len(pool) - chars) // sessions)
                full = [Request(0.0, i, True, i * step, chars) for i in range(sessions)]
                cut = round(sessions * share)
                self._progress(f"{sessions:,} sessions of {chars:,} characters")
                began = time.monotonic()
                await self._open(broker, client, settings, full[:cut])
                shutil.copytree(settings.state_dir, self._folder / "yesterday")
                await self._open(broker, client, settings, full[cut:])
                filled = time.monotonic() - began
                stored = _size(settings.state_dir)
                shutil.rmtree(settings.state_dir)
                rows = {}
                for name in ("empty", "yesterday"):
                    self._progress(f"back with {name} disk")
                    rows[name] = await self._back(broker, client, name, sessions)
                    shutil.rmtree(self._folder / name)
        finally:
            await broker.stop()
        return {"fill_s": filled, "state_bytes": stored, **rows}

    def _settings(self, disk: str) -> Settings:
        return load(None, **self._values, state_dir=self._folder / disk)

    async def _open(
        self, broker: Broker, client: Client, settings: Settings, requests: Sequence[Request]
    ) -> None:
        worker = WorkerHere(settings, broker)
        await worker.start()
        try:
            tickets = await client.run(requests, _DEADLINE_S, window=_WINDOW)
        finally:
            await worker.stop()
        for ticket in tickets:
            self._take(ticket.request.session, ticket.update)
            ticket.update = None

    async def _back(self, broker: Broker, client: Client, disk: str, sessions: int) -> Result:
        counting = _Counting(broker)
        worker = WorkerHere(self._settings(disk), counting)
        cpu = time.process_time()
        restored = await worker.start_timed()
        cpu = time.process_time() - cpu
        try:
            step = max(1, sessions // self._checked)
            chosen = range(0, sessions, step)
            appends = [Request(0.0, i, False, 1000 * i % _POOL // 2, 1500) for i in chosen]
            tickets = await client.run(appends, 60.0, window=_WINDOW)
            for ticket in tickets:
                self._take(ticket.request.session, ticket.update)
            exact = all(self._exact(client, i) for i in chosen)
        finally:
            await worker.stop()
        return {
            "seconds": restored,
            "cpu_s": cpu,
            "bytes": counting.seen[0],
            "records": worker.restored,
            "exact": exact,
        }

    def _take(self, session: int, update: TokenUpdate | None) -> None:
        if update is None or update.status is not Status.OK:
            told = "none" if update is None else update.status.value
            raise ToktierError(Code.ANSWER_TIMEOUT, f"session {session}: {told}")
        self._buffers.setdefault(session, TokenBuffer()).apply(update)

    def _exact(self, client: Client, session: int) -> bool:
        text = client.text(session)
        return bool(np.array_equal(self._buffers[session].ids, self._entry.reference.ids(text)))


def _size(folder: Path) -> int:
    """Bytes that the files of a folder take on disk."""
    return sum(512 * f.stat().st_blocks for f in folder.rglob("*") if f.is_file())
