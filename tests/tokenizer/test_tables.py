"""The tables as data: the reference loop, arrays for the cache, read-only sharing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from compiled_samples import tables_of

from toktier_stream.tokenizer.tables import (
    MAX_REGISTERS,
    NOTHING,
    START_HERE,
    Mark,
    MatcherTables,
    Op,
    Refusal,
    mark_pieces,
    pieces,
)


def program_rows(tables: MatcherTables, program: int) -> list[list[int]]:
    first, last = tables.program_start[program], tables.program_start[program + 1]
    return [list(map(int, row)) for row in tables.program[first:last]]


@pytest.mark.parametrize("name", ["qwen3", "o200k", "deepseek", "falcon", "bert"])
def test_tables_survive_the_disk(name: str, tmp_path: object) -> None:
    """Arrays written and read give equal tables; a foreign format is refused."""
    tables = tables_of(name)
    arrays = tables.to_arrays()
    again = MatcherTables.from_arrays(arrays)
    for field in dataclasses.fields(tables):
        ours, theirs = getattr(tables, field.name), getattr(again, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype, field.name
            assert np.array_equal(ours, theirs), field.name
            assert not theirs.flags.writeable
        else:
            assert ours == theirs, field.name
    foreign = dict(arrays)
    foreign["words"] = np.frombuffer(b'{"format": 0}', dtype=np.uint8)
    with pytest.raises(ValueError, match="format 0"):
        MatcherTables.from_arrays(foreign)


@pytest.mark.parametrize("name", ["qwen3", "o200k", "deepseek", "falcon", "bert", "none"])
def test_the_shape_is_as_documented(name: str) -> None:
    """State 0 is the beginning and comes again at the end; programs 0 and 1 are fixed; columns
    stay in range."""
    tables = tables_of(name)
    assert tables.next_state.shape == tables.action.shape == (tables.states, tables.classes + 1)
    assert (tables.next_state[:, tables.end_of_text] == 0).all()
    assert tables.next_state.max() < tables.states
    assert tables.class_of.max() == tables.classes - 1
    assert program_rows(tables, NOTHING) == []
    assert program_rows(tables, START_HERE) == [[Op.START, 0, 0, 0]]
    assert tables.action.max() == len(tables.program_start) - 2
    assert tables.program[:, 0].max() <= Op.MOVE
    assert tables.registers <= MAX_REGISTERS
    assert (tables.two_sided & ~tables.one_sided).sum() == 0
    assert len(tables.class_words) == tables.classes


def test_the_empty_text_has_no_pieces() -> None:
    """No character, no mark."""
    assert mark_pieces(tables_of("qwen3"), "") == []
    assert pieces(tables_of("bert"), "") == []


def test_a_removed_stretch_is_marked_and_yields_no_piece() -> None:
    """White space that a stage removes is a mark of its own, so that pieces have ends."""
    tables = tables_of("bert")
    assert mark_pieces(tables, "ab  c") == [
        Mark(0),
        Mark(2, dropped=True),
        Mark(3, dropped=True),
        Mark(4),
    ]
    assert pieces(tables, "ab  c") == [(0, 2), (4, 5)]


def test_a_piece_can_start_inside_a_character() -> None:
    """Digits behind ByteLevel see bytes: the second byte of U+00B2 is numeric to them."""
    assert pieces(tables_of("falcon"), "²a") == [(0, 1), (1, 2), (2, 3)]


def test_late_marks_come_in_order() -> None:
    """Three marks decided at one character: behind the line feed, at the last space, at the end
    of the white space."""
    tables = tables_of("qwen3")
    assert [m.offset for m in mark_pieces(tables, "\n     a")] == [0, 1, 5]
    assert [m.offset for m in mark_pieces(tables, "\n     \n")] == [0]
    assert [m.offset for m in mark_pieces(tables, "\n     ")] == [0, 1]


def test_a_refusal_reads_as_a_sentence() -> None:
    """All reasons in one line."""
    assert str(Refusal(("a", "b"))) == "a; b"
