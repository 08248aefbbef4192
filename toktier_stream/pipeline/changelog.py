"""Restoring a partition's store from the compacted changelog: the tail, or everything."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor

from toktier_stream import telemetry
from toktier_stream.broker.port import Reader, Record, read_to_end
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.store import Store

_LOG = telemetry.logger(__name__)
_CHUNK = 500
_PROGRESS_S = 5.0


async def restore(
    reader: Reader,
    partition: int,
    store: Store,
    executor: Executor,
    deadline_s: float,
    instruments: telemetry.Instruments,
) -> int:
    """Apply the changelog from where the store stands to the end; returns the records applied.

    LMDB can lag behind Kafka after a crash, never lead it, so this is all that recovery takes.
    Raises ``RESTORE_DEADLINE``.
    """
    loop = asyncio.get_running_loop()
    started = time.monotonic()
    reported = started
    start = store.changelog_offset
    applied = 0
    chunk: list[Record] = []

    async def flush() -> None:
        nonlocal applied
        if chunk:
            records = [(r.key, r.value) for r in chunk if r.key is not None]
            offset = chunk[-1].offset + 1
            await loop.run_in_executor(executor, store.restore, records, offset)
            applied += len(chunk)
            instruments.add("toktier.restored", len(chunk))
            chunk.clear()

    with telemetry.tracer().start_as_current_span(telemetry.SPAN_RESTORE) as span:
        try:
            async for record in read_to_end(reader, partition, start, deadline_s):
                chunk.append(record)
                if len(chunk) >= _CHUNK:
                    await flush()
                    if time.monotonic() - reported > _PROGRESS_S:
                        reported = time.monotonic()
                        _LOG.info("restore_progress", partition=partition, records=applied)
            await flush()
        except TimeoutError as error:
            raise ToktierError(Code.RESTORE_DEADLINE, f"partition {partition}: {error}") from error
        finally:
            await reader.stop()
        span.set_attribute(telemetry.ATTR_PARTITION, str(partition))
        span.set_attribute(telemetry.ATTR_BATCH, applied)
    if applied:
        seconds = round(time.monotonic() - started, 3)
        _LOG.info("restored", partition=partition, records=applied, seconds=seconds)
    return applied
