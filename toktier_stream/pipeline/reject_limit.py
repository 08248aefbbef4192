"""Stops a worker that rejects too much: a producer's bad release, or a tokenizer that is missing.

Rejected records are counted against all records over a sliding window. The offsets of what was
rejected are committed, so nothing is answered twice after a restart; records that keep coming bad
end the next worker too, which is the point.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

_STEPS: Final = 60  # the window slides by a sixtieth of itself


class RejectLimit:
    """``ratio`` 0: never exceeded. Used from one thread."""

    def __init__(
        self,
        ratio: float,
        window_s: float,
        min_records: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ratio = ratio
        self._window_s = window_s
        self._min_records = min_records
        self._clock = clock
        self._counts: deque[tuple[int, list[int]]] = deque()  # step, [records, rejected]
        self._records = self._rejected = 0

    def add(self, records: int, rejected: int) -> None:
        """Count a batch that was committed."""
        step = self._slide()
        if not self._counts or self._counts[-1][0] != step:
            self._counts.append((step, [0, 0]))
        last = self._counts[-1][1]
        last[0] += records
        last[1] += rejected
        self._records += records
        self._rejected += rejected

    def exceeded(self) -> str:
        """What is too much, in words; empty if nothing is."""
        self._slide()
        enough = self._records >= self._min_records
        if not self._ratio or not enough or self._rejected <= self._ratio * self._records:
            return ""
        return f"{self._rejected} of {self._records} records in {self._window_s:.0f} s"

    def _slide(self) -> int:
        """Forget what has left the window; returns the step it is now."""
        step = int(self._clock() // (self._window_s / _STEPS))
        while self._counts and self._counts[0][0] <= step - _STEPS:
            _, (records, rejected) = self._counts.popleft()
            self._records -= records
            self._rejected -= rejected
        return step
