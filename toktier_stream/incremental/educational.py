"""Slow, readable twins of the fast path: BPE by definition, and the state of every prefix by it.

Tests hold the kernels to these; nothing else uses them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from toktier_stream.incremental.rules import UNKNOWN, Rules


class Offline:
    """BPE of whole symbol sequences: always merge the pair of smallest (rank, position)."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        # Later rules overwrite earlier ones of the same pair, as in the reference.
        self._merges = {
            (int(left), int(right)): (rank, int(product))
            for rank, (left, right, product) in enumerate(
                zip(rules.lefts, rules.rights, rules.products, strict=True)
            )
        }

    def _atoms(self, symbols: Sequence[int]) -> list[int]:
        """Token rows; a symbol without a token is UNKNOWN and never merges."""
        return [UNKNOWN if s < 0 else int(self.rules.atoms[s]) for s in symbols]

    def by_definition(self, symbols: Sequence[int]) -> list[int]:
        """Token rows, quadratic, with nothing to get wrong."""
        tokens = self._atoms(symbols)
        while True:
            best = min(
                (
                    (self._merges[pair][0], i)
                    for i, pair in enumerate(pairwise(tokens))
                    if pair in self._merges
                ),
                default=None,
            )
            if best is None:
                return tokens
            i = best[1]
            tokens[i : i + 2] = [self._merges[tokens[i], tokens[i + 1]][1]]

    def by_heap(self, symbols: Sequence[int]) -> list[int]:
        """The same in O(n log n): a heap of pairs over a linked list."""
        tokens = self._atoms(symbols)
        n = len(tokens)
        after, before = list(range(1, n + 1)), list(range(-1, n - 1))
        alive = [True] * n
        heap: list[tuple[int, int, int, int]] = []

        def offer(i: int) -> None:
            if i >= 0 and after[i] < n:
                pair = tokens[i], tokens[after[i]]
                if pair in self._merges:
                    heapq.heappush(heap, (self._merges[pair][0], i, *pair))

        for i in range(n):
            offer(i)
        while heap:
            _, i, left, right = heapq.heappop(heap)
            j = after[i] if alive[i] else n
            if j >= n or (tokens[i], tokens[j]) != (left, right):
                continue  # this pair is gone
            tokens[i] = self._merges[left, right][1]
            alive[j] = False
            after[i] = after[j]
            if after[i] < n:
                before[after[i]] = i
            offer(before[i])
            offer(i)
        return [t for t, a in zip(tokens, alive, strict=True) if a]


def every_prefix(rules: Rules, symbols: Sequence[int]) -> list[list[int]]:
    """Token rows of every prefix, each from scratch."""
    offline = Offline(rules)
    return [offline.by_heap(symbols[:j]) for j in range(len(symbols) + 1)]


def is_canonical(rules: Rules, row: int) -> bool:
    """Whether BPE of the token's own symbols gives the token back."""
    return Offline(rules).by_definition(rules.token(row)) == [row]
