"""The durable sessions of one input partition: one LMDB environment, one process, one thread at a
time.

========== ============================== ==================================================
database   key                            value
========== ============================== ==================================================
sessions   session id                     header (header.py)
pages      number, 16-byte session key    page (page.py) or index node (tree.py)
expiry     minute u32, session id         empty: what to remove next, without a scan (expiry.py)
meta       name                           format, changelog_offset, source_offset, owner, answered
========== ============================== ==================================================

The index that the pages' order and sums are found by is a tree of small records beside the pages,
and pages are never renumbered. Their position sums stand in that tree, not in the pages: an edit
would have to rewrite every page behind it otherwise.

LMDB writes the whole page (4 KB) of its tree in which a key is entered, and all above it. So what
one batch enters shall lie together, although it is of many sessions: numbers come first in the
keys, and new ones begin where the changelog stands (:attr:`Store.floor`). What a session has is
found by its index.

LMDB may lag behind the changelog, it never leads: a batch is committed here after it is committed
there, and what a crash takes away is replayed. Commits are atomic. A crash of the process undoes
none; a crash of the machine undoes at most the last ones (``sync``), or all of them, and then the
file is known not to be trusted (unsynced.py).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import header as headers
from toktier_stream.session import unsynced
from toktier_stream.session.batch import (
    PAGE,
    SESSION,
    Batch,
    Changes,
    Sealed,
    session_key,
)
from toktier_stream.session.environment import open_environment, stored_map_bytes, told
from toktier_stream.session.expiry import Expiry
from toktier_stream.session.header import Header
from toktier_stream.session.live import Live
from toktier_stream.session.orphans import Orphans
from toktier_stream.session.reader import SessionReader, record_name, record_names
from toktier_stream.session.record import Session
from toktier_stream.session.sealing import Scratch
from toktier_stream.session.tree import Numbers

__all__ = ["Batch", "CheckReport", "Stat", "Store"]

_FLOORS: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Stat:
    """Sizes of a store. ``used_bytes`` is what live records take, free pages not counted."""

    sessions: int
    records: int
    used_bytes: int
    map_bytes: int
    hot_sessions: int
    hot_bytes: int
    hot_hits: int
    hot_misses: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a full check found. ``orphans``: records that no session refers to."""

    sessions: int
    records: int
    damaged: tuple[bytes, ...]
    orphans: int


class Store:
    """See the module. Make one with :meth:`open`; use it from one thread at a time."""

    def __init__(
        self,
        path: Path,
        env: lmdb.Environment,
        lock: int,
        *,
        map_bytes: int,
        hot_bytes: int,
        ttl_ms: int,
        quota_bytes: int,
    ) -> None:
        self.path = path
        self._env = env
        self._lock = lock
        self._map_bytes = map_bytes
        self._ttl_ms = ttl_ms
        self._quota = quota_bytes
        self._page_bytes: int = env.stat()["psize"]
        self._sessions = env.open_db(b"sessions")
        self._pages = env.open_db(b"pages")
        self._meta = env.open_db(b"meta")
        self._expiry = Expiry(env, env.open_db(b"expiry"), self._sessions)
        self._hot = Live(hot_bytes)
        self._misses = 0
        self._batch: Batch | None = None
        self._orphans = Orphans()
        self.scratch = Scratch()
        with env.begin() as txn:
            self.changelog_offset = int(txn.get(b"changelog_offset", b"0", db=self._meta))
            self.source_offset = int(txn.get(b"source_offset", b"-1", db=self._meta))
            # Of the part of the changelog that is applied: who owned it last, and below which
            # input offset everything is known to be answered (pipeline/ownership.py).
            self.owner = int(txn.get(b"owner", b"-1", db=self._meta))
            self.answered = int(txn.get(b"answered", b"0", db=self._meta))

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        map_bytes: int = 64 << 30,
        hot_bytes: int = 256 << 20,
        ttl_ms: int = 86_400_000,
        quota_bytes: int = 0,
        sync: bool = True,
    ) -> Store:
        """Open or create the store in the folder ``path`` (mode 0700, files 0600).

        ``map_bytes``: the most it may hold on disk (sparse, never resized; 0: as an existing store
        was made); ``hot_bytes``: memory for live sessions; ``ttl_ms``: see :meth:`expired`;
        ``quota_bytes``: see :meth:`over_quota`, 0 for none; ``sync``: commits wait for the disk,
        so that a crash of the machine does not cost the store. A damaged file is set aside
        (``damaged-data.mdb``), and the store begins empty. Raises ``STORE_BUSY``, ``STORE_FORMAT``
        or ``STORE_FULL``.
        """
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            lock = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ToktierError(Code.STORE_FORMAT, f"{folder}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise ToktierError(Code.STORE_BUSY, str(folder)) from error
        with ExitStack() as undo:
            undo.callback(os.close, lock)
            map_bytes = map_bytes or stored_map_bytes(folder)
            # Where nothing tells one boot from another, commits cannot be left to the system.
            sync = sync or not unsynced.boot()

            def opened() -> Store:
                env = open_environment(folder, map_bytes, sync=sync)
                with ExitStack() as failed:
                    failed.callback(env.close)
                    with told(folder):
                        store = cls(
                            folder, env, lock, map_bytes=map_bytes, hot_bytes=hot_bytes,
                            ttl_ms=ttl_ms, quota_bytes=quota_bytes,
                        )  # fmt: skip
                    failed.pop_all()
                return store

            try:
                store = opened()
            except ToktierError as error:
                if error.code is not Code.STORE_DAMAGED:
                    raise
                store = opened()  # anew: the damaged file is set aside now
            undo.pop_all()
        return store

    def close(self) -> None:
        """Write everything to disk and let go of the folder, also if writing fails.

        Raises ``STORE_FULL`` or ``STORE_FORMAT`` in that case.
        """
        if self._batch is not None:
            self._batch.discard()
        self._hot.clear()
        if self._lock >= 0:
            with ExitStack() as closing:
                closing.callback(os.close, self._lock)
                closing.callback(self._env.close)
                self._lock = -1
                with told(self.path):
                    self._env.sync(True)
                    unsynced.clear(self.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Batches

    def begin(self) -> Batch:
        """A new batch. At most one is open: one left open before is discarded."""
        if self._batch is not None:
            self._batch.discard()
        self._batch = Batch(self)
        return self._batch

    def commit(self, batch: Batch, *, changelog_offset: int, source_offset: int = -1) -> None:
        """Store a batch with where it stands in the changelog and in the input topic (the next
        offset to read in each), as one LMDB transaction.

        Raises ``STORE_FULL``: nothing has changed then, and the batch may be committed again once
        there is room, or discarded. (:meth:`Batch.changes` raises it earlier, while there is still
        room for what is published already.)
        """
        sealed = batch.sealed()
        self._write(sealed.changes, changelog_offset, source_offset)
        self._remember(sealed)
        batch.discard()
        if self._batch is batch:
            self._batch = None

    def restore(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        changelog_offset: int,
        *,
        owner: int | None = None,
        answered: int | None = None,
        forgotten: Iterable[bytes] = (),
    ) -> None:
        """Apply records of the changelog, in its order, as one LMDB transaction. ``forgotten``:
        keys that are removed because nobody knows their values.

        Raises ``STORE_FULL``, or ``STORE_FORMAT`` for a key of an unknown kind.
        """
        records = list(records)
        self._forget()
        marks = (self.owner, self.answered)
        self.owner = marks[0] if owner is None else owner
        self.answered = marks[1] if answered is None else answered
        stored = False
        try:
            self._write(records, changelog_offset, self.source_offset)
            stored = True
            self._orphans.follow(records, forgotten)
        finally:
            if not stored:
                self.owner, self.answered = marks

    def orphans(self) -> list[bytes]:
        """Keys of the changelog for pages and index nodes that replays have left without a session
        (orphans.py). To be asked for when a replay is complete."""
        return self._orphans.find(self.session_ids(), self._known_numbers, self._records)

    def remove_orphans(self, keys: Sequence[bytes]) -> None:
        """Remove what :meth:`orphans` has found. Raises ``STORE_FULL``."""
        if keys:
            self._write([(key, None) for key in keys], self.changelog_offset, self.source_offset)
        self._orphans.clear()

    def clear(self) -> None:
        """Remove everything, as one LMDB transaction: to be restored from the beginning."""
        self._forget()
        self._orphans.clear()
        with told(self.path), self._env.begin(write=True) as txn:
            for db in (self._sessions, self._pages, self._expiry.db):
                txn.drop(db, delete=False)
            for name in (b"changelog_offset", b"source_offset", b"owner", b"answered"):
                txn.delete(name, db=self._meta)
        self.changelog_offset, self.source_offset, self.owner, self.answered = 0, -1, -1, 0

    def value(self, key: bytes) -> bytes | None:
        """What is stored under a key of the changelog."""
        page = key[:1] == PAGE
        with told(self.path), self._env.begin() as txn:
            data: bytes | None = (
                txn.get(record_name(key), db=self._pages)
                if page
                else txn.get(key[1:], db=self._sessions)
            )
            return data

    def _forget(self) -> None:
        if self._batch is not None:
            self._batch.discard()
            self._batch = None
        self._hot.clear()

    def _write(self, changes: Changes, changelog_offset: int, source_offset: int) -> None:
        sessions, pages, meta = self._sessions, self._pages, self._meta
        with told(self.path), self._env.begin(write=True) as txn:
            for key, value in changes:
                kind = key[:1]
                if kind == PAGE:
                    if value is None:
                        txn.delete(record_name(key), db=pages)
                    else:
                        txn.put(record_name(key), value, db=pages)
                elif kind == SESSION:
                    name = key[1:]
                    if value is None:
                        txn.delete(name, db=sessions)
                    else:
                        # Headers grow and shrink. LMDB joins half-empty pages only after a removal.
                        if not txn.delete(name, db=sessions):
                            self._expiry.add(txn, name, headers.touched_ms(value))
                        txn.put(name, value, db=sessions)
                else:
                    raise ToktierError(Code.STORE_FORMAT, f"a changelog key of kind {kind!r}")
            moved = self._expiry.settle(txn)
            txn.put(b"changelog_offset", b"%d" % changelog_offset, db=meta)
            txn.put(b"source_offset", b"%d" % source_offset, db=meta)
            txn.put(b"owner", b"%d" % self.owner, db=meta)
            txn.put(b"answered", b"%d" % self.answered, db=meta)
        self._expiry.settled(moved)
        self.changelog_offset = changelog_offset
        self.source_offset = source_offset

    def admit(self, changes: Changes) -> None:
        """Raises ``STORE_FULL`` for records that may not fit. There is more room than this admits,
        so that what was published can be stored, and sessions can always be removed."""
        growth = sum([len(value) + 64 for _, value in changes if value is not None])
        # How far the file has grown is told at once; what is free of that has to be counted.
        reached = self._page_bytes * (self._env.info()["last_pgno"] + 1)
        if not growth or reached + growth <= self._map_bytes:
            return
        if self.used_bytes() + growth > self._map_bytes:
            raise ToktierError(Code.STORE_FULL, f"{self.path}: {self._map_bytes} bytes")

    def release(self, session_ids: Iterable[bytes]) -> None:
        """Forget what a batch has read beyond what live sessions keep."""
        self._hot.release(session_ids)

    def _remember(self, sealed: Sealed) -> None:
        for part in sealed.written:
            part.stored = True
            part.unload()
        self._hot.keep(sealed.sessions)

    # What batches read

    def load(self, session_id: bytes) -> Session | None:
        """A session to change freely, from memory or LMDB. Raises ``STORE_CORRUPT``."""
        hot = self._hot.get(session_id)
        if hot is not None:
            return hot.fork(self.floor)
        session = self._stored(session_id)
        self._misses += session is not None
        return session

    def _stored(self, session_id: bytes) -> Session | None:
        with told(self.path), self._env.begin() as txn:
            data = txn.get(session_id, db=self._sessions)
        if data is None:
            return None
        header = headers.decode(data, session_id)
        numbers = Numbers(header.next_number, floor=self.floor)
        return Session(header, self._reader(session_id), numbers, data)

    def fresh(self, session_id: bytes) -> Session:
        """An empty session that takes over the record numbers of whatever is stored."""
        stored = self.numbers(session_id)
        numbers = Numbers(stored[-1] + 1 if stored else 0, stored, self.floor)
        return Session(Header(session_id), self._reader(session_id), numbers)

    @property
    def floor(self) -> int:
        """Where the numbers begin that a batch gives to new records: it grows as they do, since
        each takes an offset of the changelog. (That it begins again after so many costs nothing:
        numbers of one session are never given twice.)"""
        return self.changelog_offset % _FLOORS

    def exists(self, session_id: bytes) -> bool:
        """Whether a header is stored, sound or not."""
        with told(self.path), self._env.begin() as txn:
            return txn.get(session_id, db=self._sessions) is not None

    def numbers(self, session_id: bytes) -> list[int]:
        """The numbers of all records stored for a session, ascending. Where its index is damaged
        this takes a look at every key."""
        known = self._known_numbers(session_id)
        if known is not None:
            return known
        key = session_key(session_id)
        return [number for number, owner in self._records() if owner == key]

    def _known_numbers(self, session_id: bytes) -> list[int] | None:
        """The same from the session's index; None if that is damaged."""
        try:
            session = self._stored(session_id)
            return session.stored_numbers() if session is not None else []
        except ToktierError as error:
            if error.code is not Code.STORE_CORRUPT:
                raise
            return None

    def _records(self) -> Iterator[tuple[int, bytes]]:
        """Number and session key of every page and index node."""
        with told(self.path), self._env.begin() as txn:
            yield from record_names(txn, self._pages)

    def _reader(self, session_id: bytes) -> SessionReader:
        return SessionReader(self.path, self._env, self._pages, session_key(session_id))

    # Lifetime

    def expired(self, now_ms: int, limit: int) -> list[bytes]:
        """At most ``limit`` sessions that nobody touched for ``ttl_ms``, oldest first."""
        with told(self.path):
            return self._expiry.older_than(now_ms - self._ttl_ms, limit)

    def over_quota(self) -> int:
        """By how many bytes the store exceeds its quota; 0 if it does not."""
        return max(0, self.used_bytes() - self._quota) if self._quota else 0

    def evict_candidates(self, n: int) -> list[bytes]:
        """The ``n`` sessions that were touched least recently, oldest first."""
        with told(self.path):
            return self._expiry.oldest(n)

    # Looking in

    def used_bytes(self) -> int:
        """Bytes of the database pages that live records take."""
        with told(self.path), self._env.begin() as txn:
            total = 0
            for db in (self._sessions, self._pages, self._meta, self._expiry.db):
                s = txn.stat(db)
                total += s["psize"] * (s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"])
            return total

    def stat(self) -> Stat:
        """Sizes and hit counts, now."""
        with told(self.path), self._env.begin() as txn:
            sessions = txn.stat(self._sessions)["entries"]
            records = txn.stat(self._pages)["entries"]
        return Stat(
            sessions, records, self.used_bytes(), self._map_bytes, len(self._hot), self._hot.size,
            self._hot.hits, self._misses,
        )  # fmt: skip

    def session_ids(self) -> Iterator[bytes]:
        """The ids of all sessions, in order. Not to be interleaved with commits."""
        with told(self.path), self._env.begin() as txn:
            yield from txn.cursor(self._sessions).iternext(values=False)

    def check(self) -> CheckReport:
        """Read and verify everything: headers, index nodes, pages, sums and digests."""
        damaged: list[bytes] = []
        sessions = reachable = 0
        for session_id in list(self.session_ids()):
            sessions += 1
            try:
                session = self._stored(session_id)
                if session is not None:
                    reachable += session.verify()
            except ToktierError as error:
                if error.code is not Code.STORE_CORRUPT:
                    raise
                damaged.append(session_id)
        with told(self.path), self._env.begin() as txn:
            records = txn.stat(self._pages)["entries"]
        orphans = 0 if damaged else records - reachable
        return CheckReport(sessions, records, tuple(damaged), orphans)
