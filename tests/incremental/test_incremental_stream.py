"""One growing piece: exact tokens after every append and rewind, and what no append can change."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from incremental_dictionaries import (
    CAMPAIGN,
    Dictionary,
    campaign,
    compiled,
    dictionaries,
    make,
    random_text,
)

from toktier_stream.errors import ToktierError
from toktier_stream.incremental import tables
from toktier_stream.incremental.educational import Offline
from toktier_stream.incremental.rules import Rules, from_merges, from_spec
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.stream import Change, PieceStream, Settled

Operation = str | int
"""Text to append, or how far to rewind in thousandths of the length."""

operations = st.lists(st.text("abcd", max_size=12) | st.integers(0, 1000), max_size=8)


class Consumer:
    """Applies changes the way a receiver would."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.lengths: list[int] = []

    def apply(self, change: Change) -> None:
        assert change.keep + change.dropped + change.tail == len(self.ids)
        end = len(self.ids) - change.tail
        self.ids[change.keep : end] = change.ids.tolist()
        self.lengths[change.keep : end] = change.lengths.tolist()
        assert change.total == len(self.ids)


def _reference(rules: Rules, text: bytes) -> list[int]:
    t = tables.build(rules)
    if text in t.whole:
        return [t.whole[text]]
    return [int(rules.ids[row]) for row in Offline(rules).by_heap(text)]


def _check(stream: PieceStream, consumer: Consumer, rules: Rules, text: bytes) -> None:
    expected = _reference(rules, text)
    now = stream.tokens()
    assert consumer.ids == now.ids.tolist() == expected
    assert consumer.lengths == now.lengths.tolist()
    assert sum(consumer.lengths) == len(text) == len(stream)
    assert stream.count == len(expected)


@compiled
@given(dictionaries(min_letters=4), operations, st.sampled_from(Search))
def test_changes_rebuild_exactly_the_offline_tokens(
    d: Dictionary, todo: list[Operation], search: Search
) -> None:
    stream, consumer, text = PieceStream(d.tables, search), Consumer(), b""
    for operation in todo:
        if isinstance(operation, str):
            consumer.apply(stream.append(operation.encode()))
            text += operation.encode()
        else:
            size = len(text) * operation // 1000
            consumer.apply(stream.rewind(size))
            text = text[:size]
        _check(stream, consumer, d.rules, text)


@compiled
@given(st.lists(st.text("ab", min_size=2, max_size=6), min_size=1, max_size=3), operations)
def test_a_piece_that_is_a_token_as_a_whole_is_that_token(
    words: list[str], todo: list[Operation]
) -> None:
    """With ignore_merges the vocabulary wins over BPE, but only at the piece's very end."""
    merges = [(b"a", b"b"), (b"b", b"b"), (b"ab", b"a")]
    rules = from_merges(b"abcd", merges, words=[w.encode() for w in words])
    stream, consumer, text = PieceStream(tables.build(rules)), Consumer(), b""
    for operation in [*words, 0, *todo]:
        if isinstance(operation, str):
            consumer.apply(stream.append(operation.encode()))
            text += operation.encode()
        else:
            size = len(text) * operation // 1000
            consumer.apply(stream.rewind(size))
            text = text[:size]
        _check(stream, consumer, rules, text)


def test_settled_tokens_stay_whatever_follows() -> None:
    """Also the resumed stream, which saw nothing before the boundary, goes on exactly."""
    for proper in (True, False):
        for d, rng in campaign(proper, CAMPAIGN // 3):
            stream, consumer, text = PieceStream(d.tables), Consumer(), b""
            marks: list[tuple[Settled, list[int]]] = []
            for _ in range(5):
                new = random_text(rng, d)
                consumer.apply(stream.append(new))
                text += new
                for mark, before in marks:
                    assert consumer.ids[: mark.tokens] == before
                    assert sum(consumer.lengths[: mark.tokens]) == mark.size
                    again = PieceStream.resume(d.tables, mark, text[mark.size :])
                    assert before + again.tokens().ids.tolist() == consumer.ids
                    assert again.count == len(consumer.ids)
                    assert len(again) == len(text)
                mark = stream.settled()
                marks.append((mark, consumer.ids[: mark.tokens]))


@compiled
@given(dictionaries(min_letters=4), st.text("abcd", max_size=30), st.data())
def test_a_mark_holds_in_every_piece_that_keeps_what_it_asks_for(
    d: Dictionary, text: str, data: st.DataObject
) -> None:
    stream = PieceStream(d.tables)
    stream.append(text.encode())
    kept = data.draw(st.integers(0, len(text)))
    mark = stream.settled(kept)
    before = stream.tokens().ids[: mark.tokens].tolist()
    changed = text[:kept].encode() + data.draw(st.text("abcd", max_size=12)).encode()
    expected = _reference(d.rules, changed)
    again = PieceStream.resume(d.tables, mark, changed[mark.size :])
    assert before + again.tokens().ids.tolist() == expected


def test_settled_follows_a_long_run() -> None:
    """Whole tokens of a run settle as they go by: less than two of the longest stay open."""
    d = make(b"abc", [(b"a", b"a"), (b"aa", b"aa"), (b"aaaa", b"aaaa")])
    stream = PieceStream(d.tables)
    for size in range(1, 200):
        stream.append(b"a")
        assert size - stream.settled().size < 16
    assert stream.settled().tokens >= 23


def test_a_prefix_that_may_become_a_whole_token_is_not_settled() -> None:
    """Up to the longest such token the first ids can still be replaced by one."""
    rules = from_merges(b"abc", [(b"a", b"b")], words=[b"cccccc"])
    stream, consumer = PieceStream(tables.build(rules)), Consumer()
    for size in range(1, 9):
        consumer.apply(stream.append(b"c"))
        assert consumer.ids == _reference(rules, b"c" * size)
        assert stream.settled().tokens == (size if size > 6 else 0)


def test_rewinding_has_limits() -> None:
    d = make(b"abc", [(b"a", b"b")])
    stream = PieceStream(d.tables)
    stream.append(b"abcab")
    with pytest.raises(ToktierError, match="OFFSET_RANGE"):
        stream.rewind(6)
    mark = stream.settled()
    again = PieceStream.resume(d.tables, mark, b"abcab"[mark.size :])
    assert again.earliest == mark.size == 5
    with pytest.raises(ToktierError, match="OFFSET_RANGE"):
        again.rewind(mark.size - 1)


def test_an_append_costs_the_same_in_a_long_piece() -> None:
    """Nothing is copied or walked again but what the append reaches: the buffer grows by half
    when it is full, so that 20,000 appends touch at most a few times the memory."""
    d = make(b"abc", [(b"a", b"b"), (b"ab", b"c")])
    stream, rng = PieceStream(d.tables), random.Random(1)
    for _ in range(2_000):
        change = stream.append(bytes(rng.choices(b"abc", k=10)))
        assert change.dropped <= 2
    assert len(stream) == 20_000
    assert stream.nbytes <= 6 * len(stream) + 1024


def test_code_point_vocabularies_have_no_pieces_of_bytes() -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    with pytest.raises(ToktierError, match="not byte-level"):
        PieceStream(tables.build(from_spec({"model": model})))


def test_lengths_are_bytes() -> None:
    d = make(b"abc", [(b"a", b"b")])
    stream = PieceStream(d.tables)
    assert np.array_equal(stream.append(b"abcab").lengths, [2, 1, 2])
