"""Records that a replay of the changelog leaves without a session.

A batch's pages stand in the changelog before their session's header. Where a header is missing
behind them (a batch that was published in part: delivery at least once), or is lost
(pipeline/ownership.py), nothing refers to these pages, and nobody would ever remove them: what a
session has is found by its header. So a replay notes the sessions for which it has seen no header
last; usually there are none in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from toktier_stream.session.batch import KEY_BYTES, PAGE, page_key, session_key


class Orphans:
    """The sessions of one store that may have such records, by session key."""

    def __init__(self) -> None:
        self._loose: set[bytes] = set()

    def follow(
        self, records: Iterable[tuple[bytes, bytes | None]], forgotten: Iterable[bytes]
    ) -> None:
        """A replay has applied these records; of ``forgotten`` keys it lost the value."""
        for key, value in records:
            if value is None:
                continue
            if key[:1] == PAGE:
                self._loose.add(key[1 : 1 + KEY_BYTES])
            else:
                self._loose.discard(session_key(key[1:]))
        self._loose.update(session_key(key[1:]) for key in forgotten if key[:1] != PAGE)

    def find(
        self,
        session_ids: Iterable[bytes],
        numbers: Callable[[bytes], Iterable[int] | None],
        records: Callable[[], Iterator[tuple[int, bytes]]],
    ) -> list[bytes]:
        """The changelog's keys of records without a session. Reads only if there may be some.

        ``numbers``: of a session's records, None if they cannot be told (then all are left to
        whatever takes its place); ``records``: number and session key of all that are stored.
        """
        if not self._loose:
            return []
        kept: dict[bytes, frozenset[int] | None] = dict.fromkeys(self._loose, frozenset())
        for session_id in session_ids:
            key = session_key(session_id)
            if key in kept:
                known = numbers(session_id)
                kept[key] = None if known is None else frozenset(known)
        return [
            page_key(key, number)
            for number, key in records()
            if (known := kept.get(key)) is not None and number not in known
        ]

    def clear(self) -> None:
        """There are none any more."""
        self._loose.clear()
