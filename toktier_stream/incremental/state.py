"""The token state of one growing sequence of symbols: append, cut back, and what changed."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from toktier_stream.incremental.automaton import Automaton
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.incremental.search import Counts, Search, advance, read
from toktier_stream.incremental.tables import Tables
from toktier_stream.incremental.walk import walk

_FIRST = 64


def room(length: int, before: int) -> int:
    """How large to make a full buffer: an eighth more, so that slack is small and copies rare."""
    return max(length + 1, before + before // 8 + _FIRST)


class State:
    """theta of one sequence (see :mod:`walk`), with room to grow. Positions count symbols.

    Not thread-safe. ``search`` overrides the model's own choice.
    """

    def __init__(self, tables: Tables, search: Search | None = None) -> None:
        self.tables = tables
        self.search = tables.search if search is None else search
        self._theta: Ints = np.zeros(_FIRST, dtype=np.int32)
        self._matched = 0  # the automaton's state at the end, where the search uses one
        self.length = 0

    @classmethod
    def of(cls, tables: Tables, theta: Ints) -> State:
        """The state that an array of theta is, to be read only."""
        state = cls(tables, Search.WALK)
        state._theta, state.length = theta, len(theta) - 1
        return state

    @cached_property
    def counts(self) -> Counts:
        """What the searches of this state did; the walk counts nothing."""
        return Counts()

    @property
    def theta(self) -> Ints:
        """The state of every prefix, int32[length + 1]; a view."""
        return self._theta[: self.length + 1]

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self._theta.nbytes

    def extend(self, symbols: Symbols) -> None:
        """Append symbols; negative ones are barrier codes and are kept in theta as they are."""
        end = self.length + len(symbols)
        self.reserve(end)
        if self.search is Search.WALK:
            walk(symbols, self._theta, self.length, self.tables.steps)
        else:
            self._matched = advance(
                self.search,
                symbols,
                self._theta,
                self.length,
                self._matched,
                self.tables.forest,
                self.tables.automaton,
                self.tables.centroids,
                self.counts,
            )
        self.length = end

    def reserve(self, length: int) -> None:
        """Make room for a sequence of this length."""
        if length >= len(self._theta):
            grown = np.zeros(room(length, len(self._theta)), dtype=np.int32)
            grown[: self.length + 1] = self.theta
            self._theta = grown

    def cut(self, length: int) -> None:
        """Go back to a prefix."""
        self.length = length
        if self.search is not Search.WALK:
            self._matched = self._match(length)

    def copy(self, length: int) -> State:
        """A state of its own for a prefix."""
        other = State(self.tables, self.search)
        other.reserve(length)
        other._theta[: length + 1] = self._theta[: length + 1]
        other.cut(length)
        return other

    def follow(self, other: State, start: int) -> None:
        """Append what ``other`` holds after its prefix ``start``, where both are in step: their
        last ``longest`` values are the same, so the same symbols would give the same."""
        end = self.length + other.length - start
        self.reserve(end)
        self._theta[self.length + 1 : end + 1] = other.theta[start + 1 :]
        self.length, self._matched = end, other._matched

    def boundaries(self, end: int, stop: int = 0) -> Longs:
        """Token boundaries of prefix ``end``, ascending, from the last one <= ``stop`` on."""
        return _boundaries(self._theta, self.tables.forest.length, end, stop)

    def meet(self, p: int, q: int) -> int:
        """The last boundary that prefixes ``p`` and ``q`` have in common."""
        return int(_meet(self._theta, self.tables.forest.length, p, q))

    def settled(self, at: int) -> int:
        """The last boundary of prefix ``at`` that it keeps whatever symbols follow.

        A token that will cross ``at`` starts where the text from there to ``at`` begins some
        token, that is at a suffix state of the automaton. All these starts, and ``at`` itself,
        have their boundaries in the state already; what they have in common stays.
        """
        a = self.tables.automaton
        length = self.tables.forest.length
        return int(_settled(self._theta, length, a, self._match(at), at))

    def _match(self, at: int) -> int:
        """The automaton's state at a prefix: the last ``depth`` symbols decide it."""
        last = self._theta[max(0, at - self.tables.longest) + 1 : at + 1]
        symbols = np.where(last > 0, self.tables.forest.symbol[np.maximum(last, 0)], -1)
        return read(self.tables.automaton, 0, symbols)


@kernel
def _boundaries(theta: Ints, length: Ints, end: int, stop: int) -> Longs:
    count, p = 1, end
    while p > stop:
        p -= length[theta[p]] if theta[p] > 0 else 1
        count += 1
    out = np.empty(count, np.int64)
    p = end
    for i in range(count - 1, -1, -1):
        out[i] = p
        if i > 0:
            p -= length[theta[p]] if theta[p] > 0 else 1
    return out


@kernel
def _meet(theta: Ints, length: Ints, p: int, q: int) -> int:
    while p != q:
        if p > q:
            p -= length[theta[p]] if theta[p] > 0 else 1
        else:
            q -= length[theta[q]] if theta[q] > 0 else 1
    return p


@kernel
def _settled(theta: Ints, length: Ints, a: Automaton, state: int, at: int) -> int:
    common = at
    depth = len(a.levels) - 2
    while state != 0:
        while a.levels[depth] > state:
            depth -= 1
        if a.child[state] < a.child[state + 1]:  # some token goes on from here
            common = _meet(theta, length, at - depth, common)
        state = a.fail[state]
    return common
