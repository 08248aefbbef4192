"""The benchmark of full encodes measures every engine it finds, and notices wrong ids."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from toktier_stream.bench import encode, encode_tables, peers
from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.paths import cache_root

FamilyFile = Callable[[str], Path]


def test_corpora_have_the_size_asked_for() -> None:
    """Four kinds of text, none of them empty."""
    texts = encode.default_corpora(20_000)
    assert texts.keys() == {"code", "prose", "chat", "CJK"}
    assert all(len(text) >= 20_000 for text in texts.values())


def test_pairs_are_disjoint() -> None:
    """No part of a text is given out twice."""
    assert encode._pairs("abcdefgh", 2) == [("ab", "cd"), ("ef", "gh")]
    assert encode._pairs("abc", 2) == []


@pytest.mark.families
def test_a_small_run(family_file: FamilyFile, tmp_path: Path) -> None:
    """All measurements on little text; the tables name every engine, and JSON holds the numbers."""
    text = "def f(x):\n    return x  # é 中国 <|endoftext|>\n" * 400
    result = encode.run({"gpt2": family_file("gpt2")}, {"code": text}, sizes=(2_000,), rounds=2)
    (row,) = result["encode"]
    assert row["engines"][encode.OURS]["exact"]
    assert row["engines"]["tokenizers"]["exact"]
    assert row["engines"][encode.OURS]["warm_ms"] > 0
    assert result["local"][0]["times_plain"]["plain"] == 1
    encode.save(result, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["rounds"] == 2
    out = io.StringIO()
    encode_tables.show(result, Console(file=out, width=200))
    for name in (encode.OURS, *result["peers"]):
        assert name in out.getvalue()
    encode_tables.plot(result, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.families
def test_start_up(family_file: FamilyFile) -> None:
    """Two new processes, here with caches that are full already; the table shows their times."""
    found = encode.startup(family_file("gpt2"), cache_root())
    assert min(found[state][of] for state in ("cold", "warm") for of in ("wall_s", "cpu_s")) > 0
    result: dict[str, Any] = {"encode": [], "local": [], "window": [], "threads": [], "peers": {}}
    result |= {"rounds": 1, "load_average": 0.0, "cpus": 1}
    out = io.StringIO()
    encode_tables.show(
        result | {"start": [{"vocabulary": "gpt2", **found}]}, Console(file=out, width=200)
    )
    assert f"{found['warm']['wall_s']:.2f}" in out.getvalue()


@pytest.mark.families
def test_wrong_ids_are_marked(family_file: FamilyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose ids differ is timed, and said to be wrong."""

    def wrong(artifact: Artifact) -> Any:
        return lambda text: [0] * len(text)

    def lacking(artifact: Artifact) -> Any:
        raise ValueError("cannot serve this file")

    found = peers.installed()[:1]
    made = (*found, peers.Peer("wrong", "1", wrong), peers.Peer("lacking", "1", lacking))
    monkeypatch.setattr(peers, "installed", lambda: made)
    result = encode.run(
        {"gpt2": family_file("gpt2")}, {"code": "words and words " * 300}, sizes=(1_000,), rounds=1
    )
    engines = result["encode"][0]["engines"]
    assert engines["wrong"]["exact"] is False
    assert "lacking" not in engines
    out = io.StringIO()
    encode_tables.show(result, Console(file=out, width=200))
    assert ")*" in out.getvalue()


@pytest.mark.families
def test_tokenizers_of_other_kinds(family_file: FamilyFile) -> None:
    """A file that the exact engine does not admit is an error with a reason."""
    with pytest.raises(ToktierError) as caught:
        encode.load("bert", family_file("bert"))
    assert caught.value.code is Code.TOKENIZER_UNSUPPORTED
