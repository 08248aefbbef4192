"""The benchmark of every-prefix BPE: it measures what it says, prints, and notices a difference."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from incremental_onepiece import spec
from rich.console import Console

from toktier_stream.bench import incremental, incremental_walls
from toktier_stream.bench.incremental_tables import show
from toktier_stream.incremental.search import WIDEST
from toktier_stream.session.record import Session
from toktier_stream.tokenizer.shipped import shipped_path


def _file(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(spec()))
    return path


def test_a_run_fills_every_table_and_prints_it(tmp_path: Path) -> None:
    said: list[str] = []
    result = incremental.run(
        {"small": _file(tmp_path)},
        {"letters": b"ab abab cc " * 200, "other": "中<s>aé".encode() * 100},
        sizes=(4, 6),
        updates=2000,
        rounds=1,
        wall_context=0,
        progress=said.append,
    )
    assert [row["probes"]["BALANCED"] for row in result["family"]] == [11, 22]
    assert [row["probes"]["WEIGHTED"] for row in result["family"]] == [4, 6]
    assert [row["comparisons"]["WEIGHTED"] for row in result["family"]] == [5, 7]
    assert [row["corpus"] for row in result["searches"]] == ["letters", "other"]
    assert all(row["audits"] > 0 for row in result["searches"])
    assert said[0] == "constructed family, t = 16"
    output = io.StringIO()
    show(result, Console(file=output, width=200))
    for words in ("Constructed family", "Probes where", "Nanoseconds", "memory", "Adversarial"):
        assert words in output.getvalue()
    incremental.save(result, tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["updates"] == 2000
    incremental.plot(result, tmp_path / "probes.png")
    assert (tmp_path / "probes.png").read_bytes().startswith(b"\x89PNG")


def test_quantiles_are_by_nearest_rank() -> None:
    histogram = np.zeros(WIDEST, dtype=np.int64)
    assert incremental.quantiles(histogram) == [0, 0, 0, 0, 0]
    histogram[[1, 2, 5, 7]] = 950, 40, 9, 1
    assert incremental.quantiles(histogram) == [1, 1, 2, 5, 7]


@pytest.mark.families
def test_ordinary_text_needs_few_probes(family_file: Callable[[str], Path]) -> None:
    """As in the paper's tables 1 and 2: small degrees, and the weighted tree reads less."""
    result = incremental.run(
        {"gpt2": family_file("gpt2")}, sizes=(), updates=100_000, rounds=1, wall_context=0
    )
    for row in result["searches"]:
        assert 2 < row["searched_percent"] < 20
        assert row["max_degree"] <= 8
        assert row["probes"]["WEIGHTED"][2] <= 3 <= row["probes"]["BALANCED"][2] <= 7
        assert row["probes"]["WEIGHTED"][-1] <= row["probes"]["BALANCED"][-1]


def test_appends_to_walls_are_measured_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of run is appended to, no id differs, and a difference would be told."""
    path = shipped_path()
    row = incremental_walls.walls("shipped", path, 1, context=20_000)
    assert row is not None
    assert row["times_prose"]["prose"] == 1.0
    assert set(row["us"]) == {"prose", "one letter", "letters", "mixed letters", "digits", "base64"}
    assert all(value > 0 for value in row["us"].values())
    output = io.StringIO()
    show(
        {"family": [], "searches": [], "walls": [row], "rounds": 1, "load_average": 0.0, "cpus": 1},
        Console(file=output, width=200),
    )
    assert "without boundaries" in output.getvalue()
    ids = Session.ids
    monkeypatch.setattr(Session, "ids", lambda session: ids(session)[:-1])
    with pytest.raises(RuntimeError, match="ids differ"):
        incremental_walls.walls("shipped", path, 1, context=20_000)
