"""The marking kernel walks as its twin in plain Python does, alone and two walks at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from compiled_samples import SMALL, tables_of
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.tokenizer.jit import address_of, entry
from toktier_stream.tokenizer.marks import (
    Machine,
    machine_rows,
    mark,
    mark_two,
    next_boundary,
    program_rows,
)
from toktier_stream.tokenizer.matcher import sample_members
from toktier_stream.tokenizer.tables import MAX_REGISTERS, MatcherTables, mark_pieces

WALKED = [name for name in SMALL if not tables_of(name).drops]


@entry
def _walk(
    text: Any, middle: Any, size: Any, rows: Any, class_of: Any, classes: Any, program_start: Any,
    program: Any, two_sided: Any, registers: Any, starts: Any,
) -> Any:  # fmt: skip
    """Two walks at ``middle`` where it lies inside, else one: the numbers of starts."""
    machine = Machine(
        rows=address_of(rows),
        class_of=address_of(class_of),
        classes=np.uint64(classes),
        program_start=address_of(program_start),
        program=address_of(program),
        two_sided=address_of(two_sided),
    )
    at, saved, out = address_of(text), address_of(registers), address_of(starts)
    if 0 < middle < size:
        return mark_two(at, 0, middle, size, machine, saved, out)
    return mark(at, 0, size, machine, saved, out), 0


@entry
def _boundary(text: Any, place: Any, size: Any, class_of: Any, classes: Any, two_sided: Any) -> Any:
    nothing = np.uint64(0)
    machine = Machine(
        rows=nothing,
        class_of=address_of(class_of),
        classes=np.uint64(classes),
        program_start=nothing,
        program=nothing,
        two_sided=address_of(two_sided),
    )
    return next_boundary(address_of(text), place, size, machine)


def walk(tables: MatcherTables, text: str, middle: int = 0) -> list[int]:
    """Piece starts by the kernel."""
    data = text.encode()
    starts = np.zeros(len(data) + 4, dtype=np.int32)
    first, second = _walk(
        np.frombuffer(data + bytes(16), dtype=np.uint8),
        middle,
        len(data),
        machine_rows(tables),
        tables.class_of,
        tables.classes,
        tables.program_start,
        program_rows(tables),
        tables.two_sided,
        np.zeros(2 * MAX_REGISTERS, dtype=np.int64),
        starts,
    )
    return [*starts[:first].tolist(), *starts[middle + 2 : middle + 2 + second].tolist()]


def slow_boundaries(tables: MatcherTables, text: str) -> list[int]:
    """Places of two-sided boundaries, in bytes."""
    places = np.cumsum([len(c.encode()) for c in text])
    pairs = pairwise(text)
    of = tables.class_of
    return [
        int(place)
        for place, (x, y) in zip(places, pairs, strict=False)
        if tables.two_sided[of[ord(x)], of[ord(y)]]
    ]


def texts(tables: MatcherTables) -> st.SearchStrategy[str]:
    character = st.sampled_from(sample_members(tables, each=4)).flatmap(st.sampled_from)
    part = st.tuples(character, st.integers(1, 4)).map(lambda t: t[0] * t[1])
    return st.lists(part, min_size=1, max_size=24).map("".join)


@pytest.mark.parametrize("name", WALKED)
def test_one_walk_and_two(name: str) -> None:
    """Random texts over all classes: the twin's marks, also when two halves are walked at once."""
    tables = tables_of(name)

    @settings(max_examples=100, deadline=None, database=None)
    @given(texts(tables))
    def check(text: str) -> None:
        expected = [m.offset for m in mark_pieces(tables, text)]
        assert walk(tables, text) == expected
        for middle in slow_boundaries(tables, text):
            assert walk(tables, text, middle) == expected

    check()


@pytest.mark.parametrize("name", WALKED)
def test_boundaries_are_found(name: str) -> None:
    """The next boundary from any byte, inside characters too; the end of the text if there is
    none."""
    tables = tables_of(name)

    @settings(max_examples=50, deadline=None, database=None)
    @given(texts(tables))
    def check(text: str) -> None:
        data = text.encode()
        padded = np.frombuffer(data + bytes(16), dtype=np.uint8)
        places = slow_boundaries(tables, text)
        for at in range(1, len(data) + 1):
            expected = next((p for p in places if p >= at), len(data))
            found = _boundary(
                padded, at, len(data), tables.class_of, tables.classes, tables.two_sided
            )
            assert found == expected

    check()


def test_a_machine_beyond_the_packing() -> None:
    """More states or programs than a transition can say is an error at load."""
    tables = tables_of("qwen3")
    many = np.zeros((40_000, tables.classes + 1), dtype=np.uint16)
    wide = MatcherTables.from_arrays({**tables.to_arrays(), "next_state": many, "action": many})
    with pytest.raises(ValueError, match="states"):
        machine_rows(wide)
    action = np.full_like(tables.action, 2000)
    busy = MatcherTables.from_arrays({**tables.to_arrays(), "action": action})
    with pytest.raises(ValueError, match="programs"):
        machine_rows(busy)
