"""Finds partitions that have work and make no step. It knows no broker and no clock of its own.

A partition tells a *mark* that changes with every step forward: a batch committed, records of the
changelog applied, a life begun anew. One that owes work and shows the same mark for longer than
its limit is stalled. Where it is not known whether work is owed (the broker is away), time does not
count: ending the process would not bring the broker back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One partition, now. ``owing`` None: not known. ``limit_s``: a mark may stand so long."""

    mark: Hashable
    owing: bool | None
    limit_s: float


class Watchdog:
    """Feed it at intervals much shorter than the limits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[int, tuple[Hashable, float]] = {}

    def observe(self, partitions: Mapping[int, Progress]) -> dict[int, float]:
        """For each stalled partition, the seconds since its last step or since it last owed
        nothing. Partitions that are not named are forgotten."""
        now = self._clock()
        stalled: dict[int, float] = {}
        before, self._since = self._since, {}
        for partition, progress in partitions.items():
            mark, since = before.get(partition, (progress.mark, now))
            if mark != progress.mark or not progress.owing:
                since = now
            self._since[partition] = (progress.mark, since)
            if now - since > progress.limit_s:
                stalled[partition] = now - since
        return stalled
