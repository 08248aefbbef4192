"""Synchronizing boundaries: between which characters a text may be cut, derived from its patterns.

The theorem and its proof are in ARCHITECTURE.md. Per stage and for adjacent symbols x, y:

- R: no match holds both;
- L: whether a match ends between them does not depend on y being there or the text ending;
- B: R, and a piece of the stage surely starts at y;
- K: x and y are surely not in one stretch that the stage removes;
- N: R, and surely no piece of the stage starts at y.

(x, y) is a two-sided boundary iff some stage has B and L and all stages before it have R, L and K.
It is a one-sided boundary iff some stage has B, all before it have R and K, and each of these
stages has L or comes behind stages with N only: where an earlier stage may or may not cut, a later
one may see the text end where it otherwise sees y.

R, B, K and N are derived twice, from the deterministic automata and from the position automata: the
positions may never allow what the automata forbid, and only what both allow counts. The result is
held to a third witness, the fused machine that the text is really cut with, which also decides L a
second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.automaton import DEAD, Automaton
from toktier_stream.tokenizer.fuse import Machine, Program
from toktier_stream.tokenizer.glushkov import Positions
from toktier_stream.tokenizer.pattern import Unsupported
from toktier_stream.tokenizer.scanner import Kind, StageMachine

Pairs = npt.NDArray[np.bool_]
"""bool[n, n] over (left, right) symbols."""


@dataclass(frozen=True, slots=True)
class StageRelations:
    """R, L, B, K and N of one stage over its symbols."""

    r: Pairs
    l: Pairs  # noqa: E741 - the theorem's letter
    b: Pairs
    k: Pairs
    n: Pairs


@dataclass(frozen=True, slots=True)
class Boundaries:
    """bool[classes, classes] each: (left class, right class) is a boundary."""

    two_sided: Pairs
    one_sided: Pairs


def from_automaton(machine: StageMachine) -> StageRelations:
    """First method: the product of the automaton with "a character x was just read"."""
    automaton = machine.automaton
    n = automaton.symbols
    r = np.ones((n, n), dtype=np.bool_)
    l_ = np.ones((n, n), dtype=np.bool_)
    for x, states in enumerate(_states_after(automaton)):
        for q in states:
            for y in range(n):
                accepted, following = automaton.step(q, y)
                r[x, y] &= following == DEAD
                l_[x, y] &= accepted == automaton.accepts[q][n]
    after = _states_after(automaton)
    return _relations(
        machine,
        r,
        l_,
        [bool(states) for states in after],
        [automaton.next[0][y] != DEAD for y in range(n)],
        [automaton.surely_matches(y) for y in range(n)],
    )


def from_positions(machine: StageMachine, positions: Positions) -> StageRelations:
    """Second method: follow sets. L here is what holds at each position of the pattern on its
    own, a sufficient condition: positions do not know which alternative wins."""
    n = machine.automaton.symbols
    r = np.array([[not positions.spans(x, y) for y in range(n)] for x in range(n)], dtype=np.bool_)
    l_ = np.array(
        [[positions.ends_alike(x, y) for y in range(n)] for x in range(n)], dtype=np.bool_
    )
    return _relations(
        machine,
        r,
        l_,
        [positions.in_match(s) for s in range(n)],
        [positions.starts_match(s) for s in range(n)],
        [positions.surely_matches(s) for s in range(n)],
    )


def _states_after(automaton: Automaton) -> list[set[int]]:
    """For each symbol the states in which a match attempt can be just after reading it."""
    after: list[set[int]] = [set() for _ in range(automaton.symbols)]
    reachable, todo = {0}, [0]
    while todo:
        row = automaton.next[todo.pop()]
        for symbol in range(automaton.symbols):
            following = row[symbol]
            if following == DEAD:
                continue
            after[symbol].add(following)
            if following not in reachable:
                reachable.add(following)
                todo.append(following)
    return after


def _relations(
    machine: StageMachine,
    r: Pairs,
    l_: Pairs,
    in_match: Sequence[bool],
    starts_match: Sequence[bool],
    surely_matches: Sequence[bool],
) -> StageRelations:
    """B, K and N from what x and y can belong to: True a match, False a gap."""
    gap = [not sure for sure in surely_matches]
    on_the_left = [[True] * m + [False] * g for m, g in zip(in_match, gap, strict=True)]
    on_the_right = [[True] * m + [False] * g for m, g in zip(starts_match, gap, strict=True)]
    b, n = r.copy(), r.copy()
    for x, lefts in enumerate(on_the_left):
        for y, rights in enumerate(on_the_right):
            # Given R, two gaps side by side are one: no segment and so no mark between them.
            marked = {
                (before or match) and machine.mark(before, match) is not Kind.NONE
                for before in lefts
                for match in rights
            }
            b[x, y] &= False not in marked
            n[x, y] &= True not in marked
    # Only gaps hold several characters without a segment between them (R given).
    gaps_removed = machine.mark(True, match=False) is Kind.DROP
    return StageRelations(r, l_, b, b if gaps_removed else np.ones_like(b), n)


def agreed(by_automaton: StageRelations, by_positions: StageRelations) -> StageRelations:
    """What both derivations allow. Raises Unsupported if the positions, which over-estimate what
    a matcher can do, allow a cut that the automaton forbids: then one of them is wrong."""
    for name in ("r", "l", "b", "k", "n"):
        if (getattr(by_positions, name) & ~getattr(by_automaton, name)).any():
            raise Unsupported(f"boundary derivations that contradict each other ({name})")
    return replace(by_positions, l=by_automaton.l)


def combine(stages: Sequence[tuple[StageRelations, Sequence[int], Sequence[int]]]) -> Boundaries:
    """The theorem over all stages, in order.

    Each stage comes with the symbol it reads last of a character of each class, and first.
    """
    shape = (len(stages[0][1]),) * 2
    two_sided, one_sided = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
    before_two, before_one = np.ones(shape, dtype=np.bool_), np.ones(shape, dtype=np.bool_)
    uncut = np.ones(shape, dtype=np.bool_)
    for relations, last, first in stages:
        grid = np.ix_(np.asarray(last), np.asarray(first))
        r, l_, b, k, n = (
            m[grid] for m in (relations.r, relations.l, relations.b, relations.k, relations.n)
        )
        two_sided |= before_two & l_ & b
        before_two &= r & l_ & k
        # What stands on the right is known to the stage where nothing before it may have cut.
        known = uncut | l_
        one_sided |= before_one & known & b
        before_one &= r & known & k
        uncut &= n
    return Boundaries(two_sided, one_sided)


def from_machine(machine: Machine) -> Boundaries:
    """Third witness, exact for the fused machine: after x, whatever came before, reading y leads
    where a fresh text that begins with y leads, with a start at y and nothing else undecided."""
    n = machine.classes
    two_sided = np.ones((n, n), dtype=np.bool_)
    one_sided = np.ones((n, n), dtype=np.bool_)
    for x, states in enumerate(_machine_states_after(machine)):
        for y in range(n):
            for s in states:
                decided = _decided_before(machine, s, y)
                one_sided[x, y] &= decided is not None
                two_sided[x, y] &= decided is not None and decided == machine.programs[s][n]
    return Boundaries(two_sided, one_sided)


def _decided_before(machine: Machine, state: int, symbol: int) -> Program | None:
    """What reading ``symbol`` in ``state`` decides about the text before it, if the machine then
    stands where a fresh one would; else None."""
    # A fresh machine marks the start at once, or keeps it in hand until its kind is known.
    fresh, program = machine.programs[0][symbol], machine.programs[state][symbol]
    reached = machine.following[0][symbol]
    if machine.following[state][symbol] != reached or not machine.recent[reached]:
        return None
    decided = program[: len(program) - len(fresh)]
    return decided if program[len(decided) :] == fresh else None


def _machine_states_after(machine: Machine) -> list[set[int]]:
    after: list[set[int]] = [set() for _ in range(machine.classes)]
    for row in machine.following:
        for symbol in range(machine.classes):
            after[symbol].add(row[symbol])
    return after


def contained(smaller: Boundaries, larger: Boundaries) -> bool:
    """Whether every boundary of one is one of the other."""
    return (
        not (smaller.two_sided & ~larger.two_sided).any()
        and not (smaller.one_sided & ~larger.one_sided).any()
    )


def words(tables: Boundaries, class_words: Sequence[str]) -> tuple[str, ...]:
    """What is not a boundary, for people: a line per group of classes with equal rows."""
    labels = [_short(w) for w in class_words]
    lines = []
    for title, table in (
        ("not a boundary", tables.one_sided),
        ("a boundary for what follows only", tables.two_sided | ~tables.one_sided),
    ):
        rows: dict[bytes, list[int]] = {}
        for x in range(len(table)):
            rows.setdefault(table[x].tobytes(), []).append(x)
        for members in rows.values():
            refused = np.flatnonzero(~table[members[0]]).tolist()
            if refused:
                left = " | ".join(labels[x] for x in members)
                everything = len(refused) == len(table)
                right = "anything" if everything else " | ".join(labels[y] for y in refused)
                lines.append(f"{title}: {left} → {right}")
    return tuple(lines)


def _short(class_word: str) -> str:
    ranges = class_word.split(" and ")[0].split(" ")
    return " ".join(ranges[:3]) + ("…" if len(ranges) > 3 or " and " in class_word else "")
