"""The benchmark of durable appends: numbers that are there, and proofs that can fail."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from toktier_stream.bench import store as bench
from toktier_stream.bench import store_tables
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.record import Session
from toktier_stream.session.store import CheckReport, Store
from toktier_stream.tokenizer.shipped import shipped_path


def small(**options):
    """A run of seconds."""
    options = {"sizes": (3_000, 9_000), "sessions": 4, "batches": 2, "resident": (), **options}
    return bench.run({"shipped": shipped_path()}, **options)


def test_a_run_fills_its_tables_and_leaves_nothing(tmp_path: Path) -> None:
    """Ratios, bytes, memory; printed, saved and drawn; the stores are gone."""
    place = tmp_path / "stores"
    place.mkdir()
    result = small(resident=((20, 1_000), (1, 9_000)), folder=place)
    assert [row["chars"] for row in result["sizes"]] == [3_000, 9_000]
    for row in result["sizes"]:
        assert row["exact"]
        assert row["sound"]
        assert row["judge"].startswith("reference")
        assert row["ratio"] > 0
        assert 300 < row["record_bytes"] < 3 * 8192
        assert row["file_bytes"] is None or row["file_bytes"] > row["record_bytes"] / 2
        assert row["bytes_per_token"] > 4
        assert row["tokens"] > 4 * 3_000 / 8
    for memory, (sessions, tokens) in zip(
        result["resident"], ((20, 1_000), (1, 9_000)), strict=True
    ):
        assert memory["sessions"] == memory["live"] == sessions
        assert abs(memory["tokens"] / tokens - 1) < 0.1
        assert memory["accounted_bytes"] > 1_000 * sessions
        assert memory["hot_limit"] == 256 << 20
        assert memory["after_bytes"] > 10**7
    assert list(place.iterdir()) == []
    output = io.StringIO()
    store_tables.show(result, Console(file=output, width=200))
    for words in ("Durable appends", "Memory of live sessions", "exact", "sound"):
        assert words in output.getvalue()
    bench.save(result, tmp_path / "store.json")
    assert json.loads((tmp_path / "store.json").read_text())["sizes"] == result["sizes"]
    store_tables.plot(result, tmp_path / "store.png")
    assert (tmp_path / "store.png").read_bytes().startswith(b"\x89PNG")


def test_wrong_ids_and_damaged_records_are_noticed(monkeypatch) -> None:
    """Of any session, and of any record."""
    inner = Session.ids
    monkeypatch.setattr(Session, "ids", lambda self: inner(self) ^ np.uint32(1))
    monkeypatch.setattr(Store, "check", lambda _: CheckReport(4, 9, (b"session-3",), 0))
    (row,) = small(sizes=(3_000,))["sizes"]
    assert not row["exact"]
    assert not row["sound"]
    output = io.StringIO()
    store_tables.show(small(sizes=(3_000,)), Console(file=output, width=200))
    assert "DIFFER" in output.getvalue()
    assert "DAMAGED" in output.getvalue()


def test_a_text_that_is_too_short_is_refused() -> None:
    """Rather than repeated."""
    with pytest.raises(ToktierError) as refused:
        small(text="too short")
    assert refused.value.code is Code.CONFIG_INVALID
