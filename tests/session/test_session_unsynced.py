"""Commits left to the operating system are trusted in the same boot, and only there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from session_harness import MadeUp

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import unsynced
from toktier_stream.session.store import Store

ENCODER = MadeUp()
ROOM = 16 << 20


def put(folder: Path, name: bytes, *, sync: bool, close: bool = True) -> Store:
    """Commit a session, and close the store or leave it as a killed process does."""
    store = Store.open(folder, map_bytes=ROOM, sync=sync)
    batch = store.begin()
    session = batch.create(name)
    session.reset(ENCODER, b"some words and more of them " * 40)
    session.mark(revision=1)
    store.commit(batch, changelog_offset=store.changelog_offset + 1)
    if close:
        store.close()
    return store


def abandon(store: Store) -> None:
    """Let go of the folder without closing: what the end of a process does."""
    store._env.close()
    os.close(store._lock)
    store._lock = -1


def names(folder: Path, *, sync: bool) -> list[bytes]:
    """What a store holds that is opened anew."""
    with Store.open(folder, map_bytes=ROOM, sync=sync) as store:
        return list(store.session_ids())


@pytest.mark.parametrize("sync", [False, True])
def test_the_same_boot_is_trusted(tmp_path: Path, *, sync: bool) -> None:
    """After the end of a process everything committed is there, however the store is opened."""
    abandon(put(tmp_path, b"a", sync=False, close=False))
    assert (tmp_path / unsynced.MARK).read_text() == unsynced.boot()
    with Store.open(tmp_path, map_bytes=ROOM, sync=sync) as store:
        assert list(store.session_ids()) == [b"a"]
        assert (tmp_path / unsynced.MARK).exists() is not sync
    assert not (tmp_path / unsynced.MARK).exists()


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("found", ["2d7b0f0e-another-boot", ""])
def test_another_boot_is_not(tmp_path: Path, found: str, *, sync: bool) -> None:
    """Nor a mark that a crash cut short: the store begins empty, and stands at the beginning of
    its changelog, so that the next owner reads all of it."""
    abandon(put(tmp_path, b"a", sync=False, close=False))
    (tmp_path / unsynced.MARK).write_text(found)
    with Store.open(tmp_path, map_bytes=ROOM, sync=sync) as store:
        assert list(store.session_ids()) == []
        assert store.changelog_offset == 0
    assert (tmp_path / "damaged-data.mdb").exists()
    put(tmp_path, b"b", sync=sync)
    assert names(tmp_path, sync=sync) == [b"b"]


@pytest.mark.parametrize("closed", [False, True])
def test_a_synced_store_outlives_the_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    """One that was closed, or one whose commits wait for the disk."""
    store = put(tmp_path, b"a", sync=not closed, close=closed)
    if not closed:
        abandon(store)
    monkeypatch.setattr(unsynced, "boot", lambda: "the next boot")
    assert names(tmp_path, sync=False) == [b"a"]


def test_without_a_boot_id_commits_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not say which boot this is."""
    monkeypatch.setattr(unsynced, "boot", lambda: "")
    store = put(tmp_path, b"a", sync=False, close=False)
    assert not (tmp_path / unsynced.MARK).exists()
    assert store._env.flags()["sync"]
    abandon(store)
    assert names(tmp_path, sync=False) == [b"a"]


def test_a_mark_that_cannot_be_written_stops_the_store(tmp_path: Path) -> None:
    """It must be on the disk before the first commit is not."""
    (tmp_path / unsynced.MARK).mkdir()
    with pytest.raises(ToktierError) as refused:
        Store.open(tmp_path, map_bytes=ROOM, sync=False)
    assert refused.value.code is Code.STORE_FORMAT
