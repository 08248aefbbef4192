"""A pre-tokenizer entry becomes stages, or a refusal that names every obstacle."""

from __future__ import annotations

from typing import Any

import pattern_samples
import pytest
from compiled_samples import PROBE

from toktier_stream.tokenizer import stages
from toktier_stream.tokenizer.matcher import compile_pre_tokenizer
from toktier_stream.tokenizer.stages import Behavior, Pipeline, View
from toktier_stream.tokenizer.tables import Refusal


def read(spec: dict[str, Any] | None) -> Pipeline:
    pipeline = stages.read(spec)
    assert isinstance(pipeline, Pipeline), str(pipeline)
    return pipeline


def test_sequences_are_flattened() -> None:
    """Sequences within sequences are one list of stages, in order."""
    digits = {"type": "Digits", "individual_digits": True}
    inner = pattern_samples.sequence(digits, pattern_samples.split("a"))
    spec = pattern_samples.sequence(inner, pattern_samples.BYTES_ONLY)
    pipeline = read(spec)
    assert [s.behavior for s in pipeline.stages] == [Behavior.ISOLATED, Behavior.ISOLATED]
    assert pipeline.byte_level
    assert len(stages.describe(pipeline)) == 3


def test_stages_behind_byte_level_read_bytes() -> None:
    """ByteLevel's own pattern reads text; what follows reads the byte-level alphabet."""
    views = [s.view for s in read(pattern_samples.ALL["falcon"]).stages]
    assert views == [View.TEXT, View.TEXT, View.BYTES, View.BYTES]


def test_no_pre_tokenizer_is_one_piece() -> None:
    """Without stages the whole text is a piece, and says so."""
    pipeline = read(None)
    assert pipeline.stages == ()
    assert stages.describe(pipeline) == ["no pre-tokenizer: the whole text is one piece"]


def test_bert_is_two_stages() -> None:
    """White space is removed first, then punctuation isolated."""
    assert [s.behavior for s in read({"type": "BertPreTokenizer"}).stages] == [
        Behavior.REMOVED,
        Behavior.ISOLATED,
    ]


METASPACE = {"type": "Metaspace", "replacement": "▁"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**pattern_samples.BYTE_LEVEL, "add_prefix_space": True}, "add_prefix_space"),
    (pattern_samples.sequence(*[pattern_samples.BYTES_ONLY] * 2), "second ByteLevel"),
    ({**METASPACE, "prepend_scheme": "first"}, "prepend_scheme first"),
    (METASPACE, "prepend_scheme always"),
    ({**METASPACE, "prepend_scheme": "never", "replacement": "ab"}, "not one character"),
    (
        pattern_samples.sequence(
            {**METASPACE, "prepend_scheme": "never"}, pattern_samples.BYTES_ONLY
        ),
        "ByteLevel behind Metaspace",
    ),
    (
        pattern_samples.sequence(
            pattern_samples.BYTES_ONLY, {**METASPACE, "prepend_scheme": "never"}
        ),
        "Metaspace behind",
    ),
    ({"type": "UnicodeScripts"}, "not derived"),
    ({"type": "FixedLength", "length": 5}, "not derived"),
    ({"type": "NoSuchStage"}, "not derived"),
    ({}, "without type"),
    (pattern_samples.split(r"\bx"), "word boundary"),
    (pattern_samples.split("a", behavior="isolated"), "behavior"),
    ({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated"}, "empty string"),
    ({"type": "Split", "pattern": "a", "behavior": "Isolated"}, "neither a Regex nor a String"),
]


@pytest.mark.parametrize(("spec", "reason"), REFUSED)
def test_what_is_not_covered_is_refused(spec: dict[str, Any], reason: str) -> None:
    """Each refusal names its stage and the reason."""
    refusal = compile_pre_tokenizer(spec, PROBE)
    assert isinstance(refusal, Refusal)
    assert reason in str(refusal)


def test_all_obstacles_are_named_at_once() -> None:
    """A reader of the refusal sees every stage that stands in the way."""
    spec = pattern_samples.sequence(
        pattern_samples.split("(?<=a)b"), {"type": "UnicodeScripts"}, pattern_samples.split("a")
    )
    refusal = stages.read(spec)
    assert isinstance(refusal, Refusal)
    assert [r.split(":")[0] for r in refusal.reasons] == [
        "stage 1 (Split)",
        "stage 2 (UnicodeScripts)",
    ]


LATE_REFUSALS = [
    ("a*", "match the empty text"),
    ("(?:a?)+b", "can be empty"),
    (r"\p{Nonsense}", "refuses the fragment"),
    ("(?i:st)", "matches with one character"),
    # After aaaa… nobody knows which of the single a are pieces until the b comes, or does not.
    ("a+b|a", "undecided piece starts"),
]


@pytest.mark.parametrize(("pattern", "reason"), LATE_REFUSALS)
def test_patterns_that_cannot_be_tabled_are_refused(pattern: str, reason: str) -> None:
    """What is read but cannot be turned into an exact table is refused too."""
    refusal = compile_pre_tokenizer(pattern_samples.split(pattern), PROBE)
    assert isinstance(refusal, Refusal)
    assert reason in str(refusal)
