"""All stages together as one machine that guesses: where each match ends, before it is known.

A scanner stands for one run through the text. At every character each stage either goes on with
its match, ends it, or goes on in a gap, and where that depends on characters still to come, the
machine takes every choice at once and carries what must turn out true: a match that was ended must
never be accepted further right, and one that goes on must be. Exactly one run of each text keeps
all its promises; its marks are the reference's piece starts. ``fuse.py`` makes it deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from toktier_stream.tokenizer.automaton import DEAD, Automaton
from toktier_stream.tokenizer.pattern import Unsupported
from toktier_stream.tokenizer.stages import Behavior

MAX_CONFIGURATIONS: Final = 2_000


class Kind(IntEnum):
    """What a stage marks at a symbol."""

    NONE = 0
    START = 1
    """A piece starts here."""
    DROP = 2
    """A stretch starts here that this stage removes."""


class Mode(IntEnum):
    """What a stage is doing."""

    FRESH = 0
    """Nothing read of its piece yet."""
    MATCH = 1
    GAP = 2
    PASSING = 3
    """Inside a stretch that an earlier stage removed."""


@dataclass(frozen=True, slots=True, order=True)
class StageState:
    """One stage's part of a run. ``match`` is the automaton's state in mode MATCH; ``never`` are
    states of abandoned attempts, which must not be accepted any more."""

    mode: Mode
    match: int = DEAD
    never: tuple[int, ...] = ()


FRESH: Final = StageState(Mode.FRESH)
_PASSING: Final = StageState(Mode.PASSING)


@dataclass(frozen=True, slots=True)
class StageMachine:
    """One stage: its pattern's automaton and what becomes of matches."""

    automaton: Automaton
    behavior: Behavior
    invert: bool
    on_bytes: bool

    def mark(self, before: bool | None, match: bool) -> Kind:
        """The mark at the start of a segment (a match, or a gap between matches).

        ``before`` tells whether the segment on the left is a match; None: there is none.
        """
        hit = match != self.invert
        hit_before = None if before is None else before != self.invert
        if self.behavior is Behavior.REMOVED:
            return Kind.DROP if hit else Kind.START
        if hit_before is None or self.behavior is Behavior.ISOLATED:
            return Kind.START
        if self.behavior is Behavior.MERGED_WITH_PREVIOUS:
            joined = hit and not hit_before
        elif self.behavior is Behavior.MERGED_WITH_NEXT:
            joined = hit_before and not hit
        else:
            joined = hit == hit_before
        return Kind.NONE if joined else Kind.START

    def ends(self, state: StageState) -> bool:
        """Whether a piece may end in ``state``: all promises are kept at the end of its text."""
        end = self.automaton.symbols
        if any(self.automaton.accepts[q][end] for q in state.never):
            return False
        return state.mode is not Mode.MATCH or self.automaton.accepts[state.match][end]

    def read(self, state: StageState, symbol: int, mark: Kind) -> Iterator[tuple[StageState, Kind]]:
        """Every way on over ``symbol``, at which the stage before has set ``mark``."""
        if mark is not Kind.NONE:
            if not self.ends(state):
                return
            if mark is Kind.DROP:
                yield _PASSING, Kind.DROP
                return
            state = FRESH
        if state.mode is Mode.PASSING:
            yield state, Kind.NONE
            return
        never: set[int] = set()
        for q in state.never:
            accepted, following = self.automaton.step(q, symbol)
            if accepted:
                return
            if following != DEAD:
                never.add(following)
        if state.mode is Mode.FRESH:
            yield from self._begin(symbol, never, None)
        elif state.mode is Mode.GAP:
            yield from self._begin(symbol, never, False)
        else:
            accepted, following = self.automaton.step(state.match, symbol)
            if following != DEAD:
                yield StageState(Mode.MATCH, following, tuple(sorted(never))), Kind.NONE
            if accepted:
                abandoned = never | ({following} if following != DEAD else set())
                yield from self._begin(symbol, abandoned, True)

    def _begin(
        self, symbol: int, never: set[int], before: bool | None
    ) -> Iterator[tuple[StageState, Kind]]:
        """A match starts at ``symbol``, or none does and a gap starts or goes on."""
        _, first = self.automaton.step(0, symbol)
        if first != DEAD:
            kept = tuple(sorted(never))
            yield StageState(Mode.MATCH, first, kept), self.mark(before, match=True)
        gap = StageState(Mode.GAP, DEAD, tuple(sorted(never | ({first} - {DEAD}))))
        yield gap, Kind.NONE if before is False else self.mark(before, match=False)


Configuration = tuple[StageState, ...]
Marks = tuple[tuple[int, Kind], ...]
"""(byte within the character, kind) of the marks that the last stage sets at one character."""


@dataclass(frozen=True, slots=True)
class Scanner:
    """The runs that can still keep their promises, as a graph.

    Configuration 0 is the beginning of a text. ``edges[c][y]`` are the (next, marks) that reading
    class y allows; ``ends[c]`` tells whether the text may end in c.
    """

    classes: int
    edges: tuple[tuple[tuple[tuple[int, Marks], ...], ...], ...]
    ends: tuple[bool, ...]


def explore(
    machines: Sequence[StageMachine], classes: int, bytes_of: Sequence[Sequence[int]]
) -> Scanner:
    """The scanner of ``machines`` over ``classes`` character classes.

    ``bytes_of[c]`` are the symbols that stages on bytes read for a character of class c. Raises
    Unsupported if the machine grows too large.
    """
    start: Configuration = tuple(FRESH for _ in machines)
    numbers = {start: 0}
    order = [start]
    edges: list[list[list[tuple[int, Marks]]]] = []
    while len(edges) < len(order):
        configuration = order[len(edges)]
        row: list[list[tuple[int, Marks]]] = []
        for c in range(classes):
            ways = []
            # Only the beginning of the text marks a piece start by itself.
            mark = Kind.START if configuration is start else Kind.NONE
            for following, marks in _advance(machines, configuration, c, mark, bytes_of[c]):
                if following not in numbers:
                    numbers[following] = len(order)
                    order.append(following)
                    if len(order) > MAX_CONFIGURATIONS:
                        raise Unsupported("stages that leave too much undecided together")
                ways.append((numbers[following], marks))
            row.append(ways)
        edges.append(row)
    ends = [
        all(m.ends(s) for m, s in zip(machines, configuration, strict=True))
        for configuration in order
    ]
    return _trimmed(classes, edges, ends)


def _advance(
    machines: Sequence[StageMachine],
    configuration: Configuration,
    symbol: int,
    mark: Kind,
    byte_symbols: Sequence[int],
) -> Iterator[tuple[Configuration, Marks]]:
    """Every joint way of all stages over one character."""
    on_text = [m for m in machines if not m.on_bytes]
    for states, last in _through(on_text, configuration[: len(on_text)], symbol, mark):
        runs: list[tuple[Configuration, Marks]] = [(configuration[len(on_text) :], ())]
        on_bytes = machines[len(on_text) :]
        for byte, byte_symbol in enumerate(byte_symbols if on_bytes else (0,)):
            runs = [
                (following, (*marks, (byte, kind)) if kind is not Kind.NONE else marks)
                for rest, marks in runs
                for following, kind in _through(
                    on_bytes, rest, byte_symbol, last if byte == 0 else Kind.NONE
                )
            ]
        for rest, marks in runs:
            yield (*states, *rest), marks


def _through(
    machines: Sequence[StageMachine], states: Configuration, symbol: int, mark: Kind
) -> Iterator[tuple[Configuration, Kind]]:
    """Every joint way of ``machines`` over one symbol, each fed by the one before."""
    if not machines:
        yield (), mark
        return
    for state, kind in machines[0].read(states[0], symbol, mark):
        for rest, last in _through(machines[1:], states[1:], symbol, kind):
            yield (state, *rest), last


def _trimmed(classes: int, edges: list[list[list[tuple[int, Marks]]]], ends: list[bool]) -> Scanner:
    """Without the configurations from which no text keeps every promise."""
    hopeful = {c for c, end in enumerate(ends) if end}
    before: dict[int, set[int]] = {}
    for c, row in enumerate(edges):
        for ways in row:
            for following, _ in ways:
                before.setdefault(following, set()).add(c)
    todo = list(hopeful)
    while todo:
        for c in before.get(todo.pop(), ()):
            if c not in hopeful:
                hopeful.add(c)
                todo.append(c)
    names = {c: i for i, c in enumerate(sorted(hopeful | {0}))}
    return Scanner(
        classes,
        tuple(
            tuple(tuple((names[n], m) for n, m in ways if n in hopeful) for ways in edges[c])
            for c in names
        ),
        tuple(ends[c] for c in names),
    )
