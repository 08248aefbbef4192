"""The position automaton (Glushkov) of a pattern: an independent second opinion on boundaries.

It knows nothing of priorities, states or backtracking: only which character of the pattern can
follow which, and before which next symbols a match may end. Everything it says errs on the side of
"may": what it excludes, no matcher can do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from toktier_stream.tokenizer.automaton import Masks, ahead_mask
from toktier_stream.tokenizer.pattern import Ahead, Alternate, CharSet, Concat, Node, Repeat


@dataclass(slots=True)
class _Part:
    """A piece of the pattern. All masks are over symbols and the end of text.

    ``empty``: the next symbols before which the part can match nothing. ``first``: position to the
    symbols on which it can be entered first. ``last``: position to the next symbols before which
    the part can end behind it.
    """

    empty: int
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)


class Positions:
    """The positions of one pattern over symbols 0 .. symbols-1 and the end of text, ``symbols``."""

    def __init__(self, node: Node, masks: Masks, symbols: int) -> None:
        self._masks = masks
        self._symbols = symbols
        self._everything = (1 << (symbols + 1)) - 1
        self._follow: list[dict[int, int]] = []
        whole = self._part(node)
        self._first = whole.first
        self._last = whole.last
        # reads[p]: the symbols position p can take, entered from the start or from another one.
        self._reads = [0] * len(self._follow)
        for entered in (whole.first, *self._follow):
            for position, mask in entered.items():
                self._reads[position] |= mask

    def spans(self, left: int, right: int) -> bool:
        """Whether a match may hold both of two adjacent symbols."""
        return any(mask >> right & 1 for p in self._at(left) for mask in self._follow[p].values())

    def ends_alike(self, left: int, right: int) -> bool:
        """Whether at each position that reads ``left``, a match may end before ``right`` iff it may
        end at the end of text."""
        return all(
            (self._last.get(p, 0) >> right & 1) == (self._last.get(p, 0) >> self._symbols & 1)
            for p in self._at(left)
        )

    def surely_matches(self, symbol: int) -> bool:
        """Whether a match that begins at ``symbol`` exists before whatever follows."""
        begun = [p for p, mask in self._first.items() if mask >> symbol & 1]
        return self._goes_on(begun, self._sure)

    def _goes_on(self, positions: Iterable[int], sure: set[int]) -> bool:
        """Whether from some of ``positions``, any next symbol allows the match to end, or leads to
        a position in ``sure``."""
        allowed = 0
        for p in positions:
            allowed |= self._last.get(p, 0)
            for q, mask in self._follow[p].items():
                if q in sure:
                    allowed |= mask
        return allowed == self._everything

    @cached_property
    def _sure(self) -> set[int]:
        """The positions behind which every text lets the match end sooner or later. The end of
        text never leads on, so there each of them ends."""
        sure = set(range(len(self._follow)))
        while True:
            still = {p for p in sure if self._goes_on([p], sure)}
            if still == sure:
                return sure
            sure = still

    def in_match(self, symbol: int) -> bool:
        """Whether a match can hold ``symbol`` at all."""
        return bool(self._at(symbol))

    def starts_match(self, symbol: int) -> bool:
        """Whether a match can begin with ``symbol``."""
        return any(mask >> symbol & 1 for mask in self._first.values())

    def _at(self, symbol: int) -> list[int]:
        return [p for p, mask in enumerate(self._reads) if mask >> symbol & 1]

    def _part(self, node: Node) -> _Part:
        if isinstance(node, CharSet):
            position = len(self._follow)
            self._follow.append({})
            return _Part(0, {position: self._masks[node]}, {position: self._everything})
        if isinstance(node, Concat):
            part = _Part(self._everything)
            for child in node.parts:
                part = self._joined(part, self._part(child))
            return part
        if isinstance(node, Alternate):
            part = _Part(0)
            for option in map(self._part, node.options):
                part.empty |= option.empty
                part.first.update(option.first)
                part.last.update(option.last)
            return part
        if isinstance(node, Ahead):
            return _Part(ahead_mask(node, self._masks, self._symbols))
        return self._repeated(node)

    def _joined(self, left: _Part, right: _Part) -> _Part:
        for p, ending in left.last.items():
            for q, entry in right.first.items():
                if ending & entry:
                    self._follow[p][q] = self._follow[p].get(q, 0) | (ending & entry)
        first = dict(left.first)
        for q, entry in right.first.items():
            first[q] = first.get(q, 0) | (entry & left.empty)
        last = dict(right.last)
        for p, ending in left.last.items():
            last[p] = last.get(p, 0) | (ending & right.empty)
        return _Part(left.empty & right.empty, first, last)

    def _repeated(self, node: Repeat) -> _Part:
        part = _Part(self._everything)
        for _ in range(node.low):
            part = self._joined(part, self._part(node.body))
        if node.high is None:
            loop = self._part(node.body)
            self._joined(loop, loop)
            loop.empty = self._everything
            part = self._joined(part, loop)
        else:
            for _ in range(node.high - node.low):
                more = self._part(node.body)
                more.empty = self._everything
                part = self._joined(part, more)
        if node.possessive and isinstance(node.body, CharSet):
            leaving = self._masks[node.body] ^ self._everything
            # {0,1} taken in full may leave before anything; a loop only where it cannot go on.
            if node.high is None:
                part.last = {p: mask & leaving for p, mask in part.last.items()}
            part.empty &= leaving
        return part
