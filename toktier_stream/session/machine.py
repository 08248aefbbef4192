"""What an event means to a session: revisions, duplicates, guards, and the answer.

The machine is the single place of event semantics; Kafka, the command line and tests all drive it.
It is deterministic: the same events on the same state give the same answers.

======================  =============================================================
event                   answer
======================  =============================================================
reset, newer revision   OK: the whole stream (also lifts a quarantine, reopens)
edit, next revision     OK: a splice
edit, later revision    NEED_RESET (REVISION_GAP)
edit, no state          NEED_RESET (STATE_MISS, SESSION_CLOSED or QUARANTINED)
close                   OK, ``closed``: the state is dropped; the revision is remembered
revision seen before    DUPLICATE if the content is the same, else REJECTED
                        (REVISION_REUSED, or STALE_REVISION once it is forgotten)
expect_* not met        CONFLICT, nothing changes
======================  =============================================================
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace

from toktier_stream.errors import Code, ToktierError, describe
from toktier_stream.session.prepared import Prepared, prepare
from toktier_stream.session.record import Change, Session
from toktier_stream.session.store import Batch
from toktier_stream.tokenizer.face import Encoder, Ids
from toktier_stream.tokenizer.reference import REFERENCE_VERSION, Reference
from toktier_stream.tokenizer.registry import Entry, Registry
from toktier_stream.wire.messages import (
    AppendEvent,
    Close,
    Edit,
    Reset,
    Route,
    Status,
    Timings,
    TokenUpdate,
)

RECENT_REVISIONS = 4
"""How many applied revisions a session remembers, to tell a repeat from a reuse."""


def content_hash(event: AppendEvent) -> int:
    """64 bits over what an event does; equal for a repeat of the same event."""
    match event.op:
        case Reset(text):
            what = b"R"
        case Edit(text, start, end):
            what = b"E%d,%d;" % (-1 if start is None else start, -1 if end is None else end)
        case Close():
            what, text = b"C", b""
    h = hashlib.blake2b(b"%b%d;" % (what, len(text)), digest_size=8)
    h.update(text)
    h.update(event.tokenizer.encode())
    return int.from_bytes(h.digest(), "big")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that the machine enforces."""

    max_session_bytes: int


class Machine:
    """Applies events to sessions. Holds no state of its own; safe for several threads as long as
    each works on its own :class:`Batch`."""

    def __init__(self, registry: Registry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits

    def apply(
        self, batch: Batch, event: AppendEvent, now_ms: int, prepared: Prepared | None = None
    ) -> TokenUpdate:
        """The answer to one event; its effects are in ``batch``. Never raises for bad input.

        ``prepared``: the text of a reset, encoded ahead (see :meth:`full_text`). Without it, or
        where it no longer fits, the text is encoded here: the answer is the same.

        Raises ``STORE_FULL`` and other store errors, which are not the event's fault.
        """
        session_id = event.session_id.encode()
        session, missing = self._load(batch, session_id)
        try:
            return self._apply(batch, session, missing, event, now_ms, prepared)
        except ToktierError as error:
            if error.code is not Code.STORE_CORRUPT:
                raise
            batch.remove(session_id)
            return self._apply(batch, None, _DAMAGED, event, now_ms, prepared)

    def full_text(self, batch: Batch, event: AppendEvent) -> Entry | None:
        """The tokenizer that :meth:`apply` would encode the event's whole text with, if it would:
        then the caller may do that ahead. None where it would not, whatever the reason."""
        if not isinstance(event.op, Reset) or len(event.op.text) > self._limits.max_session_bytes:
            return None
        session, _ = self._load(batch, event.session_id.encode())
        if session is not None:
            if event.revision <= session.revision:
                return None
            if not (session.closed or session.quarantined) and _unmet(session, event):
                return None
        try:
            return self._registry.resolve(event.tokenizer)
        except ToktierError:
            return None

    def _apply(
        self,
        batch: Batch,
        session: Session | None,
        missing: str,
        event: AppendEvent,
        now_ms: int,
        prepared: Prepared | None,
    ) -> TokenUpdate:
        if session is not None and event.revision <= session.revision:
            return self._seen_before(session, event)
        try:
            if isinstance(event.op, Close):
                return self._close(batch, session, event, now_ms)
            if isinstance(event.op, Reset):
                return self._reset(batch, session, event, event.op, now_ms, prepared)
            if session is None or session.closed or session.quarantined:
                code = Code.STATE_MISS
                if session is not None:
                    code = Code.QUARANTINED if session.quarantined else Code.SESSION_CLOSED
                return _refused(_blank(event, session), Status.NEED_RESET, code, missing)
            if event.revision > session.revision + 1:
                gap = f"revision {event.revision} after {session.revision}"
                answer = _blank(event, session)
                return _refused(answer, Status.NEED_RESET, Code.REVISION_GAP, gap)
            return self._edit(session, event, event.op, now_ms)
        except ToktierError as error:
            if error.code in _REJECTIONS:
                answer = _blank(event, session)
                return _refused(answer, Status.REJECTED, error.code, error.detail)
            raise

    def quarantine(self, batch: Batch, session_id: bytes) -> bool:
        """Set a session aside until a reset. False if there is nothing to set aside."""
        session, _ = self._load(batch, session_id)
        if session is None or session.closed or session.quarantined:
            return False
        session.mark(quarantined=True)
        return True

    def revision(self, batch: Batch, session_id: bytes) -> int:
        """The session's last applied revision; 0 if it has no state."""
        session, _ = self._load(batch, session_id)
        return 0 if session is None else session.revision

    def reference(self, tokenizer: str) -> Reference:
        """The judge of a tokenizer. Raises ``UNKNOWN_TOKENIZER``."""
        return self._registry.resolve(tokenizer).reference

    def _load(self, batch: Batch, session_id: bytes) -> tuple[Session | None, str]:
        try:
            return batch.session(session_id), ""
        except ToktierError as error:
            if error.code is not Code.STORE_CORRUPT:
                raise
            # A damaged record is a miss: never served, gone for good.
            batch.remove(session_id)
            return None, _DAMAGED

    def _seen_before(self, session: Session, event: AppendEvent) -> TokenUpdate:
        answer = _blank(event, session)
        for revision, content, digest in session.recent:
            if revision != event.revision:
                continue
            if content != content_hash(event):
                return _refused(answer, Status.REJECTED, Code.REVISION_REUSED)
            answer = replace(answer, status=Status.DUPLICATE, digest=digest)
            if revision == session.revision:
                answer = _totals(answer, session)
                if event.want_full and session.quarantined:
                    return _refused(answer, Status.NEED_RESET, Code.QUARANTINED)
                if event.want_full and not session.closed:
                    answer = replace(answer, token_ids=_bytes(session.ids()))
            return answer
        detail = f"revision {event.revision}, the session is at {session.revision}"
        return _refused(answer, Status.REJECTED, Code.STALE_REVISION, detail)

    def _close(
        self,
        batch: Batch,
        session: Session | None,
        event: AppendEvent,
        now_ms: int,
    ) -> TokenUpdate:
        answer = _blank(event, session)
        if session is None:
            return replace(answer, closed=True)
        if not session.closed and not session.quarantined:
            unmet = _unmet(session, event)
            if unmet is not None:
                return _conflict(answer, session, *unmet)
        recent = _remember(session, event, 0)
        tokenizer = session.tokenizer
        closed = batch.create(event.session_id.encode())
        closed.mark(
            revision=event.revision,
            recent=recent,
            closed=True,
            quarantined=False,
            touched_ms=now_ms,
        )
        return replace(answer, closed=True, session_revision=event.revision, tokenizer=tokenizer)

    def _reset(
        self,
        batch: Batch,
        session: Session | None,
        event: AppendEvent,
        op: Reset,
        now_ms: int,
        prepared: Prepared | None,
    ) -> TokenUpdate:
        entry = self._registry.resolve(event.tokenizer)
        self._admit(len(op.text))
        if session is not None and not session.closed and not session.quarantined:
            unmet = _unmet(session, event)
            if unmet is not None:
                answer = replace(_blank(event, session), tokenizer=entry.name)
                return _conflict(answer, session, *unmet)
        previous = session.recent if session is not None else ()
        encoder = entry.encoder
        # Before the session is replaced: a text that cannot be encoded changes nothing.
        if prepared is None or not prepared.belongs(encoder, op.text):
            prepared = prepare(encoder, op.text)
        started = time.perf_counter_ns()
        fresh = batch.create(event.session_id.encode())
        change = _routed(fresh.reset(encoder, op.text, prepared=prepared, tokenizer=entry.name))
        elapsed = time.perf_counter_ns() - started + prepared.elapsed_ns
        self._finish(fresh, event, now_ms, previous)
        fresh.find_settled(encoder)
        return _answer(event, fresh, change, elapsed)

    def _edit(
        self,
        session: Session,
        event: AppendEvent,
        op: Edit,
        now_ms: int,
    ) -> TokenUpdate:
        entry = self._registry.resolve(event.tokenizer or session.tokenizer)
        if entry.name != session.tokenizer:
            raise ToktierError(Code.TOKENIZER_CHANGED)
        unmet = _unmet(session, event)
        if unmet is not None:
            return _conflict(_blank(event, session), session, *unmet)
        start = session.bytes if op.start is None else op.start
        end = session.bytes if op.end is None else op.end
        if not 0 <= start <= end <= session.bytes:
            detail = f"[{start}, {end}) of {session.bytes} bytes"
            raise ToktierError(Code.OFFSET_RANGE, detail)
        for offset in {start, end}:
            if offset not in (0, session.bytes) and not session.char_boundary(offset):
                raise ToktierError(Code.OFFSET_IN_CHARACTER, f"byte {offset}")
        self._admit(session.bytes - (end - start) + len(op.text))
        began = time.perf_counter_ns()
        encoder = entry.encoder
        change = _routed(self._change(session, encoder, start, end, op.text))
        elapsed = time.perf_counter_ns() - began
        self._finish(session, event, now_ms, session.recent)
        if event.want_full:
            change = replace(change, keep=0, ids=session.ids(), tail=0)
        session.find_settled(encoder)
        return _answer(event, session, change, elapsed)

    @staticmethod
    def _change(session: Session, encoder: Encoder, start: int, end: int, text: bytes) -> Change:
        if session.fingerprint == encoder.fingerprint:
            return session.edit(encoder, start, end, text)
        # Made by another engine or reference version: never continued, but its text is here.
        old = session.text()
        return session.reset(encoder, old[:start] + text + old[end:])

    def _admit(self, size: int) -> None:
        if size > self._limits.max_session_bytes:
            detail = f"{size} of at most {self._limits.max_session_bytes} bytes"
            raise ToktierError(Code.SESSION_TOO_LARGE, detail)

    @staticmethod
    def _finish(
        session: Session,
        event: AppendEvent,
        now_ms: int,
        previous: tuple[tuple[int, int, int], ...],
    ) -> None:
        entry = (event.revision, content_hash(event), session.digest)
        session.mark(
            revision=event.revision,
            recent=(*previous[-(RECENT_REVISIONS - 1) :], entry),
            touched_ms=now_ms,
        )


_DAMAGED = "its stored record was damaged and has been dropped"
_REJECTIONS = frozenset(
    {
        Code.MISSING_TOKENIZER,
        Code.UNKNOWN_TOKENIZER,
        Code.TOKENIZER_CHANGED,
        Code.TOKENIZER_LOAD,
        Code.REFERENCE_GAVE_UP,
        Code.OFFSET_RANGE,
        Code.OFFSET_IN_CHARACTER,
        Code.SESSION_TOO_LARGE,
    }
)


def _routed(change: Change) -> Change:
    """Name the reference as the route where it, not the engine, encoded a full text."""
    if change.route is Route.CPU and change.evidence.engine == REFERENCE_VERSION:
        return replace(change, route=Route.REFERENCE)
    return change


def _remember(
    session: Session, event: AppendEvent, digest: int
) -> tuple[tuple[int, int, int], ...]:
    kept = session.recent[-(RECENT_REVISIONS - 1) :]
    return (*kept, (event.revision, content_hash(event), digest))


def _blank(event: AppendEvent, session: Session | None) -> TokenUpdate:
    """An answer that says whose and which event it answers, and nothing about it yet."""
    return TokenUpdate(
        session_id=event.session_id,
        revision=event.revision,
        status=Status.OK,
        request_id=event.request_id,
        tokenizer=session.tokenizer if session else event.tokenizer,
        session_revision=session.revision if session else 0,
    )


def _refused(answer: TokenUpdate, status: Status, code: Code, detail: str = "") -> TokenUpdate:
    return replace(answer, status=status, code=code, message=describe(code, detail))


def _unmet(session: Session, event: AppendEvent) -> tuple[Code, str] | None:
    """What the event expects of the session and is not so."""
    if event.expect_bytes is not None and event.expect_bytes != session.bytes:
        return Code.EXPECT_BYTES, f"expected {event.expect_bytes}, is {session.bytes}"
    if event.expect_digest is not None and event.expect_digest != session.digest:
        return Code.EXPECT_DIGEST, ""
    return None


def _conflict(answer: TokenUpdate, session: Session, code: Code, detail: str) -> TokenUpdate:
    return _totals(_refused(answer, Status.CONFLICT, code, detail), session)


def _totals(answer: TokenUpdate, session: Session) -> TokenUpdate:
    return replace(
        answer,
        total_tokens=session.tokens,
        total_bytes=session.bytes,
        digest=session.digest,
        session_revision=session.revision,
        settled=session.settled,
    )


def _bytes(ids: Ids) -> bytes:
    return ids.astype("<u4", copy=False).tobytes()


def _answer(event: AppendEvent, session: Session, change: Change, elapsed_ns: int) -> TokenUpdate:
    return TokenUpdate(
        session_id=event.session_id,
        revision=event.revision,
        status=Status.OK,
        request_id=event.request_id,
        tokenizer=session.tokenizer,
        keep=change.keep,
        token_ids=_bytes(change.ids),
        tail=change.tail,
        total_tokens=session.tokens,
        total_bytes=session.bytes,
        digest=session.digest,
        session_revision=session.revision,
        route=change.route,
        evidence=change.evidence,
        timings=Timings(0, elapsed_ns // 1000),
        settled=session.settled,
    )
