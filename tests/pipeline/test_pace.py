"""The spacing of turns: none while there is time, some when there is not, and never for long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pipeline_harness import Hands, Running, local_backend, make_settings

from toktier_stream.broker.port import OutRecord
from toktier_stream.pipeline import worker
from toktier_stream.pipeline.pace import BUSY, LONGEST_S, Clocks, Pace
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Reset

TURN_S, RECORD_S, PARTITIONS = 0.002, 0.0003, 4


class _Simulated(Clocks):
    """Time that passes only where work is done or waited for; all work is the loop's."""

    def __init__(self) -> None:
        self.time = self.cpu = 0.0

    def now(self) -> float:
        return self.time

    def loop(self) -> float:
        return self.cpu

    def process(self) -> float:
        return self.cpu


class _Worker:
    """Partitions that take their turns one after the other, as one core lets them."""

    def __init__(self) -> None:
        self.clocks = _Simulated()
        self.pace = Pace(self.clocks)
        self.began = [0.0] * PARTITIONS
        self.due = [0.0] * PARTITIONS
        self.spacings: list[float] = []

    def run(self, rate: float, seconds: float) -> float:
        """Records at a steady rate; returns the share of the second half that was worked."""
        clocks, end = self.clocks, self.clocks.time + seconds
        self.due = [clocks.time] * PARTITIONS
        self.spacings = []
        middle: tuple[float, float] | None = None
        while clocks.time < end:
            if middle is None and clocks.time > end - seconds / 2:
                middle = clocks.time, clocks.cpu
            idle = True
            for p in range(PARTITIONS):
                waiting = int((clocks.time - self.due[p]) * rate / PARTITIONS)
                if not waiting or self.pace.wait(self.began[p]) > 0:
                    continue
                idle = False
                self.spacings.append(self.pace.spacing)
                self.began[p] = self.pace.now()
                self.due[p] += waiting * PARTITIONS / rate
                worked = TURN_S + RECORD_S * waiting
                clocks.cpu += worked
                clocks.time += worked
            if idle:
                clocks.time += 0.0005
        assert middle is not None
        return (clocks.cpu - middle[1]) / (clocks.time - middle[0])


@pytest.mark.parametrize("rate", [1, 20, 100, 200])
def test_a_worker_with_time_to_spare_never_waits(rate: float) -> None:
    """Small transactions cost nobody anything then."""
    it = _Worker()
    assert it.run(rate, 20) < BUSY
    assert set(it.spacings) == {0.0}


@pytest.mark.parametrize("rate", [500, 800, 1_200])
def test_a_busy_worker_makes_room(rate: float) -> None:
    """Where every record had a turn of its own there would be no time left; spread turns leave
    some, and no turn is held back longer than that takes."""
    assert rate * (TURN_S + RECORD_S) > 1
    it = _Worker()
    assert it.run(rate, 20) < BUSY + 0.05
    assert 0 < max(it.spacings) <= LONGEST_S


def test_an_overloaded_worker_holds_back_no_longer_than_that() -> None:
    """And once the load is gone, it waits for nothing again."""
    it = _Worker()
    assert it.run(5_000, 10) > 0.95
    assert max(it.spacings) == LONGEST_S
    it.run(20, 10)
    assert it.pace.spacing == 0.0


def test_what_turns_compute_counts_as_the_loops() -> None:
    """They share the interpreter's lock: together they are what is busy."""
    clocks = _Simulated()
    pace = Pace(clocks)
    clocks.time, clocks.cpu = 1.0, 0.5
    assert pace.wait(0.0) == 0.0
    assert pace.spacing == 0.0
    pace.computed(0.4)
    clocks.time, clocks.cpu = 2.0, 1.0
    pace.wait(0.0)
    assert pace.spacing > 0.0


class _Endless(Pace):
    """A pace that holds every turn back for a minute."""

    def wait(self, began: float) -> float:
        return max(0.0, began + 60.0 - self.now()) if began else 0.0


async def test_a_full_batch_and_a_stop_wait_for_no_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all that a turn can hold is there, more would not be cheaper. What is left waits, and
    a stop does not wait for that."""
    monkeypatch.setattr(worker, "Pace", _Endless)
    backend = local_backend()
    settings = make_settings(backend, tmp_path, partitions=1, batch_records=4)
    events = [AppendEvent("s", 1, Reset(b"one"))]
    events += [AppendEvent("s", r, Edit(b" more")) for r in range(2, 13)]
    records = [OutRecord(settings.topic_appends, *encode_event(event)) for event in events]
    async with Running(backend, settings) as pipeline:
        hands = Hands(pipeline.broker, settings)
        await hands.open()
        await hands.send(*records)
        began = time.monotonic()
        assert [a.revision for a in await hands.next(9)] == list(range(1, 10))
        await hands.close()
    assert time.monotonic() - began < 20
