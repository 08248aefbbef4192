"""A tokenizer's compiled tables in the form that the kernels read. numpy only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.tables import MatcherTables, Refusal

if TYPE_CHECKING:
    from toktier_stream.tokenizer.encoder import Compiled
    from toktier_stream.tokenizer.merges import MergeTables

FORMAT: Final = 1

ID_BITS: Final = 20
"""A token is ``bytes << ID_BITS | id`` in 32 bits."""
SINGLE: Final = 1
"""Flag of a code: see common.cu."""
SAME: Final = 2

_SYMBOL = np.uint64((1 << 20) - 1)
_EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
_NONE = np.uint32(0xFFFFFFFF)
_NO_SYMBOL = (1 << 20) - 1

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTables:
    """Everything that the kernels read of one tokenizer, as named arrays and a few numbers."""

    arrays: Arrays
    numbers: Mapping[str, int]

    @classmethod
    def build(cls, compiled: Compiled) -> DeviceTables | Refusal:
        """From the tables of the CPU engine, or why the GPU does not serve this tokenizer."""
        matcher, merges, added = compiled.matcher, compiled.merges, compiled.added
        kinds = None if compiled.normalizer is None else compiled.normalizer.kinds
        reasons = _reasons(compiled)
        if reasons:
            return Refusal(tuple(reasons))
        arrays: dict[str, npt.NDArray[Any]] = {}
        numbers = {"classes": matcher.classes, "normalizes": int(kinds is not None)}
        arrays["pages"], arrays["properties"] = _pages(matcher.class_of, kinds)
        arrays["two_sided"] = matcher.two_sided.astype(np.uint8)
        arrays["machine"] = matcher.next_state.astype(np.uint32) | (
            matcher.action.astype(np.uint32) << np.uint32(16)
        )
        arrays["program_start"] = matcher.program_start.astype(np.uint32)
        arrays["program"] = _program(matcher)
        arrays["byte_pairs"], arrays["pairs"] = _pairs(merges)
        arrays["emit"] = _packed(merges.emit)
        for name in ("words", "long_words", "long_index", "blob", "spans"):
            arrays[name] = getattr(merges, name)
        numbers["pair_shift"] = _shift(len(merges.pairs))
        numbers["word_shift"] = _shift(len(merges.words) // 3)
        numbers["long_mask"] = len(merges.long_words) // 2 - 1
        numbers["longest_word"] = int(merges.long_index[:, 1].max(initial=0))
        for which, table in (("raw", added.raw), ("normalized", added.normalized)):
            arrays[f"{which}_first"] = np.packbits(table.first, bitorder="little").view(np.uint32)
            arrays[f"{which}_edges"] = table.edges
            arrays[f"{which}_final"] = (table.final + 1).astype(np.uint32)
            numbers[f"{which}_shift"] = int(table.shift)
            numbers[f"{which}_reach"] = table.reach
        return cls({k: np.ascontiguousarray(a) for k, a in arrays.items()}, numbers)

    def save(self, path: Path) -> None:
        """Write to an ``.npz`` file, for a machine that cannot compile tables."""
        words = json.dumps({"format": FORMAT, **self.numbers}).encode()
        content: dict[str, Any] = {**self.arrays, "numbers": np.frombuffer(words, dtype=np.uint8)}
        np.savez_compressed(path, **content)

    @classmethod
    def load(cls, path: Path) -> DeviceTables:
        """Read what :meth:`save` wrote. Raises ValueError for another format, OSError."""
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        numbers: dict[str, int] = json.loads(arrays.pop("numbers").tobytes())
        if numbers.pop("format", None) != FORMAT:
            raise ValueError("device tables of another format")
        return cls(arrays, numbers)


def _reasons(compiled: Compiled) -> list[str]:
    matcher, merges, added = compiled.matcher, compiled.merges, compiled.added
    reasons = []
    if matcher.drops:
        reasons.append("the pre-tokenizer removes text")
    if matcher.states >= 1 << 16 or int(matcher.action.max()) >= 1 << 16:
        reasons.append("the fused pre-tokenizer is too large")
    longest = max(
        int((merges.emit >> np.uint64(32)).max()),
        int(merges.long_index[:, 1].max(initial=0)),
        added.raw.reach,
        added.normalized.reach,
    )
    if longest >= 1 << (32 - ID_BITS):
        reasons.append(f"a token has {longest} bytes")
    if int(added.any.final.max(initial=0)) >= 1 << ID_BITS:
        reasons.append("an added token's id is too large")
    return reasons


def _shift(slots: int) -> int:
    return 64 - (slots.bit_length() - 1)


def _pages(
    class_of: npt.NDArray[np.uint8], kinds: npt.NDArray[np.uint8] | None
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """A two-level table over code points: class, and kind under normalization << 8."""
    flat = class_of.astype(np.uint16)
    if kinds is not None:
        flat |= kinds.astype(np.uint16) << np.uint16(8)
    rows: dict[bytes, int] = {}
    pages = [rows.setdefault(page.tobytes(), len(rows)) for page in flat.reshape(-1, 256)]
    table = np.frombuffer(b"".join(rows), dtype=np.uint16).reshape(-1, 256)
    return np.array(pages, dtype=np.uint16), table


def _program(matcher: MatcherTables) -> npt.NDArray[np.uint32]:
    op, register, back, byte = matcher.program.astype(np.uint32).T
    packed: npt.NDArray[np.uint32] = (
        op | register << np.uint32(4) | back << np.uint32(8) | byte << np.uint32(16)
    )
    return packed


def _packed(emit: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    packed = (emit & _SYMBOL) | (emit >> np.uint64(32)) << np.uint64(ID_BITS)
    return packed.astype(np.uint32)


def _pairs(merges: MergeTables) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
    """The pair tables with codes: symbol << 2 | SAME | SINGLE."""
    slots = merges.pairs
    used = slots != _EMPTY
    left = (slots[used] >> np.uint64(40)).astype(np.int64)
    right = (slots[used] >> np.uint64(20) & _SYMBOL).astype(np.int64)
    made = (slots[used] & _SYMBOL).astype(np.int64)
    flags = np.zeros(1 << 20, dtype=np.uint64)
    flags[made[left == right]] |= np.uint64(SAME)
    # A symbol that is part of one with a smaller rank: after one merge, another pair may be first.
    for side in (left, right):
        flags[side[made < side]] |= np.uint64(SINGLE)
    code_of = np.arange(1 << 20, dtype=np.uint64) << np.uint64(2) | flags
    pairs = np.full(len(slots), _EMPTY, dtype=np.uint64)
    pairs[used] = (slots[used] >> np.uint64(20)) << np.uint64(22) | code_of[made]
    byte_pairs = np.full(len(merges.byte_pairs), _NONE, dtype=np.uint32)
    known = merges.byte_pairs != _NO_SYMBOL
    byte_pairs[known] = code_of[merges.byte_pairs[known]].astype(np.uint32)
    return byte_pairs, pairs
