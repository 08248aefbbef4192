"""The short form of chaos.py: a fault of each kind, every stream judged."""

from __future__ import annotations

import pytest
from chaos import Chaos, Plan
from kafka_loader import kafka_module

pytestmark = [pytest.mark.kafka_own, pytest.mark.timeout(1000)]

PLANS = {
    "exactly_once": Plan(
        seed=5,
        faults={"kill": 2, "wipe": 1, "damage": 1, "page": 1, "pause": 1, "broker": 1, "storm": 1},
        sessions=5,
        longest_wait_s=3.0,
        deadline_s=900.0,
    ),
    "at_least_once": Plan(
        seed=6,
        faults={"kill": 2, "wipe": 1, "storm": 1},
        sessions=4,
        delivery="at_least_once",
        longest_wait_s=3.0,
        deadline_s=900.0,
    ),
}


@pytest.mark.parametrize("delivery", PLANS)
async def test_every_stream_equals_the_reference_whatever_happens(delivery, tmp_path):
    """Workers are killed, stopped and robbed, the broker crashes, members come and go: each event
    is answered (once, where that is promised), and every stream on the way is the reference's."""
    plan = PLANS[delivery]
    kafka = kafka_module().start()
    try:
        report = await Chaos(plan, kafka, tmp_path).run()
    finally:
        kafka.stop()
    assert report["done"] == plan.faults
    assert report["judged"]["sessions"] == plan.sessions
    assert report["judged"]["streams compared"] > plan.sessions
