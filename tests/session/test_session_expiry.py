"""Lifetime: what is old is found without a scan, and touching costs no write."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from session_harness import MadeUp

from toktier_stream.session.store import Store

ENCODER = MadeUp()
MINUTE = 60_000
HOUR = 60 * MINUTE


def touch(store: Store, name: bytes, now_ms: int) -> None:
    """Commit an event on a session."""
    batch = store.begin()
    session = batch.session(name) or batch.create(name)
    session.mark(touched_ms=now_ms)
    store.commit(batch, changelog_offset=0)


def remove(store: Store, names: list[bytes]) -> None:
    """Commit removals."""
    batch = store.begin()
    for name in names:
        batch.remove(name)
    store.commit(batch, changelog_offset=0)


def entries(store: Store) -> list[bytes]:
    """The expiry database."""
    with store._env.begin() as txn:
        return list(txn.cursor(store._expiry.db).iternext(values=False))


def test_what_nobody_touched_expires(store: Store) -> None:
    """To the millisecond, oldest first, at most as many as asked for; a touch saves."""
    day = 24 * HOUR
    for i, name in enumerate((b"a", b"b", b"c")):
        touch(store, name, i * HOUR + 5)
    touch(store, b"a", 3 * HOUR)
    assert store.expired(HOUR + 5 + day - 1, 10) == []
    assert store.expired(HOUR + 5 + day, 10) == [b"b"]
    assert store.expired(4 * HOUR + day, 10) == [b"b", b"c", b"a"]
    assert store.expired(4 * HOUR + day, 2) == [b"b", b"c"]
    remove(store, [b"b"])
    assert store.expired(4 * HOUR + day, 10) == [b"c", b"a"]


def test_touching_writes_no_entry(store: Store) -> None:
    """The entry stays where it is until somebody looks, then moves once."""
    touch(store, b"a", 0)
    first = entries(store)
    for i in range(50):
        touch(store, b"a", i * HOUR)
    assert entries(store) == first
    assert store.expired(48 * HOUR, 10) == []
    touch(store, b"b", 50 * HOUR)
    assert len(entries(store)) == 2
    assert first[0] not in entries(store)


def test_entries_of_removed_sessions_go(store: Store) -> None:
    """An entry without a session is cleared away when it is met; a new life gets its own."""
    touch(store, b"a", 0)
    remove(store, [b"a"])
    touch(store, b"a", 10 * HOUR)
    assert store.expired(30 * HOUR, 10) == []
    assert store.expired(40 * HOUR, 10) == [b"a"]
    remove(store, [b"a"])
    assert store.evict_candidates(5) == []
    touch(store, b"b", 0)
    assert len(entries(store)) == 1


def test_restoring_enters_sessions(store: Store, tmp_path: Path) -> None:
    """A store built from the changelog knows what is old."""
    batch = store.begin()
    for i in range(3):
        batch.create(b"%d" % i).mark(touched_ms=i * HOUR)
    changes = batch.changes()
    with Store.open(tmp_path / "copy", map_bytes=1 << 20) as copy:
        copy.restore(changes, 3)
        assert copy.evict_candidates(2) == [b"0", b"1"]


@settings(max_examples=30)
@given(
    touches=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9 * MINUTE)), max_size=40),
    n=st.integers(1, 5),
    looks=st.lists(st.integers(0, 40), max_size=4),
)
def test_the_oldest_are_the_oldest(
    tmp_path_factory: object, touches: list[tuple[int, int]], n: int, looks: list[int]
) -> None:
    """In any order of touches and lookups, eviction names the least recently touched."""
    folder = tmp_path_factory.mktemp("expiry")  # type: ignore[attr-defined]
    model: dict[bytes, int] = {}
    with Store.open(folder, map_bytes=1 << 20) as store:
        now = 0
        for step, (who, passed) in enumerate(touches):
            now += passed
            name = b"%d" % who
            touch(store, name, now)
            model[name] = now
            if step in looks:
                want = sorted(model.items(), key=lambda item: (item[1], item[0]))
                assert store.evict_candidates(n) == [name for name, _ in want[:n]]
        want = sorted(model.items(), key=lambda item: (item[1], item[0]))
        assert store.evict_candidates(n) == [name for name, _ in want[:n]]
        limit = now - 20 * MINUTE
        expired = [name for name, touched in want if touched <= limit]
        assert store.expired(limit + 24 * HOUR, 100) == expired


def test_quota(tmp_path: Path) -> None:
    """Over the quota until enough was evicted; without one, never."""
    text = b"some words come first " * 500
    with Store.open(tmp_path / "s", map_bytes=16 << 20, quota_bytes=200_000) as store:
        for i in range(20):
            batch = store.begin()
            session = batch.create(b"%02d" % i)
            session.reset(ENCODER, text)
            session.mark(touched_ms=i * HOUR)
            store.commit(batch, changelog_offset=0)
        gone: list[bytes] = []
        while store.over_quota():
            oldest = store.evict_candidates(2)
            remove(store, oldest)
            gone += oldest
        assert gone == [b"%02d" % i for i in range(len(gone))]
        assert 0 < len(gone) < 20
    with Store.open(tmp_path / "s", map_bytes=16 << 20) as store:
        assert store.over_quota() == 0
