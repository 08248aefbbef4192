"""A copy of a partition that another worker owns: its changelog is followed, so that a takeover
replays only the tail.

Bounded: one chunk of records in memory, a limit of bytes a second, one LMDB transaction at a time.
A copy only follows. The store has one writer: whoever starts the partition here stops the copy
first, and each waits for what still runs in a thread for the partition.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping
from concurrent.futures import Executor
from typing import Any, Final

from toktier_stream import telemetry
from toktier_stream.broker.port import Broker, Reader
from toktier_stream.config import Settings
from toktier_stream.errors import ToktierError
from toktier_stream.pipeline.changelog import CHUNK, Follower, Progress
from toktier_stream.pipeline.ownership import StaleStore
from toktier_stream.session.store import Store

_LOG = telemetry.logger(__name__)
_POLL_S: Final = 1.0
_RETRY_S: Final = (0.5, 2.0, 10.0, 30.0)


class Standby:
    """Follows one partition's changelog as a task, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        partition: int,
        store: Store,
        settings: Settings,
        broker: Broker,
        executor: Executor,
        threads: MutableMapping[int, asyncio.Future[Any]],
        instruments: telemetry.Instruments,
    ) -> None:
        """``threads``: what runs in a thread for each partition now, of whatever life."""
        self.partition = partition
        self.progress = Progress()
        self.shadowed: set[bytes] = set()
        """Keys for the next owner to write again; see ownership.py."""
        self._store = store
        self._s = settings
        self._broker = broker
        self._executor = executor
        self._threads = threads
        self._instruments = instruments
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._run(), name=f"standby-{self.partition}")

    async def stop(self) -> None:
        """Follow no longer; the store is not used any more once this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._wait_for_thread()
        self._instruments.set("toktier.standby.lag", 0, partition=str(self.partition))

    @property
    def error(self) -> BaseException | None:
        """What ended it, where nobody stopped it."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def _run(self) -> None:
        await self._wait_for_thread()
        _LOG.info("standby_started", partition=self.partition, offset=self._store.changelog_offset)
        attempts = 0
        while True:
            begun = self.progress
            try:
                await self._follow()
            except StaleStore as error:
                _LOG.error("store_not_continued", partition=self.partition, reason=str(error))
                await self._in_thread(self._store.clear)
            except (ToktierError, OSError) as error:
                code = error.code.value if isinstance(error, ToktierError) else type(error).__name__
                _LOG.warning("standby_interrupted", partition=self.partition, code=code)
                attempts = 0 if self.progress is not begun and self.progress.applied else attempts
                await asyncio.sleep(_RETRY_S[min(attempts, len(_RETRY_S) - 1)])
                attempts += 1

    async def _follow(self) -> None:
        reader = self._broker.reader(self._s.topic_sessions)
        follower = Follower(self._store, self._in_thread)
        self.progress = progress = follower.progress
        progress.began = time.monotonic()
        try:
            await reader.start({self.partition: progress.start})
            await self._admit(reader)
            looked, caught_up = time.monotonic(), False
            while True:
                records = await reader.poll(_POLL_S, CHUNK)
                await follower.apply(records)
                self.shadowed |= follower.lineage.shadowed
                now = time.monotonic()
                if now - looked > _POLL_S:
                    looked = now
                    progress.end = await reader.end(self.partition)
                progress.position = max(progress.position, reader.position(self.partition))
                self._instruments.set(
                    "toktier.standby.lag", progress.to_go, partition=str(self.partition)
                )
                if not records and not caught_up:
                    caught_up = True
                    _LOG.info(
                        "standby_caught_up",
                        partition=self.partition,
                        records=progress.applied,
                        seconds=round(now - progress.began, 3),
                    )
                size = sum(len(r.key or b"") + len(r.value or b"") for r in records)
                await asyncio.sleep(size / self._s.standby_bytes_per_s)
        finally:
            await reader.stop()

    async def _admit(self, reader: Reader) -> None:
        """A store that is beyond the end of its changelog belongs to one that is gone. What was
        committed a moment ago may not show yet, so the end is asked for again."""
        start = self.progress.start
        for _ in range(20):
            self.progress.end = await reader.end(self.partition)
            if start <= self.progress.end:
                return
            await asyncio.sleep(_POLL_S / 4)
        raise StaleStore(f"offset {start} is beyond the end {self.progress.end}")

    async def _in_thread(self, call: Callable[[], None]) -> None:
        running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        running.add_done_callback(_told)  # where it is stopped meanwhile, nobody asks
        self._threads[self.partition] = running
        await asyncio.shield(running)

    async def _wait_for_thread(self) -> None:
        running = self._threads.get(self.partition)
        if running is not None and not running.done():
            await asyncio.wait({running})


def _told(running: asyncio.Future[Any]) -> None:
    if not running.cancelled():
        running.exception()
