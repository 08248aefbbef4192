"""Which sessions were touched least recently, without a scan of all and without a write per touch.

One entry per session: the minute in which it was touched when the entry was made. A touch does not
move it; whoever looks for old sessions meets entries that are behind, reads the session's header,
and has the entry moved with the next commit. So a session is moved at most once per minute and
lookup, and only if somebody looks.
"""

from __future__ import annotations

from typing import Any, Final

import lmdb

from toktier_stream.session import header as headers

_MINUTE_MS: Final = 60_000
_TIME_BYTES: Final = 4
_LAST: Final = (1 << 32) - 1


def _minute(ms: int) -> int:
    return min(max(ms // _MINUTE_MS, 0), _LAST)


def _entry(minute: int, session_id: bytes) -> bytes:
    return minute.to_bytes(_TIME_BYTES, "big") + session_id


class Expiry:
    """The expiry index of a store. Reads in its own transactions, writes in the caller's."""

    def __init__(self, env: lmdb.Environment, db: Any, sessions: Any) -> None:
        self.db = db
        self._env = env
        self._sessions = sessions
        self._moves: dict[bytes, bytes | None] = {}

    def add(self, txn: Any, session_id: bytes, touched_ms: int) -> None:
        """Enter a new session."""
        txn.put(_entry(_minute(touched_ms), session_id), b"", db=self.db)

    def settle(self, txn: Any) -> dict[bytes, bytes | None]:
        """Write the moves that lookups found due; returns them for :meth:`settled`."""
        moves = dict(self._moves)
        for old, new in moves.items():
            txn.delete(old, db=self.db)
            if new is not None:
                txn.put(new, b"", db=self.db)
        return moves

    def settled(self, moves: dict[bytes, bytes | None]) -> None:
        """The transaction with these moves is committed."""
        for old in moves:
            self._moves.pop(old, None)

    def older_than(self, touched_ms: int, limit: int) -> list[bytes]:
        """At most ``limit`` sessions last touched at or before ``touched_ms``, oldest first."""
        found = self._scan(limit, _minute(touched_ms) if touched_ms >= 0 else -1)
        return [s for touched, s in sorted(found) if touched <= touched_ms][:limit]

    def oldest(self, n: int) -> list[bytes]:
        """The ``n`` least recently touched sessions, oldest first."""
        return [s for _, s in sorted(self._scan(n, _LAST))][:n]

    def _scan(self, enough: int, last_minute: int) -> list[tuple[int, bytes]]:
        """(last touched, id) from the oldest minute on, until ``enough`` are known to be older than
        everything that was not looked at."""
        found: dict[bytes, int] = {}
        settled = 0
        minute = -1
        with self._env.begin() as txn:
            for key in txn.cursor(self.db).iternext(values=False):
                now = int.from_bytes(key[:_TIME_BYTES], "big")
                if now > last_minute or (settled >= enough and now > minute):
                    break
                minute = now
                session_id = key[_TIME_BYTES:]
                data = txn.get(session_id, db=self._sessions)
                if data is None:
                    self._moves[key] = None
                    continue
                touched = headers.touched_ms(data)
                if _minute(touched) > now:
                    self._moves[key] = _entry(_minute(touched), session_id)
                else:
                    settled += 1
                found[session_id] = touched
        return [(touched, session_id) for session_id, touched in found.items()]
