"""The continued pre-tokenizer machine and the rules of a loaded encoder, held to what they copy."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import normalizers

from toktier_stream.incremental import merged, rules, selftest, tables
from toktier_stream.incremental.machine import Machine
from toktier_stream.tokenizer.admission import load_encoder
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.tables import MatcherTables, mark_pieces

sys.path.append(str(Path(__file__).parent.parent / "session"))
from session_harness import CL100K, PIECES, build

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHARACTERS = (*PIECES, "A", "B", "a", "\u0301", "語", "\u02b0", "\n", " ", "  ", "/", "'", "7")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Artifact, FastEncoder]]:
    """Two pre-tokenizers, one of which holds a place in a register for long."""
    folder = tmp_path_factory.mktemp("machines")
    out = {}
    for name, pattern in (("cl100k", CL100K), ("o200k", O200K)):
        artifact = build(folder / f"{name}.json", pattern, normalizers.NFC())
        encoder = load_encoder(artifact)
        assert isinstance(encoder, FastEncoder)
        out[name] = artifact, encoder
    return out


def _text(chooser: random.Random) -> str:
    few = chooser.sample(CHARACTERS, chooser.randint(1, 5))
    return "".join(chooser.choices(few, k=chooser.randint(1, 30)))


def _starts(matcher: MatcherTables, text: str) -> list[int]:
    return [m.offset for m in mark_pieces(matcher, text)]


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
def test_a_run_goes_on_from_any_place(
    made: dict[str, tuple[Artifact, FastEncoder]], name: str
) -> None:
    """What is emitted from a place on, given the state there, are the marks from there on."""
    matcher = made[name][1].compiled.matcher
    machine = Machine(matcher)
    chooser = random.Random(name)
    for _ in range(1500):
        text = _text(chooser)
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        _, starts = machine.run(data, 0, len(data), ends=True)
        want = _starts(matcher, text)
        assert starts.tolist() == want
        place = len(text[: chooser.randint(0, len(text))].encode())
        position, emitted = machine.run(data, 0, place)
        assert position.at == place
        _, rest = machine.run(data, place, len(data), position.state, ends=True)
        # Marks behind the place, in order; some at or before it may have been emitted already.
        assert rest.tolist() == [s for s in want if s >= place and s not in emitted]
        if want[-1]:
            _, some = machine.run(data, 0, len(data), ends=True, beyond=want[-1])
            assert some.tolist()[-1] == want[-1]


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
def test_what_is_held_is_all_that_is_open(
    made: dict[str, tuple[Artifact, FastEncoder]], name: str
) -> None:
    """No continuation has a piece start between the last one emitted and the first one held, and
    all have those emitted."""
    matcher = made[name][1].compiled.matcher
    machine = Machine(matcher)
    chooser = random.Random(name)
    late = 0
    for _ in range(600):
        text = _text(chooser) + chooser.choice(("", "\n \t   ", "\u02b0ABCD", " \n\r  \n    "))
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        position, starts = machine.run(data, 0, len(data))
        piece = int(starts[-1]) if len(starts) else 0
        held = machine.held(position, piece)
        assert piece < held <= len(data)
        late += held < position.before
        for _ in range(6):
            want = _starts(matcher, text + _text(chooser))
            assert want[: len(starts)] == starts.tolist()
            assert not [s for s in want if piece < s < held]
    assert late > 20


@pytest.mark.parametrize("name", ["cl100k", "o200k"])
def test_rules_of_an_encoder(made: dict[str, tuple[Artifact, FastEncoder]], name: str) -> None:
    """They make the same tokens as the file's, and pass the self-test."""
    artifact, encoder = made[name]
    found = merged.from_tables(encoder.compiled.merges)
    ours = tables.build(found)
    selftest.check(ours, found)
    theirs = tables.build(rules.from_spec(artifact.spec))
    assert sorted(ours.ids[1:].tolist()) == sorted(theirs.ids[1:].tolist())
    assert dict(ours.whole) == dict(theirs.whole)
    assert ours.longest == theirs.longest
