"""Chaos on Apache Kafka: seeded faults against a fleet, and every stream judged afterwards.

``python tests/pipeline/chaos.py --kills 100 --seed 1`` is the long form. A run is over when its
faults are done and every session has its answers; it prints a JSON report, and ends with 1 if a
stream differs from the reference, an event has no answer or, under ``exactly_once``, has two.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from chaos_fleet import (
    SESSION_TIMEOUT_S,
    START_S,
    Fleet,
    Worker,
    damage_page,
    damage_records,
    mount_small,
    unmount,
    wipe,
)
from chaos_traffic import Traffic
from kafka_loader import kafka_module
from pipeline_harness import kafka_backend, make_settings

from toktier_stream.broker.port import Copies
from toktier_stream.pipeline.worker import topic_specs
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.shipped import shipped_path

FAULTS = ("kill", "wipe", "damage", "page", "pause", "broker", "storm", "full")
_STORM_MEMBERS = 4
_ANSWERS_EACH = 4


@dataclass(frozen=True)
class Plan:
    """Which faults, how many of each, in an order that the seed decides."""

    seed: int = 1
    faults: dict[str, int] = field(default_factory=lambda: {"kill": 3})
    sessions: int = 8
    workers: int = 2
    partitions: int = 4
    poison: float = 0.02
    delivery: str = "exactly_once"
    longest_wait_s: float = 12.0
    deadline_s: float = 7200.0


class Chaos:
    """One run on a broker of its own."""

    def __init__(self, plan: Plan, kafka: Any, folder: Path) -> None:
        self._plan = plan
        self._kafka = kafka
        self._folder = folder
        self._rng = Random(f"chaos {plan.seed}")
        backend = kafka_backend(kafka.bootstrap)
        self._backend = backend
        self._s = make_settings(
            backend,
            folder / "unused",
            partitions=plan.partitions,
            part_bytes=16 << 10,
            store_map_bytes=512 << 20,
            max_session_bytes=8 << 20,
            delivery=plan.delivery,
        )
        self.done: Counter[str] = Counter()
        self._mounted = False

    async def run(self) -> dict[str, Any]:
        """The report. Raises AssertionError for what must not be."""
        plan, began = self._plan, time.monotonic()
        broker = self._backend.connect()
        await broker.start()
        await broker.ensure_topics(topic_specs(self._s), create=True)
        entry = open_tokenizer(shipped_path())
        warm(entry.encoder)
        self._fleet = Fleet(self._s, plan.workers, self._folder)
        first = self._fleet.workers[0]
        if "full" in plan.faults:
            self._mounted = mount_small(first.state, "24m")
        traffic = Traffic(broker, self._s, plan.sessions, plan.seed, poison=plan.poison)
        self._traffic = traffic
        try:
            async with asyncio.timeout(plan.deadline_s):
                await self._fleet.start()
                sending = asyncio.create_task(traffic.run(10**9))
                faults = asyncio.create_task(self._faults())
                await asyncio.wait({sending, faults}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():  # only by an error
                    faults.cancel()
                    await asyncio.wait({faults})
                    sending.result()
                faults.result()
                traffic.ending.set()
                await sending
                exits = await self._fleet.stop()
                counts = await traffic.judge(entry, once=plan.delivery == "exactly_once")
        finally:
            for worker in self._fleet.workers:
                await worker.kill()
            if self._mounted:
                unmount(first.state)
            await broker.stop()
        # Minus SIGTERM: the last kill was a moment ago, and the next process had not come to its
        # first line, where it takes the signal for its own.
        assert set(exits) <= {0, -signal.SIGTERM}, f"exit codes {exits}"
        return {
            **asdict(plan),
            "done": dict(self.done),
            "disk_was_a_small_file_system": self._mounted,
            "events": traffic.events,
            "poison_events": traffic.poisoned,
            "sent_again": traffic.retried,
            "resets_asked_for": sum(log.resets_asked for log in traffic.logs),
            "workers_that_ended": dict(self._fleet.ended),
            "judged": dict(counts),
            "seconds": round(time.monotonic() - began, 1),
        }

    async def _faults(self) -> None:
        kinds = [kind for kind, count in self._plan.faults.items() for _ in range(count)]
        self._rng.shuffle(kinds)
        await self._until_running(self._fleet.workers)
        for kind in kinds:
            await self._some_work()
            worker = self._rng.choice(self._fleet.workers)
            print(f"{time.strftime('%H:%M:%S')} {kind} {worker.number}", file=sys.stderr)
            await getattr(self, f"_{kind}")(worker)
            self.done[kind] += 1
        # On a busy machine the faults are done before much is answered between them.
        while self._traffic.answered < _ANSWERS_EACH * self._plan.sessions:
            await self._traffic.moved.wait()
            self._traffic.moved.clear()

    async def _some_work(self) -> None:
        """Let a random number of answers arrive, or a while pass in which none do."""
        wanted = self._traffic.answered + self._rng.randrange(4 * self._plan.sessions)
        wait = self._plan.longest_wait_s * (0.2 + self._rng.random())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while self._traffic.answered < wanted:
                    await self._traffic.moved.wait()
                    self._traffic.moved.clear()

    async def _until_running(self, workers: list[Worker]) -> None:
        """Until each has come as far as joining the group, once at least."""
        async with asyncio.timeout(START_S):
            for worker in workers:
                while b"worker_started" not in worker.log.read_bytes():
                    await asyncio.sleep(0.1)

    # The faults

    async def _kill(self, worker: Worker) -> None:
        await self._fleet.kill(worker)

    async def _wipe(self, worker: Worker) -> None:
        await self._fleet.kill(worker, wipe)

    async def _damage(self, worker: Worker) -> None:
        await self._fleet.kill(worker, partial(damage_records, self._rng))

    async def _page(self, worker: Worker) -> None:
        await self._fleet.kill(worker, partial(damage_page, self._rng))

    async def _pause(self, worker: Worker) -> None:
        """Silent for longer than the session: its partitions go elsewhere, then it comes back."""
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(SESSION_TIMEOUT_S + 1 + self._rng.random() * 3)
        worker.signal(signal.SIGCONT)

    async def _broker(self, _worker: Worker) -> None:
        if self._rng.random() < 0.5:
            await asyncio.to_thread(self._kafka.kill)
            await asyncio.sleep(self._rng.random() * 3)
        await asyncio.to_thread(self._kafka.restart)

    async def _storm(self, _worker: Worker) -> None:
        """Members join and leave, each a rebalance of everybody."""
        broker = self._backend.connect()
        await broker.start()
        try:
            for _ in range(_STORM_MEMBERS):
                member = broker.group_consumer(
                    self._s.topic_appends,
                    self._s.group,
                    on_assigned=lambda _: None,
                    on_revoked=lambda _: None,
                    copies=Copies(),
                )
                try:
                    await member.start()
                    await member.poll(self._rng.random() * 0.5, 10)
                finally:
                    await member.stop()
        finally:
            await broker.stop()

    async def _full(self, _worker: Worker) -> None:
        """The first worker's disk fills up for a while."""
        worker = self._fleet.workers[0]
        filler = worker.state / "filler"
        if not self._mounted:
            return
        try:
            with filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        except OSError:
            pass  # as full as it gets
        await asyncio.sleep(3 + self._rng.random() * 3)
        filler.unlink(missing_ok=True)


def main() -> int:
    """The long form; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--others", type=int, default=5, help="of each other kind of fault")
    parser.add_argument("--only", default="", help="kinds of faults, with commas; default: all")
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--delivery", default="exactly_once")
    parser.add_argument("--keep", type=Path, help="keep logs and states here")
    parser.add_argument("--report", type=Path)
    o = parser.parse_args()
    kinds = o.only.split(",") if o.only else FAULTS
    plan = Plan(
        seed=o.seed,
        faults={k: o.kills if k == "kill" else o.others for k in kinds},
        sessions=o.sessions,
        workers=o.workers,
        delivery=o.delivery,
    )
    kafka = kafka_module().start()
    chaos = None
    try:
        with tempfile.TemporaryDirectory(prefix="toktier-chaos-") as temporary:
            folder = o.keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            chaos = Chaos(plan, kafka, folder)
            report = asyncio.run(chaos.run()) | {"outcome": "every stream equals the reference"}
    except (AssertionError, TimeoutError) as error:
        traceback.print_exc()
        report = {**asdict(plan), "outcome": f"FAILED: {error or type(error).__name__}"}
        report["done"] = dict(chaos.done) if chaos is not None else {}
    finally:
        kafka.stop()
    text = json.dumps(report, indent=2)
    print(text)
    if o.report:
        o.report.write_text(text + "\n")
    return 0 if not report["outcome"].startswith("FAILED") else 1


if __name__ == "__main__":
    sys.exit(main())
