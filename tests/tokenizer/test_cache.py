"""Compiled tables on disk: read back as written, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toktier_stream.tokenizer import cache

ARRAYS = {
    "numbers": np.arange(100, dtype=np.uint64),
    "table": np.arange(12, dtype=np.int16).reshape(3, 4),
    "flags": np.array([True, False]),
    "none": np.zeros(0, dtype=np.uint8),
    "scalar": np.asarray(7),
}


def test_round_trip(tmp_path: Path) -> None:
    """Names, types, shapes and values; arrays come back read-only and on cache lines."""
    cache.store(tmp_path, "key", ARRAYS)
    loaded = cache.load(tmp_path, "key")
    assert loaded is not None
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert np.array_equal(loaded[name], array)
        assert not loaded[name].flags.writeable


def test_other_keys_are_other_files(tmp_path: Path) -> None:
    """A key is found by itself only; a file under another key's name is not taken for it."""
    cache.store(tmp_path, "one", ARRAYS)
    assert cache.load(tmp_path, "two") is None
    assert cache.load(tmp_path / "absent", "one") is None
    cache.path_of(tmp_path, "one").rename(cache.path_of(tmp_path, "two"))
    assert cache.load(tmp_path, "two") is None


def test_any_damaged_byte_is_seen(tmp_path: Path) -> None:
    """Flip each byte of a small file, one at a time: the arrays come back right or not at all."""
    cache.store(tmp_path, "key", {"a": np.arange(20, dtype=np.uint8)})
    path = cache.path_of(tmp_path, "key")
    sound = path.read_bytes()
    refused = 0
    for i in range(len(sound)):
        path.write_bytes(sound[:i] + bytes((sound[i] ^ 0x41,)) + sound[i + 1 :])
        loaded = cache.load(tmp_path, "key")
        refused += loaded is None
        if loaded is not None:
            # A byte of the header's padding, or a name: what is read is still what was written.
            assert all(np.array_equal(a, np.arange(20)) for a in loaded.values())
    assert refused > len(sound) // 2


@pytest.mark.parametrize("keep", [0, 1, 20, 64, 100, 500])
def test_cut_short(tmp_path: Path, keep: int) -> None:
    """A file that a full disk cut short is not used."""
    cache.store(tmp_path, "key", ARRAYS)
    path = cache.path_of(tmp_path, "key")
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.load(tmp_path, "key") is None


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted write leaves the old file, and no rubbish beside it."""
    cache.store(tmp_path, "key", ARRAYS)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        cache.store(tmp_path, "key", {"a": np.zeros(3)})
    assert [p.suffix for p in tmp_path.iterdir()] == [".tables"]
    loaded = cache.load(tmp_path, "key")
    assert loaded is not None
    assert "numbers" in loaded
