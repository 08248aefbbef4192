"""``toktier-stream store``: what it shows and removes, and that it notices damage."""

from __future__ import annotations

import json
import time
from pathlib import Path

import lmdb
import pytest
from typer.testing import CliRunner, Result

from toktier_stream.cli.app import app
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.environment import stored_map_bytes
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.shipped import shipped_path

MAP = 48 << 20
SECRET = "the words of a transcript, größer than ASCII. "
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def encoder():
    """The shipped tokenizer's."""
    return open_tokenizer(shipped_path()).encoder


def fill(path: Path, encoder, ages_h: dict[str, float]) -> None:
    """A store with sessions that were touched so many hours ago."""
    now_ms = time.time_ns() // 1_000_000
    with Store.open(path, map_bytes=MAP) as store:
        batch = store.begin()
        for i, (name, age) in enumerate(ages_h.items()):
            session = batch.create(name.encode())
            session.reset(encoder, (SECRET * (200 + i)).encode(), tokenizer="sha256:beef")
            session.mark(
                revision=i + 1,
                recent=((i + 1, 0xABC, session.digest),),
                touched_ms=now_ms - round(age * HOUR_MS),
                closed=name == "closed",
            )
        store.commit(batch, changelog_offset=41, source_offset=7)


@pytest.fixture
def state(tmp_path, encoder):
    """A state_dir with two partitions' stores."""
    fill(tmp_path / "appends-0", encoder, {"new": 0, "old": 30, "closed": 2})
    fill(tmp_path / "appends-1", encoder, {"other": 50})
    return tmp_path


def run(*arguments: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, ["store", *arguments])


def as_json(*arguments: str, code: int = 0):
    """What the command prints with --json; nothing of the text is in it."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    assert "transcript" not in result.stdout
    return json.loads(result.stdout)


def damage(path: Path, database: bytes) -> None:
    """Flip one byte of the first record, as a failing disk would."""
    with lmdb.open(str(path), map_size=MAP * 2, max_dbs=4) as env:
        db = env.open_db(database)
        with env.begin(write=True, db=db) as txn, txn.cursor() as cursor:
            assert cursor.first()
            key, value = cursor.item()
            txn.put(key, value[:60] + bytes([value[60] ^ 1]) + value[61:])


def test_stat_counts_each_store(state, encoder):
    """Sessions, tokens, bytes, records, used bytes, the map it was made with, and the offsets."""
    rows = as_json("stat", str(state))["stores"]
    assert [Path(r["store"]).name for r in rows] == ["appends-0", "appends-1"]
    first = rows[0]
    texts = [(SECRET * n).encode() for n in (200, 201, 202)]
    assert first["sessions"] == 3
    assert first["text_bytes"] == sum(map(len, texts))
    assert first["tokens"] == sum(len(encoder.encode(t).ids) for t in texts)
    assert (first["closed"], first["quarantined"], first["damaged"]) == (1, 0, [])
    assert first["map_bytes"] == pytest.approx(MAP, rel=0.001)
    assert (first["changelog_offset"], first["source_offset"]) == (41, 7)
    assert 0 < first["records"] * 1000 < first["used_bytes"]
    assert first["bytes_per_token"] > 0
    shown = run("stat", str(state / "appends-1"))
    assert shown.exit_code == 0
    assert "sessions:         1\n" in shown.stdout
    assert "appends-0" not in shown.stdout


def test_the_map_is_left_as_it_was(state):
    """LMDB keeps the largest map it was ever opened with: looking must not enlarge it."""
    before = stored_map_bytes(state / "appends-0")
    assert run("evict", str(state / "appends-0"), "old").exit_code == 0
    assert stored_map_bytes(state / "appends-0") == before


@pytest.mark.parametrize("size", [1 << 20, 8 << 20, 100 << 20, 3 << 30])
def test_the_map_is_read_back(tmp_path, size):
    """Whichever reserve was added to it, to within a page."""
    Store.open(tmp_path, map_bytes=size).close()
    with Store.open(tmp_path, map_bytes=0) as store:
        assert abs(store.stat().map_bytes - size) <= 4096


def test_get_shows_the_header_and_no_text(state, encoder):
    """Counts, revision, digest, flags, hashes; found in whichever store it is."""
    (row,) = as_json("get", str(state), "closed")["sessions"]
    text = SECRET * 202
    assert Path(row["store"]).name == "appends-0"
    assert (row["revision"], row["chars"], row["bytes"]) == (3, len(text), len(text.encode()))
    assert row["tokens"] == len(encoder.encode(text.encode()).ids)
    assert (row["closed"], row["quarantined"]) == (True, False)
    assert row["tokenizer"] == "sha256:beef"
    assert row["fingerprint"] == encoder.fingerprint
    assert row["recent"] == [{"revision": 3, "content": f"{0xABC:016x}", "digest": row["digest"]}]
    shown = run("get", str(state), "closed")
    assert row["digest"] in shown.stdout
    assert "transcript" not in shown.output


def test_the_text_is_shown_only_when_asked_for(state):
    """--show-text, whose help says what it prints."""
    result = run("get", str(state), "other", "--show-text", "--json")
    assert json.loads(result.stdout)["sessions"][0]["text"] == SECRET * 200
    assert SECRET * 200 in run("get", str(state), "other", "--show-text").stdout
    assert "transcript" in run("get", "--help").stdout


def test_a_session_that_is_not_there(state):
    """STATE_MISS to get; a line and exit code 1 to evict."""
    result = run("get", str(state), "nobody")
    assert isinstance(result.exception, ToktierError)
    assert result.exception.code is Code.STATE_MISS
    assert as_json("evict", str(state), "nobody", "new", code=1)["missing"] == ["nobody"]
    assert as_json("stat", str(state))["stores"][0]["sessions"] == 2


def test_evict_removes_named_sessions_and_nothing_else(state):
    """Records too; the offsets stay; the changelog is named in a warning."""
    result = run("evict", str(state), "old", "other")
    assert result.exit_code == 0
    assert "2 evicted, 0 not there" in result.stdout
    assert "changelog" in result.stderr
    one, two = as_json("stat", str(state))["stores"]
    assert (one["sessions"], two["sessions"], two["records"]) == (2, 0, 0)
    assert (one["changelog_offset"], one["source_offset"]) == (41, 7)
    assert as_json("check", str(state))["stores"][0]["orphans"] == 0


@pytest.mark.parametrize(
    ("age", "gone"), [("60h", set()), ("40h", {"other"}), ("1d", {"old", "other"}),
                      ("90m", {"old", "other", "closed"})]
)  # fmt: skip
def test_evict_by_age(state, age, gone):
    """What nobody touched for so long, in every store."""
    evicted = as_json("evict", str(state), "--older-than", age)["evicted"]
    assert {e["session"] for e in evicted} == gone


def test_evict_by_age_in_several_rounds(state, encoder, monkeypatch):
    """More sessions than one transaction removes."""
    monkeypatch.setattr("toktier_stream.cli.store._EVICTED_AT_ONCE", 2)
    fill(state / "appends-2", encoder, {f"s{i}": 30 for i in range(5)} | {"young": 1})
    evicted = as_json("evict", str(state / "appends-2"), "--older-than", "24h")["evicted"]
    assert sorted(e["session"] for e in evicted) == [f"s{i}" for i in range(5)]


@pytest.mark.parametrize(
    "wrong", [[], ["--older-than", "soon"], ["--older-than", "1w"], ["new", "--older-than", "1h"]]
)
def test_evict_refuses_unclear_requests(state, wrong):
    """Neither ids nor an age, both, or no duration: exit code 2 and nothing removed."""
    assert run("evict", str(state), *wrong).exit_code == 2
    assert [r["sessions"] for r in as_json("stat", str(state))["stores"]] == [3, 1]


def test_a_store_in_use_is_left_alone(state):
    """STORE_BUSY while a worker holds it."""
    with Store.open(state / "appends-1", map_bytes=MAP):
        for verb in (["stat"], ["get", "other"], ["evict", "other"], ["check"]):
            result = run(verb[0], str(state / "appends-1"), *verb[1:])
            assert isinstance(result.exception, ToktierError), verb
            assert result.exception.code is Code.STORE_BUSY


def test_a_folder_without_a_store_is_said_to_be_none(tmp_path):
    """STORE_FORMAT, and nothing is created there."""
    for verb in ("stat", "check"):
        result = run(verb, str(tmp_path))
        assert isinstance(result.exception, ToktierError)
        assert result.exception.code is Code.STORE_FORMAT
    assert list(tmp_path.iterdir()) == []


def test_a_sound_store_passes_the_check(state):
    """Exit code 0, for people and machines."""
    result = run("check", str(state))
    assert result.exit_code == 0
    assert result.stdout.count(": sound; ") == 2
    rows = as_json("check", str(state))["stores"]
    assert [(r["sessions"], r["damaged"], r["orphans"]) for r in rows] == [(3, [], 0), (1, [], 0)]


def test_a_damaged_page_is_found(state):
    """Exit code 1 and the session's name; the other store is checked too."""
    damage(state / "appends-1", b"pages")
    rows = as_json("check", str(state), code=1)["stores"]
    assert [r["damaged"] for r in rows] == [[], ["other"]]
    shown = run("check", str(state))
    assert shown.exit_code == 1
    assert "damaged: other" in shown.stdout


def test_a_damaged_header_is_counted_and_can_be_evicted(state):
    """stat goes on without it and exits with 1; evicting it makes the store sound."""
    damage(state / "appends-1", b"sessions")
    assert as_json("stat", str(state), code=1)["stores"][1]["damaged"] == ["other"]
    assert run("evict", str(state), "other").exit_code == 0
    assert as_json("check", str(state))["stores"][1]["records"] == 0
