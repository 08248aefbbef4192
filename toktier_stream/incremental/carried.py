"""What reading on needs of one tokenizer, as one array of addresses (jit.py: :class:`Packed`), and
the views of it that kernels take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from toktier_stream.incremental.automaton import trie
from toktier_stream.incremental.chain import Words
from toktier_stream.incremental.jit import Packed, pointer
from toktier_stream.incremental.layout import LONGEST
from toktier_stream.incremental.machine import Machine, Wired
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.incremental.tables import Tables
from toktier_stream.incremental.walk import Laid
from toktier_stream.tokenizer.encoder import Compiled
from toktier_stream.tokenizer.jit import forced


class Literals(NamedTuple):
    """The trie of the added tokens (tokenizer/literals.py); ``reach``: bytes of the longest."""

    first: Any
    edges: Any
    final: Any
    shift: Any
    reach: int


def carried(compiled: Compiled, machine: Machine, tables: Tables) -> Packed:
    """Raises ValueError for a token of more than :data:`layout.LONGEST` bytes."""
    if tables.longest > LONGEST:
        raise ValueError("a token is too long")
    literals, w, steps = compiled.added.any, machine.wired, tables.steps
    kinds = np.zeros(0, dtype=np.uint8)
    if compiled.normalizer is not None:
        kinds = compiled.normalizer.kinds
    child, label, whole = _whole_words(tables)
    longest_whole = max(map(len, tables.whole), default=0)
    numbers = (
        w.end_of_text, int(literals.shift), literals.reach, longest_whole, tables.longest,
        len(tables.points), len(steps.entries) - 2,
    )  # fmt: skip
    return Packed(
        (np.array(numbers), np.int64), (w.next_state, np.uint16), (w.action, np.uint16),
        (w.class_of, np.uint8), (w.program_start, np.int32), (w.program, np.int16),
        (w.short, np.uint32), (machine.live, np.int64), (literals.first, np.bool_),
        (literals.edges, np.uint64), (literals.final, np.int64), (kinds, np.uint8),
        (tables.ids, np.uint32), (tables.forest.length, np.uint16), (child, np.int32),
        (label, np.uint8), (whole, np.int64), (steps.kids, np.uint32), (steps.grown, np.uint32),
        (steps.marks, np.uint64), (steps.sign, np.uint16), (steps.pairs, np.uint32),
        (steps.buckets, np.uint32), (steps.root, np.int32), (steps.symbol, np.int32),
        (steps.entries, np.uint32),
    )  # fmt: skip


@forced
def numbers_of(plan: Longs) -> Any:
    """int64: the end of text's class, the literals' shift and reach, bytes of the longest whole
    word and of the longest token, symbols, and the first entry of pairs without children."""
    return carray(pointer(plan[0, 0]), (plan[0, 1],), np.int64)


@forced
def wired(plan: Longs) -> Any:
    """The pre-tokenizer's machine."""
    return Wired(
        carray(pointer(plan[1, 0]), (plan[1, 1], plan[1, 2]), np.uint16),
        carray(pointer(plan[2, 0]), (plan[2, 1], plan[2, 2]), np.uint16),
        carray(pointer(plan[3, 0]), (plan[3, 1],), np.uint8),
        carray(pointer(plan[4, 0]), (plan[4, 1],), np.int32),
        carray(pointer(plan[5, 0]), (plan[5, 1], plan[5, 2]), np.int16),
        carray(pointer(plan[6, 0]), (plan[6, 1],), np.uint32),
        numbers_of(plan)[0],
    )


@forced
def live_of(plan: Longs) -> Any:
    """The registers that count, by state."""
    return carray(pointer(plan[7, 0]), (plan[7, 1],), np.int64)


@forced
def literals_of(plan: Longs) -> Any:
    """The added tokens."""
    numbers = numbers_of(plan)
    return Literals(
        carray(pointer(plan[8, 0]), (plan[8, 1],), np.bool_),
        carray(pointer(plan[9, 0]), (plan[9, 1],), np.uint64),
        carray(pointer(plan[10, 0]), (plan[10, 1],), np.int64),
        np.uint64(numbers[1]),
        numbers[2],
    )


@forced
def kinds_of(plan: Longs) -> Any:
    """What normalization does with each code point; empty where there is none."""
    return carray(pointer(plan[11, 0]), (plan[11, 1],), np.uint8)


@forced
def words_of(plan: Longs) -> Any:
    """The vocabulary."""
    return Words(
        carray(pointer(plan[12, 0]), (plan[12, 1],), np.uint32),
        carray(pointer(plan[13, 0]), (plan[13, 1],), np.uint16),
        carray(pointer(plan[14, 0]), (plan[14, 1],), np.int32),
        carray(pointer(plan[15, 0]), (plan[15, 1],), np.uint8),
        carray(pointer(plan[16, 0]), (plan[16, 1],), np.int64),
        numbers_of(plan)[3],
    )


@forced
def laid_of(plan: Longs) -> Any:
    """The forest, laid out for the walk; pairs of bytes are a plain array."""
    numbers = numbers_of(plan)
    return Laid(
        np.uint64(plan[17, 0]), np.uint64(plan[18, 0]), np.uint64(plan[19, 0]),
        np.uint64(plan[20, 0]), np.uint64(plan[21, 0]), np.uint64(plan[22, 0]),
        np.uint64(plan[23, 0]), np.uint64(plan[24, 0]), np.uint64(numbers[5]), np.uint64(0),
        np.uint64(numbers[6]), np.uint64(plan[25, 0]),
    )  # fmt: skip


def _whole_words(tables: Tables) -> tuple[Ints, Symbols, Longs]:
    """The trie of the strings that are one token as a whole piece only, and their ids (-1)."""
    words = sorted(tables.whole.items())
    spelling = np.frombuffer(b"".join(w for w, _ in words), dtype=np.uint8)
    sizes = np.array([len(w) for w, _ in words], dtype=np.int64)
    child, label, ends, _ = trie(spelling, np.cumsum(sizes) - sizes, sizes, wide=False)
    ids = np.full(len(label), -1, dtype=np.int64)
    ids[ends] = [token for _, token in words]
    return child, label, ids
