"""The smallest edit between two texts: minimal, on character boundaries, and reversible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.client.edits import Edit, apply_edit, smallest_edit

# Few characters of every UTF-8 length, several of which share leading or trailing bytes, so
# that texts often differ in the middle of a character.
ALPHABET = "ab\n\u00e9\u00e8\u0129\u20ac\u20ad\u4e00\U0001f600\U0001f601\U0001f640"
TEXT = st.text(alphabet=ALPHABET, max_size=12)


def slow_twin(old: str, new: str) -> Edit:
    """The same by comparing one character after the other."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    tail = 0
    while tail < min(len(old), len(new)) - start and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return Edit(
        len(old[:start].encode()),
        len(old[: len(old) - tail].encode()),
        new[start : len(new) - tail].encode(),
    )


@given(TEXT, TEXT)
def test_equals_the_character_by_character_twin(old: str, new: str) -> None:
    """Bytes moved to boundaries give exactly what characters give."""
    assert smallest_edit(old.encode(), new.encode()) == slow_twin(old, new)


@given(st.text(), TEXT, TEXT, st.text())
def test_a_change_in_the_middle_is_found(left: str, old: str, new: str, right: str) -> None:
    """Shared context on both sides never becomes part of the replacement."""
    a, b = (left + old + right).encode(), (left + new + right).encode()
    edit = smallest_edit(a, b)
    assert edit == slow_twin(left + old + right, left + new + right)
    assert apply_edit(a, edit) == b
    assert len(edit.replacement) <= len(new.encode())


@given(st.text(), st.text())
def test_growth_is_an_append(old: str, added: str) -> None:
    """A text that only grew is an append at its end, whatever its repetitions."""
    a = old.encode()
    assert smallest_edit(a, a + added.encode()) == Edit(len(a), len(a), added.encode())


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_are_reversible(old: bytes, new: bytes) -> None:
    """Even bytes that are no UTF-8 give an edit that leads to the new bytes."""
    assert apply_edit(old, smallest_edit(old, new)) == new


@pytest.mark.parametrize("position", [0, 1, 262_143, 262_144, 262_145, 700_000, 999_999])
def test_blocks_do_not_show(position: int) -> None:
    """A single changed byte is found at every place relative to the comparison's blocks."""
    old = bytes(i % 100 for i in range(1_000_000))
    new = old[:position] + b"\x7f" + old[position + 1 :]
    assert smallest_edit(old, new) == Edit(position, position + 1, b"\x7f")


def test_characters_that_share_bytes_are_replaced_whole() -> None:
    """Two emoji that differ in their last byte only: the whole character is replaced."""
    old, new = "x\U0001f600y", "x\U0001f601y"
    assert smallest_edit(old.encode(), new.encode()) == Edit(1, 5, "\U0001f601".encode())


def test_characters_that_share_their_last_byte_are_replaced_whole() -> None:
    """The common suffix may not begin inside a character either."""
    old, new = "x\u00e9y", "x\u0129y"  # c3 a9 and c4 a9
    assert smallest_edit(old.encode(), new.encode()) == Edit(1, 3, "\u0129".encode())


def test_truncation_is_an_empty_replacement() -> None:
    """A text cut back is an edit to the end without new text."""
    assert smallest_edit(b"abcabc", b"abc") == Edit(3, 6, b"")
