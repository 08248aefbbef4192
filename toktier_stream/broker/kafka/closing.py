"""End aiokafka's objects within a time limit, also where the broker does not answer.

aiokafka's own ``stop`` waits without a limit: a producer for batches that an idempotent producer
never gives up, a consumer for a join request in flight. The private names used here are the
reason for the upper bound on aiokafka's version.
"""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import ProducerClosed

from toktier_stream.broker.kafka.failures import FAILURES


async def close_producer(producer: AIOKafkaProducer, timeout_s: float) -> None:
    """Stop a producer; what is not delivered in time is failed with ``ProducerClosed``."""
    stopping = asyncio.ensure_future(producer.stop())
    try:
        await asyncio.wait({stopping}, timeout=timeout_s)
    finally:
        if not stopping.done():
            producer._message_accumulator.fail_all(ProducerClosed())
    await _ended(stopping)
    # aiokafka reports a failure through several futures; those nobody waits for would be logged
    # as forgotten errors when they are collected.
    unread = [
        batch._drain_waiter
        for batches in producer._message_accumulator._batches.values()
        for batch in batches
    ]
    if producer._txn_manager is not None:
        unread.append(producer._txn_manager._transaction_waiter)
    for future in unread:
        if future is not None and future.done() and not future.cancelled():
            future.exception()


async def close_consumer(consumer: AIOKafkaConsumer, timeout_s: float) -> None:
    """Stop a consumer; a group that cannot be left in time is left to its session timeout."""
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait({stopping}, timeout=timeout_s)
    if not stopping.done():
        # Cancelling the wait for the coordination task cancels that task, too.
        stopping.cancel()
        await asyncio.wait({stopping})
        if consumer._group_id is not None and consumer._coordinator is not None:
            await consumer._coordinator._stop_heartbeat_task()
            await consumer._coordinator._stop_commit_offsets_refresh_task()
        if consumer._fetcher is not None:
            await consumer._fetcher.close()
        await consumer._client.close()
    await _ended(stopping)


async def _ended(stopping: asyncio.Future[None]) -> None:
    # What goes wrong while closing is in aiokafka's log and changes nothing any more.
    await asyncio.wait({stopping})
    error = None if stopping.cancelled() else stopping.exception()
    if error is not None and not isinstance(error, FAILURES):
        raise error
