"""WordPiece: cuts hold on both sides, on small tokenizers and on BERT's own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_samples import EXAMPLES, FamilyFile, transcript_texts
from hypothesis import given, settings
from wordpiece_samples import (
    PIECES,
    as_cased,
    bert_spec,
    check_cuts,
    encoder_of,
    entry_of,
    texts,
)

from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.tokenizer.tables import Refusal
from toktier_stream.tokenizer.wordpiece import WordPieceEncoder, wordpiece_engine


@pytest.fixture(scope="module", params=["uncased", "cased", "uncased, accents kept"])
def small(request: pytest.FixtureRequest) -> WordPieceEncoder:
    """A small tokenizer with each kind of normalizer."""
    lowercase = request.param != "cased"
    strip = False if "kept" in request.param else None
    spec = bert_spec(lowercase=lowercase, strip_accents=strip)
    return encoder_of(entry_of(spec))


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(left=texts, text=texts)
def test_random_cuts(small: WordPieceEncoder, left: str, text: str) -> None:
    """Ids and lengths of the whole are those of the parts, at every cut of random texts."""
    check_cuts(small, left, text)


def test_every_pair_of_pieces(small: WordPieceEncoder) -> None:
    """What trips tokenizers, in every order of two."""
    cuts = 0
    for first in PIECES:
        cuts += check_cuts(small, "", "".join(f"{first}{second}" for second in PIECES))
    assert cuts > 20 * len(PIECES)


def test_where_cuts_are(small: WordPieceEncoder) -> None:
    """Before words and punctuation; not before white space (it is the token's to its left), not
    behind white space that no token has, not inside a literal, not beside what normalizes."""

    def cuts(string: str) -> list[int]:
        text = string.encode()
        return [at for at in range(len(text) + 1) if small.last_cut(text, at, at) == at]

    assert cuts("the quick, fox") == [4, 9, 11]
    assert cuts("  the fox") == [6]
    assert cuts(" " * 1000 + ".a") == [1001]
    assert cuts("a [X y] b") == [2, 8]
    assert cuts("中文 a") == [3, 7]
    assert cuts("aa") == cuts("e\u0301 \u0301") == cuts("a") == cuts("") == []


@pytest.mark.families
@pytest.mark.parametrize("cased", [False, True])
def test_the_real_file(family_file: FamilyFile, transcripts: Path | None, cased: bool) -> None:
    """BERT's vocabulary, uncased and cased: random texts, and real text with cuts in plenty."""
    path = family_file("bert")
    if cased:
        entry = entry_of(as_cased(json.loads(path.read_text(encoding="utf-8"))))
    else:
        entry = open_tokenizer(path)
    encoder = encoder_of(entry)

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(left=texts, text=texts)
    def check(left: str, text: str) -> None:
        check_cuts(encoder, left, text)

    check()
    for text in transcript_texts(transcripts)[:3]:
        for at in range(0, 30_000, 2_000):
            assert check_cuts(encoder, "", text[at : at + 200]) > 5


def test_tables_are_kept(small: WordPieceEncoder) -> None:
    """A second encoder of the same file asks nothing: its tables come from disk, and are equal."""
    reference = small.reference
    told: list[str] = []
    again = wordpiece_engine(reference.artifact, reference, told.append)
    assert isinstance(again, WordPieceEncoder)
    assert told == ["comparing with the reference"]
    assert (again.class_of == small.class_of).all()
    assert again.fingerprint == small.fingerprint


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizer is Lowercase"),
        ({"normalizer": None}, "normalizer is missing"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer is Whitespace"),
        ({"lstrip": True}, "lstrip"),
        ({"single_word": True}, "single_word"),
        ({"normalized": True}, "normalized text"),
    ],
)
def test_what_the_argument_does_not_cover(change: dict[str, object], reason: str) -> None:
    """Such a tokenizer is served by the reference, with the reason."""
    spec = bert_spec(lowercase=True)
    if change.keys() <= {"normalizer", "pre_tokenizer"}:
        spec |= change
    else:
        spec["added_tokens"][1] |= change
    entry: Entry = entry_of(spec)
    found = wordpiece_engine(entry.artifact, entry.reference, None)
    assert isinstance(found, Refusal)
    assert any(reason in r for r in found.reasons)
    assert entry.admission.path == "reference"
