"""Sessions of a store that are kept in memory: those used last, as many as there is room for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from toktier_stream.session.record import Session


class Live:
    """Stored sessions with the bytes of memory that each takes, least recently used first.

    They are as committed: whoever changes one takes a copy (:meth:`Session.fork`).
    """

    def __init__(self, limit: int) -> None:
        """``limit``: bytes that all of them may take."""
        self._limit = limit
        self._sessions: OrderedDict[bytes, tuple[Session, int]] = OrderedDict()
        self.size = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: bytes) -> Session | None:
        """The session, if it is here: it is used now."""
        found = self._sessions.get(session_id)
        if found is None:
            return None
        self.hits += 1
        self._sessions.move_to_end(session_id)
        return found[0]

    def entry(self, session_id: bytes) -> tuple[Session, int] | None:
        """The session and the bytes that it takes, if it is here."""
        return self._sessions.get(session_id)

    def keep(self, stored: Mapping[bytes, Session | None]) -> None:
        """Sessions were stored, or removed where it says None."""
        sessions, limit, held = self._sessions, self._limit, self.size
        for session_id, session in stored.items():
            before = sessions.pop(session_id, None)
            if before is not None:
                held -= before[1]
            if session is not None:
                size = session.settle()
                if size <= limit:
                    sessions[session_id] = (session, size)
                    held += size
        while held > limit:
            _, (_, size) = sessions.popitem(last=False)
            held -= size
        self.size = held

    def release(self, session_ids: Iterable[bytes]) -> None:
        """Forget what copies of sessions have read beyond what these keep."""
        for session_id in session_ids:
            found = self._sessions.get(session_id)
            if found is not None:
                session, before = found
                size = session.settle(opened=True)
                self._sessions[session_id] = (session, size)
                self.size += size - before

    def clear(self) -> None:
        """Forget all of them."""
        self._sessions.clear()
        self.size = 0
