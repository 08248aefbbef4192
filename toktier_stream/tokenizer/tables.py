"""The compiled pre-tokenizer: one table that marks piece starts in a single pass, and where text
may be cut. Everything that encodes (CPU kernels, GPU, splices) reads these arrays only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

CODE_POINTS: Final = 0x110000
FORMAT: Final = 1

NOTHING: Final = 0
"""Action 0 of every table: no mark."""
START_HERE: Final = 1
"""Action 1 of every table: a piece starts at the character just read (the most frequent mark)."""

MAX_BACK: Final = 2
"""A program names the character just read (0) or one of the two before it; older marks wait in
registers."""
MAX_REGISTERS: Final = 4


class Op(IntEnum):
    """What one row of a program does; ``at`` is ``offset(i - back) + byte``, a byte offset."""

    START = 0
    """A piece starts at ``at``."""
    DROP = 1
    """A stretch starts at ``at`` that the pre-tokenizer removes: it yields no piece."""
    SAVE = 2
    """``reg[register] = at``."""
    START_REG = 3
    """A piece starts at ``reg[register]``."""
    DROP_REG = 4
    """A removed stretch starts at ``reg[register]``."""
    MOVE = 5
    """``reg[register] = reg[back]``."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pre-tokenizer is not admitted to the exact engine. One sentence per obstacle; never
    text of a session."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.reasons)


@dataclass(frozen=True, slots=True, eq=False)
class MatcherTables:
    """All stages of one pre-tokenizer fused into one deterministic machine over character classes.

    Let C be ``classes`` and S the number of states. Class C is the end of the text.

    The machine starts in state 0 and reads the characters from left to right, then the end of the
    text once. In state ``s`` on class ``c`` it runs the program of ``action[s, c]`` and goes to
    ``next_state[s, c]``. Programs emit piece starts as byte offsets, in strictly increasing order,
    the first always 0; a piece ends where the next start stands, or at the end of the text. A mark
    can come late (``\\s+(?!\\S)`` knows one character later, ``\\s*[\\r\\n]+`` only at the end of
    the white space), but never later than the end of the text. After the end of the text the
    state is 0 again. The empty text has no pieces: do not run the machine on it.

    :func:`mark_pieces` is the specification of the kernels in plain Python.
    """

    class_of: npt.NDArray[np.uint8]
    """uint8[0x110000]: code point to class (surrogates, which no UTF-8 holds, are class 0)."""
    classes: int
    """C, without the end of the text. At most 254."""
    next_state: npt.NDArray[np.uint16]
    """uint16[S, C + 1]."""
    action: npt.NDArray[np.uint16]
    """uint16[S, C + 1]: index of a program; 0 does nothing, 1 is START at the character just
    read (back 0, byte 0) and nothing else."""
    program_start: npt.NDArray[np.int32]
    """int32[programs + 1]: program p is rows ``program_start[p]`` to ``program_start[p + 1]``."""
    program: npt.NDArray[np.int16]
    """int16[rows, 4]: columns op (:class:`Op`), register, back (0..MAX_BACK), byte.

    ``byte`` is 0 unless a stage works behind ByteLevel on single bytes (Falcon): then it counts
    bytes from the start of that character and a piece may start inside a character."""
    registers: int
    """Registers in use, at most MAX_REGISTERS; 0 for most families."""
    two_sided: npt.NDArray[np.bool_]
    """bool[C, C]: between adjacent characters of classes (x, y), pieces(left ∥ right) =
    pieces(left) ∥ pieces(right), whatever left (ending in x) and right (starting with y) are."""
    one_sided: npt.NDArray[np.bool_]
    """bool[C, C], a superset of ``two_sided``: in left ∥ right a piece starts at the cut and the
    pieces to its right are pieces(right); those to its left may depend on y, and on nothing else
    of right."""
    byte_level: bool
    """The pieces are mapped to the byte-level alphabet (a ByteLevel stage is present)."""
    inside_characters: bool
    """Some program marks a start inside a character (``byte`` > 0)."""
    drops: bool
    """Some program uses DROP or DROP_REG: pieces do not cover the whole text."""
    space_marker: str
    """Metaspace's replacement character: in a piece, each U+0020 reads as this character. Empty:
    pieces are the text itself."""
    class_words: tuple[str, ...]
    """C descriptions of the classes, for people."""
    stage_words: tuple[str, ...]
    """One description per stage, for people."""
    boundary_words: tuple[str, ...]
    """What is *not* a boundary, in words, for people."""

    @property
    def end_of_text(self) -> int:
        """The class of the end of the text: ``classes``."""
        return self.classes

    @property
    def states(self) -> int:
        return len(self.next_state)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays without objects, fit for ``numpy.savez``; inverse of :meth:`from_arrays`."""
        words = {
            "format": FORMAT,
            "classes": self.classes,
            "registers": self.registers,
            "byte_level": self.byte_level,
            "inside_characters": self.inside_characters,
            "drops": self.drops,
            "space_marker": self.space_marker,
            "class_words": self.class_words,
            "stage_words": self.stage_words,
            "boundary_words": self.boundary_words,
        }
        return {
            "class_of": self.class_of,
            "next_state": self.next_state,
            "action": self.action,
            "program_start": self.program_start,
            "program": self.program,
            "two_sided": self.two_sided,
            "one_sided": self.one_sided,
            "words": np.frombuffer(json.dumps(words).encode(), dtype=np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> MatcherTables:
        """Raises ValueError if the arrays were written by another format, KeyError if one is
        missing."""
        words = json.loads(arrays["words"].tobytes())
        if words["format"] != FORMAT:
            raise ValueError(f"matcher tables of format {words['format']}, expected {FORMAT}")
        return cls(
            class_of=_frozen(arrays["class_of"], np.uint8),
            classes=words["classes"],
            next_state=_frozen(arrays["next_state"], np.uint16),
            action=_frozen(arrays["action"], np.uint16),
            program_start=_frozen(arrays["program_start"], np.int32),
            program=_frozen(arrays["program"], np.int16),
            registers=words["registers"],
            two_sided=_frozen(arrays["two_sided"], np.bool_),
            one_sided=_frozen(arrays["one_sided"], np.bool_),
            byte_level=words["byte_level"],
            inside_characters=words["inside_characters"],
            drops=words["drops"],
            space_marker=words["space_marker"],
            class_words=tuple(words["class_words"]),
            stage_words=tuple(words["stage_words"]),
            boundary_words=tuple(words["boundary_words"]),
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """The start of a piece (or of a removed stretch) as a byte offset into the UTF-8 text."""

    offset: int
    dropped: bool = False


def mark_pieces(tables: MatcherTables, text: str) -> list[Mark]:
    """Walk the table over ``text``: the reference loop that every kernel must equal."""
    marks: list[Mark] = []
    if not text:
        return marks
    registers = [0] * MAX_REGISTERS
    offsets = [0] * (MAX_BACK + 1)  # byte offsets of the character just read and those before it
    state = 0
    offset = 0
    for character in [*text, None]:
        offsets = [offset, *offsets[:MAX_BACK]]
        if character is None:
            symbol = tables.end_of_text
        else:
            symbol = int(tables.class_of[ord(character)])
            offset += len(character.encode())
        program = int(tables.action[state, symbol])
        state = int(tables.next_state[state, symbol])
        if program == NOTHING:
            continue
        first, last = tables.program_start[program], tables.program_start[program + 1]
        for op, register, back, byte in tables.program[first:last].tolist():
            if op == Op.START:
                marks.append(Mark(offsets[back] + byte))
            elif op == Op.DROP:
                marks.append(Mark(offsets[back] + byte, dropped=True))
            elif op == Op.SAVE:
                registers[register] = offsets[back] + byte
            elif op == Op.START_REG:
                marks.append(Mark(registers[register]))
            elif op == Op.DROP_REG:
                marks.append(Mark(registers[register], dropped=True))
            else:
                registers[register] = registers[back]
    return marks


def pieces(tables: MatcherTables, text: str) -> list[tuple[int, int]]:
    """The pieces of ``text`` as byte spans (start, end), removed stretches left out."""
    marks = mark_pieces(tables, text)
    ends = [mark.offset for mark in marks[1:]] + [len(text.encode())] * bool(marks)
    return [(m.offset, end) for m, end in zip(marks, ends, strict=True) if not m.dropped]


def _frozen(array: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    out = np.ascontiguousarray(array, dtype=dtype)
    out.setflags(write=False)
    return out
