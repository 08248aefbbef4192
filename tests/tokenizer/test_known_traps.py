"""Texts that are known to trip tokenizers: whole, and cut in two at each place by an append."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from engine_samples import (
    BYTE_LEVEL,
    GPT2_SPLIT,
    FamilyFile,
    artifact_of,
    assert_same,
    bpe_spec,
    family,
)

sys.path.append(str(Path(__file__).parent.parent / "session"))
from session_harness import check_session, make_small

from toktier_stream.session.engines import ENGINES
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.tokenizer.registry import Entry

TEXTS = {
    "two spaces and a digit": "  1",
    "letters that fold to others": "'ſ 'K 'k \u212a's I'LL",
    "a separator that is no white space": "a\x1c b\x1c\x1c1",
    "letters newer than the reference": "\u088f'll \ua7ce'll \ua7d2'll x\u088f'l",
    "marks the reference does not reorder": "\u09fe\u09cd \u0c4d\u0c3c e\u0301\u1abf",
    "jamo": "x\u1100\u1161\u11a8 가\u11a8 \u1112\u1161\u11ab",
    "a word that is in the vocabulary": " kapsamıydı",
    "numbers": "12345 6789012",
    "line ends": "a \r\n\r\n \n x",
}


def append_everywhere(
    store: Store, encoder: Encoder, oracle: Encoder, before: str, text: str
) -> None:
    """Every character boundary of ``text``, reached by a reset and passed by an append."""
    for at in range(len(text) + 1):
        session = store.begin().create(b"session")
        session.reset(encoder, (before + text[:at]).encode())
        session.edit(encoder, session.bytes, session.bytes, text[at:].encode())
        check_session(session, oracle, (before + text).encode())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store, with windows and pages small enough for short texts to be cut."""
    make_small(monkeypatch)
    with Store.open(tmp_path / "store", map_bytes=64 << 20) as opened:
        yield opened


@pytest.mark.families
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_texts(name: str, family_file: FamilyFile, store: Store) -> None:
    """Ids and lengths of the whole; and a session that was appended to at every place."""
    encoder, reference = family(family_file(name))
    oracle = ReferenceEncoder(reference)
    for text in TEXTS.values():
        assert_same(encoder, reference, text)
        append_everywhere(store, encoder, oracle, "some words, (and more) of them; " * 4, text)


@pytest.mark.families
@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "gptoss", "claude"])
def test_added_tokens_over_two_appends(name: str, family_file: FamilyFile, store: Store) -> None:
    """A literal in each place around a cut and split at each place; one that is the start of
    another (or nearly) comes to be the other."""
    encoder, reference = family(family_file(name))
    oracle = ReferenceEncoder(reference)
    literals = sorted({t.content for t in reference.artifact.added_tokens}, key=len)
    chosen = [*literals[:1], literals[len(literals) // 2], literals[-1]]
    pairs = [(a, b) for a in literals for b in literals if b.startswith(a) and a != b]
    chosen += [c for pair in pairs[:1] for c in pair]
    for literal in dict.fromkeys(chosen):
        for around in ("{}", "a{}b", "x, {} y", " {}{} "):
            text = around.format(literal, literal)
            append_everywhere(store, encoder, oracle, "some words, (and more) of them; " * 4, text)
            append_everywhere(store, encoder, oracle, "", text)


@pytest.mark.families
def test_deepseeks_normalized_tokens(family_file: FamilyFile, store: Store) -> None:
    """Its fifteen tokens that are looked for in the normalized text."""
    encoder, reference = family(family_file("deepseek_v3"))
    tokens = [t for t in reference.added_tokens if t.normalized]
    assert len(tokens) == 15
    for token in tokens:
        text = f" {token.content}{token.content[:-1]} a{token.content}"
        assert_same(encoder, reference, text)
        assert encoder.encode(token.content.encode()).ids.tolist() == [token.id]
        append_everywhere(store, encoder, ReferenceEncoder(reference), "words, " * 9, text)


@pytest.mark.families
def test_joiners_without_end(family_file: FamilyFile) -> None:
    """Three thousand zero-width joiners and a letter: a match that could start at each of them."""
    for name in ("deepseek_v3", "deepseek_v4"):
        encoder, reference = family(family_file(name))
        for text in ("\u200d" * 3000 + "a", "a" + "\u200d" * 3000 + "1"):
            assert_same(encoder, reference, text)


@pytest.mark.families
def test_a_split_that_removes_and_inverts(family_file: FamilyFile) -> None:
    """GPT-4o's file names its pieces by what lies between the removed ones."""
    encoder, reference = family(family_file("gpt4o"))
    splits = reference.artifact.spec["pre_tokenizer"]["pretokenizers"]
    assert (splits[0]["behavior"], splits[0]["invert"]) == ("Removed", True)
    for text in (*TEXTS.values(), "HTTPServer'S ÀÉs x/y//\n/z ǅaB ʰa"):
        assert_same(encoder, reference, text)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_tokens_that_reach_into_their_surroundings(flag: str, store: Store) -> None:
    """Such a tokenizer is served by the reference: exact, encoded in full, the reason told."""
    spec = bpe_spec(
        [(b"a", b"b")], pre_tokenizer=GPT2_SPLIT,
        added=[{"content": "<x>", flag: True}, {"content": "<n>", "normalized": True}],
    )  # fmt: skip
    entry = Entry(artifact_of(spec), ENGINES)
    assert not isinstance(entry.encoder, FastEncoder)
    assert entry.admission.path == "reference"
    assert any(flag in reason for reason in entry.admission.reasons)
    oracle = ReferenceEncoder(Reference(artifact_of(spec)))
    append_everywhere(store, entry.encoder, oracle, "ab ", "a <x> b<x>c  <x>  <n> d")
