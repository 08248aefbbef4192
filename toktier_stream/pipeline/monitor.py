"""Beats on the worker's loop: takes snapshots, asks the broker for the lag, feeds the watchdog.

It only reads. A broker that hangs holds up its own question, never the beat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import psutil

from toktier_stream import telemetry
from toktier_stream.config import Settings
from toktier_stream.errors import ToktierError
from toktier_stream.pipeline.health import (
    RUNNING,
    Health,
    PartitionFacts,
    Snapshot,
    WorkerFacts,
)
from toktier_stream.pipeline.watchdog import Progress, Watchdog

_LOG = telemetry.logger(__name__)
BEAT_S: Final = 1.0
_ASK_S: Final = 5.0
_STATES: Final = ("fencing", "restoring", "running", "stopping", "failed")


class Monitor:
    """One per worker. ``facts`` tells where the worker stands; ``lag`` asks for one partition,
    ``ping`` the broker where no partition runs."""

    def __init__(
        self,
        settings: Settings,
        health: Health,
        facts: Callable[[], WorkerFacts],
        lag: Callable[[int], Awaitable[int]],
        ping: Callable[[], Awaitable[object]],
        instruments: telemetry.Instruments,
        *,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._settings = settings
        self._health = health
        self._facts = facts
        self._lag = lag
        self._ping = ping
        self._instruments = instruments
        self._watchdog = watchdog or Watchdog()
        self._answered: float | None = None  # when the broker answered last
        self._lags: dict[int, tuple[int, int]] = {}  # the lag, and the epoch it was asked in
        self._reported: set[int] = set()
        self._stalled: set[int] = set()
        self._process = psutil.Process()

    async def run(self) -> None:
        """Beat until cancelled."""
        asking: asyncio.Task[None] | None = None
        next_question = 0.0
        try:
            while True:
                facts = self._facts()
                now = time.monotonic()
                ending = facts.stopping or facts.error
                if not ending and now >= next_question and (asking is None or asking.done()):
                    next_question = now + _ASK_S
                    asking = asyncio.create_task(self._ask(facts))
                self.beat(facts)
                due = time.monotonic() + BEAT_S
                await asyncio.sleep(BEAT_S)
                self._instruments.record("toktier.loop.delay", max(0.0, time.monotonic() - due))
        finally:
            if asking is not None:
                asking.cancel()
            self.beat(self._facts())

    def beat(self, facts: WorkerFacts) -> None:
        """Publish a snapshot and set the gauges."""
        now = time.monotonic()
        lags = {
            p.partition: lag
            for p in facts.partitions
            if (known := self._lags.get(p.partition)) is not None
            for lag, epoch in [known]
            if epoch == p.epoch and p.state == RUNNING
        }
        away = None if self._answered is None else now - self._answered
        unknown = away is None or away > 2 * _ASK_S
        stalled = self._watchdog.observe(
            {
                p.partition: _progress(
                    p, None if unknown else lags.get(p.partition), self._settings
                )
                for p in facts.partitions
            }
        )
        for partition in stalled.keys() - self._stalled:
            _LOG.error(
                "partition_stalled", partition=partition, seconds=round(stalled[partition], 1)
            )
        self._stalled = set(stalled)
        self._health.publish(Snapshot(now, facts, away, lags, stalled))
        self._measure(facts, lags)

    def _measure(self, facts: WorkerFacts, lags: dict[int, int]) -> None:
        i = self._instruments
        states = [p.state for p in facts.partitions]
        for state in _STATES:
            i.set("toktier.partitions", states.count(state), state=state)
        for p in facts.partitions:
            if p.partition in lags:
                i.set("toktier.lag", lags[p.partition] + p.waiting, partition=str(p.partition))
        # A gauge keeps its last value: what went to another worker is not behind here.
        for partition in self._reported - lags.keys():
            i.set("toktier.lag", 0, partition=str(partition))
        self._reported = set(lags)
        i.set("toktier.stalled", len(self._stalled))
        i.set("toktier.ready", int(self._health.ready().ok))
        i.set("toktier.memory", self._process.memory_info().rss)
        i.flush()

    async def _ask(self, facts: WorkerFacts) -> None:
        running = [p for p in facts.partitions if p.state == RUNNING]
        try:
            if not running:
                await self._ping()
            for p in running:
                self._lags[p.partition] = (await self._lag(p.partition), p.epoch)
        except (ToktierError, OSError) as error:
            code = error.code.value if isinstance(error, ToktierError) else type(error).__name__
            _LOG.warning("lag_not_known", code=code)
            return
        self._answered = time.monotonic()


def _progress(p: PartitionFacts, lag: int | None, settings: Settings) -> Progress:
    mark = (p.epoch, p.state, p.attempts, p.position, p.restored)
    limit = settings.stall_limit_s
    if p.state == RUNNING:
        owing = True if p.waiting else (None if lag is None else lag > 0)
        return Progress(mark, owing, limit)
    if p.state == "restoring":
        # It has a deadline of its own, and what it applies is not always told.
        return Progress(mark, True, settings.restore_deadline_s + limit)
    return Progress(mark, p.state == "fencing", limit)
