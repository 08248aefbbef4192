"""When a partition takes its next turn: at once, or a little later with more records.

A transaction costs about the same CPU time whatever it holds, and each partition commits its own.
While the worker has time to spare, small ones are best: nobody waits. When it has not, they are
what keeps it busy; then the turns of a partition are spread, so that each holds more.

The control is one number for all partitions, the least time between two turns of one of them. It
grows while the worker is busier than it should be, and shrinks while it is less so.
"""

from __future__ import annotations

import os
import time
from typing import Final

BUSY: Final = 0.75
"""Share of the time that is in use from which turns are spread; below nine tenths, less so."""

LONGEST_S: Final = 0.03
"""Between two turns of a partition, at most: what it adds to latency must stay small beside what
waiting for a busy worker adds."""

_LOOK_S: Final = 0.1
_STEP_S: Final = 0.002
_GROWTH: Final = 1.25


class Clocks:
    """What the pace goes by. Called on the worker's loop."""

    def now(self) -> float:
        """Seconds that have passed."""
        return time.monotonic()

    def loop(self) -> float:
        """CPU seconds that the loop's thread has used."""
        return time.thread_time()

    def process(self) -> float:
        """CPU seconds that the process has used, as a share of what it may use."""
        return time.process_time() / len(os.sched_getaffinity(0))


class Pace:
    """The spacing of turns, shared by a worker's partitions. Used on its loop."""

    def __init__(self, clocks: Clocks | None = None) -> None:
        self._clocks = clocks or Clocks()
        self._turns = 0.0
        self._looked = self._clocks.now()
        self._used = self._read()
        self.spacing = 0.0
        """Seconds between the beginnings of two turns of one partition, at least."""

    def now(self) -> float:
        """The clock that turns begin by."""
        return self._clocks.now()

    def computed(self, cpu_s: float) -> None:
        """CPU seconds that a partition's turn took in its thread: the loop waits meanwhile, or
        it for the loop, for they share the interpreter's lock."""
        self._turns += cpu_s

    def wait(self, began: float) -> float:
        """Seconds to wait before the turn that follows one which began at ``began``."""
        now = self._clocks.now()
        self._look(now)
        return max(0.0, began + self.spacing - now)

    def _look(self, now: float) -> None:
        passed = now - self._looked
        if passed < _LOOK_S:
            return
        used = self._read()
        share = max(b - a for a, b in zip(self._used, used, strict=True)) / passed
        self._looked, self._used = now, used
        if share > BUSY:
            self.spacing = min(LONGEST_S, self.spacing * _GROWTH + _STEP_S)
        elif share < 0.9 * BUSY:
            self.spacing = max(0.0, self.spacing / _GROWTH - _STEP_S)

    def _read(self) -> tuple[float, float]:
        return self._clocks.loop() + self._turns, self._clocks.process()
