"""Tables kept on disk: read instead of built, and built again where the file is not sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from incremental_dictionaries import make
from incremental_onepiece import artifact, spec

from toktier_stream.incremental import stored
from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.incremental.rules import Rules
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.giant import Kit
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer import cache
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.shipped import shipped_path

_D = make(b"abc", [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"c", b"ab"), (b"a", b"bc")])


def _refused() -> Rules:
    raise AssertionError("the tables are built")


def _theta(tables: Tables) -> list[int]:
    state = State(tables)
    state.extend(np.frombuffer(b"abcabcaabbccab" * 20, dtype=np.uint8).astype(np.int32))
    return [int(u) for u in state.theta]


def _file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_the_second_load_builds_nothing(tmp_path: Path) -> None:
    built = stored.tables("d", lambda: _D.rules, folder=tmp_path)
    read = stored.tables("d", _refused, folder=tmp_path)
    assert _theta(read) == _theta(built) == _theta(_D.tables)
    for name, array in built.to_arrays().items():
        np.testing.assert_array_equal(read.to_arrays()[name], array)
    with pytest.raises(AssertionError):
        stored.tables("another", _refused, folder=tmp_path)


def test_tables_of_other_sources_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.tables("d", lambda: _D.rules, folder=tmp_path)
    monkeypatch.setattr(stored, "source_hash", lambda: "changed")
    with pytest.raises(AssertionError):
        stored.tables("d", _refused, folder=tmp_path)


def test_a_damaged_file_is_built_again(tmp_path: Path) -> None:
    stored.tables("d", lambda: _D.rules, folder=tmp_path)
    sound = _file(tmp_path).read_bytes()
    used = sound.rstrip(b"\0")
    places = sorted({0, 1, 40, *range(0, len(used), len(used) // 60), len(used) - 1})
    for at in places:
        broken = bytearray(sound)
        broken[at] ^= 0x41
        _file(tmp_path).write_bytes(broken)
        with pytest.raises(AssertionError):
            stored.tables("d", _refused, folder=tmp_path)
        assert _theta(stored.tables("d", lambda: _D.rules, folder=tmp_path)) == _theta(_D.tables)
        assert _file(tmp_path).read_bytes() == sound
    for size in (0, 1, len(used) // 2, len(used) - 1):
        _file(tmp_path).write_bytes(sound[:size])
        stored.tables("d", lambda: _D.rules, folder=tmp_path)
        assert _file(tmp_path).read_bytes() == sound


def test_sound_files_of_wrong_tables_are_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays that the checksum vouches for are still held to offline BPE, and to their format."""
    keys: list[str] = []
    store = cache.store

    def kept(folder: Path, key: str, arrays: cache.Arrays) -> None:
        keys.append(key)
        store(folder, key, arrays)

    monkeypatch.setattr(cache, "store", kept)
    right = stored.tables("d", lambda: _D.rules, folder=tmp_path).to_arrays()
    narrow, older, bare = dict(right), dict(right), dict(right)
    narrow["steps_kids"] = right["steps_kids"].copy()
    narrow["steps_kids"][:, 1] = 0  # no interval holds anything
    older["format"] = right["format"] - 1
    del bare["steps_pairs"]
    for wrong in (narrow, older, bare):
        store(tmp_path, keys[0], wrong)
        with pytest.raises(AssertionError):
            stored.tables("d", _refused, folder=tmp_path)
        assert _theta(stored.tables("d", lambda: _D.rules, folder=tmp_path)) == _theta(_D.tables)


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    for _ in range(2):
        built = stored.tables("d", lambda: _D.rules, folder=blocked / "tables")
        assert _theta(built) == _theta(_D.tables)


def test_one_piece_families_and_streams_read_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a warm-up leaves behind is all that the next process needs."""
    encoder = open_tokenizer(shipped_path()).encoder
    monkeypatch.setenv("TOKTIER_CACHE", str(tmp_path))
    family = artifact(spec())
    first = OnePieceEncoder(family)
    assert isinstance(encoder, FastEncoder)
    warm(encoder)

    def never(rules: Rules) -> Tables:
        raise AssertionError("the tables are built")

    monkeypatch.setattr(stored, "build", never)
    text = "ab abc <s> größe 漢字".encode()
    second = OnePieceEncoder(family)
    assert second.encode(text).ids.tolist() == first.encode(text).ids.tolist()
    assert Kit(encoder).follower is not None
    for file in (tmp_path / "tables").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    for use in (lambda: OnePieceEncoder(family), lambda: Kit(encoder)):
        with pytest.raises(AssertionError):
            use()
