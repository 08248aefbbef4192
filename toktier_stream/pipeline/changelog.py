"""Making a partition's store follow its changelog: the tail, or everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from toktier_stream import telemetry
from toktier_stream.broker.port import Reader, Record
from toktier_stream.errors import Code, ToktierError
from toktier_stream.pipeline.ownership import Lineage, StaleStore
from toktier_stream.session.store import Store

_LOG = telemetry.logger(__name__)
CHUNK: Final = 500
"""Records that are applied as one LMDB transaction."""

_PROGRESS_S: Final = 5.0
_POLL_S: Final = 1.0
_VISIBLE_S: Final = 0.005

InThread = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a call that uses the store in its thread and waits for it."""


@dataclass(slots=True)
class Progress:
    """How far a replay is: plain numbers, to be read from anywhere. ``position`` and ``end`` are
    offsets of the changelog; ``applied`` and ``foreign`` count records; ``began`` is monotonic."""

    start: int = 0
    position: int = 0
    end: int = 0
    applied: int = 0
    foreign: int = 0
    began: float = 0.0

    @property
    def to_go(self) -> int:
        """Offsets that are left: at most that many records."""
        return max(0, self.end - self.position)


class Follower:
    """Applies records of one changelog partition to its store. One task uses it at a time."""

    def __init__(self, store: Store, in_thread: InThread) -> None:
        self._store = store
        self._in_thread = in_thread
        self.lineage = Lineage(store.changelog_offset, store.owner, store.answered)
        self.progress = Progress(store.changelog_offset, store.changelog_offset)

    async def apply(self, records: Sequence[Record]) -> None:
        """Apply what counts, as one LMDB transaction. Raises :class:`StaleStore` and store
        errors; what was read must then be read again by a new follower."""
        if not records:
            return
        lineage = self.lineage
        changes: list[tuple[bytes, bytes | None]] = []
        forgotten: list[bytes] = []
        for record in records:
            foreign = lineage.foreign
            change = lineage.take(record)
            if change is not None:
                changes.append(change)
                if lineage.foreign > foreign:
                    forgotten.append(change[0])
        offset = records[-1].offset + 1
        await self._in_thread(
            partial(
                self._store.restore,
                changes,
                offset,
                owner=lineage.owner,
                answered=lineage.answered,
                forgotten=forgotten,
            )
        )
        self.progress.position = offset
        self.progress.applied += len(changes)
        self.progress.foreign = lineage.foreign


async def restore(
    open_reader: Callable[[], Reader],
    partition: int,
    store: Store,
    in_thread: InThread,
    deadline_s: float,
    instruments: telemetry.Instruments,
    *,
    claim: int,
    told: Callable[[Progress], None] = lambda _: None,
) -> tuple[int, Follower]:
    """Apply the changelog from where the store stands to its end, which lies beyond ``claim``.

    Returns that end and the follower, whose lineage says what it has met. ``told`` is given the
    progress once, at the beginning. LMDB can lag behind Kafka after a crash, never lead it, so
    this is all that recovery takes. Raises ``RESTORE_DEADLINE`` (what was applied stays, and the
    next attempt goes on from there), and ``PRODUCER_FENCED`` where a newer owner has claimed.
    """
    if store.changelog_offset > claim:
        # The changelog was made anew: nothing here has a place in it.
        _LOG.error("store_not_of_this_changelog", partition=partition)
        await in_thread(store.clear)
    with telemetry.tracer().start_as_current_span(telemetry.SPAN_RESTORE) as span:
        while True:
            follower = Follower(store, in_thread)
            told(follower.progress)
            try:
                end = await _replay(
                    open_reader(), partition, follower, deadline_s, instruments, claim
                )
                break
            except StaleStore as error:
                _LOG.error("store_not_continued", partition=partition, reason=str(error))
                await in_thread(store.clear)
        span.set_attribute(telemetry.ATTR_PARTITION, str(partition))
        span.set_attribute(telemetry.ATTR_BATCH, follower.progress.applied)
    if follower.lineage.owner > claim:
        raise ToktierError(Code.PRODUCER_FENCED, f"partition {partition} has a newer owner")
    return end, follower


async def _replay(
    reader: Reader,
    partition: int,
    follower: Follower,
    deadline_s: float,
    instruments: telemetry.Instruments,
    claim: int,
) -> int:
    progress = follower.progress
    progress.began = reported = time.monotonic()
    try:
        async with asyncio.timeout(deadline_s):
            await reader.start({partition: progress.start})
            progress.end = end = await reader.end(partition)
            while True:
                if end <= claim:
                    # A transaction shows soon after it was committed.
                    wait = _VISIBLE_S
                    progress.end = end = await reader.end(partition)
                elif reader.position(partition) < end and not reader.drained(partition, end):
                    wait = _POLL_S
                else:
                    break
                before = progress.applied
                await follower.apply(await reader.poll(wait, CHUNK))
                instruments.add("toktier.restored", progress.applied - before)
                if time.monotonic() - reported > _PROGRESS_S:
                    reported = time.monotonic()
                    _LOG.info(
                        "restore_progress",
                        partition=partition,
                        records=progress.applied,
                        to_go=progress.to_go,
                    )
    except TimeoutError as error:
        told = f"partition {partition}: {progress.position} of {progress.end}"
        raise ToktierError(Code.RESTORE_DEADLINE, told) from error
    finally:
        await reader.stop()
    progress.position = end = max(end, progress.position)
    if progress.applied or progress.foreign:
        _LOG.info(
            "restored",
            partition=partition,
            records=progress.applied,
            foreign=progress.foreign,
            seconds=round(time.monotonic() - progress.began, 3),
        )
    return end
