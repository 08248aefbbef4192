"""The kernel that marks where pieces start: one step of the fused machine per character.

:func:`tables.mark_pieces` is its specification; the twin in plain Python.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.jit import Bytes, Ids, Places, Places32, Rows, inner, signed
from toktier_stream.tokenizer.tables import MatcherTables, Op
from toktier_stream.tokenizer.utf8 import decode

ROW_BITS = 22
"""A transition is ``program << ROW_BITS | row``: the row is the place of the next state's row."""
ASCII = 128
"""The first entries of a row are the ASCII characters; the classes follow, then end of text."""

_START, _SAVE, _START_REG = int(Op.START), int(Op.SAVE), int(Op.START_REG)
_ROW = np.uint32((1 << ROW_BITS) - 1)
_PROGRAM = np.uint32(ROW_BITS)


def machine_rows(matcher: MatcherTables) -> npt.NDArray[np.uint32]:
    """The fused machine as :func:`mark` reads it: one row per state, ASCII characters first, then
    the classes and the end of the text; each entry says the program and the next row.

    Raises ValueError if the machine is too large for the packing.
    """
    width = ASCII + matcher.classes + 1
    if matcher.states * width >= 1 << ROW_BITS:
        raise ValueError(f"{matcher.states} states of {matcher.classes} classes")
    if int(matcher.action.max()) >= 1 << (32 - ROW_BITS):
        raise ValueError(f"{int(matcher.action.max())} programs")
    by_class = matcher.next_state.astype(np.uint32) * np.uint32(width)
    by_class |= matcher.action.astype(np.uint32) << np.uint32(ROW_BITS)
    ascii_columns = by_class[:, matcher.class_of[:ASCII]]
    return np.ascontiguousarray(np.concatenate((ascii_columns, by_class), axis=1).reshape(-1))


@inner
def _run_program(
    program: Rows,
    first: int,
    behind: int,
    at: int,
    last: int,
    before: int,
    registers: Places,
    starts: Places32,
    count: int,
) -> int:
    """The rows ``first`` to ``behind`` of a program: the new number of starts."""
    for line in range(first, behind):
        op = program[line, 0]
        register = program[line, 1]
        back = program[line, 2]
        place = at if back == 0 else (last if back == 1 else before)
        place += program[line, 3]
        if op == _START:
            starts[count] = place
            count += 1
        elif op == _SAVE:
            registers[register] = place
        elif op == _START_REG:
            starts[count] = registers[register]
            count += 1
        else:
            registers[register] = registers[back]
    return count


@inner
def mark(
    text: Bytes,
    start: int,
    end: int,
    machine: Ids,
    end_of_text: int,
    class_of: Bytes,
    program_start: Places32,
    program: Rows,
    registers: Places,
    starts: Places32,
) -> int:
    """Piece starts of ``text[start:end]`` as :func:`tables.mark_pieces` finds them: their number.

    ``starts`` has room for one entry per byte and two more. The machine has no DROP.
    """
    count = 0
    row = np.uint32(0)
    at = start
    last = start
    before = start
    while at < end:
        byte = np.uint32(text[at])
        if byte < ASCII:
            following = at + 1
            step = machine[row + byte]
        else:
            point, size = decode(text, at)
            following = at + size
            step = machine[row + ASCII + np.uint32(class_of[point])]
        row = step & _ROW
        code = signed(step >> _PROGRAM)
        # Written whether or not it is a start: a branch here would be guessed wrong too often.
        starts[count] = at
        if code <= 1:
            count += code
        else:
            count = _run_program(
                program,
                program_start[code],
                program_start[code + 1],
                at,
                last,
                before,
                registers,
                starts,
                count,
            )
        before = last
        last = at
        at = following
    code = signed(machine[row + np.uint32(end_of_text)] >> _PROGRAM)
    return _run_program(
        program,
        program_start[code],
        program_start[code + 1],
        end,
        last,
        before,
        registers,
        starts,
        count,
    )
