"""The pre-tokenizer's machine, stopped and continued anywhere in a text (tokenizer/tables.py).

A state is the machine's whole memory besides the marks it has in hand. So a text that was read up
to some place can be read on from there, given the state: :meth:`Machine.run`. And what the machine
has not emitted tells where pieces can still start: :meth:`Machine.held`.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Longs
from toktier_stream.tokenizer.tables import MAX_REGISTERS, MatcherTables, Op
from toktier_stream.tokenizer.utf8 import decode

Bytes = npt.NDArray[np.uint8]

_SAVE, _START_REG, _DROP_REG, _MOVE = (
    int(Op.SAVE), int(Op.START_REG), int(Op.DROP_REG), int(Op.MOVE),
)  # fmt: skip
_STATE, _AT, _LAST, _BEFORE, _REGISTERS = 0, 1, 2, 3, 4
MEMORY = _REGISTERS + MAX_REGISTERS
"""Numbers that a machine's memory takes: int64, -1 for a place that is not known."""
_ASCII: Final = 0x80
_STARTS: Final = np.uint32(1)
_NEXT: Final = np.uint32(1)
_LONGER: Final = np.uint32(0xFFFFFFFF)
_STATE_SHIFT: Final = np.uint64(7)
_STATE_WORD: Final = np.uint64(1)
_IN_ROW: Final = np.uint64(127)
_RUN: Final = 8
"""Bytes that are looked at at once, to see whether they change nothing: after so many that did
not."""
_STREAK: Final = 16


class Wired(NamedTuple):
    """What a run reads: the matcher's tables, and ``short``: uint32[states * 128], by state and
    ASCII character, the next state times two, plus one if a piece starts at the character and
    nothing else is done; all ones if more is to be done."""

    next_state: npt.NDArray[np.uint16]
    action: npt.NDArray[np.uint16]
    class_of: npt.NDArray[np.uint8]
    program_start: npt.NDArray[np.int32]
    program: npt.NDArray[np.int16]
    short: npt.NDArray[np.uint32]
    end_of_text: int


class Position(NamedTuple):
    """A machine that has read up to byte ``at``. ``last`` and ``before``: where the last character
    and the one before it start; ``registers``: places; all -1 if left of where the run began."""

    state: int
    at: int
    last: int
    before: int
    registers: tuple[int, ...]


class Machine:
    """One matcher's machine. Immutable, safe for threads."""

    def __init__(self, matcher: MatcherTables) -> None:
        """Raises ValueError for a machine that removes text or cuts inside characters."""
        if matcher.drops or matcher.inside_characters:
            raise ValueError("pieces are not whole stretches of characters")
        self.matcher = matcher
        self.wired = Wired(
            matcher.next_state, matcher.action, matcher.class_of, matcher.program_start,
            matcher.program, _short(matcher), matcher.end_of_text,
        )  # fmt: skip
        self.live = _live(matcher)
        """int64[states]: the registers (as bits) that some continuation reads before it writes."""
        parts = (
            matcher.class_of,
            matcher.next_state,
            matcher.action,
            matcher.program_start,
            matcher.program,
        )
        check = 0
        for part in parts:
            check = zlib.crc32(part.tobytes(), check)
        self.check = check
        """Of the tables: states of machines with another check are other states."""

    def run(
        self, text: Bytes, start: int, stop: int, state: int = 0,
        *, ends: bool = False, beyond: int | None = None,
    ) -> tuple[Position, Longs]:  # fmt: skip
        """Read the bytes ``[start, stop)``, from ``state``, and the text's end if ``ends``; stop
        after a piece start at ``beyond`` or behind it.

        Returns where the machine is then, and the piece starts it emitted, without those left of
        ``start``: they are said to be -1 there, and a caller that begins in the middle of a text
        knows them.
        """
        memory = np.full(MEMORY, -1, dtype=np.int64)
        memory[_STATE] = state
        starts = np.empty(stop - start + 2, dtype=np.int64)
        limit = stop + 1 if beyond is None else beyond
        count = run(text, start, stop, ends, limit, self.wired, memory, starts)
        now, at, last, before, *registers = memory.tolist()
        return Position(now, at, last, before, tuple(registers)), starts[:count]

    def held(self, position: Position, piece: int) -> int:
        """The first place behind ``piece``, the last piece start emitted, where the text as read
        leaves open whether a piece starts; at most ``position.at``, where one may always start."""
        live = int(self.live[position.state])
        places = [p for r, p in enumerate(position.registers) if live >> r & 1]
        places += [position.last, position.before]
        return min((p for p in places if p > piece), default=position.at)


def _short(matcher: MatcherTables) -> npt.NDArray[np.uint32]:
    classes = matcher.class_of[:_ASCII]
    action = matcher.action[:, classes]
    size = np.diff(matcher.program_start)
    starts = size == 1
    line = matcher.program[matcher.program_start[:-1][starts]]
    starts[starts] = (line[:, 0] == int(Op.START)) & (line[:, 2] == 0)
    short = matcher.next_state[:, classes].astype(np.uint32) * np.uint32(2)
    short[starts[action]] += _STARTS
    short[((size > 0) & ~starts)[action]] = _LONGER
    return np.ascontiguousarray(short.reshape(-1))


def _live(matcher: MatcherTables) -> Longs:
    """By state, the registers (as bits) that some continuation reads before it writes them."""
    rows = 1 << MAX_REGISTERS
    programs = len(matcher.program_start) - 1
    needs = np.tile(np.arange(rows), (programs, 1))
    for p in range(programs):
        lines = matcher.program[matcher.program_start[p] : matcher.program_start[p + 1]].tolist()
        for op, register, back, _ in reversed(lines):
            mask = needs[p]
            if op in (_START_REG, _DROP_REG):
                needs[p] = mask | 1 << register
            elif op == _SAVE:
                needs[p] = mask & ~(1 << register)
            elif op == _MOVE:
                kept = mask & ~(1 << register)
                needs[p] = np.where(mask >> register & 1, kept | 1 << back, kept)
    following = matcher.next_state.astype(np.int64)
    following[:, matcher.end_of_text] = -1  # nothing is read behind the end
    live = np.zeros(matcher.states + 1, dtype=np.int64)
    while True:
        now: Longs = np.bitwise_or.reduce(needs[matcher.action, live[following]], axis=1)
        if np.array_equal(now, live[:-1]):
            return now
        live[:-1] = now


@kernel
def run(
    text: Bytes,
    start: int,
    stop: int,
    ends: bool,
    beyond: int,
    m: Any,
    memory: Longs,
    starts: Longs,
) -> int:
    """Continue from ``memory`` (state, place, last two characters, registers), which is then where
    the machine stopped; the number of ``starts`` that were emitted. See :meth:`Machine.run`; ``m``
    is what is :class:`Wired`."""
    next_state, action, class_of, short = m.next_state, m.action, m.class_of, m.short
    program_start, program = m.program_start, m.program
    count = 0
    state = memory[_STATE]
    at, last, before = start, memory[_LAST], memory[_BEFORE]
    plain = min(stop, beyond)
    done = at >= stop and not ends
    while not done:
        # Most characters are ASCII and have no program, or start a piece.
        begin, now, streak = at, np.uint64(state), 0
        while at < plain and text[at] < _ASCII:
            found = short[now << _STATE_SHIFT | np.uint64(text[at])]
            if found == _LONGER:
                break
            # Whether one starts is a matter of chance where there are no words: no branch.
            starts[count] = at
            count += int(found & _STARTS)
            streak = streak + 1 if np.uint64(found) == now << _STATE_WORD else 0
            now = np.uint64(found >> _NEXT)
            at += 1
            while streak >= _STREAK and at + _RUN <= plain:
                # Nothing begins or changes: then no step waits for the one before it.
                same = np.uint32(0)
                for i in range(_RUN):
                    byte = np.uint64(text[at + i])
                    same |= np.uint32(byte >> _STATE_SHIFT)
                    same |= short[now << _STATE_SHIFT | byte & _IN_ROW] ^ found
                if same != 0:
                    streak = 0
                else:
                    at += _RUN
        if at > begin:
            state = np.int64(now)
            before = last if at == begin + 1 else np.int64(at - 2)
            last = np.int64(at - 1)
        if at >= stop and not ends:
            break
        symbol = np.int64(m.end_of_text)
        size = 0
        if at < stop:
            point, size = decode(text, at)
            symbol = np.int64(class_of[point])
        code = action[state, symbol]
        state = np.int64(next_state[state, symbol])
        for line in range(program_start[code], program_start[code + 1]):
            op, register, back = program[line, 0], program[line, 1], program[line, 2]
            if op == _MOVE:
                memory[_REGISTERS + register] = memory[_REGISTERS + back]
                continue
            if op == _START_REG:
                place = memory[_REGISTERS + register]
            else:
                place = np.int64(at) if back == 0 else (last if back == 1 else before)
                if op == _SAVE:
                    memory[_REGISTERS + register] = place
                    continue
            if place >= 0:
                starts[count] = place
                count += 1
        if size == 0:
            break
        before = last
        last = np.int64(at)
        at += size
        done = (at >= stop and not ends) or (count > 0 and starts[count - 1] >= beyond)
    memory[_STATE], memory[_AT], memory[_LAST], memory[_BEFORE] = state, at, last, before
    return count
