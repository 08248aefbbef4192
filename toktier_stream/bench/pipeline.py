"""The pipeline under load: latency from when a request was due, by rate, shape and stage.

A client in this process sends an open loop of requests (workload.py) through a broker to one
worker and receives the updates. On Kafka the worker is a process of its own, pinned to one core,
with client and broker on the others; on the embedded broker all share one process. Every update
is applied and every session's ids are compared with a full encode of its text after each point, a
sample of them with the reference: a rate of wrong answers is no rate. An answer that is missing,
repeated, or not OK is wrong too.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from toktier_stream.bench.generate import generate_context
from toktier_stream.bench.pipeline_load import Answered, Client, sessions_of
from toktier_stream.bench.pipeline_worker import Running, WorkerHere, WorkerProcess, pin
from toktier_stream.bench.workload import Shape, Shares, Workload
from toktier_stream.broker.connect import open_broker
from toktier_stream.client.buffers import TokenBuffer
from toktier_stream.config import load
from toktier_stream.errors import ToktierError
from toktier_stream.pipeline.worker import topic_specs
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.registry import Entry
from toktier_stream.wire.messages import Status

OBJECTIVES_MS: Final = (10, 50)
POOL_CHARS: Final = 8_000_000
STAGES: Final = ("client", "queue", "encode", "publish")
"""client: due to sent; queue: sent to the worker's turn (broker, poll, inbox, batch); encode: the
session's change computed; publish: computed to received (transaction, broker, fetch, parts)."""

_ALIAS: Final = "model"
_OPENING_WINDOW: Final = 16
_OPENING_S: Final = 240.0

Progress = Callable[[str], None]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    ``rates`` (requests per second): these in their order, or if empty a search: doubled from
    ``first_rate`` until the largest objective is missed, then halved in between ``refine`` times.
    ``seconds`` of each point after ``warm_s``. ``verify_chars``: text judged by the reference
    after each point.
    ``worker``: settings of the worker, as in its TOML.
    """

    rates: tuple[float, ...] = ()
    first_rate: float = 100.0
    refine: int = 2
    seconds: float = 15.0
    warm_s: float = 2.0
    drain_s: float = 10.0
    objectives_ms: tuple[int, ...] = OBJECTIVES_MS
    shape: Shape = "poisson"
    shares: Shares = field(default_factory=Shares)
    verify_chars: int = 2_000_000
    partitions: int = 4
    pin: bool = True
    broker_pid: int = 0
    seed: int = 1
    worker: Mapping[str, str] = field(default_factory=dict)


def run(
    name: str,
    path: Path,
    broker: str,
    plan: Plan,
    *,
    text: str | None = None,
    gaps: Sequence[Sequence[float]] = (),
    progress: Progress = lambda _: None,
) -> Result:
    """Measure; returns what :func:`toktier_stream.bench.pipeline_tables.show` prints.

    ``broker``: ``local:`` or ``kafka://host:port``. ``text``: the pool of text, else generated.
    ``gaps``: recorded pauses, for that shape. Raises ``TOKENIZER_LOAD`` and what brokers and
    workers raise.
    """
    progress(f"{name}: tables and text")
    entry = open_tokenizer(path)
    warm(entry.encoder)
    pool = text if text is not None else generate_context(plan.seed, POOL_CHARS)
    sample = pool[: min(len(pool), 400_000)]
    chars_per_token = len(sample) / max(1, len(entry.encoder.encode(sample.encode())))
    plan_shares = replace(plan.shares, chars_per_token=chars_per_token)
    result: Result = {
        "tokenizer": name,
        "broker": broker.partition(":")[0],
        "shape": plan.shape,
        "full_share": plan.shares.full,
        "append_chars": plan.shares.append,
        "sessions": plan.shares.sessions,
        "partitions": plan.partitions,
        "text": "given" if text is not None else f"generated, seed {plan.seed}",
        "chars_per_token": chars_per_token,
        "worker": dict(plan.worker),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix="toktier-bench-") as folder:
        bench = _Bench(entry, path, broker, plan, plan_shares, pool, gaps, Path(folder), progress)
        # Timers of epoll are rounded up to a millisecond; those of select are not.
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
        ) as runner:
            result |= runner.run(bench.measure())
    result["load_average_after"] = os.getloadavg()[0]
    result["highest"] = {
        str(objective): max(
            (p["rate"] for p in result["points"] if p["p99_ms"] <= objective and p["kept_up"]),
            default=0.0,
        )
        for objective in plan.objectives_ms
    }
    result["exact"] = all(p["exact"] for p in result["points"])
    result["memory"] = _memory(result["points"])
    return result


class _Bench:
    """One pipeline, measured at one rate after the other with the same sessions."""

    def __init__(
        self,
        entry: Entry,
        tokenizer: Path,
        broker: str,
        plan: Plan,
        shares: Shares,
        pool: str,
        gaps: Sequence[Sequence[float]],
        folder: Path,
        progress: Progress,
    ) -> None:
        self._entry = entry
        self._tokenizer = tokenizer
        self._address = broker
        self._plan = plan
        self._gaps = gaps
        self._pool = pool
        self._folder = folder
        self._progress = progress
        self._workload = Workload(len(pool), shares, plan.seed)
        self._judge = random.Random(plan.seed)
        self._buffers: dict[int, TokenBuffer] = {}

    async def measure(self) -> Result:
        """Open the sessions, then every point."""
        name = uuid.uuid4().hex[:10]
        variables = {
            "broker": self._address,
            "group": f"bench-{name}",
            "partitions": str(self._plan.partitions),
            "state_dir": str(self._folder / "state"),
            "verify_rate": "0",
            "log_level": "warning",
            **{
                f"topic_{t}": f"bench-{t}-{name}"
                for t in ("appends", "tokens", "checks", "rejects", "sessions")
            },
            **self._plan.worker,
        }
        settings = load(
            None, **variables, tokenizers={_ALIAS: self._tokenizer}, default_tokenizer=_ALIAS
        )
        broker = open_broker(self._address)
        await broker.start()
        try:
            await broker.ensure_topics(topic_specs(settings), create=True)
            worker = self._worker(settings, variables, broker)
            topics = settings.topic_appends, settings.topic_tokens
            async with Client(broker, self._pool, topics, _ALIAS, name) as client:
                try:
                    await worker.start()
                    return await self._points(client, worker)
                finally:
                    await worker.stop()
        finally:
            await broker.stop()

    def _worker(self, settings: Any, variables: Mapping[str, str], broker: Any) -> Running:
        cores = sorted(os.sched_getaffinity(0))
        mine, others = cores[:1], cores[1:]
        if self._address.startswith("local"):
            return WorkerHere(settings, broker)
        apart = self._plan.pin and bool(others)
        if apart:
            os.sched_setaffinity(0, others)
            if self._plan.broker_pid:
                pin(self._plan.broker_pid, others)
        environment = {f"TOKTIER_{k.upper()}": v for k, v in variables.items()}
        environment[f"TOKTIER_TOKENIZERS__{_ALIAS}"] = str(self._tokenizer)
        environment["TOKTIER_DEFAULT_TOKENIZER"] = _ALIAS
        return WorkerProcess(environment, mine if apart else (), self._folder / "worker.log")

    async def _points(self, client: Client, worker: Running) -> Result:
        self._progress(f"{self._plan.shares.sessions} sessions")
        began = time.monotonic()
        cpu = worker.cpu_s()
        opened = await client.run(self._workload.opening(), _OPENING_S, window=_OPENING_WINDOW)
        seconds = time.monotonic() - began
        worker.check()
        opening = self._check(client, opened) | {
            "seconds": seconds,
            "worker_cpu_s": worker.cpu_s() - cpu,
            "chars": sum(t.request.chars for t in opened),
        }
        points = [await self._point(client, worker, rate) for rate in self._plan.rates]
        if not self._plan.rates:
            await self._search(client, worker, points)
            points.sort(key=lambda p: p["rate"])
        exact = opening["exact"]
        for point in points:
            point["exact"] &= exact
        return {"opening": opening, "points": points, "worker_warned": worker.warned()}

    async def _search(self, client: Client, worker: Running, points: list[Result]) -> None:
        """Double the rate until the objective is missed, then look in between."""
        objective = max(self._plan.objectives_ms)
        good, rate = 0.0, self._plan.first_rate
        while True:
            point = await self._point(client, worker, rate)
            points.append(point)
            if not (point["p99_ms"] <= objective and point["kept_up"]):
                break
            good, rate = rate, 2 * rate
        bad = rate
        for _ in range(self._plan.refine):
            rate = (good + bad) / 2
            point = await self._point(client, worker, rate)
            points.append(point)
            if point["p99_ms"] <= objective and point["kept_up"]:
                good = rate
            else:
                bad = rate

    async def _point(self, client: Client, worker: Running, rate: float) -> Result:
        plan = self._plan
        self._progress(f"{rate:,.0f} requests/s")
        times = self._workload.times(plan.shape, rate, plan.warm_s + plan.seconds, self._gaps)
        requests = list(self._workload.requests(iter(times)))
        me = psutil.Process().cpu_times()
        cpu, began = worker.cpu_s(), time.monotonic()
        tickets = await client.run(requests, plan.drain_s)
        took, cpu = time.monotonic() - began, worker.cpu_s() - cpu
        mine = psutil.Process().cpu_times()
        worker.check()
        late = [t for t in tickets if t.update is None]
        if late:
            # The point is lost; the answers are awaited all the same, to be judged.
            await client.finish(_OPENING_S)
        measured = [t for t in tickets if t.request.at >= plan.warm_s and t.update is not None]
        self._progress(f"{rate:,.0f} requests/s: judged")
        return {
            "rate": rate,
            "sent": len(tickets),
            "late": len(late),
            "kept_up": not late and took < plan.warm_s + plan.seconds + 1.0,
            "seconds": took,
            **_quantiles([t.latency for t in measured]),
            "from_send": _quantiles([t.received - t.sent for t in measured]),
            "appends": _quantiles([t.latency for t in measured if not t.request.full]),
            "full": _quantiles([t.latency for t in measured if t.request.full]),
            "stages": _stages(measured),
            "worker_cpu": cpu / took,
            "worker_cpu_us_per_request": 1e6 * cpu / max(1, len(tickets)),
            "worker_memory_mb": worker.memory() / 1e6,
            "client_cpu": (mine.user + mine.system - me.user - me.system) / took,
            **self._check(client, tickets),
        }

    def _check(self, client: Client, tickets: Sequence[Answered]) -> Result:
        """Apply every update; compare every session with a full encode, some with the reference."""
        wrong: list[str] = []
        if client.repeated:
            wrong.append(f"{client.repeated} answers repeated")
        sessions = sessions_of(tickets)
        for session, asked in sessions.items():
            for ticket in asked:
                flaw = self._apply(session, ticket)
                if flaw:
                    wrong.append(flaw)
        left, judged = self._plan.verify_chars, 0
        for session in self._judge.sample(sorted(sessions), len(sessions)):
            text = client.text(session)
            ids = self._buffers.setdefault(session, TokenBuffer()).ids
            if not np.array_equal(ids, self._entry.encoder.encode(text.encode()).ids):
                wrong.append(f"session {session}: other ids than a full encode")
            if len(text) <= left:
                left -= len(text)
                judged += 1
                if not np.array_equal(ids, self._entry.reference.ids(text)):
                    wrong.append(f"session {session}: other ids than the reference")
        return {
            "exact": not wrong,
            "wrong": wrong[:10],
            "checked_sessions": len(sessions),
            "judged_by_reference": judged,
        }

    def _apply(self, session: int, ticket: Answered) -> str:
        """Apply one update to the session's buffer, and let it go; says what is wrong with it."""
        update = ticket.update
        what = f"session {session} revision {ticket.revision}"
        if update is None:
            return f"{what}: no answer"
        if update.status is not Status.OK:
            return f"{what}: {update.status.value}"
        try:
            self._buffers.setdefault(session, TokenBuffer()).apply(update)
        except ToktierError as error:
            return f"{what}: {error.code.value}"
        ticket.update = None
        return ""


def _memory(points: Sequence[Result]) -> Result:
    """The worker's memory in the second quarter of the points and in the last, in megabytes."""
    sizes = [p["worker_memory_mb"] for p in points]
    quarter = max(1, len(sizes) // 4)
    early = sizes[quarter : 2 * quarter] or sizes[:1]
    before, after = float(np.mean(early)), float(np.mean(sizes[-quarter:]))
    return {"early_mb": before, "late_mb": after, "most_mb": max(sizes), "growth": after / before}


def _quantiles(seconds: Sequence[float]) -> Result:
    """Milliseconds; empty where there is nothing."""
    if not seconds:
        return {"count": 0, "p50_ms": 0.0, "p90_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}
    values = np.sort(np.array(seconds)) * 1e3
    found = {
        f"p{q}_ms": float(values[min(len(values) - 1, int(len(values) * q / 100))])
        for q in (50, 90, 99)
    }
    return {"count": len(values), **found, "max_ms": float(values[-1])}


def _stages(tickets: Sequence[Answered]) -> Result:
    """Where the time of the requests went: median and P99 of each stage, in milliseconds."""
    stages: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for t in tickets:
        timings = t.update.timings if t.update is not None else None
        if timings is None:
            continue
        encode = timings.encode_us / 1e6
        answered = timings.total_us / 1e6
        stages["client"].append(t.sent - t.due)
        stages["queue"].append(answered - encode)
        stages["encode"].append(encode)
        stages["publish"].append(t.received - t.sent - answered)
    return {
        stage: {k: q for k, q in _quantiles(values).items() if k != "count"}
        for stage, values in stages.items()
    }
