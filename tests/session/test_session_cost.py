"""What an append costs does not follow the session: the interpreter's steps, bytes written, records
read, bytes at rest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from toktier_stream.session import store as stores
from toktier_stream.session.record import Session
from toktier_stream.session.store import Batch, Store
from toktier_stream.tokenizer.face import Tokens

_SIZES = (100_000, 1_000_000, 8_000_000)
_DELTA = 1_500


class Words:
    """An encoder for speed: words of three letters and the space before them."""

    fingerprint = "words"
    engine = "words-1"
    longest_token = 8
    literal_reach = 0
    splices = True

    def encode(self, text: bytes) -> Tokens:
        """One token per four bytes."""
        n = -(-len(text) // 4)
        padded = np.frombuffer(text.ljust(4 * n, b" "), dtype="<u4")
        lengths = np.full(n, 4, dtype=np.uint32)
        if n:
            lengths[-1] = len(text) - 4 * (n - 1)
        return Tokens((padded % 150_000).astype(np.uint32), lengths)

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        """See :class:`toktier_stream.tokenizer.face.Encoder`."""
        return text.rfind(b" ", max(low, 1), min(high, len(text) - 1) + 1)

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        """See :class:`toktier_stream.tokenizer.face.Encoder`."""
        return text.find(b" ", max(low, 1), min(high, len(text) - 1) + 1)


def text(size: int, seed: int) -> bytes:
    """Words, never the same block twice."""
    random = np.random.default_rng(seed)
    letters = random.integers(97, 123, size=(size // 4, 4), dtype=np.uint8)
    letters[:, 0] = 32
    return letters.tobytes()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Sessions of several sizes."""
    folder: Path = tmp_path_factory.mktemp("cost")
    with Store.open(folder, map_bytes=1 << 30) as opened:
        for size in _SIZES:
            batch = opened.begin()
            batch.create(b"%d" % size).reset(Words(), text(size, size))
            opened.commit(batch, changelog_offset=0)
        yield opened


def _append(store: Store, name: bytes, seed: int) -> tuple[int, Session]:
    batch = store.begin()
    session = batch.session(name)
    assert session is not None
    session.edit(Words(), session.bytes, session.bytes, text(_DELTA, seed))
    session.mark(revision=seed)
    changes = batch.changes()
    store.commit(batch, changelog_offset=0)
    return sum(len(key) + len(value or b"") for key, value in changes), session


def _steps(work: Callable[[], object]) -> int:
    """How many instructions of the interpreter a call takes: the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


def test_steps_are_flat(store: Store) -> None:
    """An append to a live session, in memory and with its way into the store: within 10 % at 100 K
    and 8 M characters, in the mean of many (a page more or less is closed by each)."""
    few, many = _SIZES[0], _SIZES[-1]
    means: dict[str, dict[int, float]] = {}
    for size in (few, many):
        name = b"%d" % size
        _append(store, name, 1)
        steps: dict[str, list[int]] = {"live": [], "stored": []}
        for seed in range(40):
            batch = store.begin()
            delta = text(_DELTA, seed)

            def live(batch: Batch = batch, name: bytes = name, delta: bytes = delta) -> None:
                session = batch.session(name)
                assert session is not None
                session.edit(Words(), session.bytes, session.bytes, delta)

            def stored(batch: Batch = batch) -> None:
                batch.changes()
                store.commit(batch, changelog_offset=0)

            steps["live"].append(_steps(live))
            steps["stored"].append(steps["live"][-1] + _steps(stored))
        for kind, counts in steps.items():
            means.setdefault(kind, {})[size] = sum(counts) / len(counts)
    for kind, mean in means.items():
        assert abs(mean[many] / mean[few] - 1) < 0.1, f"{kind}: {mean}"


def test_bytes_written_are_flat_and_few(store: Store) -> None:
    """Over 250 appends of 1.5 K characters: within 10 % of each other at every size, and at most
    8 KB, in the mean and each one."""
    means = []
    for size in _SIZES:
        written = [_append(store, b"%d" % size, seed)[0] for seed in range(250)]
        means.append(sum(written) / len(written))
        assert max(written) < 3 * 8192
        assert np.percentile(written, 95) < 8192 + 2048
    assert max(means) <= 8192
    assert max(means) <= 1.1 * min(means)


def test_records_read_are_flat(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold append reads the last pages and one index node per level; an edit in the middle reads
    no more than twice that."""
    reads: list[int] = []
    inner = stores.SessionReader.read

    def counted(self: stores.SessionReader, number: int, crc: int) -> bytes:
        reads.append(number)
        return inner(self, number, crc)

    monkeypatch.setattr(stores.SessionReader, "read", counted)
    for size in _SIZES:
        store._hot.clear()
        reads.clear()
        _append(store, b"%d" % size, 7)
        assert len(reads) <= 6
        store._hot.clear()
        reads.clear()
        batch = store.begin()
        session = batch.session(b"%d" % size)
        assert session is not None
        change = session.edit(Words(), 40_000, 40_004, b" new")
        written = sum(len(key) + len(value or b"") for key, value in batch.changes())
        assert len(change.ids) < 10
        assert len(reads) <= 12
        assert written < 3 * 8192
        batch.discard()


def test_nothing_large_stays_in_memory(store: Store) -> None:
    """A live session keeps its last pages and the way to them, whatever its size."""
    for size in _SIZES:
        _append(store, b"%d" % size, 9)
        kept = store._hot.entry(b"%d" % size)
        assert kept is not None
        _, footprint = kept
        assert footprint < 64_000


def test_bytes_at_rest(tmp_path: Path) -> None:
    """At most 10 bytes per token on disk, index and header included, after a life of appends."""
    with Store.open(tmp_path / "s", map_bytes=1 << 30) as store:
        batch = store.begin()
        batch.create(b"one").reset(Words(), text(100_000, 1))
        store.commit(batch, changelog_offset=0)
        for seed in range(300):
            _, session = _append(store, b"one", seed)
        assert store.used_bytes() / session.tokens < 10
        assert store.check().damaged == ()
