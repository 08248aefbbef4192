"""The slow twin equals the reference, so that it may judge the fast path."""

from __future__ import annotations

import pattern_samples
import pytest
from compiled_samples import reference_of, tables_of, twin_of

from toktier_stream.tokenizer.artifact import byte_level_alphabet
from toktier_stream.tokenizer.educational import kept
from toktier_stream.tokenizer.split_campaign import RandomText
from toktier_stream.tokenizer.stages import Behavior

CHARACTER_OF = {byte: character for character, byte in byte_level_alphabet().items()}


@pytest.mark.parametrize("name", pattern_samples.ALL)
def test_the_twin_cuts_as_the_reference_does(name: str) -> None:
    """On random texts, piece by piece."""
    texts = RandomText.over(tables_of(name), seed=31)
    twin, reference = twin_of(name), reference_of(name)
    for _ in range(150):
        text = texts.text(20)
        spans = twin.pieces(text)
        if tables_of(name).byte_level:
            data = text.encode()
            ours = ["".join(CHARACTER_OF[b] for b in data[s:e]) for s, e in spans]
            assert ours == [piece for piece, _ in reference(text)], text
        else:
            assert spans == [span for _, span in reference(text)], text


def test_behaviors_in_small() -> None:
    """What each behavior makes of gap, match, match, gap, match."""
    segments = [(0, 1, False), (1, 2, True), (2, 3, True), (3, 4, False), (4, 5, True)]
    expected = {
        Behavior.ISOLATED: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)],
        Behavior.REMOVED: [(0, 1), (3, 4)],
        Behavior.MERGED_WITH_PREVIOUS: [(0, 2), (2, 3), (3, 5)],
        Behavior.MERGED_WITH_NEXT: [(0, 1), (1, 2), (2, 4), (4, 5)],
        Behavior.CONTIGUOUS: [(0, 1), (1, 3), (3, 4), (4, 5)],
    }
    assert {b: kept(segments, b) for b in Behavior} == expected


def test_the_twin_asks_the_reference_for_sets() -> None:
    """Its membership is the probe's, not Python's."""
    assert twin_of("qwen3").pieces("a'ſb") == [(0, 1), (1, 4), (4, 5)]
