"""A partition's log in memory stays within its bounds and keeps what it must keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.broker.log import PartitionLog, size_of
from toktier_stream.broker.port import OutRecord, Record


def new_log(*, compacted: bool = False, retention_bytes: int | None = None) -> PartitionLog:
    return PartitionLog("t", 0, compacted=compacted, retention_bytes=retention_bytes)


def replayed(records: list[Record]) -> dict[bytes | None, bytes]:
    """The state that a log stands for: the last value of each key, without the removed ones."""
    last = {r.key: r.value for r in records}
    return {key: value for key, value in last.items() if value is not None}


@given(st.lists(st.one_of(st.none(), st.binary(max_size=20))), st.integers(0, 60))
def test_reading_and_counting_equal_a_plain_list(steps: list[bytes | None], offset: int) -> None:
    """Whatever is appended between markers (None here), reads and byte counts from any offset
    are those of a list that is searched from the start."""
    log, twin = new_log(), []
    for step in steps:
        if step is None:
            log.mark()
        else:
            twin.append((log.end, step))
            assert log.append(OutRecord("t", b"k", step)) == twin[-1][0]
    wanted = [(o, value) for o, value in twin if o >= offset]
    found = log.read(offset, 1000)
    assert [(r.offset, r.value) for r in found] == wanted
    assert log.bytes_from(offset) == sum(size_of(r) for r in found)
    assert list(log.read(offset, 2)) == list(found)[:2]


def test_a_plain_log_drops_only_what_was_consumed() -> None:
    """Retention frees the oldest records, but none that somebody still has to get."""
    log = new_log(retention_bytes=10_000)
    for i in range(100):
        log.append(OutRecord("t", b"k", bytes(1000)))
        log.shrink(consumed=min(i, 20))
    assert log.start == 20
    assert [r.offset for r in log.read(0, 1000)] == list(range(20, 100))
    log.append(OutRecord("t", b"k", bytes(1000)))
    log.shrink(consumed=101)
    assert log.held_bytes <= 10_000
    assert log.held_bytes == log.bytes_from(0) == sum(size_of(r) for r in log.read(0, 1000))
    assert log.end == 101


def test_a_log_without_retention_keeps_everything() -> None:
    """None means no bound."""
    log = new_log()
    for _ in range(1000):
        log.append(OutRecord("t", b"k", bytes(1000)))
        log.shrink(consumed=log.end)
    assert len(log) == 1000


def test_a_compacted_log_follows_the_live_keys() -> None:
    """Rewriting the same keys forever takes bounded memory; the state replayed from it, and its
    offsets' order, stay right, removed keys included."""
    log = new_log(compacted=True)
    state: dict[bytes | None, bytes] = {}
    for i in range(20_000):
        key = b"%d" % (i * 7919 % 50)
        value = None if i % 11 == 0 else b"%d" % i + bytes(500)
        log.append(OutRecord("t", key, value))
        log.shrink(consumed=0)
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
        assert log.held_bytes < (1 << 20) + 50 * 2 * 700
    records = list(log.read(0, 1_000_000))
    assert replayed(records) == state
    offsets = [r.offset for r in records]
    assert offsets == sorted(set(offsets))
    assert log.end == 20_000


def test_a_tombstone_survives_one_compaction() -> None:
    """A reader that has read a value long ago still meets its removal at the next compaction,
    and the one after that frees the tombstone."""
    log = new_log(compacted=True)
    log.append(OutRecord("t", b"gone", b"v"))
    log.append(OutRecord("t", b"gone", None))
    lengths = []
    while len(lengths) < 2:
        before = len(log)
        log.append(OutRecord("t", b"k", bytes(100_000)))
        log.shrink(consumed=0)
        if len(log) <= before:
            lengths.append(any(r.key == b"gone" for r in log.read(0, 1000)))
    assert lengths == [True, False]
