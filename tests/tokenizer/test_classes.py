"""Character classes come from the reference engine and from nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest
from compiled_samples import PROBE
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers import pre_tokenizers as reference

from toktier_stream.tokenizer import classes
from toktier_stream.tokenizer.pattern import CharSet, Source, Unsupported
from toktier_stream.tokenizer.tables import CODE_POINTS

SCALARS = [c for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000]


def members_of(text: str, source: Source = Source.REGEX) -> classes.Members:
    wanted = CharSet(text, source)
    return PROBE.members([wanted])[wanted]


def some_scalars() -> list[int]:
    chooser = random.Random(5)
    return [*range(0x200), *range(0x2000, 0x2080), *chooser.choices(SCALARS, k=1000)]


FRAGMENTS = [
    r"\s",
    r"\S",
    r"\p{L}",
    r"[^\r\n\p{L}\p{N}]",
    "[一-龥぀-ゟ゠-ヿ]",
    "(?i:s)",
    "(?i:k)",
    ".",
    "a",
]


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_one_probe_over_all_code_points_equals_asking_one_by_one(fragment: str) -> None:
    """The whole-alphabet probe gives each code point the answer it gets on its own."""
    members = members_of(fragment)
    split = reference.Split(Regex(fragment), "removed")
    for c in some_scalars():
        assert members[c] == (split.pre_tokenize_str(chr(c)) == []), hex(c)


def test_the_reference_disagrees_with_common_belief() -> None:
    """Facts that a table from another source would get wrong."""
    space = members_of(r"\s")
    assert not space[0x1C], "an information separator is white space to Python only"
    assert space[0x85]
    assert space[0x2028]
    assert set(np.flatnonzero(members_of("(?i:s)"))) == {ord("S"), ord("s"), ord("ſ")}
    assert set(np.flatnonzero(members_of("(?i:k)"))) == {ord("K"), ord("k"), 0x212A}
    assert set(np.flatnonzero(members_of("(?i:')"))) == {ord("'")}


@pytest.mark.parametrize(
    ("source", "stage"),
    [
        (Source.NUMERIC, reference.Digits(individual_digits=True)),
        (Source.PUNCTUATION, reference.Punctuation()),
        (Source.BERT_PUNCTUATION, reference.BertPreTokenizer()),
    ],
)
def test_isolating_stages_are_probed(source: Source, stage: reference.PreTokenizer) -> None:
    """What Digits, Punctuation and BERT isolate: between two letters it stands alone."""
    members = members_of("", source)
    for c in some_scalars():
        cut = [piece for piece, _ in stage.pre_tokenize_str(f"a{chr(c)}a")]
        assert members[c] == (cut == ["a", chr(c), "a"]), hex(c)


def test_white_space_and_word_stages_are_probed() -> None:
    """WhitespaceSplit removes; Whitespace tells words from symbols and removes the rest."""
    space = members_of("", Source.WHITESPACE)
    word, symbol = members_of("", Source.WORD), members_of("", Source.SYMBOL)
    for c in some_scalars():
        text = f"a{chr(c)}!"
        gone = len(reference.WhitespaceSplit().pre_tokenize_str(text)) == 2
        cut = [piece for piece, _ in reference.Whitespace().pre_tokenize_str(text)]
        assert space[c] == gone, hex(c)
        assert word[c] == (cut == ["a" + chr(c), "!"]), hex(c)
        assert symbol[c] == (cut == ["a", chr(c) + "!"]), hex(c)


def test_a_fragment_that_the_reference_refuses_is_refused() -> None:
    """An unknown property is the reference's to know; its refusal becomes a reason."""
    with pytest.raises(Unsupported, match="refuses the fragment"):
        members_of(r"\p{NoSuchProperty}")


def test_runs_that_fold_to_one_character_are_found() -> None:
    """st matches one ligature under (?i:), ss matches the sharp s; contractions match none."""
    assert PROBE.single_character_for({"xst"})
    assert PROBE.single_character_for({"ss"})
    assert not PROBE.single_character_for({"'s", "'re", "'ve", "'ll", "'d", "'m", "'t"})
    assert not PROBE.single_character_for(set())


def test_classes_are_the_coarsest_that_keep_every_set() -> None:
    """Two code points share a class iff no set tells them apart; masks give the sets back."""
    rows = [members_of(r"\p{L}"), members_of(r"\s"), members_of("[a-c]")]
    alphabet = classes.reduce(rows)
    assert alphabet.size == 4
    scalars = np.array(SCALARS)
    for row in rows:
        mask = alphabet.mask(row)
        inside = (mask >> alphabet.class_of[scalars].astype(np.int64)) & 1
        assert (inside == row[scalars]).all()
    assert alphabet.class_of[0] == 0
    assert (alphabet.class_of[0xD800:0xE000] == 0).all()
    assert [alphabet.class_of[m] for m in alphabet.smallest] == list(range(4))


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=4))
def test_reduction_over_bytes(packed: list[bytes]) -> None:
    """Equal columns, and only they, share a class."""
    rows = [np.unpackbits(np.frombuffer(p, dtype=np.uint8)).astype(np.bool_) for p in packed]
    alphabet = classes.reduce(rows, points=256)
    columns = [tuple(bool(row[b]) for row in rows) for b in range(256)]
    names: dict[tuple[bool, ...], int] = {}
    for byte, column in enumerate(columns):
        names.setdefault(column, len(names))
        assert alphabet.class_of[byte] == names[column]
    assert alphabet.size == len(names)


def test_too_many_classes_are_refused() -> None:
    """A class number must fit a byte."""
    with pytest.raises(Unsupported, match="more than 254"):
        classes.reduce([np.arange(256)], points=256)


def test_classes_are_described_for_people() -> None:
    """ASCII members are named, others counted; nothing is listed without end."""
    words = classes.describe(classes.reduce([members_of("[a-f\n ]"), members_of(r"\p{Han}")]))
    assert words[1] == "LF SPACE a–f"
    assert words[2].startswith("U+2E80")
    assert all(len(w) < 100 for w in words)
