"""Whether a worker is alive and ready, told from one immutable snapshot of it.

The worker's loop publishes a snapshot at every beat, and another thread answers the probes from
the latest one: so a loop that hangs is told as such, and asking never disturbs the work. Nothing
here holds transcript text: partitions, states, positions, codes and counts.

*Live* asks for a restart when false: the loop has stopped beating, a partition has work and stands
still, or an error has ended the worker. *Ready* tells whether the worker does its share: engines
loaded, a member of the group, the broker answering, every assigned partition restored and running.
A broker that is away makes a worker unready and leaves it alive.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

RUNNING = "running"


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Where one partition stands. ``position``: the offset after the last record whose answer is
    committed; ``waiting``: records read and not committed yet; ``attempts``: lives in a row that
    ended before anything was committed. ``restored``: changelog records applied in this life;
    ``to_restore``: at most so many are left."""

    partition: int
    state: str
    epoch: int
    position: int
    waiting: int
    attempts: int
    restored: int = 0
    to_restore: int = 0


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Where the worker stands. ``error``: the code of what is ending it, or empty."""

    engines: bool = False
    joined: bool = False
    stopping: bool = False
    error: str = ""
    assigned: frozenset[int] = frozenset()
    partitions: tuple[PartitionFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker at one beat. ``beat`` is the clock's reading then; ``broker_s``: seconds since the
    broker last answered, None if it has not yet; ``lags``: records behind the end, where known."""

    beat: float
    facts: WorkerFacts = WorkerFacts()
    broker_s: float | None = None
    lags: Mapping[int, int] = field(default_factory=dict)
    stalled: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one probe: 200 or 503, and why."""

    ok: bool
    body: bytes


class Health:
    """The latest snapshot, and what follows from it. Written by one thread, read by any."""

    def __init__(
        self,
        heartbeat_limit_s: float,
        broker_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heartbeat_limit_s = heartbeat_limit_s
        self._broker_limit_s = broker_limit_s
        self._clock = clock
        self._snapshot: Snapshot | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot."""
        self._snapshot = snapshot

    def live(self) -> Report:
        """``/livez``. Alive while nothing was published yet: engines are being loaded."""
        s = self._snapshot
        reasons: list[str] = []
        if s is not None:
            silent = self._clock() - s.beat
            if silent > self._heartbeat_limit_s:
                reasons.append(f"the event loop is silent for {silent:.0f} s")
            reasons += [f"partition {p} stands still for {t:.0f} s" for p, t in s.stalled.items()]
            if s.facts.error:
                reasons.append(f"ended by {s.facts.error}")
        return self._report(reasons)

    def ready(self) -> Report:
        """``/readyz``."""
        s = self._snapshot
        facts = s.facts if s is not None else WorkerFacts()
        reasons: list[str] = []
        if facts.stopping:
            reasons.append("stopping")
        if facts.error:
            reasons.append(f"ended by {facts.error}")
        if not facts.engines:
            reasons.append("engines are being loaded")
        if s is None or s.broker_s is None:
            reasons.append("the broker has not answered yet")
        elif (away := self._clock() - s.beat + s.broker_s) > self._broker_limit_s:
            reasons.append(f"the broker has not answered for {away:.0f} s")
        if not facts.joined:
            reasons.append("not a member of the group now")
        states = {p.partition: p.state for p in facts.partitions}
        for partition in sorted(facts.assigned):
            state = states.get(partition, "assigned")
            if state != RUNNING:
                reasons.append(f"partition {partition} is {state}")
        return self._report(reasons)

    def _report(self, reasons: list[str]) -> Report:
        s = self._snapshot
        told: dict[str, object] = {"ok": not reasons, "reasons": reasons, "partitions": []}
        if s is not None:
            told["partitions"] = [
                asdict(p)
                | {
                    "lag": s.lags.get(p.partition),
                    "stalled_s": round(s.stalled.get(p.partition, 0.0), 1),
                }
                for p in s.facts.partitions
            ]
        return Report(not reasons, json.dumps(told, indent=1).encode() + b"\n")
