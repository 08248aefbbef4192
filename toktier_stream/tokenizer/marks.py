"""The kernel that marks where pieces start: one step of the fused machine per character.

:func:`tables.mark_pieces` is its specification and twin. A walk is one chain of dependent loads,
so two walks run side by side: a text cut at a two-sided boundary has the pieces of its two parts.
They stay in one small loop while both read ASCII and no program but the usual ones is to be run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.jit import (
    Address,
    Number,
    forced,
    inner,
    load_u8,
    load_u32,
    load_u64,
    signed,
    store_u32,
    store_u64,
)
from toktier_stream.tokenizer.tables import MAX_REGISTERS, MatcherTables, Op
from toktier_stream.tokenizer.utf8 import decode_at

ROW_BITS = 20
"""A transition is ``program << (ROW_BITS + 2) | starts << ROW_BITS | row``: the row is the place of
the next state's row. A program that only says that a piece starts at the character just read, at
the one before, or at both is in the two bits ``starts``; no program is named then."""
ASCII = 128
"""The first entries of a row are the ASCII characters; the classes follow, then end of text."""

_START, _SAVE, _START_REG = int(Op.START), int(Op.SAVE), int(Op.START_REG)
_ROW = np.uint32((1 << ROW_BITS) - 1)
_BEFORE, _HERE = np.uint32(ROW_BITS), np.uint32(ROW_BITS + 1)
_PROGRAM = np.uint32(ROW_BITS + 2)
_NO_PROGRAM = np.uint32((4 << ROW_BITS) - 1)
"""The highest transition without a program."""
_ONE = np.uint32(1)
_HIGH = np.uint64(ASCII)
_LOW_FOUR = np.uint32(15)
_FOUR = np.uint32(4)
_EIGHT = np.uint32(8)
_SIXTEEN = np.uint32(16)


class Machine(NamedTuple):
    """The arrays of a fused machine as addresses."""

    rows: np.uint64
    """uint32: :func:`machine_rows`."""
    class_of: np.uint64
    """uint8[0x110000]."""
    classes: np.uint64
    """C; the place of the end of the text in a row is ASCII + C."""
    program_start: np.uint64
    """int32[programs + 1]."""
    program: np.uint64
    """uint32: :func:`program_rows`."""
    two_sided: np.uint64
    """bool[C, C]."""


def machine_rows(matcher: MatcherTables) -> npt.NDArray[np.uint32]:
    """The fused machine as :func:`mark` reads it: one row per state, ASCII characters first, then
    the classes and the end of the text; each entry says the program and the next row.

    Raises ValueError if the machine is too large for the packing.
    """
    width = ASCII + matcher.classes + 1
    if matcher.states * width >= 1 << ROW_BITS:
        raise ValueError(f"{matcher.states} states of {matcher.classes} classes")
    if int(matcher.action.max()) >= 1 << (30 - ROW_BITS):
        raise ValueError(f"{int(matcher.action.max())} programs")
    by_class = matcher.next_state.astype(np.uint32) * np.uint32(width)
    by_class |= _orders(matcher)[matcher.action] << np.uint32(ROW_BITS)
    ascii_columns = by_class[:, matcher.class_of[:ASCII]]
    return np.ascontiguousarray(np.concatenate((ascii_columns, by_class), axis=1).reshape(-1))


def _orders(matcher: MatcherTables) -> npt.NDArray[np.uint32]:
    """uint32[programs]: each program as it stands above the row of a transition."""
    before, here = (_START, 0, 1, 0), (_START, 0, 0, 0)
    usual = {(): 0, (before,): 1, (here,): 2, (before, here): 3}
    orders = []
    for program, (first, behind) in enumerate(pairwise(matcher.program_start.tolist())):
        rows = tuple(map(tuple, matcher.program[first:behind].tolist()))
        orders.append(usual.get(rows, program << 2))
    return np.array(orders, dtype=np.uint32)


def program_rows(matcher: MatcherTables) -> npt.NDArray[np.uint32]:
    """The rows of all programs, packed: op, register, back and byte from the low end."""
    columns = matcher.program.astype(np.uint32)
    shifts = np.array([0, 4, 8, 16], dtype=np.uint32)
    packed: npt.NDArray[np.uint32] = np.bitwise_or.reduce(columns << shifts, axis=1)
    return packed if len(packed) else np.zeros(1, dtype=np.uint32)


@inner
def _run_program(
    text: Address,
    start: int,
    at: int,
    machine: Machine,
    code: int,
    registers: Address,
    starts: Address,
    count: int,
) -> int:
    """Run a program at the character (or the end) at ``at``: the new number of starts.

    ``start`` is where the walk began; no program looks behind it.
    """
    first = signed(load_u32(machine.program_start, code))
    behind = signed(load_u32(machine.program_start, code + 1))
    for line in range(first, behind):
        row = load_u32(machine.program, line)
        op = row & _LOW_FOUR
        register = (row >> _FOUR) & _LOW_FOUR
        back = signed((row >> _EIGHT) & _LOW_FOUR)
        place = at
        for _ in range(back):
            place = max(start, place - 1)
            while place > start and load_u8(text, place) & 0xC0 == 0x80:
                place -= 1
        place += signed(row >> _SIXTEEN)
        if op == _START:
            store_u32(starts, count, place)
            count += 1
        elif op == _SAVE:
            store_u64(registers, register, place)
        elif op == _START_REG:
            store_u32(starts, count, load_u64(registers, register))
            count += 1
        else:
            store_u64(registers, register, load_u64(registers, signed((row >> _EIGHT) & _LOW_FOUR)))
    return count


@forced
def _mark_usual(step: Number, before: int, at: int, starts: Address, count: int) -> int:
    """The starts that a transition itself tells: the new number of starts."""
    # Written whether or not they are starts: branches here would be guessed wrong too often.
    store_u32(starts, count, before)
    count += signed((step >> _BEFORE) & _ONE)
    store_u32(starts, count, at)
    count += signed((step >> _HERE) & _ONE)
    return count


@forced
def _step(
    text: Address,
    start: int,
    before: int,
    at: int,
    machine: Machine,
    row: Number,
    registers: Address,
    starts: Address,
    count: int,
) -> tuple[int, Any, int]:
    """Read the character at ``at``, behind the one at ``before``: the next place, row, and number
    of starts."""
    byte = load_u8(text, at)
    if byte < ASCII:
        following = at + 1
        step = load_u32(machine.rows, row + np.uint32(byte))
    else:
        point, size = decode_at(text, at)
        following = at + size
        class_ = np.uint32(load_u8(machine.class_of, point))
        step = load_u32(machine.rows, row + ASCII + class_)
    count = _mark_usual(step, before, at, starts, count)
    code = signed(step >> _PROGRAM)
    if code:
        count = _run_program(text, start, at, machine, code, registers, starts, count)
    return following, step & _ROW, count


@forced
def _finish(
    text: Address,
    start: int,
    before: int,
    end: int,
    machine: Machine,
    row: Number,
    registers: Address,
    starts: Address,
    count: int,
) -> int:
    step = load_u32(machine.rows, row + ASCII + np.uint32(machine.classes))
    count = _mark_usual(step, before, end, starts, count)
    code = signed(step >> _PROGRAM)
    if code:
        count = _run_program(text, start, end, machine, code, registers, starts, count)
    return count


@inner
def mark(
    text: Address, start: int, end: int, machine: Machine, registers: Address, starts: Address
) -> int:
    """Piece starts of ``text[start:end]`` as :func:`tables.mark_pieces` finds them: their number.

    ``starts`` (int32) has room for one entry per byte and two more. The machine has no DROP.
    """
    row = np.uint32(0)
    count = signed(0)
    at = before = start
    while at < end:
        following, row, count = _step(
            text, start, before, at, machine, row, registers, starts, count
        )
        before, at = at, following
    return _finish(text, start, before, end, machine, row, registers, starts, count)


@inner
def mark_two(
    text: Address,
    start: int,
    middle: int,
    end: int,
    machine: Machine,
    registers: Address,
    starts: Address,
) -> tuple[int, int]:
    """As :func:`mark` for ``text[start:middle]`` and ``text[middle:end]`` side by side.

    The starts of the second part are written ``middle - start + 2`` entries further on.
    """
    row, row2 = np.uint32(0), np.uint32(0)
    count, count2 = signed(0), signed(0)
    at = before = start
    at2 = before2 = middle
    rows = machine.rows
    registers2 = registers + np.uint64(8 * MAX_REGISTERS)
    starts2 = starts + np.uint64(4 * (middle - start + 2))
    while at < middle and at2 < end:
        # A loop of its own, so that all it needs stays in the processor's registers.
        while at < middle and at2 < end:
            byte, byte2 = load_u8(text, at), load_u8(text, at2)
            if byte | byte2 >= _HIGH:
                break
            step = load_u32(rows, row + np.uint32(byte))
            step2 = load_u32(rows, row2 + np.uint32(byte2))
            if step > _NO_PROGRAM or step2 > _NO_PROGRAM:
                break
            count = _mark_usual(step, before, at, starts, count)
            count2 = _mark_usual(step2, before2, at2, starts2, count2)
            row, row2 = step & _ROW, step2 & _ROW
            before, before2 = at, at2
            at += 1
            at2 += 1
        if at < middle and at2 < end:
            following, row, count = _step(
                text, start, before, at, machine, row, registers, starts, count
            )
            before, at = at, following
            following, row2, count2 = _step(
                text, middle, before2, at2, machine, row2, registers2, starts2, count2
            )
            before2, at2 = at2, following
    while at < middle:
        following, row, count = _step(
            text, start, before, at, machine, row, registers, starts, count
        )
        before, at = at, following
    while at2 < end:
        following, row2, count2 = _step(
            text, middle, before2, at2, machine, row2, registers2, starts2, count2
        )
        before2, at2 = at2, following
    return (
        _finish(text, start, before, middle, machine, row, registers, starts, count),
        _finish(text, middle, before2, end, machine, row2, registers2, starts2, count2),
    )


@inner
def next_boundary(text: Address, at: int, end: int, machine: Machine) -> int:
    """The first two-sided boundary from ``at`` (not the start of the text), or ``end``."""
    while at < end and load_u8(text, at) & 0xC0 == 0x80:
        at += 1
    if at >= end:
        return end
    before = at - 1
    while before > 0 and load_u8(text, before) & 0xC0 == 0x80:
        before -= 1
    point, _ = decode_at(text, before)
    left = np.uint64(load_u8(machine.class_of, point))
    while at < end:
        point, size = decode_at(text, at)
        right = np.uint64(load_u8(machine.class_of, point))
        if load_u8(machine.two_sided, left * machine.classes + right):
            return at
        left = right
        at += size
    return end
