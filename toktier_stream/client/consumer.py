"""TokenConsumer: what the inference fleet imports. Updates in, complete token ids out."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
from opentelemetry.trace import SpanKind

from toktier_stream import telemetry
from toktier_stream.broker.port import Broker, Committed, GroupConsumer, Reader, Record
from toktier_stream.client.buffers import TokenBuffer
from toktier_stream.errors import Code, ToktierError
from toktier_stream.wire.answers import decode_update
from toktier_stream.wire.messages import Status, TokenUpdate
from toktier_stream.wire.parts import Failure, UpdateJoiner
from toktier_stream.wire.refusal import WireError

_LOG = telemetry.logger(__name__)
_CLOSED_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class SessionTokens:
    """A session after one update. ``ids`` is a read-only view, valid until the session's next
    update; hand it to an engine as ``prompt_token_ids`` (vLLM) or ``input_ids`` (SGLang).

    With ``settled_only``: the settled ids alone, which no append changes. The first ``kept`` of
    them were yielded before; ``retracted`` others were too and are gone: an edit before the end
    (or a reset) took them back. ``update`` is the last answer all the same.
    """

    session_id: str
    revision: int
    ids: npt.NDArray[np.uint32]
    update: TokenUpdate
    kept: int = 0
    retracted: int = 0

    def as_list(self) -> list[int]:
        """The ids as a list, for engines that take JSON."""
        ids: list[int] = self.ids.tolist()
        return ids


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """``group`` empty: read every partition (from the end, or with ``from_start`` from the
    beginning). With a group, partitions are shared among its members, and a member that gets a
    session in its middle asks ``resync`` for the full stream.

    ``settled_only``: yield settled ids only, whenever there are more of them or some are taken back
    (see :class:`SessionTokens`). The last tokens of a text are settled when more text follows, and
    workers of releases without such answers settle none.
    """

    topic: str = "toktier.tokens"
    group: str = ""
    from_start: bool = False
    parts_memory_bytes: int = 256 << 20
    parts_deadline_s: float = 60.0
    max_memory_bytes: int = 1 << 30
    poll_s: float = 0.2
    settled_only: bool = False


Resync = Callable[[str], Awaitable[None]]
"""Called with a session id whose full stream is needed, for example ``AppendProducer.resync``."""


class TokenConsumer:
    """Rebuilds every session's ids from the updates, checked by the digest.

    Duplicates are dropped. An update that does not fit (a lost buffer, a foreign stream) drops
    the session's buffer and asks ``resync`` for the full stream; nothing wrong is ever yielded.
    Use as ``async with`` and iterate ``updates()``.
    """

    def __init__(
        self, broker: Broker, options: ConsumerOptions | None = None, resync: Resync | None = None
    ) -> None:
        self._broker = broker
        self._options = options or ConsumerOptions()
        self._resync = resync
        self._joiner: UpdateJoiner[int] = UpdateJoiner(
            max_bytes=self._options.parts_memory_bytes,
            memory_bytes=self._options.parts_memory_bytes,
            deadline_s=self._options.parts_deadline_s,
        )
        self._buffers: OrderedDict[str, TokenBuffer] = OrderedDict()
        self._bytes = 0
        self._closed: OrderedDict[str, int] = OrderedDict()  # the source offset of each close
        self._pending: deque[Record] = deque()
        self._reader: Reader | None = None
        self._member: GroupConsumer | None = None
        self._assigned: frozenset[int] = frozenset()
        self._started: set[int] = set()
        self._positions: dict[int, int] = {}
        self.duplicates = 0
        self.diverged = 0

    async def __aenter__(self) -> Self:
        o = self._options
        if o.group:
            self._member = self._broker.group_consumer(
                o.topic, o.group, on_assigned=self._on_assigned, on_revoked=self._on_revoked
            )
            await self._member.start()
            return self
        self._reader = self._broker.reader(o.topic)
        partitions = range(await self._broker.partitions(o.topic))
        await self._reader.start(dict.fromkeys(partitions, 0))
        if not o.from_start:
            ends = {p: await self._reader.end(p) for p in partitions}
            await self._reader.stop()
            self._reader = self._broker.reader(o.topic)
            await self._reader.start(ends)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reader is not None:
            await self._reader.stop()
        if self._member is not None:
            await self._member.stop()
        self._reader = self._member = None

    def ids(self, session_id: str) -> npt.NDArray[np.uint32] | None:
        """The ids of a session as last updated; None if it is not held here."""
        buffer = self._buffers.get(session_id)
        return None if buffer is None else buffer.ids

    async def updates(self) -> AsyncIterator[SessionTokens]:
        """Each applied update with the session's complete ids, in order; with ``settled_only``
        those that change the settled ones. Never ends by itself."""
        async for update in self.answers():
            if update.status is not Status.OK and not _resent(update):
                continue
            tokens = await self._apply(update)
            if tokens is not None:
                yield tokens

    async def answers(self) -> AsyncIterator[TokenUpdate]:
        """Every answer, joined from its parts but not applied. Never ends by itself."""
        while self._reader is not None or self._member is not None:
            # Polled records wait on the object: whoever leaves this iterator goes on with the next.
            if not self._pending:
                self._pending.extend(await self._poll())
            idle = not self._pending
            while self._pending:
                update = await self._read(self._pending.popleft())
                if update is not None:
                    yield update
            if idle:
                for failure in self._joiner.expire(time.monotonic()):
                    await self._incomplete(failure)

    async def _read(self, record: Record) -> TokenUpdate | None:
        """The update that a record completes, if it does."""
        try:
            part = decode_update(record.key, record.value, record.headers)
        except WireError as error:
            # Not an answer of this release: nothing can be applied from it, and what follows in
            # its session will not fit and asks for the full stream.
            _LOG.error("update_unreadable", code=error.code.value, offset=record.offset)
            return None
        step = self._joiner.add(part, record.offset, time.monotonic())
        for failure in step.failed:
            await self._incomplete(failure)
        update = step.ready
        if update is not None and telemetry.tracing_enabled():
            with telemetry.tracer().start_as_current_span(
                telemetry.SPAN_RECEIVE,
                context=telemetry.context_from_headers(record.headers),
                kind=SpanKind.CONSUMER,
            ) as span:
                span.set_attributes(telemetry.messaging("process", record.topic))
                span.set_attribute(telemetry.ATTR_SESSION, update.session_id)
                span.set_attribute(telemetry.ATTR_REVISION, update.revision)
        return update

    async def _incomplete(self, failure: Failure[int]) -> None:
        """An update whose parts did not all arrive: the session needs its full stream."""
        _LOG.warning(
            "update_incomplete",
            session_id=failure.session_id,
            revision=failure.revision,
            code=failure.code.value,
        )
        self._forget(failure.session_id)
        if self._resync is not None:
            await self._resync(failure.session_id)

    async def _poll(self) -> list[Record]:
        if self._reader is not None:
            return list(await self._reader.poll(self._options.poll_s, 1000))
        member = self._member
        if member is None:
            return []
        await self._begin_partitions(member)
        records: list[Record] = []
        for partition, batch in (await member.poll(self._options.poll_s, 1000)).items():
            records.extend(batch)
            self._positions[partition] = batch[-1].offset + 1
        # At most once over a crash, and a lost buffer asks for its stream again.
        for partition, offset in self._positions.items():
            if partition not in self._assigned:
                continue
            try:
                await member.commit(partition, Committed(offset))
            except ToktierError as error:
                if error.code is not Code.PARTITION_LOST:
                    raise
                # A rebalance came in between: whoever has the partition now reads these again.
                _LOG.info("partition_lost", partition=partition)
        self._positions.clear()
        return records

    async def _begin_partitions(self, member: GroupConsumer) -> None:
        for partition in sorted(self._assigned - self._started):
            committed = await member.committed(partition)
            if committed is not None:
                member.seek(partition, committed.offset)
            member.resume(partition)
            self._started.add(partition)

    def _on_assigned(self, partitions: frozenset[int]) -> None:
        self._assigned = partitions
        self._started.clear()  # whatever is assigned is paused

    def _on_revoked(self, partitions: frozenset[int]) -> None:
        self._assigned = frozenset()
        self._started.clear()

    async def _apply(self, update: TokenUpdate) -> SessionTokens | None:
        session_id = update.session_id
        buffer = self._buffers.get(session_id)
        closed_at = self._closed.get(session_id, -1)
        if 0 <= update.source_offset <= closed_at or (buffer and _known(buffer, update)):
            self.duplicates += 1
            return None
        if update.closed:
            self._forget(session_id)
            self._note_closed(update)
            return SessionTokens(session_id, update.revision, np.empty(0, np.uint32), update)
        if buffer is None:
            buffer = TokenBuffer()
        before, settled = self._held(session_id), buffer.settled
        try:
            buffer.apply(update)
        except ToktierError as error:
            if error.code is not Code.DIGEST_MISMATCH:
                raise
            await self._diverge(session_id, update, error)
            return None
        self._buffers[session_id] = buffer
        self._buffers.move_to_end(session_id)
        self._bytes += buffer.nbytes - before
        self._trim(session_id)
        if not self._options.settled_only:
            return SessionTokens(session_id, update.revision, buffer.ids, update)
        if buffer.kept == settled == buffer.settled:
            return None
        return SessionTokens(
            session_id,
            update.revision,
            buffer.ids[: buffer.settled],
            update,
            kept=buffer.kept,
            retracted=settled - buffer.kept,
        )

    async def _diverge(self, session_id: str, update: TokenUpdate, error: ToktierError) -> None:
        self.diverged += 1
        self._forget(session_id)
        _LOG.warning(
            "consumer_diverged",
            session_id=session_id,
            revision=update.revision,
            code=error.code.value,
            detail=error.detail,
        )
        if self._resync is not None:
            await self._resync(session_id)

    def _held(self, session_id: str) -> int:
        buffer = self._buffers.get(session_id)
        return 0 if buffer is None else buffer.nbytes

    def _forget(self, session_id: str) -> None:
        buffer = self._buffers.pop(session_id, None)
        if buffer is not None:
            self._bytes -= buffer.nbytes

    def _note_closed(self, update: TokenUpdate) -> None:
        """Late repeats of what a session was before its close must not bring it back."""
        if update.source_offset >= 0:
            self._closed[update.session_id] = update.source_offset
            self._closed.move_to_end(update.session_id)
            if len(self._closed) > _CLOSED_KEPT:
                self._closed.popitem(last=False)

    def _trim(self, current: str) -> None:
        """Drop the least recently updated sessions; their next update asks for a resync."""
        while self._bytes > self._options.max_memory_bytes and len(self._buffers) > 1:
            oldest = next(iter(self._buffers))
            if oldest == current:
                break
            self._forget(oldest)


def _whole(update: TokenUpdate) -> bool:
    """Whether an update carries the whole stream, so that it needs nothing from before."""
    return not (update.keep or update.tail) and len(update.token_ids) == 4 * update.total_tokens


def _resent(update: TokenUpdate) -> bool:
    """A repeat that was asked for with ``want_full``."""
    return update.status is Status.DUPLICATE and update.total_tokens > 0 and _whole(update)


def _known(buffer: TokenBuffer, update: TokenUpdate) -> bool:
    """A repeat of what is here already: of this event, or of an earlier one.

    Workers that do not tell the event's offset are of an older release. A whole stream with a
    lower revision is then taken for a session that was forgotten and started again.
    """
    if update.source_offset >= 0 and buffer.source_offset >= 0:
        if update.source_offset <= buffer.source_offset:
            return True
    elif update.revision < buffer.revision:
        return not _whole(update)
    return update.revision == buffer.revision and update.digest == buffer.digest
