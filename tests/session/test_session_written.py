"""What is written where: few pages of LMDB's, lines that the header keeps, records that a replay
leaves without a session, and headers of the version before."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_harness import Changelog, MadeUp, check_session, dump, make_small, slower

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import header as headers
from toktier_stream.session import store as stores
from toktier_stream.session import tree
from toktier_stream.session.batch import PAGE, SESSION, page_key, session_key
from toktier_stream.session.node import LINE, NODE_KIND, Numbers
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.face import Tokens

ENCODER = MadeUp()
WORDS = b"some words come first and then some more words follow " * 4


def raises(code: Code) -> pytest.RaisesExc[ToktierError]:
    """Expect one of our errors."""
    return pytest.RaisesExc(ToktierError, check=lambda e: e.code is code)


def cold(store: Store) -> None:
    """Forget the live sessions."""
    store._hot.clear()


def stored_numbers(store: Store, name: bytes) -> list[int]:
    """By a look at every key."""
    return sorted(n for n, key in store._records() if key == session_key(name))


class Log(Changelog):
    """A changelog in which a batch's transaction has its marker, as Kafka's has."""

    def commit(self, store: Store) -> list[tuple[bytes, bytes | None]]:
        """Publish and store the open batch."""
        assert store._batch is not None
        changes = store._batch.changes()
        self.append(changes)
        self.offset += 1
        store.commit(store._batch, changelog_offset=self.offset)
        return changes


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 7])
def test_the_header_keeps_the_last_lines(tmp_path: Path, kept: int) -> None:
    """A session that grows page by page over many nodes, appended to live, read again, and stored
    step by step: byte for byte the same; never more lines in a header than it may have; and a node
    is written for every so many pages only, or when it is full."""
    fan = 4

    def lived(folder: Path, way: str) -> tuple[object, int, int, set[int]]:
        log, nodes, pages, counts = Log(), 0, 0, set()
        with Store.open(folder, map_bytes=32 << 20) as store, pytest.MonkeyPatch.context() as patch:
            make_small(patch, kept)
            slower(patch, way)
            store.begin().create(b"one").reset(ENCODER, b"")
            log.commit(store)
            text = b""
            for number in range(120):
                if way == "read again":
                    cold(store)
                session = store.begin().session(b"one")
                assert session is not None
                new = WORDS[number : number + 20]
                session.edit(ENCODER, len(text), len(text), new)
                text += new
                for key, value in log.commit(store):
                    if key[:1] == PAGE:
                        assert value is not None
                        nodes += value[0] == NODE_KIND
                        pages += value[0] != NODE_KIND
                header = headers.decode(dump(store)["sessions"][0][1], b"one")
                counts.add(len(header.lines) // LINE)
                assert store.numbers(b"one") == stored_numbers(store, b"one")
            assert store.check().orphans == 0
            cold(store)
            again = store.load(b"one")
            assert again is not None
            check_session(again, ENCODER, text)
            return dump(store), nodes, pages, counts

    ways = ("live", "read again", "by the tree", "step by step")
    found = [lived(tmp_path / way, way) for way in ways]
    assert found[0] == found[1] == found[2] == found[3]
    _, nodes, pages, counts = found[0]
    assert counts == set(range(min(kept, fan - 1) + 1))
    assert pages > 10 * fan
    # A full node and those above it, and whenever the header had enough.
    assert nodes <= pages * (1 / (kept + 1) + 2 / fan)


@given(
    st.lists(st.lists(st.integers(0, 90), min_size=1, max_size=3), min_size=1, max_size=20),
    st.sampled_from([0, 1, 2, 7]),
    st.booleans(),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40)), max_size=3),
)
@settings(max_examples=40)
def test_small_ends_at_once_or_step_by_step(
    batches: list[list[int]], kept: int, cold_: bool, cuts: list[tuple[float, int]]
) -> None:
    """Any appends, and truncations between them, over nodes that fill: the same records."""

    def lived(folder: str, way: str) -> tuple[object, list[list[tuple[bytes, bytes | None]]]]:
        log, taken = Log(), []
        with Store.open(folder, map_bytes=16 << 20) as store, pytest.MonkeyPatch.context() as patch:
            make_small(patch, kept)
            slower(patch, way)
            text = WORDS
            store.begin().create(b"one").reset(ENCODER, text)
            log.commit(store)
            for number, sizes in enumerate(batches):
                if cold_:
                    cold(store)
                session = store.begin().session(b"one")
                assert session is not None
                for n in sizes:
                    new = WORDS[number : number + n] + b"x" * (n % 3)
                    session.edit(ENCODER, len(text), len(text), new)
                    text += new
                if number < len(cuts):
                    where, much = cuts[number]
                    at = round(where * len(text))
                    session.edit(ENCODER, at, min(at + much, len(text)), b"")
                    text = text[:at] + text[at + much :]
                taken.append(log.commit(store))
                assert store.numbers(b"one") == stored_numbers(store, b"one")
            again = store.load(b"one")
            assert again is not None
            check_session(again, ENCODER, text)
            report = store.check()
            assert (report.damaged, report.orphans) == ((), 0)
            with TemporaryDirectory() as empty, Store.open(empty, map_bytes=16 << 20) as copy:
                copy.restore(list(log.values.items()), log.offset)
                assert dump(copy) == dump(store)
                assert copy.orphans() == []
            return dump(store), taken

    found = []
    for way in ("at once", "by the tree", "step by step"):
        with TemporaryDirectory() as folder:
            found.append(lived(folder, way))
    stored, taken = found[2]
    assert found[0] == found[1]
    assert found[0][0] == stored
    assert [{key for key, _ in changes} for changes in found[0][1]] == [
        {key for key, _ in changes} for changes in taken
    ]


@given(st.lists(st.sampled_from(["take", "free", "fork", "copy"]), max_size=60), st.data())
def test_no_number_is_given_twice(moves: list[str], data: st.DataObject) -> None:
    """Whatever the floor does, and forwards: what is taken was free, and new numbers grow."""
    numbers, taken, highest = Numbers(0), set[int](), -1
    for move in moves:
        if move == "take":
            floor = numbers.first
            number = numbers.take()
            assert number not in taken
            assert number <= highest or number == floor
            highest = max(highest, number)
            taken.add(number)
        elif move == "free" and taken:
            numbers.free(number := data.draw(st.sampled_from(sorted(taken))))
            taken.remove(number)
        elif move == "fork":
            floor = data.draw(st.integers(0, 40))
            numbers = numbers.fork(floor)
            assert numbers.clean
            assert numbers.first == max(highest + 1, floor)
        else:
            numbers = numbers.copy()


def test_numbers_begin_where_the_changelog_stands(store: Store) -> None:
    """Also after the changelog has passed what four bytes can say, and where a session has given
    higher ones already."""
    text = WORDS * 100
    for offset in (0, 70, 1_000, (1 << 31) - 1, (1 << 31) + 40, (1 << 40) + 5):
        store.restore([], offset)
        floor = offset % (1 << 31)
        for name in (b"%d" % offset, b"one"):
            data = store.value(SESSION + name)
            before = headers.decode(data, name) if data else headers.Header(name)
            had = {*stored_numbers(store, name), *(step.number for step in before.spine)}
            batch = store.begin()
            session = batch.session(name)
            if session is None:
                batch.create(name).reset(ENCODER, text)
            else:
                session.edit(ENCODER, session.bytes, session.bytes, text)
            store.commit(batch, changelog_offset=offset)
            new = set(stored_numbers(store, name)) - had
            assert min(new) == max(floor, before.next_number)
            again = store.load(name)
            assert again is not None
            check_session(again, ENCODER, again.text())
            assert store.numbers(name) == stored_numbers(store, name)
    assert store.check().orphans == 0


def words(size: int, seed: int) -> bytes:
    """Words of three letters, never the same block twice."""
    letters = np.random.default_rng(seed).integers(97, 123, size=(size // 4, 4), dtype=np.uint8)
    letters[:, 0] = 32
    return letters.tobytes()


def tokens(text: bytes) -> Tokens:
    """One for each of them."""
    ids = (np.frombuffer(text, dtype="<u4") % 150_000).astype(np.uint32)
    return Tokens(ids, np.full(len(ids), 4, dtype=np.uint32))


class Words:
    """An encoder for speed."""

    fingerprint = "words"
    engine = "words-1"
    longest_token = 8
    literal_reach = 0
    splices = True

    def encode(self, text: bytes) -> Tokens:
        """One token per word, and one for what is left."""
        return tokens(text)

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        """See :class:`toktier_stream.tokenizer.face.Encoder`."""
        return text.rfind(b" ", max(low, 1), min(high, len(text) - 1) + 1)

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        """See :class:`toktier_stream.tokenizer.face.Encoder`."""
        return text.find(b" ", max(low, 1), min(high, len(text) - 1) + 1)


@pytest.mark.skipif(
    not hasattr(psutil.Process(), "io_counters"), reason="the system does not count what is written"
)
def test_the_file_system_is_given_few_bytes(tmp_path: Path) -> None:
    """64 sessions of very different sizes, which grew in turns: a batch of an append of 1.5 K to
    each gives the file system at most 8,000 bytes an append, all pages of LMDB's trees included."""
    log, choose, process = Log(), random.Random(1), psutil.Process()
    with Store.open(tmp_path / "s", map_bytes=1 << 30, sync=False) as store:
        names = [os.urandom(8) for _ in range(64)]
        for number, name in enumerate(names):
            store.begin().create(name).reset(
                Words(), words(4 * choose.randrange(1, 200_000), number)
            )
            log.commit(store)
        given_ = 0
        rounds = 20
        for turn in range(1, rounds + 1):
            batch = store.begin()
            for number, name in enumerate(names):
                session = batch.session(name)
                assert session is not None
                session.edit(Words(), session.bytes, session.bytes, words(1500, turn << 9 | number))
            before = process.io_counters().write_chars
            log.commit(store)
            given_ += process.io_counters().write_chars - before
        assert 3000 < given_ / rounds / len(names) <= 8000
        assert store.check().orphans == 0


# Headers of the version before


def of_version_4(data: bytes) -> bytes:
    """A header without lines, as version 4 had it."""
    size = struct.calcsize("<BBBBQQQQQqIHHHBBQI")
    assert data[0] == 5
    assert data[size : size + 2] == bytes(2)
    body = b"\x04" + data[1:size] + data[size + 2 : -4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def test_a_changelog_of_the_version_before_goes_on(tmp_path: Path) -> None:
    """Its sessions are read, appended to and removed; nobody is asked for a reset."""
    log = Log()
    texts = {b"one": WORDS * 300, b"two": WORDS, b"three": b"", b"4": WORDS * 40}
    with Store.open(tmp_path / "old", map_bytes=16 << 20) as old, pytest.MonkeyPatch.context() as p:
        p.setattr(tree, "KEPT", 0)
        for name, text in texts.items():
            old.begin().create(name).reset(ENCODER, text)
            log.commit(old)
    records = {
        key: of_version_4(value) if key[:1] == SESSION else value
        for key, value in log.values.items()
    }
    with Store.open(tmp_path / "new", map_bytes=16 << 20) as store:
        store.restore(records.items(), log.offset)
        assert store.orphans() == []
        report = store.check()
        assert (report.sessions, report.damaged, report.orphans) == (4, (), 0)
        for turn in range(30):
            batch = store.begin()
            for name in texts:
                session = batch.session(name)
                assert session is not None
                session.edit(ENCODER, session.bytes, session.bytes, WORDS[turn:])
                texts[name] += WORDS[turn:]
            log.commit(store)
        for name, text in texts.items():
            session = store.load(name)
            assert session is not None
            check_session(session, ENCODER, text)
            assert store.numbers(name) == stored_numbers(store, name)
        batch = store.begin()
        for name in texts:
            batch.remove(name)
        log.commit(store)
        assert store.stat().records == store.stat().sessions == 0


@pytest.mark.parametrize("size", [*range(90), 95, 200])
def test_a_header_cut_short_is_refused(size: int) -> None:
    """Of any length, with a checksum that fits."""
    whole = headers.encode(headers.Header(b"a session", lines=bytes(2 * LINE), tail=b"page"))
    assert headers.decode(whole, b"a session").lines == bytes(2 * LINE)
    for version in (4, 5):
        body = (bytes([version]) + whole[1:-4])[:size].ljust(size, b"\0")
        with raises(Code.STORE_CORRUPT):
            headers.decode(body + zlib.crc32(body).to_bytes(4, "little"), b"a session")


# Records without a session


@pytest.fixture
def filled(store: Store) -> tuple[Store, Log]:
    """A store with some sessions of some pages."""
    log = Log()
    for name in (b"one", b"two", b"three"):
        store.begin().create(name).reset(ENCODER, WORDS * 300)
        log.commit(store)
    return store, log


def test_where_all_was_in_order_nothing_is_read(
    filled: tuple[Store, Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay in any pieces, removals among them."""
    store, log = filled
    changes = [*log.values.items()]
    store.begin().remove(b"two")
    changes += log.commit(store)
    with Store.open(tmp_path / "copy", map_bytes=16 << 20) as copy:
        for at in range(0, len(changes), 7):
            copy.restore(changes[at : at + 7], at)
        assert dump(copy) == dump(store)
        monkeypatch.setattr(stores.Store, "_records", lambda _: pytest.fail("it looked"))
        assert copy.orphans() == []


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=6), st.data())
@settings(max_examples=40)
def test_what_a_torn_batch_leaves_is_removed(
    torn: list[tuple[float, bool]], data: st.DataObject
) -> None:
    """A batch of appends, edits, removals and resets stands in the changelog in part, and its
    owner begins again: no record is left without a session, here and in the changelog, and each
    session is as before, as after, or damaged (then a reset takes its place)."""
    choose = data.draw(st.randoms(use_true_random=False))
    names = [b"one", b"two", b"three"]
    log = Log()
    texts: dict[bytes, set[bytes]] = {}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        make_small(patch, 2)
        store = Store.open(folder, map_bytes=32 << 20)
        for share, seen in torn:
            batch = store.begin()
            after = {}
            for name in names:
                try:
                    session = batch.session(name)
                    text = session.text() if session is not None else b""
                except ToktierError:
                    session, text = None, b""
                kind = choose.random()
                if session is None or kind < 0.1:
                    text = WORDS * choose.randrange(9)
                    batch.create(name).reset(ENCODER, text)
                elif kind < 0.3:
                    batch.remove(name)
                    text = b""
                else:
                    at = len(text) if kind < 0.7 else choose.randrange(len(text) + 1)
                    session.edit(ENCODER, at, len(text), WORDS[at % 50 :])
                    text = text[:at] + WORDS[at % 50 :]
                after[name] = text
            changes = batch.changes()
            part = changes[: round(share * len(changes))]
            log.append(part)
            log.offset += 1
            whole = len(part) == len(changes)
            if whole and seen:
                store.commit(batch, changelog_offset=log.offset)
            else:
                batch.discard()
                store.restore(part, log.offset)
            orphans = store.orphans()
            log.append([(key, None) for key in orphans])
            store.remove_orphans(orphans)
            assert store.orphans() == []
            report = store.check()
            for name in set(store.session_ids()) - set(report.damaged):
                session = store.load(name)
                assert session is not None
                text = session.text()
                assert text == after[name] or text in texts.get(name, ())
                check_session(session, ENCODER, text)
            owners = {session_key(n): n for n in store.session_ids()}
            for number, key in store._records():
                owner = owners[key]
                assert owner in report.damaged or number in store.numbers(owner)
            texts = {n: {after[n], *texts.get(n, ())} for n in names}
        with TemporaryDirectory() as empty, Store.open(empty, map_bytes=32 << 20) as copy:
            copy.restore(list(log.values.items()), log.offset)
            assert dump(copy) == dump(store)
        store.close()


def test_a_session_whose_header_is_lost_leaves_nothing(filled: tuple[Store, Log]) -> None:
    """A replay that removes a header because nobody knows its value (pipeline/ownership.py)."""
    store, log = filled
    had = stored_numbers(store, b"two")
    store.restore([(SESSION + b"two", None)], log.offset + 1, forgotten=[SESSION + b"two"])
    orphans = store.orphans()
    assert sorted(orphans) == [page_key(session_key(b"two"), n) for n in had]
    store.remove_orphans(orphans)
    report = store.check()
    assert (report.sessions, report.damaged, report.orphans) == (2, (), 0)
    assert store.orphans() == []


def test_damaged_sessions_keep_their_records(filled: tuple[Store, Log]) -> None:
    """What cannot be told is left; a reset, which looks at every key, takes all of it."""
    store, log = filled
    key, value = page_key(session_key(b"two"), 1 << 20), b"a page"
    with store._env.begin(write=True) as txn:
        data = bytearray(txn.get(b"two", db=store._sessions))
        data[50] ^= 1
        txn.put(b"two", bytes(data), db=store._sessions)
    cold(store)
    store.restore([(key, value)], log.offset + 1)
    assert store.orphans() == []
    assert 1 << 20 in store.numbers(b"two")
    store.begin().create(b"two").reset(ENCODER, WORDS)
    log.commit(store)
    report = store.check()
    assert (report.damaged, report.orphans) == ((), 0)
