"""The compiled pass that stores an append, beside the pages and the tree that it leaves out: the
same records, byte for byte."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_harness import MadeUp, check_session, dump

from toktier_stream.session import header as headers
from toktier_stream.session import sealing
from toktier_stream.session.batch import PAGE, SESSION, Changes
from toktier_stream.session.engines import open_registry
from toktier_stream.session.header import Header
from toktier_stream.session.node import NODE_KIND
from toktier_stream.session.record import Session
from toktier_stream.session.store import Store

ENCODER = MadeUp()
PIECES = (
    "some words come first and then more ", "größe, 漢字と仮名 ", "12345 67890\n", "a###b ",
    "\0\0x ", "\0" * 300 + "y ", "🙂🙃 ", "x" * 700 + " ",
)  # fmt: skip


class Shelf:
    """Records by number, as a store would hold them."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}

    def read(self, number: int, crc: int) -> bytes:
        """See :class:`toktier_stream.session.page.Reader`."""
        data = self.records[number]
        assert zlib.crc32(data) == crc
        return data

    def put(self, number: int, data: bytes | None) -> None:
        """Store a record."""
        assert data is not None
        self.records[number] = data


def stored(text: bytes) -> tuple[bytes, Shelf]:
    """The header's record of a session of that text, and the others."""
    shelf = Shelf()
    session = Session(Header(b"one"), shelf)
    session.reset(ENCODER, text, tokenizer="sha256:abc")
    record, _ = session.seal(sealing.Scratch(), shelf.put)
    return record, shelf


def again(record: bytes, shelf: Shelf) -> Session:
    """A session that is read from its header."""
    return Session(headers.decode(record, b"one"), shelf, None, record)


def texts(least: int, most: int) -> st.SearchStrategy[bytes]:
    """Text of several scripts, with tokens of no bytes and of many."""
    parts = st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 30)), max_size=most)
    joined = parts.map(lambda found: "".join(p * n for p, n in found).encode())
    return joined.filter(lambda text: len(text) >= least)


@given(texts(1, 8), st.lists(texts(0, 4), min_size=1, max_size=4), st.data())
@settings(max_examples=60)
def test_at_once_or_part_by_part(text: bytes, news: list[bytes], data: st.DataObject) -> None:
    """A header, other records and the session behind them, for appends of any text and whatever
    else a header has."""
    record, shelf = stored(text)
    recent = tuple((i, i << 40, i << 50) for i in range(data.draw(st.integers(0, 8))))
    flag, live = data.draw(st.booleans()), data.draw(st.booleans())
    floor = data.draw(st.integers(0, 1 << 31))
    found = []
    for at_once in (True, False):
        session = again(record, shelf).fork(floor)
        if live:
            session._paged.settle(opened=True)
        for new in news:
            session.edit(ENCODER, session.bytes, session.bytes, new)
        session.mark(revision=7, recent=recent, touched_ms=1 << 41, closed=flag, quarantined=flag)
        taken: list[tuple[int, bytes | None]] = []
        with pytest.MonkeyPatch.context() as patch:
            if not at_once:
                patch.setattr(sealing, "seal", lambda *_: None)
            header, written = session.seal(
                sealing.Scratch(), lambda number, value, to=taken: to.append((number, value))
            )
        for part in written:
            part.stored = True
        after = Shelf()
        after.records |= shelf.records
        for number, value in taken:
            after.put(number, value)
        session.settle()
        session._paged._reader = after
        whole = text + b"".join(news)
        for one in (session, again(header, after)):
            check_session(one, ENCODER, whole)
            assert one.header() == headers.decode(header, b"one")
            assert one.verify() == len(after.records)
        end = session._end
        assert end is None or end == (
            end.byte, end.token, end.ids, end.lengths, whole[end.byte :],
        )  # fmt: skip
        found.append((header, taken))
    assert found[0] == found[1]


@pytest.mark.parametrize("family", ["gptoss", "qwen3"])
def test_many_appends_of_real_tokens(family: str, family_file, tmp_path: Path) -> None:
    """Sessions that grow past a full index node: the same changelog and store by the pass as by the
    tree, and nearly all appends go by the pass."""
    encoder = open_registry({"t": family_file(family)}, "t").resolve("t").encoder
    line = "def f(x):\n    return {'größe': x, '漢字': 12345}  # words come and go\n"
    text = line * 900
    passed, asked = 0, 0
    raw = sealing.seal

    def counted(*given_: object) -> object:
        nonlocal passed, asked
        done = raw(*given_)  # type: ignore[arg-type]
        asked, passed = asked + 1, passed + (done is not None)
        return done

    def lived(folder: Path, *, at_once: bool) -> tuple[object, list[Changes]]:
        log, at, offset = [], 0, 0
        with Store.open(folder, map_bytes=64 << 20) as store, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sealing, "seal", counted if at_once else lambda *_: None)
            for turn in range(120):
                batch = store.begin()
                for name in (b"one", b"two"):
                    size = 1 + (turn * 379 + len(name) * name[0]) % 2800
                    session = batch.session(name) or batch.create(name)
                    if not session.bytes:
                        session.reset(encoder, text[:5000].encode())
                    new = text[at : at + size].encode()
                    session.edit(encoder, session.bytes, session.bytes, new)
                    session.mark(revision=turn, recent=((turn, turn, session.digest),))
                    at = (at + 1013) % 20_000
                log.append(batch.changes())
                offset += len(log[-1]) + 1
                store.commit(batch, changelog_offset=offset)
            for name in (b"one", b"two"):
                session = store.load(name)
                assert session is not None
                check_session(session, encoder, session.text())
            report = store.check()
            assert (report.damaged, report.orphans) == ((), 0)
            return dump(store), log

    by_pass = lived(tmp_path / "pass", at_once=True)
    assert passed > 0.9 * asked > 200
    assert by_pass == lived(tmp_path / "tree", at_once=False)
    nodes = [v for changes in by_pass[1] for k, v in changes if k[:1] == PAGE and v is not None]
    assert sum(v[0] == NODE_KIND for v in nodes) > 2 * 4


@given(st.integers(1, 1 << 20), st.sampled_from([8, 12]))
def test_sums_that_do_not_fit_are_refused(more: int, place: int) -> None:
    """A way that says something else than the session's own counts: nothing is stored over it."""
    record, shelf = stored(PIECES[0].encode() * 30)
    body = bytearray(record[:-4])
    place += headers.STEPS_AT
    struct.pack_into("<I", body, place, struct.unpack_from("<I", body, place)[0] + more)
    session = again(record, shelf).fork()
    session.edit(ENCODER, session.bytes, session.bytes, b" more")
    trail = session._paged._trail
    assert trail is not None
    session._paged._trail = trail._replace(record=bytes(body) + bytes(4))
    stale, end = session._stale, session._end
    assert stale is not None
    assert end is not None
    taken: list[int] = []
    found = session._paged.seal(
        end, stale.byte, session._front, sealing.Scratch(), lambda number, _: taken.append(number)
    )
    assert found is None
    assert taken == []


def test_a_header_of_the_version_before_goes_by_the_tree() -> None:
    """Its fields stand elsewhere."""
    record, shelf = stored(PIECES[0].encode() * 9)
    assert again(record, shelf)._paged._trail is not None
    body = b"\x04" + record[1 : headers.STEPS_AT - 2] + record[headers.STEPS_AT : -4]
    before = body + zlib.crc32(body).to_bytes(4, "little")
    assert again(before, shelf)._paged._trail is None


@pytest.mark.parametrize("size", [1, 9000, 40_000, 200_000])
def test_an_append_larger_than_the_room(size: int) -> None:
    """Goes by the tree where the pass has no room for it; the result is the same session."""
    text, new = PIECES[0].encode() * 30, (PIECES[0] * (size // 20 + 1)).encode()[:size]
    with TemporaryDirectory() as folder, Store.open(folder, map_bytes=32 << 20) as store:
        for offset, part in enumerate((text, new, new, b"end")):
            batch = store.begin()
            session = batch.session(b"one") or batch.create(b"one")
            if session.bytes:
                session.edit(ENCODER, session.bytes, session.bytes, part)
            else:
                session.reset(ENCODER, part)
            store.commit(batch, changelog_offset=offset)
        session = store.load(b"one")
        assert session is not None
        check_session(session, ENCODER, text + new + new + b"end")
        assert store.check().orphans == 0
        value = store.value(SESSION + b"one")
        assert value is not None
        assert headers.decode(value, b"one").tokens == session.tokens
