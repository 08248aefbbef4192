"""Sessions under chaos: they send without mercy, heal by resets, and are judged at the end.

A session keeps its own truth: the text after each of its revisions. It sends a few events at a
time and goes on when all are answered; ``NEED_RESET`` is met by the full text, as any producer
does. Afterwards the whole output topic is read and held against that truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import numpy as np

from toktier_stream.bench.generate import generate_appends
from toktier_stream.broker.port import Broker, OutRecord, Publisher, Record, read_to_end
from toktier_stream.client.buffers import TokenBuffer
from toktier_stream.config import Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.wire.answers import decode_update
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Operation, Reset, Status, TokenUpdate
from toktier_stream.wire.parts import UpdateJoiner, split_event

ANSWER_WAITS = 300
_PART = 16 << 10
_LONGEST = 60_000  # bytes of a session, about; then it starts over
_AWAY = (Code.BROKER_UNREACHABLE, Code.CLIENT_CLOSED, Code.BROKER_ERROR)


@dataclass
class Told:
    """What a session sent under one revision, and how often it had to."""

    text: bytes
    sends: int = 0
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    update: TokenUpdate | None = None


@dataclass
class SessionLog:
    """One session's truth."""

    name: str
    text: bytes = b""
    revision: int = 0
    told: dict[int, Told] = field(default_factory=dict)
    resets_asked: int = 0


class Traffic:
    """All sessions of a run, and the listener that wakes them."""

    def __init__(
        self, broker: Broker, settings: Settings, count: int, seed: int, *, poison: float = 0.0
    ) -> None:
        self._broker = broker
        self._s = settings
        self._seed = seed
        self._poison = poison
        self.logs = [SessionLog(f"chaos-{seed}-{i}") for i in range(count)]
        self._by_name = {log.name: log for log in self.logs}
        self._publisher: Publisher
        self.ending = asyncio.Event()
        self.moved = asyncio.Event()
        self.events = self.answered = 0
        self.poisoned = 0
        self.retried = 0

    async def run(self, steps: int) -> None:
        """Every session through ``steps`` rounds, or until ``ending`` is set."""
        self._publisher = self._broker.publisher()
        await self._publisher.start()
        listener = asyncio.create_task(self._listen())
        try:
            sessions = [self._session(i, log, steps) for i, log in enumerate(self.logs)]
            await asyncio.gather(*sessions)
        finally:
            listener.cancel()
            await asyncio.wait({listener})
            await self._publisher.stop()

    async def _session(self, number: int, log: SessionLog, steps: int) -> None:
        rng = Random(f"{self._seed} session {number}")
        texts = generate_appends(self._seed * 1000 + number)
        opening = next(texts)[:4000].encode()
        await self._window(log, [(Reset(opening), opening)])
        for _ in range(steps):
            if self.ending.is_set():
                return
            if rng.random() < self._poison:
                await self._raw(OutRecord(self._s.topic_appends, log.name.encode(), b"\xff\xfe"))
                self.poisoned += 1
            window = []
            text = log.text
            for _ in range(rng.randint(1, 4)):
                op, text = _next_operation(rng, text, next(texts)[:6000].encode())
                window.append((op, text))
            await self._window(log, window)
            await asyncio.sleep(rng.random() * 0.1)

    async def _window(self, log: SessionLog, window: list[tuple[Operation, bytes]]) -> None:
        """Send events back to back, await their answers, and start over if they ask for it."""
        sent = [await self._event(log, op, text) for op, text in window]
        asked = False
        for told in sent:
            await self._answer(log, told)
            asked |= told.update is not None and told.update.status is not Status.OK
        if asked and sent[-1].update is not None and sent[-1].update.status is not Status.OK:
            log.resets_asked += 1
            log.revision = max(log.revision, sent[-1].update.session_revision)
            await self._window(log, [(Reset(log.text), log.text)])

    async def _answer(self, log: SessionLog, told: Told) -> None:
        # In short waits: while the whole run is stopped for something else, none of them passes.
        for _ in range(ANSWER_WAITS):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.answered.wait(), 1.0)
                return
        revision = next(r for r, t in log.told.items() if t is told)
        raise AssertionError(f"{log.name} revision {revision}: no answer")

    async def _event(self, log: SessionLog, op: Operation, text: bytes) -> Told:
        log.revision += 1
        log.text = text
        told = log.told[log.revision] = Told(text)
        self.events += 1
        event = AppendEvent(log.name, log.revision, op, sent_at_us=int(time.time() * 1e6))
        records = [
            OutRecord(self._s.topic_appends, *encode_event(p)) for p in split_event(event, _PART)
        ]
        while True:
            told.sends += 1
            try:
                for record in records:
                    await self._raw(record)
            except ToktierError as error:
                if error.code not in _AWAY:
                    raise
                # Not known whether it arrived: the same again is a duplicate at worst.
                self.retried += 1
                await asyncio.sleep(0.2)
                continue
            return told

    async def _raw(self, record: OutRecord) -> None:
        await (await self._publisher.send(record))

    async def _listen(self) -> None:
        """Wake sessions by their first answers. What it misses, the judgement finds."""
        joiner = _joiner()
        positions = dict.fromkeys(range(self._s.partitions), 0)
        while True:
            reader = self._broker.reader(self._s.topic_tokens)
            try:
                await reader.start(positions)
                while True:
                    for record in await reader.poll(0.2, 1000):
                        positions[record.partition] = record.offset + 1
                        update = _joined(joiner, record)
                        if update is not None:
                            self._wake(update)
            except ToktierError as error:
                if error.code not in _AWAY:
                    raise
                await asyncio.sleep(0.2)
            finally:
                await reader.stop()

    def _wake(self, update: TokenUpdate) -> None:
        told = self._by_name[update.session_id].told.get(update.revision)
        if told is not None and not told.answered.is_set():
            told.update = update
            told.answered.set()
            self.answered += 1
            self.moved.set()

    async def judge(self, entry: Entry, *, once: bool) -> Counter[str]:
        """Read everything that was answered and hold it against the truth.

        ``once``: each event has exactly one answer (or, where it had to be sent again, one and
        repeats that say so). Otherwise repeats must at least be told by revision and digest.
        Returns counts; raises AssertionError with the first difference.
        """
        counts: Counter[str] = Counter()
        answers: dict[tuple[str, int], list[TokenUpdate]] = {}
        buffers = {log.name: TokenBuffer() for log in self.logs}
        for partition in range(self._s.partitions):
            reader = self._broker.reader(self._s.topic_tokens)
            joiner = _joiner()
            async for record in read_to_end(reader, partition, 0, 120):
                update = _joined(joiner, record)
                if update is None:
                    continue
                answers.setdefault((update.session_id, update.revision), []).append(update)
                counts[update.status.value] += 1
                self._apply(buffers[update.session_id], update, entry, counts, once=once)
            await reader.stop()
        for log in self.logs:
            for revision, told in log.told.items():
                got = answers.get((log.name, revision), [])
                assert got, f"{log.name} revision {revision}: never answered"
                extra = [u for u in got[1:] if u.status is not Status.DUPLICATE]
                counts["answered again"] += len(got) - 1
                assert len(got) <= told.sends or not once, f"{log.name} {revision}: {len(got)}"
                assert not once or not extra or told.sends > 1, f"{log.name} {revision}: twice"
            final = entry.reference.ids(log.text.decode())
            assert np.array_equal(buffers[log.name].ids, final), f"{log.name}: other ids"
            counts["sessions"] += 1
        return counts

    def _apply(
        self,
        buffer: TokenBuffer,
        update: TokenUpdate,
        entry: Entry,
        counts: Counter[str],
        *,
        once: bool,
    ) -> None:
        """Apply one answer as a consumer does, and compare every stream that results."""
        if update.status is not Status.OK:
            return
        if not once and update.revision <= buffer.revision:
            counts["repeats passed over"] += 1
            return
        what = f"{update.session_id} revision {update.revision}"
        try:
            buffer.apply(update)
        except ToktierError as error:
            raise AssertionError(f"{what}: {error}") from error
        text = self._by_name[update.session_id].told[update.revision].text
        assert np.array_equal(buffer.ids, entry.encoder.encode(text).ids), f"{what}: other ids"
        counts["streams compared"] += 1


def _next_operation(rng: Random, text: bytes, more: bytes) -> tuple[Operation, bytes]:
    """An append, mostly; an edit somewhere, a cut, or the whole text anew."""
    if len(text) > _LONGEST:
        return Reset(more), more
    kind = rng.random()
    if kind < 0.72:
        return Edit(more), text + more
    if kind < 0.95:
        start, end = sorted(_boundary(text, rng.randrange(len(text) + 1)) for _ in range(2))
        end = min(end, _boundary(text, start + 3000))
        new = b"" if kind > 0.88 else more[: _boundary(more, rng.randrange(200))]
        return Edit(new, start, end), text[:start] + new + text[end:]
    whole = text + more * rng.choice((1, 1, 8))
    return Reset(whole), whole


def _boundary(text: bytes, at: int) -> int:
    """The nearest character boundary to the left."""
    at = min(at, len(text))
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _joiner() -> UpdateJoiner[int]:
    return UpdateJoiner(max_bytes=1 << 30, memory_bytes=1 << 30, deadline_s=1e9)


_ticks = itertools.count()


def _joined(joiner: UpdateJoiner[int], record: Record) -> TokenUpdate | None:
    update = decode_update(record.key, record.value, record.headers)
    return joiner.add(update, next(_ticks), 0.0).ready
