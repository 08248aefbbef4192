"""One pattern as a deterministic automaton with the reference's leftmost-first semantics.

A state is the ordered list of places in the pattern where a backtracking matcher could stand, best
first. Acceptance sits on the transition: reading symbol y tells whether a match may end *before* y,
so that what looks one character ahead (``(?!\\S)``, ``$``, possessive repetition) needs no extra
states. Where a match is accepted, worse places are dropped; so the match that backtracking finds is
the one accepted last before the automaton dies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toktier_stream.tokenizer.pattern import (
    Ahead,
    Alternate,
    CharSet,
    Concat,
    Node,
    Repeat,
    Unsupported,
)

DEAD: Final = -1
"""The next state from which no acceptance can be reached."""
MAX_STATES: Final = 500
MAX_PLACES: Final = 2000

Masks = Mapping[CharSet, int]
"""Bit mask of symbols for each character set."""


@dataclass(frozen=True, slots=True)
class Automaton:
    """The automaton of one pattern over symbols 0 .. symbols-1 and the end of text, ``symbols``.

    ``accepts[q][y]``: a match may end before symbol y. ``next[q][y]``: the state after y, or DEAD;
    column ``symbols`` is always DEAD. State 0 is the start of a match; it never accepts.
    """

    symbols: int
    accepts: tuple[tuple[bool, ...], ...]
    next: tuple[tuple[int, ...], ...]

    @property
    def states(self) -> int:
        return len(self.next)

    def step(self, state: int, symbol: int) -> tuple[bool, int]:
        """(accepted before ``symbol``, next state)."""
        return self.accepts[state][symbol], self.next[state][symbol]

    def surely_matches(self, symbol: int) -> bool:
        """Whether every match attempt that begins at ``symbol`` succeeds, whatever follows."""
        todo = [self.next[0][symbol]]
        seen = set(todo)
        while todo:
            state = todo.pop()
            if state == DEAD:
                return False
            for y in range(self.symbols + 1):
                accepted, following = self.step(state, y)
                if accepted:
                    continue
                if y == self.symbols or following == DEAD:
                    return False
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        return True


def compile_pattern(node: Node, masks: Masks, symbols: int) -> Automaton:
    """Raises Unsupported where the pattern can match the empty text or grows too large."""
    program = _Program(masks, symbols)
    program.emit(node)
    program.rows.append(_Match())
    return _minimized(_determinized(program))


@dataclass(frozen=True, slots=True)
class _Take:
    """Read one symbol of ``mask`` and go on with the next row."""

    mask: int


@dataclass(frozen=True, slots=True)
class _Check:
    """Go on with the next row if the symbol to come is in ``mask``; read nothing."""

    mask: int


@dataclass(slots=True)
class _Fork:
    """Go on with any of ``targets``, the first preferred."""

    targets: list[int]


@dataclass(frozen=True, slots=True)
class _Match:
    """The pattern has matched."""


_Row = _Take | _Check | _Fork | _Match


class _Program:
    """The pattern as rows for a backtracking machine, whose runs the states enumerate."""

    def __init__(self, masks: Masks, symbols: int) -> None:
        self.masks = masks
        self.everything = (1 << (symbols + 1)) - 1
        self.symbols = symbols
        self.rows: list[_Row] = []

    def emit(self, node: Node) -> None:
        if len(self.rows) > MAX_PLACES:
            raise Unsupported("a pattern of too many places")
        if isinstance(node, CharSet):
            self.rows.append(_Take(self.masks[node]))
        elif isinstance(node, Concat):
            for part in node.parts:
                self.emit(part)
        elif isinstance(node, Alternate):
            self.alternate(node.options)
        elif isinstance(node, Ahead):
            self.rows.append(_Check(ahead_mask(node, self.masks, self.symbols)))
        else:
            self.repeat(node)

    def alternate(self, options: Sequence[Node]) -> None:
        ends = []
        for option in options[:-1]:
            fork = _Fork([len(self.rows) + 1])
            self.rows.append(fork)
            self.emit(option)
            end = _Fork([])
            self.rows.append(end)
            ends.append(end)
            fork.targets.append(len(self.rows))
        self.emit(options[-1])
        for end in ends:
            end.targets.append(len(self.rows))

    def repeat(self, node: Repeat) -> None:
        if node.high != 1 and nullable(node.body):
            raise Unsupported("a repetition of something that can be empty")
        for _ in range(node.low):
            self.emit(node.body)
        forks = []
        if node.high is None:
            forks.append(self.fork())
            again = len(self.rows) - 1
            self.emit(node.body)
            self.rows.append(_Fork([again]))
        else:
            for _ in range(node.high - node.low):
                forks.append(self.fork())
                self.emit(node.body)
        behind = _Fork([])
        if node.possessive:
            self.rows.append(behind)
        for fork in forks:
            fork.targets.append(len(self.rows))
            if not node.greedy:
                fork.targets.reverse()
        if node.possessive and isinstance(node.body, CharSet):
            # Never giving back means leaving only where nothing more can be taken.
            self.rows.append(_Check(self.masks[node.body] ^ self.everything))
            behind.targets.append(len(self.rows))

    def fork(self) -> _Fork:
        fork = _Fork([len(self.rows) + 1])
        self.rows.append(fork)
        return fork


def ahead_mask(node: Ahead, masks: Masks, symbols: int) -> int:
    """The symbols (end of text included) before which the look-ahead holds."""
    mask = (1 << symbols) if node.at_end else 0
    for s in node.sets:
        mask |= masks[s]
    return mask ^ ((1 << (symbols + 1)) - 1) if node.negative else mask


def nullable(node: Node) -> bool:
    """Whether ``node`` can match without reading anything, look-ahead permitting."""
    if isinstance(node, CharSet):
        return False
    if isinstance(node, Concat):
        return all(nullable(part) for part in node.parts)
    if isinstance(node, Alternate):
        return any(nullable(option) for option in node.options)
    if isinstance(node, Repeat):
        return node.low == 0 or nullable(node.body)
    return True


_Places = tuple[int, ...]


def _follow(program: _Program, places: _Places, symbol: int) -> tuple[bool, _Places]:
    """Run every place, best first, up to where it reads ``symbol``: (accepted, new places)."""
    bit = 1 << symbol
    seen: set[int] = set()
    reached: dict[int, None] = {}
    stack = list(reversed(places))
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        row = program.rows[at]
        if isinstance(row, _Match):
            return True, tuple(reached)
        if isinstance(row, _Fork):
            stack.extend(reversed(row.targets))
        elif row.mask & bit:
            if isinstance(row, _Take):
                reached.setdefault(at + 1)
            else:
                stack.append(at + 1)
    return False, tuple(reached)


def _determinized(program: _Program) -> Automaton:
    columns = program.symbols + 1
    numbers: dict[_Places, int] = {(0,): 0}
    order: list[_Places] = [(0,)]
    accepts: list[tuple[bool, ...]] = []
    following: list[tuple[int, ...]] = []
    while len(accepts) < len(order):
        places = order[len(accepts)]
        accept_row, next_row = [], []
        for symbol in range(columns):
            accepted, reached = _follow(program, places, symbol)
            accept_row.append(accepted)
            if not reached:
                next_row.append(DEAD)
                continue
            if reached not in numbers:
                numbers[reached] = len(order)
                order.append(reached)
                if len(order) > MAX_STATES:
                    raise Unsupported(f"a pattern of more than {MAX_STATES} states")
            next_row.append(numbers[reached])
        accepts.append(tuple(accept_row))
        following.append(tuple(next_row))
    if any(accepts[0]):
        raise Unsupported("a pattern that can match the empty text")
    return Automaton(program.symbols, tuple(accepts), tuple(following))


def _minimized(raw: Automaton) -> Automaton:
    """The same automaton with hopeless states dead and equal states joined."""
    hopeful = {q for q in range(raw.states) if any(raw.accepts[q])}
    grown = True
    while grown:
        more = {q for q in range(raw.states) if hopeful.intersection(raw.next[q])}
        grown = not more <= hopeful
        hopeful |= more
    following = [[n if n in hopeful else DEAD for n in row] for row in raw.next]
    block = refine(
        [(q == 0, row) for q, row in enumerate(raw.accepts)],
        [[(n,) for n in row] for row in following],
    )
    members: dict[int, int] = {}
    for q in [0, *sorted(hopeful)]:
        members.setdefault(block[q], q)
    names = {b: i for i, b in enumerate(members)}
    names_of = {q: names[block[q]] for q in range(raw.states) if block[q] in names}
    return Automaton(
        raw.symbols,
        tuple(raw.accepts[q] for q in members.values()),
        tuple(
            tuple(DEAD if n == DEAD else names_of[n] for n in following[q])
            for q in members.values()
        ),
    )


def refine(labels: Sequence[object], edges: Sequence[Sequence[tuple[int, ...]]]) -> list[int]:
    """The coarsest partition of states that respects ``labels`` and the targets of ``edges``.

    ``edges[q]`` lists tuples of target states (negative: no state, equal to itself only). Returns
    the block of each state (Moore's refinement).
    """
    blocks: dict[object, int] = {}
    block = [blocks.setdefault(label, len(blocks)) for label in labels]
    while True:
        blocks = {}
        refined = [
            blocks.setdefault(
                (
                    block[q],
                    tuple(tuple(t if t < 0 else block[t] for t in ts) for ts in edges[q]),
                ),
                len(blocks),
            )
            for q in range(len(block))
        ]
        if len(blocks) == len(set(block)):
            return refined
        block = refined
