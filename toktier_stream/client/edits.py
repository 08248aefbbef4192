"""The smallest edit that turns one text into another, as a byte range and its replacement."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_BLOCK: Final = 1 << 18  # the two blocks and the comparison's result stay in a core's cache


class Edit(NamedTuple):
    """Replace bytes ``[start, end)`` of the old text by ``replacement``."""

    start: int
    end: int
    replacement: bytes


def smallest_edit(old: bytes | bytearray, new: bytes) -> Edit:
    """The edit between two valid UTF-8 texts, found by their common prefix and suffix.

    The longest common prefix is taken first, so a text that only grew gives an append
    (``start == end == len(old)``); equal texts give an empty edit at the end. ``start`` and
    ``end`` are character boundaries of ``old``, and the replacement is whole characters. (Other
    bytes than valid UTF-8 give an edit too, but nothing is promised about its boundaries.)
    One pass over both texts at memory speed, no allocation proportional to them.
    """
    prefix = _common_prefix(old, new)
    while prefix and (_splits_character(old, prefix) or _splits_character(new, prefix)):
        prefix -= 1
    suffix = _common_suffix(old, new, min(len(old), len(new)) - prefix)
    while _splits_character(old, len(old) - suffix):
        suffix -= 1
    return Edit(prefix, len(old) - suffix, new[prefix : len(new) - suffix])


def apply_edit(old: bytes, edit: Edit) -> bytes:
    """The new text: what the other side of :func:`smallest_edit` does with the edit."""
    return old[: edit.start] + edit.replacement + old[edit.end :]


def _splits_character(text: bytes | bytearray, position: int) -> bool:
    """Whether the byte at ``position`` continues a character (10xxxxxx); the end does not."""
    return position < len(text) and text[position] & 0xC0 == 0x80


def _common_prefix(old: bytes | bytearray, new: bytes) -> int:
    # The usual case, a text that grew, is one comparison in C without a copy.
    if new.startswith(old):
        return len(old)
    shared = min(len(old), len(new))
    left, right = _view(old), _view(new)
    for low in range(0, shared, _BLOCK):
        high = min(low + _BLOCK, shared)
        differs = left[low:high] != right[low:high]
        first = int(differs.argmax())
        if differs[first]:
            return low + first
    return shared


def _common_suffix(old: bytes | bytearray, new: bytes, limit: int) -> int:
    """Length of the common suffix, at most ``limit`` so that it stays clear of the prefix."""
    left, right = _view(old), _view(new)
    for low in range(0, limit, _BLOCK):
        size = min(_BLOCK, limit - low)
        left_end, right_end = len(old) - low, len(new) - low
        differs = left[left_end - size : left_end] != right[right_end - size : right_end]
        first = int(differs[::-1].argmax())
        if differs[size - 1 - first]:
            return low + first
    return limit


def _view(text: bytes | bytearray) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text, dtype=np.uint8)
