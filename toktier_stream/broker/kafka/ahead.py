"""A transaction's first two steps taken before there is anything to publish.

To commit a batch takes five requests, one after another: the partitions join the transaction, the
group joins it, the batches, the offsets, the end. The first two do not depend on the batch, except
for which partitions it goes to, and that is nearly always those of the last batches. So they are
made when a transaction has ended, while records are awaited and computed.

A transaction that is open and empty keeps no reader waiting. It is ended after some idle seconds,
long before the coordinator would end it and fence its producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.client import CoordinationType
from aiokafka.producer.sender import AddOffsetsToTxnHandler

from toktier_stream.broker.kafka.failures import FAILURES

BACKOFF_S: Final = 0.002
"""A transaction that follows another at once is told to wait while the markers of the last one are
written, about a millisecond; aiokafka asks again only after 20, and for the group after 100."""
_KEPT: Final = 8
_LOOK_S: Final = 0.0005
_END_S: Final = 1.0


class Ahead:
    """Opens the transactions of one producer. Used by one task at a time, and its own."""

    def __init__(self, producer: Any, idle_s: float) -> None:
        self._producer = producer
        self._group = ""
        self._idle_s = idle_s
        self._used: dict[TopicPartition, int] = {}
        self._count = 0
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._ending = False
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Open the next transaction, in the background."""
        self._used = {tp: n for tp, n in self._used.items() if self._count - n < _KEPT}
        self._opening = asyncio.create_task(self._open(), name="transaction-ahead")
        self._timer = asyncio.create_task(self._end_idle(), name="transaction-idle")

    async def opened(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Have a transaction that this group (empty: none) and these partitions have joined.
        Raises aiokafka's errors."""
        if self._timer is not None and not self._ending:
            self._timer.cancel()
        if self._timer is not None:
            await asyncio.wait({self._timer})
            ended = not self._timer.cancelled()
            self._timer = None
            if ended:
                self._opening = None
        if self._error is not None:
            raise self._error
        opening, self._opening = self._opening, None
        self._count += 1
        for tp in partitions:
            self._used[tp] = self._count
        if opening is None:
            self._group = group
            await self._open()
        else:
            await opening
            if group not in ("", self._group):
                self._group = group
                await self._join()
        transaction = self._producer._txn_manager
        self._raise_failure()
        for tp in self._used:
            transaction.maybe_add_partition_to_txn(tp)
        # Not beside a batch: the broker asks the coordinator about it, who refuses while something
        # joins.
        while transaction.partitions_to_add():
            self._raise_failure()
            await asyncio.sleep(_LOOK_S)
        self._raise_failure()

    async def stop(self, *, end: bool = False) -> None:
        """End what is under way; and ``end`` the transaction that is open, if one is."""
        tasks = {task for task in (self._opening, self._timer) if task is not None}
        self._opening = self._timer = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()
        if end and self._producer._txn_manager.is_in_transaction():
            with suppress(*FAILURES):
                async with asyncio.timeout(_END_S):
                    await self._producer.abort_transaction()

    async def _open(self) -> None:
        """The transaction begins and the group joins it; then the partitions, by aiokafka."""
        await self._producer.begin_transaction()
        await self._join()
        for tp in self._used:
            self._producer._txn_manager.maybe_add_partition_to_txn(tp)

    async def _join(self) -> None:
        sender, transaction = self._producer._sender, self._producer._txn_manager
        while (
            self._group
            and transaction.is_in_transaction()
            and transaction._txn_consumer_group != self._group
        ):
            node = await sender._find_coordinator(
                CoordinationType.TRANSACTION, transaction.transactional_id
            )
            handler = AddOffsetsToTxnHandler(sender, self._group)
            handler._default_backoff = BACKOFF_S
            await handler.do(node)
        self._raise_failure()

    async def _end_idle(self) -> None:
        """End an opened transaction that nobody used."""
        opening = self._opening
        await asyncio.sleep(self._idle_s)
        self._ending = True
        try:
            if opening is not None:
                await opening
            await self._producer.commit_transaction()
        except FAILURES as error:
            self._error = error  # for who publishes next
        finally:
            self._ending = False

    def failure(self) -> BaseException | None:
        """What ended the transaction, if something did. aiokafka tells it once, to who waits then;
        afterwards it only asserts that nothing can be done in this state."""
        waiter = self._producer._txn_manager.wait_for_transaction_end()
        if waiter is None or not waiter.done() or waiter.cancelled():
            return None
        error: BaseException | None = waiter.exception()
        return error

    def _raise_failure(self) -> None:
        error = self.failure()
        if error is not None:
            raise error
