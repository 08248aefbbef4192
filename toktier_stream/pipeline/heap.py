"""Python's garbage collector in a process that holds much and makes few cycles.

After warm-up the heap holds some 150,000 objects that live as long as the process (compiled
kernels, tables, modules); a full collection would walk them all, with every thread stopped.
:func:`settle` puts them where the collector does not look. What dies by its count of references is
freed as before, frozen or not; only cycles among frozen objects would stay, and those are the ones
that live anyway.
"""

from __future__ import annotations

import gc
import time
from typing import Any, Final

from toktier_stream import telemetry

# Young collections are rarer than Python's default of 700: a batch makes thousands of objects
# that its end frees by reference count, and each collection in between would find nothing.
THRESHOLDS: Final = (10_000, 20, 10)


def settle() -> int:
    """Collect what is garbage, freeze what is left, set the thresholds; the objects frozen."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    return gc.get_freeze_count()


class Pauses:
    """Measures every collection of the process while it is open."""

    def __init__(self, instruments: telemetry.Instruments) -> None:
        self._instruments = instruments
        self._began = 0

    def open(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._note)

    def close(self) -> None:
        """Measure no more. May be called again."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, Any]) -> None:
        # A collection runs on one thread with the others stopped, so one number is enough.
        if phase == "start":
            self._began = time.perf_counter_ns()
        elif self._began:
            seconds = (time.perf_counter_ns() - self._began) / 1e9
            self._instruments.record(
                "toktier.gc.pause", seconds, generation=str(info["generation"])
            )
