"""Joining numbered parts on the receiving side, in bounded memory and time.

A revision's parts must come in order, 0 to parts - 1, with nothing else of the session between
them. What breaks that rule fails the revision, never the session, and a failed revision is
reported once: its later parts are passed over while it is remembered. The outcome depends on the
sequence of records alone (and on :meth:`Joiner.expire`, which is given the time), so a replay
from the record of :meth:`Joiner.oldest_tag` rebuilds every open set. In such a replay, records
that were answered before are left out, or what the joiner says of them is dropped: a set that
began before the replay and was complete looks like one without its beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from toktier_stream.errors import Code, describe
from toktier_stream.wire.codec import check_text
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Reset, TokenUpdate
from toktier_stream.wire.refusal import WireError
from toktier_stream.wire.split import split_event, split_update

__all__ = [
    "EventJoiner",
    "Failure",
    "Joiner",
    "Step",
    "UpdateJoiner",
    "split_event",
    "split_update",
]

# Failed revisions that are remembered, so that their later parts are not reported again.
_REMEMBERED: Final = 4096
# What an open set and each of its parts cost beside the payload, about.
_SET_BYTES: Final = 2048
_PART_BYTES: Final = 128


class Parted(Protocol):
    """What the joiner must know of a message."""

    @property
    def session_id(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def request_id(self) -> str: ...
    @property
    def tokenizer(self) -> str: ...
    @property
    def part(self) -> int: ...
    @property
    def parts(self) -> int: ...


M = TypeVar("M", bound=Parted)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failure(Generic[T]):
    """A revision that will not be joined, with what its answer needs.

    ``first_tag`` is the tag of the first record seen of it.
    """

    session_id: str
    revision: int
    request_id: str
    tokenizer: str
    code: Code
    detail: str
    first_tag: T

    @property
    def message(self) -> str:
        """The code in a sentence for people."""
        return describe(self.code, self.detail)


class Step(NamedTuple, Generic[M, T]):
    """What one record led to: revisions that failed by it, then a message that is complete.

    ``first_tag`` is the tag of the first record of ``ready``. Neither failed nor ready: the
    record is kept until the rest arrives, or belongs to a revision that has failed before.
    """

    ready: M | None
    failed: tuple[Failure[T], ...]
    first_tag: T


class _Open(Generic[M, T]):
    """The parts of one revision received so far."""

    __slots__ = ("first", "held", "payloads", "since", "size", "tag")

    def __init__(self, first: M, tag: T, since: float) -> None:
        self.first = first
        self.tag = tag
        self.since = since
        self.payloads: list[bytes] = []
        self.size = 0
        self.held = _SET_BYTES


class Joiner(ABC, Generic[M, T]):
    """Joins the parts of many sessions of one partition. Not safe for use by two threads.

    ``max_bytes`` bounds one joined payload, ``memory_bytes`` all open sets together (joining a
    set takes its size once more for a moment), ``deadline_s`` the time from a set's first part to
    its last. A tag is anything that goes with a record and grows, as its offset does.
    """

    def __init__(self, *, max_bytes: int, memory_bytes: int, deadline_s: float) -> None:
        self._max_bytes = max_bytes
        self._memory_bytes = memory_bytes
        self._deadline_s = deadline_s
        # In order of their first parts: by tag and by time, the oldest is the first.
        self._open: dict[str, _Open[M, T]] = {}
        self._failed: dict[tuple[str, int], None] = {}
        self._held = 0

    def add(self, message: M, tag: T, now: float) -> Step[M, T]:
        """Take the next message of the partition; ``now`` in seconds of any clock that grows."""
        if message.parts == 1 and not self._open and not self._failed:
            return Step(message, (), tag)
        if message.part == 0:
            return self._start(message, tag, now)
        return self._continue(message, tag)

    def refuse(self, error: WireError, tag: T) -> tuple[Failure[T], ...]:
        """Take a record that was not accepted; returns what must be answered, in order.

        That is the open set which the record interrupts, and the refused event itself, unless it
        is a part of a revision that was reported before.
        """
        session_id, revision = error.session_id, error.revision
        if error.unreadable:
            return self._interrupt(session_id, 0) if error.quarantines else ()
        current = self._open.get(session_id)
        if current is not None and current.first.revision == revision:
            tag = current.tag
        failed = self._interrupt(session_id, revision)
        if error.part > 0 and (session_id, revision) in self._failed:
            return failed
        own = Failure(
            session_id, revision, error.request_id, error.tokenizer, error.code, error.detail, tag
        )
        if error.parts != 1:
            self._remember(session_id, revision)
        return (*failed, own)

    def expire(self, now: float) -> tuple[Failure[T], ...]:
        """Fail the sets whose deadline has passed: O(sets that fail).

        A receiver that does not read (a paused partition) must not expire, or what waits
        unread would count as late.
        """
        failed = []
        while self._open:
            oldest = next(iter(self._open.values()))
            if now - oldest.since < self._deadline_s:
                break
            failed.append(
                self._fail(
                    oldest,
                    Code.PARTS_INCOMPLETE,
                    f"{len(oldest.payloads)} of {oldest.first.parts} parts in time",
                )
            )
        return tuple(failed)

    def give_up_oldest(self) -> Failure[T] | None:
        """Fail the oldest open set, for a receiver that cannot hold its place any longer."""
        for oldest in self._open.values():
            detail = f"{len(oldest.payloads)} of {oldest.first.parts} parts, too much in between"
            return self._fail(oldest, Code.PARTS_INCOMPLETE, detail)
        return None

    def oldest_tag(self) -> T | None:
        """The tag of the first part of the oldest open set: where a replay must begin."""
        for oldest in self._open.values():
            return oldest.tag
        return None

    def open_revision(self, session_id: str) -> int:
        """The revision of which the session has some parts here and some not; 0 if none."""
        current = self._open.get(session_id)
        return 0 if current is None else current.first.revision

    @property
    def held_bytes(self) -> int:
        """Memory of the open sets, about."""
        return self._held

    @property
    def open_sets(self) -> int:
        """Revisions of which some parts are here and some are not."""
        return len(self._open)

    @abstractmethod
    def _payload(self, message: M) -> bytes:
        """The bytes that are cut into parts."""

    @abstractmethod
    def _fits(self, first: M, message: M) -> bool:
        """Whether a later part repeats what it must repeat of part 0."""

    @abstractmethod
    def _join(self, first: M, payload: bytes) -> M:
        """The whole message. Raises :class:`WireError` if its payload is not valid."""

    def _start(self, message: M, tag: T, now: float) -> Step[M, T]:
        session_id = message.session_id
        failed = self._interrupt(session_id, message.revision)
        # A new attempt at a revision that failed: from here on its parts count again.
        self._failed.pop((session_id, message.revision), None)
        if message.parts == 1:
            return Step(message, failed, tag)
        started = _Open[M, T](message, tag, now)
        self._open[session_id] = started
        self._held += started.held
        return self._take(started, message, failed)

    def _continue(self, message: M, tag: T) -> Step[M, T]:
        session_id, revision = message.session_id, message.revision
        current = self._open.get(session_id)
        failed: tuple[Failure[T], ...] = ()
        if current is not None and current.first.revision != revision:
            failed = self._interrupt(session_id, revision)
            current = None
        if current is None:
            if (session_id, revision) in self._failed:
                return Step(None, failed, tag)
            self._remember(session_id, revision)
            orphan = Failure(
                session_id,
                revision,
                message.request_id,
                message.tokenizer,
                Code.BAD_PART,
                f"part {message.part} of {message.parts} without the parts before it",
                tag,
            )
            return Step(None, (*failed, orphan), tag)
        wanted, parts = len(current.payloads), current.first.parts
        if message.part != wanted or message.parts != parts:
            detail = f"part {message.part} of {message.parts} instead of {wanted} of {parts}"
            return Step(None, (self._fail(current, Code.BAD_PART, detail),), tag)
        if not self._fits(current.first, message):
            detail = f"part {message.part} is of another operation than part 0"
            return Step(None, (self._fail(current, Code.BAD_PART, detail),), tag)
        return self._take(current, message, failed)

    def _take(self, current: _Open[M, T], message: M, failed: tuple[Failure[T], ...]) -> Step[M, T]:
        payload = self._payload(message)
        current.payloads.append(payload)
        current.size += len(payload)
        cost = len(payload) + _PART_BYTES
        current.held += cost
        self._held += cost
        if current.size > self._max_bytes:
            detail = f"more than {self._max_bytes} bytes"
        elif self._held > self._memory_bytes:
            detail = f"all open parts together hold more than {self._memory_bytes} bytes"
        elif len(current.payloads) == current.first.parts:
            return self._finish(current, failed)
        else:
            return Step(None, failed, current.tag)
        late = self._fail(current, Code.PARTS_TOO_LARGE, detail)
        return Step(None, (*failed, late), current.tag)

    def _finish(self, current: _Open[M, T], failed: tuple[Failure[T], ...]) -> Step[M, T]:
        try:
            whole = self._join(current.first, b"".join(current.payloads))
        except WireError as error:
            flawed = self._fail(current, error.code, error.detail)
            return Step(None, (*failed, flawed), current.tag)
        self._close(current)
        return Step(whole, failed, current.tag)

    def _interrupt(self, session_id: str, revision: int) -> tuple[Failure[T], ...]:
        """End the session's open set for a record of ``revision`` that does not continue it."""
        current = self._open.get(session_id)
        if current is None:
            return ()
        if current.first.revision == revision:
            # The same revision from its start, or refused: that record speaks for it.
            self._close(current)
            return ()
        detail = f"{len(current.payloads)} of {current.first.parts} parts"
        return (self._fail(current, Code.PARTS_INCOMPLETE, detail),)

    def _fail(self, current: _Open[M, T], code: Code, detail: str) -> Failure[T]:
        self._close(current)
        first = current.first
        self._remember(first.session_id, first.revision)
        return Failure(
            first.session_id,
            first.revision,
            first.request_id,
            first.tokenizer,
            code,
            detail,
            current.tag,
        )

    def _close(self, current: _Open[M, T]) -> None:
        del self._open[current.first.session_id]
        self._held -= current.held

    def _remember(self, session_id: str, revision: int) -> None:
        self._failed[session_id, revision] = None
        if len(self._failed) > _REMEMBERED:
            del self._failed[next(iter(self._failed))]


class EventJoiner(Joiner[AppendEvent, T]):
    """Joins resets and edits; their text is checked to be UTF-8 once it is whole."""

    def _payload(self, message: AppendEvent) -> bytes:
        return b"" if isinstance(message.op, Close) else message.op.text

    def _fits(self, first: AppendEvent, message: AppendEvent) -> bool:
        a, b = first.op, message.op
        if isinstance(a, Edit) and isinstance(b, Edit):
            return a.start == b.start and a.end == b.end
        return type(a) is type(b)

    def _join(self, first: AppendEvent, payload: bytes) -> AppendEvent:
        op = first.op
        text = Edit(payload, op.start, op.end) if isinstance(op, Edit) else Reset(payload)
        event = replace(first, op=text, part=0, parts=1)
        check_text(event)
        return event


class UpdateJoiner(Joiner[TokenUpdate, T]):
    """Joins token updates."""

    def _payload(self, message: TokenUpdate) -> bytes:
        return message.token_ids

    def _fits(self, first: TokenUpdate, message: TokenUpdate) -> bool:
        return first.status is message.status

    def _join(self, first: TokenUpdate, payload: bytes) -> TokenUpdate:
        return replace(first, token_ids=payload, part=0, parts=1)
