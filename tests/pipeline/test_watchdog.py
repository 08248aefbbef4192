"""The watchdog and the limit of rejects, with a clock in hand."""

from __future__ import annotations

import random
from collections import deque

import pytest

from toktier_stream.pipeline.reject_limit import RejectLimit
from toktier_stream.pipeline.watchdog import Progress, Watchdog


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def seen(watchdog: Watchdog, clock: Clock, seconds: float, **fields: object) -> dict[int, float]:
    """What the watchdog says of partition 0 after more seconds."""
    clock.now += seconds
    values: dict[str, object] = {"mark": "a", "owing": True, "limit_s": 10.0, **fields}
    return watchdog.observe({0: Progress(**values)})  # type: ignore[arg-type]


def test_work_and_no_step_for_too_long_is_a_stall():
    """Not before the limit, and told until a step is made."""
    clock = Clock()
    dog = Watchdog(clock)
    assert seen(dog, clock, 0) == {}
    assert seen(dog, clock, 10) == {}
    assert seen(dog, clock, 1) == {0: 11.0}
    assert seen(dog, clock, 5) == {0: 16.0}
    assert seen(dog, clock, 1, mark="b") == {}
    assert seen(dog, clock, 10, mark="b") == {}


@pytest.mark.parametrize("owing", [False, None])
def test_idle_and_unknown_time_does_not_count(owing):
    """Without work, or where nobody knows, the clock starts anew."""
    clock = Clock()
    dog = Watchdog(clock)
    seen(dog, clock, 0)
    assert seen(dog, clock, 9) == {}
    assert seen(dog, clock, 100, owing=owing) == {}
    assert seen(dog, clock, 10) == {}
    assert seen(dog, clock, 1) == {0: 11.0}


def test_a_partition_that_went_and_came_back_starts_anew():
    """What is not held now is forgotten; another partition's stall is its own."""
    clock = Clock()
    dog = Watchdog(clock)
    stuck = Progress("a", True, 10.0)
    dog.observe({0: stuck, 1: stuck})
    clock.now += 6
    dog.observe({1: stuck})
    clock.now += 6
    assert dog.observe({0: stuck, 1: stuck}) == {1: 12.0}


def test_the_reject_ratio_over_a_window_against_a_slow_twin():
    """Random batches: told exactly when a plain list of the last sixty steps says so."""
    rng = random.Random(5)
    for ratio, minimum in ((0.1, 20), (0.45, 1), (0.4, 90)):
        clock = Clock()
        limit = RejectLimit(ratio, 60.0, minimum, clock)
        history: deque[tuple[int, int, int]] = deque()
        told = 0
        for _ in range(3000):
            clock.now += rng.choice((0, 0, 0.5, 1, 7, 70 if rng.random() < 0.02 else 0))
            records = rng.randrange(6)
            rejected = rng.randrange(records + 1) if rng.random() < ratio * 2 else 0
            limit.add(records, rejected)
            step = int(clock.now)
            history.append((step, records, rejected))
            live = [h for h in history if h[0] > step - 60]
            total, bad = sum(h[1] for h in live), sum(h[2] for h in live)
            assert bool(limit.exceeded()) == (total >= minimum and bad > ratio * total)
            told += bool(limit.exceeded())
        assert 0 < told < 3000


def test_the_ratio_is_off_by_default_and_says_its_numbers():
    """Ratio 0 never stops anything."""
    off, on = RejectLimit(0, 60, 1), RejectLimit(0.2, 60, 10)
    for limit in (off, on):
        limit.add(8, 8)
        assert not limit.exceeded()
        limit.add(2, 0)
    assert not off.exceeded()
    assert on.exceeded() == "8 of 10 records in 60 s"
