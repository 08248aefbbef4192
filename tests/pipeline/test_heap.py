"""Freezing the heap: less for the collector to walk, and nothing leaks by it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from toktier_stream import telemetry
from toktier_stream.pipeline.heap import THRESHOLDS, Pauses, settle


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The collector of this process is left as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Node:
    """Something that can be in a cycle."""

    def __init__(self) -> None:
        self.other: object = None


def test_what_is_frozen_is_not_walked_and_still_freed_by_its_count():
    """A frozen object without a cycle dies with its last reference."""
    kept = [Node() for _ in range(1000)]
    watched = weakref.ref(kept[0])
    frozen = settle()
    assert frozen > 1000
    assert not any(o is kept for o in gc.get_objects())
    assert gc.get_threshold() == THRESHOLDS
    kept.clear()
    assert watched() is None


def test_cycles_made_later_are_collected():
    """Garbage of the work after freezing goes as ever; so does what was garbage before."""
    before = Node()
    before.other = before
    old = weakref.ref(before)
    del before
    settle()
    assert old() is None
    after = Node()
    after.other = after
    new = weakref.ref(after)
    del after
    assert new() is not None
    gc.collect()
    assert new() is None


def test_settling_again_takes_in_what_came_since():
    """Twice is as once: engines first, restored partitions later."""
    first = settle()
    later = [[] for _ in range(5000)]
    assert settle() >= first + len(later)


def test_sessions_that_come_and_go_do_not_pile_up():
    """A real store in a process of its own, frozen after its warm-up: thousands of sessions are
    made and removed, and the collector's objects do not grow."""
    script = """
import gc, tempfile
from pathlib import Path
from toktier_stream.pipeline.heap import settle
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.store import Store
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.shipped import shipped_path
encoder = open_tokenizer(shipped_path()).encoder
warm(encoder)
settle()
def round_(store, n):
    batch = store.begin()
    for i in range(50):
        batch.create(b"%d-%d" % (n, i)).reset(encoder, b"some words of a transcript " * 40)
    store.commit(batch, changelog_offset=2 * n)
    batch = store.begin()
    for i in range(50):
        batch.remove(b"%d-%d" % (n, i))
    store.commit(batch, changelog_offset=2 * n + 1)
    gc.collect()
    return len(gc.get_objects()) + gc.get_freeze_count()
with tempfile.TemporaryDirectory() as folder:
    with Store.open(Path(folder), map_bytes=64 << 20, hot_bytes=64 << 20) as store:
        counts = [round_(store, n) for n in range(12)]
print(max(counts[4:]) - counts[3])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=240
    )
    assert int(done.stdout) < 200


def test_pauses_are_measured(monkeypatch: pytest.MonkeyPatch):
    """Each collection is recorded with its generation, until it is closed."""
    seen: list[tuple[str, float, str]] = []
    instruments = telemetry.Instruments()
    monkeypatch.setattr(
        instruments,
        "record",
        lambda name, value, generation: seen.append((name, value, generation)),
    )
    pauses = Pauses(instruments)
    pauses.open()
    gc.collect(0)
    gc.collect(2)
    pauses.close()
    pauses.close()
    gc.collect(1)
    assert [(name, generation) for name, _, generation in seen] == [
        ("toktier.gc.pause", "0"),
        ("toktier.gc.pause", "2"),
    ]
    assert all(0 < value < 10 for _, value, _ in seen)
