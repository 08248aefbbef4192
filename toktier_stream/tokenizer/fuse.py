"""The guessing scanner made deterministic: one state per character, late marks kept in hand.

A state holds every run that is still possible, each with the marks it has set and that not every
other run shares. What all runs agree on, from the left, is emitted at once; so marks come out in
order and each as soon as it is certain. A mark in hand is named by how many characters ago it was
set; an older one moves to a register.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.automaton import refine
from toktier_stream.tokenizer.pattern import Unsupported
from toktier_stream.tokenizer.scanner import Kind, Marks, Scanner
from toktier_stream.tokenizer.tables import MAX_BACK, MAX_REGISTERS, Op

MAX_STATES: Final = 2000
_OLDEST: Final = MAX_BACK - 1
"""A mark set this many characters before the last one read is still named by its age."""

Instruction = tuple[int, int, int, int]
"""(op, register, back, byte): one row of a program."""
Program = tuple[Instruction, ...]

START_HERE_PROGRAM: Final[Program] = ((int(Op.START), 0, 0, 0),)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a mark in hand stands: ``age`` characters before the last one read, or, if ``age`` is
    negative, in register ``age - FIRST_REGISTER`` (lower registers are further left)."""

    age: int
    byte: int


_FIRST_REGISTER: Final = -MAX_REGISTERS

Hand = tuple[tuple[Place, Kind], ...]
"""Marks in hand, from left to right."""
Run = tuple[int, Hand]
"""A scanner configuration and its marks in hand."""
State = tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """The deterministic machine before it is written as arrays.

    Column ``classes`` of ``following`` and ``programs`` is the end of the text. State 0 is the
    beginning. ``recent[s]``: every mark in hand in s was set at the last character read.
    """

    classes: int
    following: tuple[tuple[int, ...], ...]
    programs: tuple[tuple[Program, ...], ...]
    recent: tuple[bool, ...]
    registers: int


def fuse(scanner: Scanner) -> Machine:
    """Raises Unsupported where more must be held in hand than registers allow."""
    start: State = ((0, ()),)
    numbers = {start: 0}
    order = [start]
    following: list[tuple[int, ...]] = []
    programs: list[tuple[Program, ...]] = []
    while len(following) < len(order):
        state = order[len(following)]
        next_row, program_row = [], []
        for symbol in range(scanner.classes):
            reached, program = _advance(scanner, state, symbol)
            if reached not in numbers:
                numbers[reached] = len(order)
                order.append(reached)
                if len(order) > MAX_STATES:
                    raise Unsupported("stages that leave too much undecided for one table")
            next_row.append(numbers[reached])
            program_row.append(program)
        next_row.append(0)
        program_row.append(_finish(scanner, state))
        following.append(tuple(next_row))
        programs.append(tuple(program_row))
    recent = tuple(all(place.age == 0 for _, hand in state for place, _ in hand) for state in order)
    return _minimized(scanner.classes, following, programs, recent)


def _register(place: Place) -> int:
    return place.age - _FIRST_REGISTER


def _emit(place: Place, kind: Kind, older: int) -> Instruction:
    """The instruction that emits a mark. ``older`` is 1 if ages count from the character before
    the one being read."""
    if place.age < 0:
        op = Op.START_REG if kind is Kind.START else Op.DROP_REG
        return (int(op), _register(place), 0, 0)
    op = Op.START if kind is Kind.START else Op.DROP
    return (int(op), 0, place.age + older, place.byte)


def _advance(scanner: Scanner, state: State, symbol: int) -> tuple[State, Program]:
    """Read one class: the next state and what to do."""
    # During the step, ages count from the character being read (so a fresh mark is 0).
    runs: list[Run] = []
    for configuration, hand in state:
        aged: Hand = tuple((p if p.age < 0 else Place(p.age + 1, p.byte), kind) for p, kind in hand)
        for reached, marks in scanner.edges[configuration][symbol]:
            runs.append((reached, (*aged, *_fresh(marks))))
    if not runs:
        raise Unsupported("stages whose automata contradict each other (no run)")
    runs.sort()
    if len({configuration for configuration, _ in runs}) < len(runs):
        raise Unsupported("stages whose automata contradict each other (two runs)")
    program: list[Instruction] = []
    while all(hand for _, hand in runs) and len({hand[0] for _, hand in runs}) == 1:
        program.append(_emit(*runs[0][1][0], older=0))
        runs = [(configuration, hand[1:]) for configuration, hand in runs]
    kept = _keep({place for _, hand in runs for place, _ in hand}, program)
    reached_state = tuple(
        (configuration, tuple((kept[place], kind) for place, kind in hand))
        for configuration, hand in runs
    )
    return reached_state, tuple(program)


def _fresh(marks: Marks) -> Hand:
    return tuple((Place(0, byte), kind) for byte, kind in marks)


def _keep(places: Iterable[Place], program: list[Instruction]) -> dict[Place, Place]:
    """Name what stays in hand, moving what grew old into registers, lowest first."""
    names: dict[Place, Place] = {}
    register = 0
    # Registers sort before ages, and a higher age is further left.
    for place in sorted(
        places, key=lambda p: (p.age >= 0, -p.age if p.age >= 0 else p.age, p.byte)
    ):
        if 0 <= place.age <= _OLDEST:
            names[place] = place
            continue
        if register >= MAX_REGISTERS:
            raise Unsupported(f"more than {MAX_REGISTERS} undecided piece starts at a time")
        if place.age < 0:
            if _register(place) != register:
                program.append((int(Op.MOVE), register, _register(place), 0))
        else:
            program.append((int(Op.SAVE), register, place.age, place.byte))
        names[place] = Place(_FIRST_REGISTER + register, 0)
        register += 1
    return names


def _finish(scanner: Scanner, state: State) -> Program:
    """The end of the text: the one run that may end here emits what it has in hand."""
    ended = [hand for configuration, hand in state if scanner.ends[configuration]]
    if len(ended) != 1:
        raise Unsupported("stages whose automata contradict each other (at the end)")
    return tuple(_emit(place, kind, older=1) for place, kind in ended[0])


def _minimized(
    classes: int,
    following: list[tuple[int, ...]],
    programs: list[tuple[Program, ...]],
    recent: tuple[bool, ...],
) -> Machine:
    """The machine with equal states joined; ``recent`` holds where it holds in all of them."""
    block = refine(programs, [[(n,) for n in row] for row in following])
    first: dict[int, int] = {}
    for state, b in enumerate(block):
        first.setdefault(b, state)
    names = {b: i for i, b in enumerate(first)}
    instructions = [i for row in programs for program in row for i in program]
    used = [i[1] for i in instructions if i[0] in (Op.SAVE, Op.START_REG, Op.DROP_REG, Op.MOVE)]
    return Machine(
        classes,
        tuple(tuple(names[block[n]] for n in following[s]) for s in first.values()),
        tuple(programs[s] for s in first.values()),
        tuple(all(recent[s] for s in range(len(block)) if block[s] == b) for b in first),
        max(used, default=-1) + 1,
    )


@dataclass(frozen=True, slots=True)
class MachineArrays:
    """The machine as tables.py describes it."""

    next_state: npt.NDArray[np.uint16]
    action: npt.NDArray[np.uint16]
    program_start: npt.NDArray[np.int32]
    program: npt.NDArray[np.int16]


def as_arrays(machine: Machine) -> MachineArrays:
    """Number the programs: nothing is 0, a start at the character just read is 1."""
    numbers: dict[Program, int] = {(): 0, START_HERE_PROGRAM: 1}
    action = [[numbers.setdefault(p, len(numbers)) for p in row] for row in machine.programs]
    lengths = [len(p) for p in numbers]
    rows = [instruction for p in numbers for instruction in p]
    return MachineArrays(
        np.array(machine.following, dtype=np.uint16),
        np.array(action, dtype=np.uint16),
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        np.array(rows, dtype=np.int16).reshape(-1, 4),
    )
