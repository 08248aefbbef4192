"""The benchmark of appends: it measures what it says, checks every answer, prints and draws."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from toktier_stream.bench import append, append_tables
from toktier_stream.bench.append_peers import Opened
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.shipped import shipped_path


class Peer:
    """The reference as a peer, with a fault if asked for."""

    def __init__(self, reference: Reference, context: str, fault: str) -> None:
        self._reference, self._context, self._fault = reference, context, fault

    def append(self, text: str) -> Callable[[], Callable[[], object]]:
        """See the benchmark's face of peers."""

        def work():
            if self._fault == "refuses":
                raise RuntimeError("cannot")
            ids = self._reference.ids(self._context + text)
            return lambda: ids ^ np.uint32(self._fault == "wrong")

        return work


def fake(artifact, stack):
    """One peer of each kind; one of them cannot even be made."""
    reference = Reference(artifact)

    def make(fault):
        def of(context):
            if fault == "absent":
                raise ValueError("no")
            return Peer(reference, context, fault)

        return of

    kinds = ("right", "wrong", "refuses", "absent")
    return Opened({kind: make(kind) for kind in kinds}, {"fake": "1"})


def small(**options):
    """A run of seconds."""
    options = {"contexts": (3_000, 9_000), "appends": (256, 1_500), "rounds": 2, **options}
    return append.run({"shipped": shipped_path()}, **options)


def test_every_cell_is_filled_checked_printed_and_drawn(tmp_path: Path, monkeypatch) -> None:
    """Ours is exact; a wrong peer has a star, one that refuses is said to have failed."""
    monkeypatch.setattr(append, "opened", fake)
    said: list[str] = []
    result = small(progress=said.append)
    rows = result["appends"]
    assert [(r["context"], r["append"]) for r in rows] == [
        (3_000, 256), (3_000, 1_500), (9_000, 256), (9_000, 1_500),
    ]  # fmt: skip
    for row in rows:
        engines = row["engines"]
        assert row["judge"] == "tokenizers"
        assert engines["toktier-stream"]["exact"]
        assert 2 <= engines["toktier-stream"]["samples"] <= 2 * append.MOST
        assert engines["tokenizers"]["samples"] == 1
        assert engines["right"]["exact"]
        assert not engines["wrong"]["exact"]
        assert row["failed"] == {"refuses": "RuntimeError", "absent": "ValueError"}
        assert all(e["cpu_ms"] > 0 and e["first_ms"] > 0 for e in engines.values())
    target = result["targets"]["shipped"]
    assert target["exact"] is True
    assert target["flat"] > 0
    assert set(target["typical"]["times_ours"]["9000"]) == {"tokenizers", "right", "wrong"}
    assert "shipped: context of 9,000 characters" in said
    output = io.StringIO()
    append_tables.show(result, Console(file=output, width=250))
    assert "toktier-stream" in output.getvalue()
    assert ")*" in output.getvalue()
    assert "failed" in output.getvalue()
    append.save(result, tmp_path / "append.json")
    assert json.loads((tmp_path / "append.json").read_text())["appends"] == rows
    append_tables.plot(result, tmp_path / "append.png")
    assert (tmp_path / "append.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_id_of_ours_is_noticed(monkeypatch) -> None:
    """In every cell, whoever the judge is."""
    inner = append._Ours.append

    def faulty(self, text):
        work = inner(self, text)

        def wrong():
            answer = work()
            return lambda: answer() ^ np.uint32(1)

        return wrong

    monkeypatch.setattr(append._Ours, "append", faulty)
    result = small(with_peers=False, reference_chars=5_000)
    assert {r["judge"] for r in result["appends"]} == {"tokenizers", "full encode"}
    assert not any(r["engines"]["toktier-stream"]["exact"] for r in result["appends"])
    assert result["targets"]["shipped"]["exact"] is False


def test_a_given_text_is_used_as_far_as_it_goes() -> None:
    """Contexts that it cannot fill are left out; one that fills none is refused."""
    text = "".join(f"line {i} of some text that goes on\n" for i in range(200))
    result = small(text=text, with_peers=False, rounds=1)
    assert {r["context"] for r in result["appends"]} == {3_000}
    with pytest.raises(ToktierError) as refused:
        small(text="too short", with_peers=False)
    assert refused.value.code is Code.CONFIG_INVALID


def test_installed_peers_are_measured() -> None:
    """Whichever there are: each is filled in or said to have failed."""
    result = small(contexts=(3_000,), appends=(256,), rounds=1)
    (row,) = result["appends"]
    assert row["engines"]["toktier-stream"]["exact"]
    for name in result["peers"]:
        shown = "toktier session" if name == "toktier" else name
        assert (shown in row["engines"]) != (shown in row["failed"])


@pytest.mark.families
def test_real_tokenizers_with_every_peer_there_is(family_file: Callable[[str], Path]) -> None:
    """Ours is exact beside all of them; toktier knows this file where it is installed."""
    files = {"qwen3": family_file("qwen3")}
    result = append.run(files, contexts=(20_000,), appends=(1_500,), rounds=2)
    (row,) = result["appends"]
    assert row["engines"]["toktier-stream"]["exact"]
    assert row["failed"] == {}
    if "toktier" in result["peers"]:
        assert row["engines"]["toktier session"]["exact"]
        assert row["engines"]["toktier store"]["exact"]
