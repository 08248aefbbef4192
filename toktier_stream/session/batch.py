"""A batch: what one group of events does to a partition's sessions, before it is stored.

An overlay over the store: sessions are copied when first touched, and nobody else sees a change
until :meth:`Store.commit`. :meth:`Batch.changes` are the records of the compacted changelog and of
LMDB alike.

Keys: ``b"S" + session id`` for a header, ``b"P" + 16-byte session key + number (u32, big-endian)``
for a page or an index node. The value None is a tombstone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.page import Page
from toktier_stream.session.record import Session
from toktier_stream.session.sealing import Scratch
from toktier_stream.session.tree import Node

SESSION: Final = b"S"
PAGE: Final = b"P"
KEY_BYTES: Final = 16

Changes = list[tuple[bytes, bytes | None]]


@lru_cache(maxsize=1 << 13)
def session_key(session_id: bytes) -> bytes:
    """The fixed-size name under which a session's pages are kept."""
    return hashlib.blake2b(session_id, digest_size=KEY_BYTES).digest()


def page_key(key: bytes, number: int) -> bytes:
    """The changelog key of a page or an index node."""
    return PAGE + key + number.to_bytes(4, "big")


class Base(Protocol):
    """What a batch reads: the committed state."""

    scratch: Scratch

    def load(self, session_id: bytes) -> Session | None:
        """A session to change freely, or None. Raises ``STORE_CORRUPT``."""
        ...

    def fresh(self, session_id: bytes) -> Session:
        """An empty session that will take the place of whatever is stored."""
        ...

    def exists(self, session_id: bytes) -> bool:
        """Whether a header is stored, sound or not."""
        ...

    def numbers(self, session_id: bytes) -> list[int]:
        """The numbers of all records stored for a session."""
        ...

    def admit(self, changes: Changes) -> None:
        """Raises ``STORE_FULL`` if there may be no room for these records."""
        ...

    def release(self, session_ids: Iterable[bytes]) -> None:
        """The batch is done with sessions that it only read."""
        ...


@dataclass(slots=True)
class Sealed:
    """The outcome of a batch: records, and the objects to mark once they are stored."""

    changes: Changes
    sessions: dict[bytes, Session | None]
    written: list[Page | Node] = field(default_factory=list)


class Batch:
    """See the module. Not safe for two threads at once."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._sessions: dict[bytes, Session | None] = {}
        self._sealed: Sealed | None = None
        self._admitted = False
        self.open = True

    def session(self, session_id: bytes) -> Session | None:
        """The session as this batch has it; None if there is none.

        Raises ``STORE_CORRUPT`` if its header is damaged. A damaged page shows when it is read, as
        the same error from the session's methods.
        """
        self._check()
        if session_id in self._sessions:
            return self._sessions[session_id]
        session = self._base.load(session_id)
        if session is not None:
            self._sessions[session_id] = session
        return session

    def create(self, session_id: bytes) -> Session:
        """A new empty session in the place of whatever is there, sound or damaged."""
        self._check()
        session = self._base.fresh(session_id)
        session.changed = True
        self._sessions[session_id] = session
        return session

    def remove(self, session_id: bytes) -> None:
        """Forget a session: tombstones for everything stored of it."""
        self._check()
        self._sessions[session_id] = None

    def changes(self) -> Changes:
        """The records that this batch changes. Seals the batch: nothing can be changed after.

        Raises ``STORE_FULL`` if there may be no room for them: before anything is published.
        """
        return self.sealed().changes

    def sealed(self) -> Sealed:
        """The batch's outcome; see :meth:`changes`."""
        if not self.open:
            raise ValueError("the batch is closed")
        if self._sealed is None:
            self._sealed = self._seal()
        if not self._admitted:
            self._base.admit(self._sealed.changes)
            self._admitted = True
        return self._sealed

    def discard(self) -> None:
        """Forget the batch: nothing of it is seen again."""
        if not self.open:
            return
        self.open = False
        changed = self._sealed.sessions if self._sealed is not None else {}
        self._base.release(self._sessions.keys() - changed.keys())
        self._sessions.clear()
        self._sealed = None

    def _check(self) -> None:
        if not self.open:
            raise ValueError("the batch is closed")
        if self._sealed is not None:
            raise ValueError("the batch's changes were taken: begin another batch")

    def _seal(self) -> Sealed:
        out = Sealed([], {})
        for session_id, session in self._sessions.items():
            if session is None:
                self._seal_removal(session_id, out)
            elif session.changed:
                changes, written = len(out.changes), len(out.written)
                try:
                    self._seal_session(session, out)
                    out.sessions[session_id] = session
                except ToktierError as error:
                    if error.code is not Code.STORE_CORRUPT:
                        raise
                    # A record that no change needed is damaged. What was answered stands; the
                    # session is gone, as wherever damage is found.
                    del out.changes[changes:], out.written[written:]
                    self._seal_removal(session_id, out)
        return out

    def _seal_removal(self, session_id: bytes, out: Sealed) -> None:
        # The header last: it tells of the others, should only a part of this be published.
        key = session_key(session_id)
        gone = self._base.numbers(session_id)
        out.changes.extend((page_key(key, number), None) for number in gone)
        if self._base.exists(session_id):
            out.changes.append((SESSION + session_id, None))
        out.sessions[session_id] = None

    def _seal_session(self, session: Session, out: Sealed) -> None:
        session_id, changes = session.session_id, out.changes

        def put(number: int, data: bytes | None) -> None:
            changes.append((page_key(session_key(session_id), number), data))

        record, written = session.seal(self._base.scratch, put)
        out.written += written
        changes.append((SESSION + session_id, record))
