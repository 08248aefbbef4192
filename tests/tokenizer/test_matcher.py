"""The fused tables cut every text as the reference does."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pattern_samples
import pytest
from compiled_samples import (
    PROBE,
    SMALL,
    admitted,
    pipeline_of,
    reference_of,
    tables_of,
    twin_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.tokenizer import matcher
from toktier_stream.tokenizer.matcher import ReferenceGaveUp, ReferencePieces, same_pieces
from toktier_stream.tokenizer.pattern import Unsupported
from toktier_stream.tokenizer.split_campaign import SPECIAL, RandomText
from toktier_stream.tokenizer.tables import MatcherTables, Op, Refusal, pieces

EXAMPLES = int(os.environ.get("TOKTIER_TEST_EXAMPLES", "60"))

FAMILIES = [
    "qwen3", "llama3", "llama3_1", "gptoss", "deepseek_v3", "gpt4o", "gpt35turbo", "claude",
    "gemma3", "llama2", "gpt2", "bert",
]  # fmt: skip

TRICKY = [
    "  1", " 1", "  ", "a  ", "\n     a", "\n     \n", "\r\n \r\n\t a", " \n \n a", "\n\n1",
    "'ſ", "a'ſ", "'K", "I'K", "x'S y'LL z'lL", "'re'rE'Re", "foo'r", "foo'rx", "foo're", "''s",
    "a\x1cb", "\x1c \x1c", "1\x1c2", "a\x85\x85b", "\u2028\u2029a",
    "\u088f'll", "\ua7ce'll", "\ua7d2'll", "A\ua7ce'l", "x\u088f'l",
    "A中BBBB", "A中BBBBc", "A中BBBB中", "ABCabcABC'sX", "ǅǅa", "ʰAʰ'd", "\u0301\u0301A\u0301a",
    "1234567", "12a345", "²³12345", "٣٤٥٦", "ⅧⅧⅧⅧ", "1²", "a²b¾c",
    "…//\n//", "!\n/", "!\r\n/a", "a/\n/b", " …!", "\t!x", "\u3000!", "!\u3000x",
    "アア゠漢字a", "漢\u3040漢\u3099ア", "1漢1", "!漢", " 漢", "漢 a",
    "👩\u200d👧\u200d👦", "🇩🇪🇫🇷", "\ufe0f\u200d", "가나\u1100\u1161", "\u0378\u0378a",
    "\U0010ffff\x00\x7f", "a.b(c)|d", "(a|b)", "。a،b", "<|im_start|>user\n",
]  # fmt: skip


@pytest.mark.parametrize("name", pattern_samples.ALL)
def test_texts_that_trip_tokenizers(name: str) -> None:
    """The known traps, one by one, on every sample pre-tokenizer."""
    for text in TRICKY:
        assert same_pieces(tables_of(name), reference_of(name), text), text


@pytest.mark.parametrize("name", pattern_samples.ALL)
def test_random_texts(name: str) -> None:
    """Random texts over the classes: tables and reference agree."""
    texts = RandomText.over(tables_of(name), seed=int(os.environ.get("TOKTIER_TEST_SEED", "7")))
    for _ in range(max(400, EXAMPLES)):
        text = texts.text(40)
        assert same_pieces(tables_of(name), reference_of(name), text), text


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.sampled_from(SPECIAL) | st.characters(exclude_categories=["Cs"]), max_size=24))
def test_arbitrary_texts(name: str, parts: list[str]) -> None:
    """Any code points mixed with the special ones: tables, twin and reference agree."""
    text = "".join(parts)
    assert same_pieces(tables_of(name), reference_of(name), text)
    assert pieces(tables_of(name), text) == twin_of(name).pieces(text)


@pytest.mark.parametrize("name", SMALL)
def test_every_code_point_in_context(name: str) -> None:
    """Each code point after a space and before a letter; thousands to a text. In a long text a
    wrong cut cannot hide: all later pieces are compared too."""
    tables, reference = tables_of(name), reference_of(name)
    step = 16 if EXAMPLES <= 60 else 1
    points = [c for c in range(0, 0x110000, step) if not 0xD800 <= c < 0xE000]
    for first in range(0, len(points), 20_000):
        text = "".join(f" {chr(c)}a" for c in points[first : first + 20_000])
        assert same_pieces(tables, reference, text), hex(points[first])


@pytest.mark.parametrize("name", SMALL)
def test_every_short_text(name: str) -> None:
    """All texts of up to four characters over an alphabet that the patterns treat with care."""
    tables, reference = tables_of(name), reference_of(name)
    for length in range(1, 5):
        for text in map("".join, itertools.product(" \n'as1\tA!"[: 10 - length], repeat=length)):
            assert same_pieces(tables, reference, text), text


LATE_MARKS = [
    (pattern_samples.split(r".{1,3}(?:\S $)+", "Removed"), "ab \n", {Op.MOVE, Op.DROP_REG}, 2),
    (pattern_samples.split(r"\S+'", "Removed"), "a' ", {Op.DROP, Op.DROP_REG, Op.SAVE}, 1),
    (
        pattern_samples.split(r" ?+[^a]{1,3}\s'(?!a|b)", "Contiguous"),
        "ab '",
        {Op.SAVE, Op.START_REG, Op.MOVE},
        3,
    ),
]


@pytest.mark.parametrize(("spec", "alphabet", "ops", "registers"), LATE_MARKS)
def test_marks_that_come_late(
    spec: dict[str, Any], alphabet: str, ops: set[Op], registers: int
) -> None:
    """Patterns that keep several starts undecided use every instruction, and use it rightly."""
    tables, reference = admitted(spec), ReferencePieces(spec)
    assert ops <= set(tables.program[:, 0].tolist())
    assert tables.registers >= registers
    for length in range(1, 8 if len(alphabet) < 4 else 7):
        for text in map("".join, itertools.product(alphabet, repeat=length)):
            assert same_pieces(tables, reference, text), text


@pytest.mark.parametrize("name", ["deepseek", "o200k", "qwen3", "gpt2", "kimi"])
def test_long_runs(name: str) -> None:
    """Thousands of characters that leave the end of a match open."""
    runs = ["\u200d", " ", "\n", "\t ", "A", "A中", "'", "1", "e\u0301", "!", "漢", " \n", "ǅ"]
    for run in runs:
        for tail in ("", "a", "1", "\n", "'s", " b", "B", "中"):
            text = "x" + run * 3000 + tail
            assert same_pieces(tables_of(name), reference_of(name), text), (run, tail)


@pytest.mark.families
@pytest.mark.parametrize("family", FAMILIES)
def test_real_families_are_admitted_and_exact(
    family: str, family_file: Callable[[str], Path]
) -> None:
    """Each real file's pre-tokenizer compiles and cuts as the reference does."""
    spec = json.loads(family_file(family).read_bytes())["pre_tokenizer"]
    tables = admitted(spec)
    reference = ReferencePieces(spec)
    assert tables.states <= 32
    texts = RandomText.over(tables, seed=11)
    for text in TRICKY + [texts.text(30) for _ in range(300)]:
        assert same_pieces(tables, reference, text), text


@pytest.mark.families
@pytest.mark.parametrize("family", ["qwen3", "gptoss", "deepseek_v3"])
def test_real_transcripts(
    family: str, family_file: Callable[[str], Path], transcripts: Path | None
) -> None:
    """Text as agents produce it: each line on its own, and long stretches."""
    spec = json.loads(family_file(family).read_bytes())["pre_tokenizer"]
    tables, reference = admitted(spec), ReferencePieces(spec)
    sources = [Path(__file__)]
    if transcripts is not None:
        sources += sorted(p for p in transcripts.rglob("*") if p.suffix in (".traj", ".jsonl"))[:4]
    for source in sources:
        text = source.read_text(encoding="utf-8")[:60_000]
        assert same_pieces(tables, reference, text), source.name
        for line in text.splitlines(keepends=True)[:200]:
            assert same_pieces(tables, reference, line), source.name


def test_spellings_of_one_cut_give_one_machine() -> None:
    """Removed with invert keeps the matches of a total pattern: the same as Isolated."""
    one, other = tables_of("cl100k"), tables_of("cl100k removed")
    assert (one.next_state == other.next_state).all()
    assert (one.action == other.action).all()
    assert (one.two_sided == other.two_sided).all()


ATOMS = st.sampled_from(
    ["a", "b", " ", r"\s", r"\S", "[ab]", "[^a]", "[a-c&&[^b]]", r"\n", ".", "(?i:a)", "1", r"\d"]
)


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    suffix = st.sampled_from(["?", "*", "+", "{1,2}", "{2}", "??", "+?", "{1,3}+", "{2}?"])
    sequence = st.lists(inner, min_size=1, max_size=3).map("".join)
    ending = st.sampled_from(["", "", "", r"(?!\S)", "$", "(?=a)", r"(?!a|$)"])
    return st.one_of(
        st.builds("{}{}".format, ATOMS, suffix | st.sampled_from(["++", "?+", "*+"])),
        st.builds("(?:{}){}".format, sequence, suffix),
        st.builds("{}{}".format, sequence, ending),
        st.lists(sequence, min_size=2, max_size=3).map("|".join).map("(?:{})".format),
    )


PATTERNS = st.recursive(ATOMS, combine, max_leaves=6)
SPLITS = st.builds(
    pattern_samples.split,
    st.lists(PATTERNS, min_size=1, max_size=3).map("|".join),
    st.sampled_from(["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]),
    st.booleans(),
)
BYTES = st.sampled_from([[], [], [pattern_samples.BYTES_ONLY], [pattern_samples.BYTE_LEVEL]])
PIPELINES = st.builds(
    lambda before, middle, after: pattern_samples.sequence(*before, *middle, *after),
    st.lists(SPLITS, min_size=1, max_size=2),
    BYTES,
    st.lists(SPLITS, max_size=1),
)


@settings(max_examples=max(15, EXAMPLES // 4), deadline=None)
@given(PIPELINES, st.lists(st.text("aab1 \n'é", max_size=10), min_size=1, max_size=20))
def test_pipelines_nobody_wrote(spec: dict[str, Any], samples: list[str]) -> None:
    """Random patterns, behaviors and stages: refused, or exact. A refusal is never that the
    engine found itself in contradiction."""
    tables = matcher.compile_pre_tokenizer(spec, PROBE)
    if isinstance(tables, Refusal):
        for word in ("contradict", "self-test", "confirm"):
            assert word not in str(tables), spec
        return
    reference = ReferencePieces(spec)
    try:
        for text in samples:
            assert same_pieces(tables, reference, text), (spec, text)
    except ReferenceGaveUp:
        return


def test_the_self_test_catches_a_misread_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the parser read a pattern wrongly, the tables would not pass for exact."""
    spec = pattern_samples.split("a+|b")
    wrong = pattern_samples.split("a|b")
    read = matcher.stages.read
    monkeypatch.setattr(matcher.stages, "read", lambda _: read(wrong))
    refusal = matcher.compile_pre_tokenizer(spec, PROBE)
    assert isinstance(refusal, Refusal)
    assert "self-test" in str(refusal)


def test_an_entry_that_the_reference_cannot_load_is_refused() -> None:
    """What the reference does not read, this engine does not serve."""
    spec = {"type": "Digits"}
    refusal = matcher.compile_pre_tokenizer(spec, PROBE)
    assert isinstance(refusal, Refusal)
    assert "reference refuses" in str(refusal)


def test_a_panic_of_the_reference_is_told_apart() -> None:
    """A pattern that explodes makes the reference give up; that is an exception of its own."""
    reference = ReferencePieces(pattern_samples.split("(?:a|aa)+b|c"))
    with pytest.raises(ReferenceGaveUp):
        reference("a" * 60)


def test_classes_of_bytes_follow_utf8() -> None:
    """Behind ByteLevel, code points with equal sequences of byte classes may share a class, and
    each class knows its bytes' symbols."""
    symbols = matcher.symbols_of(pipeline_of("falcon"), PROBE)
    for c in (0x41, 0xB2, 0xE9, 0x7FF, 0x800, 0x20B2, 0xFFFF, 0x10000, 0x1F642, 0x10FFFF):
        expected = tuple(int(symbols.on_bytes.class_of[b]) for b in chr(c).encode())
        assert symbols.bytes_of[symbols.text.class_of[c]] == expected


def test_every_sample_is_admitted_with_a_small_machine() -> None:
    """Tables stay small: tens of classes and states."""
    for name in pattern_samples.ALL:
        tables = tables_of(name)
        assert isinstance(tables, MatcherTables)
        assert tables.classes <= 64
        assert tables.states <= 32
        assert tables.registers <= 1


def test_contradicting_derivations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the two derivations of a boundary disagree, no table is served."""
    monkeypatch.setattr(matcher.Positions, "spans", lambda *_: False)
    refusal = matcher.compile_pre_tokenizer(pattern_samples.split("a+"), PROBE)
    assert isinstance(refusal, Refusal)
    assert "contradict" in str(refusal)


def test_a_boundary_without_its_witness_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A derived boundary that the fused machine does not confirm stops the admission."""
    everything = matcher.boundaries.Boundaries
    monkeypatch.setattr(
        matcher, "theorem", lambda *_: everything(*[matcher.np.ones((2, 2), dtype=bool)] * 2)
    )
    refusal = matcher.compile_pre_tokenizer(pattern_samples.split("a+"), PROBE)
    assert isinstance(refusal, Refusal)
    assert "does not confirm" in str(refusal)


def test_unsupported_is_not_swallowed_elsewhere() -> None:
    """Only the compiler turns the exception into a refusal."""
    with pytest.raises(Unsupported):
        ReferencePieces({"type": "Nonsense"})
