"""End aiokafka's objects within a time limit, also where the broker does not answer.

aiokafka's own ``stop`` waits without a limit: a producer for batches that an idempotent producer
never gives up, a consumer for a join request in flight. The private names used here are the
reason for the upper bound on aiokafka's version.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import ProducerClosed


async def close_producer(producer: AIOKafkaProducer, timeout_s: float) -> None:
    """Stop a producer; what is not delivered in time is failed with ``ProducerClosed``.

    A request in flight to a broker that hangs is waited for, up to the request timeout.
    """
    stopping = asyncio.ensure_future(producer.stop())
    try:
        await asyncio.wait({stopping}, timeout=timeout_s)
    finally:
        if not stopping.done():
            _hang_up(producer)
    await asyncio.wait({stopping})
    if _failed(stopping):
        await producer.client.close()
    # aiokafka reports a failure through several futures; those nobody waits for would be logged
    # as forgotten errors when they are collected.
    unread = [batch._drain_waiter for batch in _waiting_batches(producer)]
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
    if _failed(stopping):
        if consumer._group_id is not None and consumer._coordinator is not None:
            await consumer._coordinator._stop_heartbeat_task()
            await consumer._coordinator._stop_commit_offsets_refresh_task()
        if consumer._fetcher is not None:
            await consumer._fetcher.close()
        await consumer._client.close()


def _failed(stopping: asyncio.Future[None]) -> bool:
    # What went wrong while stopping is in aiokafka's log and changes nothing any more.
    return stopping.cancelled() or stopping.exception() is not None


def _waiting_batches(producer: AIOKafkaProducer) -> list[Any]:
    return [
        batch for batches in producer._message_accumulator._batches.values() for batch in batches
    ]


def _hang_up(producer: AIOKafkaProducer) -> None:
    """End what aiokafka would try again forever: requests fail from now on, and so do batches."""

    async def refuse(*_: Any, **__: Any) -> Any:
        raise ProducerClosed()

    producer.client.send = producer.client.ready = refuse
    accumulator = producer._message_accumulator
    # A batch that waits for its next try is missing here, and its callback relies on it.
    accumulator._pending_batches.update(_waiting_batches(producer))
    accumulator.fail_all(ProducerClosed())
