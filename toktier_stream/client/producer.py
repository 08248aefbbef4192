"""AppendProducer: what the agent platform imports. Transcripts in, smallest edits out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from opentelemetry.trace import SpanKind

from toktier_stream import telemetry
from toktier_stream.broker.port import Broker, OutRecord, Publisher
from toktier_stream.client.chat_template import ChatTemplate
from toktier_stream.client.consumer import ConsumerOptions, TokenConsumer
from toktier_stream.client.edits import smallest_edit
from toktier_stream.errors import Code, ToktierError
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import (
    AppendEvent,
    Close,
    Edit,
    Operation,
    Reset,
    Status,
    TokenUpdate,
)
from toktier_stream.wire.parts import split_event

_LOG = telemetry.logger(__name__)
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """``listen``: follow the answers of one's own sessions, so that NEED_RESET is met by a reset
    and tickets can be awaited. Without it the producer is fire-and-forget."""

    tokenizer: str = ""
    topic: str = "toktier.appends"
    topic_tokens: str = "toktier.tokens"
    listen: bool = True
    part_bytes: int = 512 << 10
    max_memory_bytes: int = 1 << 30
    linger_ms: int = 0
    answer_timeout_s: float = 30.0


@dataclass(slots=True)
class _Sent:
    """What was sent of one session: enough to work out the next edit, or to start over."""

    tokenizer: str
    text: bytearray | None
    revision: int = 0
    reset_at: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ticket:
    """A sent event: what it was, and how many characters it carried. Await :meth:`answer` for
    its token update."""

    def __init__(self, event: AppendEvent, answer: asyncio.Future[TokenUpdate]) -> None:
        self.session_id = event.session_id
        self.revision = event.revision
        self.kind: Literal["reset", "append", "edit", "close"]
        match event.op:
            case Reset(text):
                self.kind = "reset"
            case Edit(text, start, _):
                self.kind = "append" if start is None else "edit"
            case Close():
                self.kind, text = "close", b""
        self.chars = len(text.decode())
        self._answer = answer

    async def answer(self, timeout: float | None = None) -> TokenUpdate:
        """The update for this event, or for the reset that replaced it.

        Raises ``ANSWER_TIMEOUT``, and ``CLIENT_CLOSED`` if the producer does not listen.
        """
        try:
            return await asyncio.wait_for(asyncio.shield(self._answer), timeout)
        except TimeoutError:
            detail = f"revision {self.revision}"
            raise ToktierError(Code.ANSWER_TIMEOUT, detail) from None


class AppendProducer:
    """Sends sessions as they grow. Knows nothing of tokenizers but their names.

    It keeps the text it sent last of each session, within ``max_memory_bytes``: beyond that the
    least recently used texts are dropped, and such a session's next ``send_text`` is a reset.
    Calls for one session are sent in the order made; sessions do not wait for each other.
    """

    def __init__(self, broker: Broker, options: ProducerOptions | None = None) -> None:
        self._broker = broker
        self._options = options or ProducerOptions()
        self._publisher: Publisher | None = None
        self._sessions: OrderedDict[str, _Sent] = OrderedDict()
        self._bytes = 0
        self._waiting: dict[tuple[str, int], asyncio.Future[TokenUpdate]] = {}
        self._answers: TokenConsumer | None = None
        self._listener: asyncio.Task[None] | None = None
        self._acks: set[asyncio.Future[Any]] = set()
        self.resets = 0

    async def __aenter__(self) -> Self:
        self._publisher = self._broker.publisher(linger_ms=self._options.linger_ms)
        await self._publisher.start()
        if self._options.listen:
            self._answers = TokenConsumer(
                self._broker, ConsumerOptions(topic=self._options.topic_tokens)
            )
            await self._answers.__aenter__()
            self._listener = asyncio.create_task(self._listen(self._answers), name="answers")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        if self._answers is not None:
            await self._answers.__aexit__(kind, error, trace)
        if self._publisher is not None:
            await self._publisher.flush()
            await self._publisher.stop()
            self._publisher = None
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    async def send_text(self, session_id: str, text: str, *, request_id: str = "") -> Ticket:
        """Bring the session to ``text``: an append, an edit, or a reset if nothing is known.

        Raises ``CLIENT_CLOSED``, and ``LONE_SURROGATE`` for a text that UTF-8 cannot hold.
        """
        new = _utf8(text)
        sent = self._session(session_id)
        async with sent.lock:
            if sent.text is None:
                op: Operation = Reset(new)
            else:
                start, end, replacement = smallest_edit(sent.text, new)
                appends = start == end == len(sent.text)
                op = Edit(replacement) if appends else Edit(replacement, start, end)
            return await self._send(session_id, sent, op, request_id)

    async def append(self, session_id: str, text: str, *, request_id: str = "") -> Ticket:
        """Append to the session; the first call of a session opens it."""
        added = _utf8(text)
        sent = self._session(session_id)
        async with sent.lock:
            opens = sent.text is None and sent.reset_at == 0
            op = Reset(added) if opens else Edit(added)
            return await self._send(session_id, sent, op, request_id)

    async def send_messages(
        self,
        session_id: str,
        messages: Sequence[Mapping[str, Any]],
        template: ChatTemplate,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        request_id: str = "",
    ) -> Ticket:
        """Render the messages with the model's chat template and send the result.

        Templates rewrite history (a reasoning block vanishes, the generation prompt is
        replaced), so this can be an edit in the middle. Raises ``TEMPLATE``.
        """
        text = template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return await self.send_text(session_id, text, request_id=request_id)

    async def resync(self, session_id: str) -> None:
        """Ask for the full stream of one of this producer's sessions: an empty append that wants
        everything. A session that it never sent is passed over."""
        sent = self._sessions.get(session_id)
        if sent is None:
            return
        async with sent.lock:
            if sent.reset_at:
                await self._send(session_id, sent, Edit(b""), "", want_full=True)

    async def close(self, session_id: str, *, request_id: str = "") -> Ticket:
        """End the session and forget its text."""
        sent = self._session(session_id)
        async with sent.lock:
            ticket = await self._send(session_id, sent, Close(), request_id)
        if not self._options.listen:
            self._sessions.pop(session_id, None)  # later revisions begin at the clock, beyond it
        return ticket

    async def flush(self) -> None:
        """Wait until the broker has acknowledged everything sent so far."""
        if self._publisher is not None:
            await self._publisher.flush()

    def _session(self, session_id: str) -> _Sent:
        sent = self._sessions.get(session_id)
        if sent is None:
            # Without answers to learn a stale revision from, start where no older run can be.
            first = 0 if self._options.listen else time.time_ns() // 1_000_000
            sent = _Sent(self._options.tokenizer, None, first)
            self._sessions[session_id] = sent
        self._sessions.move_to_end(session_id)
        return sent

    async def _send(
        self,
        session_id: str,
        sent: _Sent,
        op: Operation,
        request_id: str,
        *,
        want_full: bool = False,
    ) -> Ticket:
        publisher = self._publisher
        if publisher is None:
            raise ToktierError(Code.CLIENT_CLOSED)
        event = AppendEvent(
            session_id=session_id,
            revision=sent.revision + 1,
            op=op,
            request_id=request_id,
            tokenizer=sent.tokenizer,
            sent_at_us=time.time_ns() // 1000,
            want_full=want_full,
        )
        future: asyncio.Future[TokenUpdate] = asyncio.get_running_loop().create_future()
        with telemetry.tracer().start_as_current_span(
            telemetry.SPAN_SEND, kind=SpanKind.PRODUCER
        ) as span:
            if span.is_recording():
                span.set_attributes(telemetry.messaging("send", self._options.topic))
                span.set_attribute(telemetry.ATTR_SESSION, session_id)
                span.set_attribute(telemetry.ATTR_REVISION, event.revision)
            trace = telemetry.headers_from_span(span)
            records = [
                OutRecord(self._options.topic, *encode_event(part, trace=trace))
                for part in split_event(event, self._options.part_bytes)
            ]
            if self._options.listen:
                self._waiting[session_id, event.revision] = future
            try:
                for record in records:
                    self._watch(await publisher.send(record))
            except BaseException:
                self._waiting.pop((session_id, event.revision), None)
                raise
        sent.revision = event.revision
        if isinstance(op, Reset):
            sent.reset_at = event.revision
        self._hold(session_id, sent, op)
        return Ticket(event, future)

    def _watch(self, ack: Awaitable[Any]) -> None:
        future = asyncio.ensure_future(ack)
        self._acks.add(future)
        future.add_done_callback(self._acknowledged)

    def _acknowledged(self, future: asyncio.Future[Any]) -> None:
        self._acks.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            _LOG.error("append_not_acknowledged", error=type(error).__name__)

    def _hold(self, session_id: str, sent: _Sent, op: Operation) -> None:
        """Make the text held here what the session now is, within the memory limit."""
        before = len(sent.text) if sent.text is not None else 0
        match op:
            case Reset(text):
                sent.text = bytearray(text)
            case Edit(text, start, end) if sent.text is not None:
                at = len(sent.text) if start is None else start
                sent.text[at : at if end is None else end] = text
            case Close():
                sent.text, sent.reset_at = None, 0
        self._bytes += (len(sent.text) if sent.text is not None else 0) - before
        if self._bytes <= self._options.max_memory_bytes:
            return
        for other_id, other in list(self._sessions.items()):
            if self._bytes <= self._options.max_memory_bytes:
                return
            if other_id != session_id and not other.lock.locked():
                self._drop_text(other)
        if self._bytes > self._options.max_memory_bytes:
            self._drop_text(sent)

    def _drop_text(self, sent: _Sent) -> None:
        if sent.text is not None:
            self._bytes -= len(sent.text)
            sent.text = None

    async def _listen(self, answers: TokenConsumer) -> None:
        while True:
            try:
                async for update in answers.answers():
                    await self._take(update)
            except ToktierError as error:
                # Whoever waits for an answer depends on this task: it outlives a broker's failure.
                _LOG.warning("answers_interrupted", code=error.code.value)
                await asyncio.sleep(_RETRY_S)

    async def _take(self, update: TokenUpdate) -> None:
        sent = self._sessions.get(update.session_id)
        if sent is None:
            return
        if not _behind(sent, update):
            self._settle(update)
            return
        try:
            await self._start_over(sent, update)
        except ToktierError as error:
            # The caller learns it from the ticket; the session's next event meets the same answer.
            _LOG.warning("not_started_over", session_id=update.session_id, code=error.code.value)
            self._settle(update)

    def _settle(self, update: TokenUpdate) -> None:
        future = self._waiting.pop((update.session_id, update.revision), None)
        if future is not None and not future.done():
            future.set_result(update)
        sent = self._sessions.get(update.session_id)
        closed = update.closed and sent is not None and sent.revision == update.revision
        if closed and sent is not None and not sent.lock.locked():
            # Whoever opens it again learns the revision from the answer.
            del self._sessions[update.session_id]

    async def _start_over(self, sent: _Sent, update: TokenUpdate) -> None:
        """Meet NEED_RESET (or a revision that an earlier run used up) with a reset."""
        async with sent.lock:
            if update.revision < sent.reset_at:
                # A reset sent since then covers it, and answers for it.
                covering = self._waiting.get((update.session_id, sent.reset_at))
                waiting = self._waiting.pop((update.session_id, update.revision), None)
                if waiting is not None and covering is not None:
                    covering.add_done_callback(_forward(waiting))
                return
            sent.revision = max(sent.revision, update.session_revision)
            if sent.text is None:
                # The text is no longer held: the caller learns it from the ticket, and the next
                # send_text of this session is a reset.
                self._settle(update)
                return
            self.resets += 1
            full = Reset(bytes(sent.text))
            ticket = await self._send(update.session_id, sent, full, update.request_id)
            # Whoever waits for the refused events gets the reset's answer.
            replaced = [
                key
                for key in self._waiting
                if key[0] == update.session_id and key[1] < ticket.revision
            ]
            for key in replaced:
                ticket._answer.add_done_callback(_forward(self._waiting.pop(key)))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        pass
    # Raised out here: the exception of the codec holds the text.
    raise ToktierError(Code.LONE_SURROGATE)


def _behind(sent: _Sent, update: TokenUpdate) -> bool:
    """Whether the worker's session is not the one sent here: its state is lost, or an older run
    under the same name has used these revisions, or revisions that come yet."""
    return (
        update.status is Status.NEED_RESET
        or update.code in (Code.STALE_REVISION, Code.REVISION_REUSED)
        or (update.status is Status.DUPLICATE and update.session_revision > sent.revision)
    )


def _forward(target: asyncio.Future[TokenUpdate]) -> Any:
    def done(source: asyncio.Future[TokenUpdate]) -> None:
        if target.done():
            return
        if source.cancelled():
            target.cancel()
        else:
            target.set_result(source.result())

    return done


__all__ = ["AppendProducer", "ProducerOptions", "Ticket"]
