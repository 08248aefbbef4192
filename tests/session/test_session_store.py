"""The store: batches are atomic, files private, damage and a full disk are seen and survived."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_harness import Changelog, MadeUp, check_session, dump, record_name, slower

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import header as headers
from toktier_stream.session import lookup
from toktier_stream.session.record import Session
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.face import Tokens

ENCODER = MadeUp()
TEXT = b"some words come first and then some more words follow " * 30


def put(store: Store, name: bytes, text: bytes = TEXT, touched_ms: int = 0) -> None:
    """Commit a session of a text."""
    batch = store.begin()
    session = batch.create(name)
    session.reset(ENCODER, text)
    session.mark(revision=1, touched_ms=touched_ms)
    store.commit(batch, changelog_offset=store.changelog_offset + 1)


def read(store: Store, name: bytes) -> Session | None:
    """A session as committed."""
    return store.begin().session(name)


def raises(code: Code) -> pytest.RaisesExc[ToktierError]:
    """Expect one of our errors."""
    return pytest.RaisesExc(ToktierError, check=lambda e: e.code is code)


def damage(store: Store, name: bytes, number: int, database: str = "pages") -> None:
    """Flip a bit of a stored record behind the store's back."""
    db = store._pages if database == "pages" else store._sessions
    key = record_name(name, number) if database == "pages" else name
    with store._env.begin(write=True) as txn:
        data = bytearray(txn.get(key, db=db))
        data[len(data) // 2] ^= 1
        txn.put(key, bytes(data), db=db)
    store._hot.clear()


def test_what_is_committed_is_read_again(tmp_path: Path) -> None:
    """With the header's every field, from memory and after a restart."""
    with Store.open(tmp_path / "s", map_bytes=16 << 20) as store:
        batch = store.begin()
        session = batch.create(b"one")
        session.reset(ENCODER, TEXT, tokenizer="sha256:abc")
        session.mark(
            revision=7, recent=((6, 1 << 63, 5), (7, 3, session.digest)), touched_ms=1234,
        )  # fmt: skip
        store.commit(batch, changelog_offset=12, source_offset=34)
        for _ in range(2):
            again = read(store, b"one")
            assert again is not None
            check_session(again, ENCODER, TEXT)
            assert again.header() == session.header()
            assert (again.revision, again.tokenizer, again.touched_ms) == (7, "sha256:abc", 1234)
            store._hot.clear()
    with Store.open(tmp_path / "s", map_bytes=16 << 20) as store:
        assert (store.changelog_offset, store.source_offset) == (12, 34)
        again = read(store, b"one")
        assert again is not None
        check_session(again, ENCODER, TEXT)
        assert again.recent == ((6, 1 << 63, 5), (7, 3, session.digest))
        assert store.check().damaged == ()


def test_nothing_of_a_discarded_batch_is_seen(store: Store) -> None:
    """Edits, removals and new sessions, sealed or not, leave no trace."""
    put(store, b"one")
    before = dump(store)
    for sealed in (False, True):
        batch = store.begin()
        session = batch.session(b"one")
        assert session is not None
        session.edit(ENCODER, 0, len(TEXT) - 20, b"gone")
        batch.create(b"two").reset(ENCODER, TEXT)
        batch.remove(b"one")
        if sealed:
            assert batch.changes()
        batch.discard()
        again = read(store, b"one")
        assert again is not None
        check_session(again, ENCODER, TEXT)
        assert read(store, b"two") is None
        assert dump(store) == before


def test_a_batch_sees_its_own_changes(store: Store) -> None:
    """One session object per batch; a removed session is gone, a created one is there."""
    put(store, b"one")
    batch = store.begin()
    session = batch.session(b"one")
    assert session is not None
    session.edit(ENCODER, len(TEXT), len(TEXT), b" more")
    assert batch.session(b"one") is session
    batch.remove(b"one")
    assert batch.session(b"one") is None
    batch.create(b"one")
    again = batch.session(b"one")
    assert again is not None
    assert again.bytes == 0


def test_a_session_that_was_only_read_changes_nothing(store: Store) -> None:
    """Reading writes no record."""
    put(store, b"one")
    batch = store.begin()
    session = batch.session(b"one")
    assert session is not None
    session.text()
    assert batch.changes() == []


def test_a_sealed_or_closed_batch_is_not_changed(store: Store) -> None:
    """Misuse is an error, not a lost update; a new batch closes the one left open."""
    batch = store.begin()
    batch.changes()
    with pytest.raises(ValueError, match="begin another"):
        batch.create(b"one")
    later = store.begin()
    with pytest.raises(ValueError, match="closed"):
        batch.changes()
    with pytest.raises(ValueError, match="closed"):
        store.commit(batch, changelog_offset=1)
    later.discard()
    with pytest.raises(ValueError, match="closed"):
        later.session(b"one")


def test_removing_leaves_no_record(store: Store) -> None:
    """Tombstones for the header, the pages and the index, and none for a session never stored."""
    put(store, b"one", TEXT * 20)
    put(store, b"two")
    kept = dump(store)
    put(store, b"three", TEXT * 20)
    batch = store.begin()
    batch.remove(b"three")
    batch.remove(b"never")
    changes = batch.changes()
    assert all(value is None for _, value in changes)
    assert len(changes) > 10
    store.commit(batch, changelog_offset=9)
    assert dump(store) == kept


def test_a_reset_takes_the_place_of_the_old_pages(store: Store) -> None:
    """Numbers are used again, what is too much is tombstoned, nothing is orphaned."""
    put(store, b"one", TEXT * 20)
    put(store, b"one", TEXT)
    again = read(store, b"one")
    assert again is not None
    check_session(again, ENCODER, TEXT)
    report = store.check()
    assert (report.damaged, report.orphans) == ((), 0)
    assert report.records == 0  # the one page is in the header


def test_restoring_the_changelog_gives_the_same_store(store: Store, tmp_path: Path) -> None:
    """From nothing, and from any earlier point; compaction does not matter."""
    log = Changelog()
    copies = [Store.open(tmp_path / str(i), map_bytes=64 << 20) for i in range(3)]
    texts = {b"one": TEXT * 9, b"two": TEXT, b"three": TEXT * 3}
    for step in range(12):
        batch = store.begin()
        for name, text in texts.items():
            session = batch.session(name)
            if session is None:
                batch.create(name).reset(ENCODER, text)
            elif step % 5 == 4 and name == b"two":
                batch.remove(name)
            else:
                at = (step * 997) % session.bytes
                end = min(at + 400 * (step % 4), session.bytes)
                session.edit(ENCODER, at, end, b" inserted words" * step)
        changes = batch.changes()
        log.append(changes)
        store.commit(batch, changelog_offset=log.offset)
        copies[0].restore(changes, log.offset)
        if step % 4 == 3:
            copies[1].restore(list(log.values.items()), log.offset)
    copies[2].restore(list(log.values.items()), log.offset)
    want = dump(store)
    assert dump(copies[0]) == want
    assert dump(copies[2]) == want
    assert copies[2].changelog_offset == log.offset
    for copy in copies:
        copy.close()


def test_restore_refuses_an_unknown_kind(store: Store) -> None:
    """A changelog of a newer format is not half understood."""
    with raises(Code.STORE_FORMAT):
        store.restore([(b"Qanything", b"value")], 5)
    assert store.changelog_offset == 0


def test_restore_is_seen_by_sessions_in_memory(store: Store, tmp_path: Path) -> None:
    """A session that was hot is read again after its records were replayed."""
    put(store, b"one")
    with Store.open(tmp_path / "other", map_bytes=16 << 20) as other:
        batch = other.begin()
        batch.create(b"one").reset(ENCODER, b"another text")
        store.restore(batch.changes(), 77)
    again = read(store, b"one")
    assert again is not None
    check_session(again, ENCODER, b"another text")


@pytest.mark.parametrize("which", ["first page", "page before the last", "index"])
def test_a_damaged_record_is_seen(store: Store, which: str) -> None:
    """As STORE_CORRUPT from whatever reads it; the other sessions go on, and a reset heals it."""
    text = TEXT * 20
    put(store, b"one", text)
    put(store, b"two")
    session = read(store, b"one")
    assert session is not None
    pages = [page.number for page in lookup.walk(session._paged._root, session._paged._reader)]
    index = session.header().spine[0].number
    assert pages[-1] not in store.numbers(b"one")  # the header has it
    damage(store, b"one", {"first page": 0, "index": index}.get(which, pages[-2]))
    session = read(store, b"one")
    assert session is not None
    with raises(Code.STORE_CORRUPT):
        session.text()
    if which != "first page":
        with raises(Code.STORE_CORRUPT):
            session.edit(ENCODER, 60, 70, b" more")
            session.edit(ENCODER, len(text) - 4090, len(text) - 4080, b" more")
    assert store.check().damaged == (b"one",)
    put(store, b"one")
    assert store.check().damaged == ()
    assert store.check().orphans == 0


def test_damage_that_shows_when_a_batch_is_stored(store: Store) -> None:
    """An edit stands that reads the last page alone, although those before it are damaged. The
    batch is stored with its other sessions; this one is gone, in the changelog too."""
    text = TEXT * 20
    gone = 0
    for shorter in range(0, 2400, 200):  # the last page is of many sizes
        length = len(text) - shorter
        put(store, b"one", text[:length])
        put(store, b"two")
        stored = read(store, b"one")
        assert stored is not None
        needed = {part.number for part in stored.header().spine}
        for number in set(store.numbers(b"one")) - needed:
            damage(store, b"one", number)
        batch = store.begin()
        one, two = batch.session(b"one"), batch.session(b"two")
        assert one is not None
        assert two is not None
        two.edit(ENCODER, 0, 4, b"other")
        try:
            one.edit(ENCODER, length - 60, length - 59, b"x")
        except ToktierError:
            continue  # the edit itself had to read it
        changes = dict(batch.changes())
        store.commit(batch, changelog_offset=store.changelog_offset + 1)
        again = read(store, b"two")
        assert again is not None
        check_session(again, ENCODER, b"other" + TEXT[4:])
        if changes[b"Sone"] is None:
            gone += 1
            assert read(store, b"one") is None
            assert store.check().orphans == 0
        store.clear()
    assert gone


def test_a_damaged_header_is_seen_and_replaced(store: Store) -> None:
    """The session is a miss; removing it takes its pages along."""
    put(store, b"one", TEXT * 20)
    damage(store, b"one", 0, "sessions")
    batch = store.begin()
    with raises(Code.STORE_CORRUPT):
        batch.session(b"one")
    batch.remove(b"one")
    store.commit(batch, changelog_offset=3)
    assert store.stat().records == store.stat().sessions == 0


def test_an_older_page_is_not_taken_for_the_newer(store: Store) -> None:
    """A header and a page that do not belong together (a torn changelog) do not pass."""
    put(store, b"one", TEXT * 20)
    old = dump(store)
    batch = store.begin()
    session = batch.session(b"one")
    assert session is not None
    session.edit(ENCODER, 0, 4, b"more words")
    store.commit(batch, changelog_offset=2)
    old_pages = [(b"P" + key[4:] + key[:4], value) for key, value in old["pages"]]
    store.restore(old_pages, 3)
    session = read(store, b"one")
    assert session is not None
    with raises(Code.STORE_CORRUPT):
        session.text()


def test_a_full_store_changes_nothing_and_recovers(tmp_path: Path) -> None:
    """STORE_FULL, the same state as before, and room again after an eviction."""
    with Store.open(tmp_path / "s", map_bytes=1 << 20) as store:
        names = []
        with raises(Code.STORE_FULL):
            for i in range(100):
                put(store, b"%d" % i, TEXT * 20, touched_ms=i * 60_000)
                names.append(b"%d" % i)
        assert len(names) > 10
        before = dump(store)
        offset = store.changelog_offset
        batch = store.begin()
        session = batch.session(names[0])
        assert session is not None
        session.reset(ENCODER, TEXT * 100)
        with raises(Code.STORE_FULL):
            store.commit(batch, changelog_offset=999)
        assert dump(store) == before
        assert store.changelog_offset == offset
        again = read(store, names[0])
        assert again is not None
        check_session(again, ENCODER, TEXT * 20)
        batch = store.begin()
        for name in store.evict_candidates(3):
            batch.remove(name)
        store.commit(batch, changelog_offset=offset + 1)
        put(store, b"again", TEXT * 20)
        assert store.check().damaged == ()


def test_a_map_that_is_full_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB's own error, should the estimate be wrong, is the same STORE_FULL."""
    monkeypatch.setattr(Store, "admit", lambda self, changes: None)
    with Store.open(tmp_path / "s", map_bytes=1 << 20) as store:
        put(store, b"one")
        with raises(Code.STORE_FULL):
            batch = store.begin()
            large = np.full(1 << 20, 4, dtype=np.uint32)
            batch.create(b"large").reset(ENCODER, b"text" * (1 << 20), tokens=Tokens(large, large))
            store.commit(batch, changelog_offset=9)
        assert read(store, b"large") is None
        again = read(store, b"one")
        assert again is not None
        check_session(again, ENCODER, TEXT)
        put(store, b"two")
        assert store.check().damaged == ()


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """The file cannot grow: STORE_FULL, and the same batch goes through once it can."""
    with Store.open(tmp_path / "s", map_bytes=64 << 20) as store:
        put(store, b"one")
        before = dump(store)
        batch = store.begin()
        batch.create(b"two").reset(ENCODER, TEXT * 60)
        batch.changes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = (tmp_path / "s" / "data.mdb").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with raises(Code.STORE_FULL):
                store.commit(batch, changelog_offset=5)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert dump(store) == before
        assert store.changelog_offset == 1
        store.commit(batch, changelog_offset=5)
        again = read(store, b"two")
        assert again is not None
        check_session(again, ENCODER, TEXT * 60)
        assert store.check().damaged == ()


def test_room_is_asked_for_before_anything_is_published(tmp_path: Path) -> None:
    """The changes of a batch that may not fit cannot be taken; removals always can."""
    with Store.open(tmp_path / "s", map_bytes=1 << 20) as store:
        put(store, b"one", TEXT * 100)
        batch = store.begin()
        batch.create(b"two").reset(ENCODER, TEXT * 320)
        with raises(Code.STORE_FULL):
            batch.changes()
        batch.discard()
        batch = store.begin()
        batch.remove(b"one")
        assert batch.changes()
        store.commit(batch, changelog_offset=1)


def test_what_was_not_admitted_is_not_sealed_again(tmp_path: Path) -> None:
    """The same records are asked for once more, none less; nothing can be changed meanwhile."""
    with Store.open(tmp_path / "small", map_bytes=1 << 20) as small:
        put(small, b"one", TEXT)
        batch = small.begin()
        session = batch.session(b"one")
        assert session is not None
        session.edit(ENCODER, session.bytes, session.bytes, TEXT * 450)
        for _ in range(2):
            with raises(Code.STORE_FULL):
                batch.changes()
            with pytest.raises(ValueError, match="changes were taken"):
                batch.session(b"one")


def test_reading_a_whole_session_does_not_stay_in_memory(store: Store) -> None:
    """Passes over a session, whole or for an edit that is given up, leave the tail only."""
    text = TEXT * 100
    put(store, b"one", text)
    before = store.stat().hot_bytes
    batch = store.begin()
    session = batch.session(b"one")
    assert session is not None
    assert session.text() == text
    session.ids()
    for at in range(0, len(text), 50_000):
        session.slice(at, at + 20_000)
        session.view(at, at + 20_000)
    batch.discard()
    assert store.stat().hot_bytes <= before
    kept = store._hot.entry(b"one")
    assert kept is not None
    hot, _ = kept
    assert hot.settle(opened=True) <= before


def test_files_are_private(tmp_path: Path) -> None:
    """Folder 0700, files 0600, whatever the umask and an existing folder say."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o755)
    previous = os.umask(0)
    try:
        with Store.open(folder, map_bytes=1 << 20) as store:
            put(store, b"one")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}
    finally:
        os.umask(previous)
    assert set(modes.values()) == {0o600}
    assert "data.mdb" in modes


def test_one_owner(tmp_path: Path) -> None:
    """A second process, and a second store in this one, are refused until the first lets go."""
    script = (
        "import sys; from toktier_stream.session.store import Store\n"
        "from toktier_stream.errors import ToktierError\n"
        "try: Store.open(sys.argv[1], map_bytes=1 << 20)\n"
        "except ToktierError as e: print(e.code.value)\n"
        "else: print('opened')\n"
    )

    def elsewhere() -> str:
        command = [sys.executable, "-c", script, str(tmp_path / "s")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with Store.open(tmp_path / "s", map_bytes=1 << 20):
        assert elsewhere() == "STORE_BUSY"
        with raises(Code.STORE_BUSY):
            Store.open(tmp_path / "s", map_bytes=1 << 20)
    assert elsewhere() == "opened"
    Store.open(tmp_path / "s", map_bytes=1 << 20).close()


def test_what_is_no_store_is_not_opened(tmp_path: Path) -> None:
    """Another file, another LMDB environment, another format version; each can be opened after it
    was cleared away."""
    import lmdb

    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "data.mdb").write_bytes(b"not a database" * 1000)
    with raises(Code.STORE_FORMAT):
        Store.open(folder, map_bytes=1 << 20)
    (folder / "data.mdb").unlink()

    env = lmdb.open(str(folder), max_dbs=4)
    with env.begin(write=True) as txn:
        txn.put(b"key", b"value", db=env.open_db(b"other", txn=txn))
    env.close()
    with raises(Code.STORE_FORMAT):
        Store.open(folder, map_bytes=1 << 20)
    (folder / "data.mdb").unlink()

    with Store.open(folder, map_bytes=1 << 20) as store, store._env.begin(write=True) as txn:
        txn.put(b"format", b"toktier-stream store 0", db=store._meta)
    with raises(Code.STORE_FORMAT):
        Store.open(folder, map_bytes=1 << 20)


def test_a_hit_reads_nothing_from_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append to a live session finds its last pages in memory."""
    put(store, b"one", TEXT * 50)
    monkeypatch.setattr(
        "toktier_stream.session.store.SessionReader.read",
        lambda self, number, crc: pytest.fail(f"read record {number}"),
    )
    for step in range(20):
        batch = store.begin()
        session = batch.session(b"one")
        assert session is not None
        session.edit(ENCODER, session.bytes, session.bytes, b" and more words" * 40)
        store.commit(batch, changelog_offset=step)
    assert store.stat().hot_hits == 20


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Least recently used sessions leave memory; they are read again from disk."""
    with Store.open(tmp_path / "s", map_bytes=64 << 20, hot_bytes=100_000) as store:
        for i in range(60):
            put(store, b"%d" % i, TEXT * 5)
            assert store.stat().hot_bytes <= 100_000
        assert 3 < store.stat().hot_sessions < 40
        for i in (0, 59):
            session = read(store, b"%d" % i)
            assert session is not None
            check_session(session, ENCODER, TEXT * 5)
        assert store.stat().hot_misses == 1
    with Store.open(tmp_path / "s", map_bytes=64 << 20, hot_bytes=0) as store:
        put(store, b"0", TEXT)
        assert store.stat().hot_sessions == 0
        session = read(store, b"0")
        assert session is not None
        check_session(session, ENCODER, TEXT)


def test_long_and_odd_session_ids(store: Store) -> None:
    """Up to the 480 bytes that the wire admits, and ids that begin like others."""
    names = [b"x" * 480, b"x" * 479, b"\x00", b"\xff" * 480, b"S", b"P"]
    for i, name in enumerate(names):
        put(store, name, b"words " * (i + 1))
    for i, name in enumerate(names):
        session = read(store, name)
        assert session is not None
        check_session(session, ENCODER, b"words " * (i + 1))
    assert list(store.session_ids()) == sorted(names)


def test_a_restart_in_the_middle_of_the_work(tmp_path: Path) -> None:
    """Closing with an open batch loses the batch and nothing else."""
    store = Store.open(tmp_path / "s", map_bytes=16 << 20)
    put(store, b"one")
    store.begin().create(b"two")
    store.close()
    store.close()
    with Store.open(tmp_path / "s", map_bytes=16 << 20) as again:
        assert list(again.session_ids()) == [b"one"]


def blank(folder: Path) -> None:
    """Zeros over every page of LMDB's file but its two heads."""
    with (folder / "data.mdb").open("r+b") as file:
        pages = file.seek(0, os.SEEK_END) // 4096
        file.seek(2 * 4096)
        file.write(bytes((pages - 2) * 4096))


@pytest.mark.parametrize("when", ["closed", "open"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, when: str) -> None:
    """Below the records there are no checksums, but LMDB sees pages of a wrong kind. Such a file
    is never used again: the next opening begins empty, to be filled from the changelog."""
    folder = tmp_path / "s"
    store = Store.open(folder, map_bytes=16 << 20, hot_bytes=0)
    for number in range(20):
        put(store, b"%d" % number)
    if when == "closed":
        store.close()
        blank(folder)
    else:
        blank(folder)
        with raises(Code.STORE_DAMAGED):
            read(store, b"7")
        with raises(Code.STORE_DAMAGED):
            put(store, b"20")
        store.close()
    with Store.open(folder, map_bytes=16 << 20) as store:
        assert store.changelog_offset == 0
        assert read(store, b"7") is None
        put(store, b"7")
    assert (folder / "damaged-data.mdb").exists()
    with Store.open(folder, map_bytes=16 << 20) as store:
        assert read(store, b"7") is not None


@given(
    st.integers(0, 9000),
    st.lists(st.lists(st.integers(0, 700), min_size=1, max_size=3), max_size=8),
    st.booleans(),
)
@settings(max_examples=25)
def test_storing_an_end_at_once_is_storing_it_step_by_step(
    size: int, batches: list[list[int]], cold: bool
) -> None:
    """Appends of any size, several in a batch, to live sessions and to such that are read again:
    the same records, byte for byte, whichever way."""

    def lived(folder: str, way: str) -> tuple[object, list[set[bytes]], bytes]:
        taken = []
        with Store.open(folder, map_bytes=16 << 20) as store, pytest.MonkeyPatch.context() as patch:
            slower(patch, way)
            text = (TEXT * 6)[:size]
            put(store, b"one", text)
            for number, sizes in enumerate(batches):
                if cold:
                    store._hot.clear()
                batch = store.begin()
                session = batch.session(b"one")
                assert session is not None
                for n in sizes:
                    new = TEXT[number : number + n] + b"x" * (n % 3)
                    session.edit(ENCODER, len(text), len(text), new)
                    text += new
                taken.append({key for key, _ in batch.changes()})
                store.commit(batch, changelog_offset=number)
            again = read(store, b"one")
            assert again is not None
            check_session(again, ENCODER, text)
            report = store.check()
            assert (report.damaged, report.orphans) == ((), 0)
            return dump(store), taken, text

    found = []
    for way in ("at once", "by the tree", "step by step"):
        with TemporaryDirectory() as folder:
            found.append(lived(folder, way))
    assert found[0] == found[1] == found[2]


def test_a_header_of_another_format_is_told(store: Store) -> None:
    """A record of an older version, sound or not, is a miss that says why."""
    put(store, b"one")
    ((name, data),) = dump(store)["sessions"]
    body = b"\x03" + data[1:-4]
    with pytest.raises(ToktierError, match="of format 3") as caught:
        headers.decode(body + zlib.crc32(body).to_bytes(4, "little"), name)
    assert caught.value.code is Code.STORE_CORRUPT
