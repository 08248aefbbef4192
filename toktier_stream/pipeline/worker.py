"""The worker process: joins the group, runs the partitions it is given, and stops cleanly."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from toktier_stream import telemetry
from toktier_stream.broker.port import Broker, Copies, GroupConsumer, TopicSpec
from toktier_stream.config import KIB, Settings
from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.pipeline.batcher import Batcher
from toktier_stream.pipeline.changelog import Progress
from toktier_stream.pipeline.devices import DeviceTokenizer, OpenCard, open_devices
from toktier_stream.pipeline.health import Health, WorkerFacts
from toktier_stream.pipeline.monitor import Monitor
from toktier_stream.pipeline.pace import Pace
from toktier_stream.pipeline.partition import Partition, Shared
from toktier_stream.pipeline.reject_limit import RejectLimit
from toktier_stream.pipeline.standby import Standby
from toktier_stream.pipeline.states import State
from toktier_stream.pipeline.verifier import Sample, Sampler, ShadowVerifier
from toktier_stream.session.machine import Limits, Machine
from toktier_stream.session.store import Store
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.registry import Registry
from toktier_stream.wire.messages import CheckRecord

_LOG = telemetry.logger(__name__)
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a worker has done so far, for people and tests."""

    partitions: tuple[int, ...]
    verified: int
    verifier_dropped: int
    verifier_mismatches: int


class Worker:
    """One member of the worker group. ``run`` returns after ``stop``, or raises what ended it."""

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        registry: Registry,
        health: Health | None = None,
        open_card: OpenCard | None = None,
    ) -> None:
        """``open_card``: a device in the place of the CUDA device that the settings name."""
        self._settings = settings
        self._open_card = open_card
        self._devices: dict[str, DeviceTokenizer] = {}
        self._batcher: Batcher | None = None
        self._broker = broker
        self._registry = registry
        self._instruments = telemetry.Instruments()
        self._lives: dict[int, Partition] = {}
        # A store stays open over a rebalance that gives the same partition back.
        self._stores: dict[int, Store] = {}
        self._standbys: dict[int, Standby] = {}
        self._consumer: GroupConsumer | None = None
        self._assigned: frozenset[int] = frozenset()
        self._copied: frozenset[int] = frozenset()  # partitions of others, to be followed
        self._epoch = 0
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        self.warmed = asyncio.Event()  # engines are loaded; partitions may still restore
        self.started = False  # from then on, stop() is seen
        self.abandoned = False  # the deadline passed at a stop, with work in flight
        self._warmed = self._joined = False
        self._error = ""
        self._health = health or health_of(settings)
        self._rejects = RejectLimit(
            settings.reject_ratio_limit, settings.reject_window_s, settings.reject_min_records
        )
        self._verifier = ShadowVerifier(
            self._on_verdict,
            self._instruments,
            queue=settings.verify_queue,
            queue_bytes=settings.verify_queue_bytes,
            load=settings.verify_load,
            evidence_dir=settings.evidence_dir,
            evidence_text=settings.evidence_text,
        )

    @property
    def stats(self) -> WorkerStats:
        """Counts so far."""
        return WorkerStats(
            tuple(sorted(p for p, life in self._lives.items() if life.state is State.RUNNING)),
            self._verifier.checked,
            self._verifier.dropped,
            self._verifier.mismatches,
        )

    def facts(self) -> WorkerFacts:
        """Where the worker stands now. Called on its loop."""
        return WorkerFacts(
            self._warmed,
            self._joined,
            self._stopping.is_set(),
            self._error,
            self._assigned,
            tuple(self._lives[p].facts() for p in sorted(self._lives)),
        )

    def stop(self) -> None:
        """Ask the worker to finish what is in flight and leave. Safe from a signal handler."""
        self._stopping.set()

    async def drain_verifier(self) -> None:
        """Wait until everything received so far is answered, and every sample of it checked."""
        for life in self._lives.values():
            await life.settled.wait()
        await self._verifier.drain()

    async def run(self) -> None:
        """Work until stopped. Raises the error of a partition that failed for good."""
        s = self._settings
        await self._broker.ensure_topics(topic_specs(s), create=s.create_topics)
        consumer = self._broker.group_consumer(
            s.topic_appends,
            s.group,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            instance_id=s.instance_id,
            copies=Copies(s.standby_replicas, self._warm),
        )
        self._consumer = consumer
        background = ThreadPoolExecutor(thread_name_prefix="background")
        turns: ThreadPoolExecutor | None = None
        self._verifier.start()
        monitor = Monitor(
            s, self._health, self.facts, consumer.lag,
            lambda: self._broker.partitions(s.topic_appends), self._instruments,
        )  # fmt: skip
        beating = asyncio.create_task(monitor.run(), name="monitor")
        try:
            await asyncio.get_running_loop().run_in_executor(background, self._prepare)
            self._warmed = True
            self.warmed.set()
            turns = ThreadPoolExecutor(self._turn_threads(), thread_name_prefix="turn")
            shared = self._shared(consumer, turns, background)
            await consumer.start()
            self.started = True
            _LOG.info("worker_started", topic=s.topic_appends, group=s.group)
            await self._poll_until_stopped(consumer, shared, beating)
        except Exception as error:
            self._error = error.code.value if isinstance(error, ToktierError) else "a fault"
            _LOG.error("worker_failed", code=self._error, error=type(error).__name__)
            raise
        finally:
            await self._shut_down(consumer, background)
            if turns is not None:
                await asyncio.to_thread(turns.shutdown)
            self._close_stores()
            beating.cancel()
            await asyncio.wait({beating})

    def _prepare(self) -> None:
        """Build and warm every encoder, on the GPU too: the first events must not wait for that.
        Raises ``GPU_UNAVAILABLE`` where one is required."""
        for entry in self._registry.entries():
            started = time.monotonic()
            if isinstance(entry.encoder, FastEncoder):
                # A large append is encoded in its place: as fast as this machine can.
                entry.encoder.threads = len(os.sched_getaffinity(0))
            warm(entry.encoder)
            _LOG.info(
                "tokenizer_ready",
                tokenizer=entry.name,
                path=entry.admission.path,
                reasons=entry.admission.reasons,
                seconds=round(time.monotonic() - started, 3),
            )
        self._devices = open_devices(self._registry, self._settings, self._open_card)

    def _turn_threads(self) -> int:
        """How many partitions compute at a time."""
        engines = (FastEncoder, OnePieceEncoder)
        if all(isinstance(entry.encoder, engines) for entry in self._registry.entries()):
            return self._settings.turn_threads or 1
        # The reference takes seconds for a large text, and lets others run meanwhile.
        return self._settings.turn_threads or len(os.sched_getaffinity(0))

    def _shared(
        self, consumer: GroupConsumer, turns: ThreadPoolExecutor, background: ThreadPoolExecutor
    ) -> Shared:
        """What the partitions share; the slow lane is started."""
        s = self._settings
        self._batcher = Batcher(
            self._instruments,
            threads=s.miss_threads,
            queue_bytes=s.miss_queue_bytes,
            linger_s=s.miss_linger_ms / 1000,
            devices=self._devices,
        )
        self._batcher.start()
        return Shared(
            settings=s,
            broker=self._broker,
            consumer=consumer,
            registry=self._registry,
            machine=Machine(self._registry, Limits(s.max_session_bytes)),
            sampler=Sampler(s.verify_rate, s.verify_seed, self._verifier.turned_away),
            verifier=self._verifier,
            turns=turns,
            background=background,
            batcher=self._batcher,
            pace=Pace(),
            instruments=self._instruments,
            rejects=self._rejects,
        )

    async def _poll_until_stopped(
        self, consumer: GroupConsumer, shared: Shared, beating: asyncio.Task[None]
    ) -> None:
        while not self._stopping.is_set():
            await self._reconcile(shared)
            batches = await consumer.poll(_POLL_S, self._settings.batch_records)
            for partition, records in batches.items():
                life = self._lives.get(partition)
                if life is not None:
                    life.feed(records)
            for life in self._lives.values():
                if life.state is State.FAILED and life.error is not None:
                    raise life.error
            if too_many := self._rejects.exceeded():
                raise ToktierError(Code.REJECT_RATIO, too_many)
            if beating.done():
                beating.result()
            if self._assigned and all(
                p in self._lives and self._lives[p].state is State.RUNNING for p in self._assigned
            ):
                self.ready.set()

    async def _reconcile(self, shared: Shared) -> None:
        """Make the running partitions those of the latest assignment."""
        assigned, epoch = self._assigned, self._epoch
        ended = [
            p for p, life in self._lives.items()
            if p not in assigned or life.epoch != epoch
        ]  # fmt: skip
        if ended:
            deadline = self._settings.shutdown_deadline_s
            await asyncio.gather(*(self._lives[p].stop(deadline) for p in ended))
            for p in ended:
                del self._lives[p]
        shadowed = await self._follow(shared, self._copied - assigned)
        for p in sorted(assigned - self._lives.keys()):
            life = Partition(p, epoch, self._store(p), shared, shadowed.get(p, frozenset()))
            self._lives[p] = life
            life.start()

    async def _follow(self, shared: Shared, copied: frozenset[int]) -> dict[int, frozenset[bytes]]:
        """Follow the changelogs of these partitions and no others. Returns what the copies that
        ended leave to the partitions' next owner: see Standby.shadowed."""
        for standby in self._standbys.values():
            if standby.error is not None:
                raise standby.error
        ended = [self._standbys.pop(p) for p in self._standbys.keys() - copied]
        await asyncio.gather(*(standby.stop() for standby in ended))
        for p in sorted(copied - self._standbys.keys() - self._lives.keys()):
            self._standbys[p] = standby = Standby(
                p, self._store(p), self._settings, self._broker, shared.background, shared.threads,
                self._instruments,
            )  # fmt: skip
            standby.start()
        return {standby.partition: frozenset(standby.shadowed) for standby in ended}

    def _warm(self) -> frozenset[int]:
        """The partitions whose state this worker has, more or less up to date: what it follows,
        and before it has joined for the first time what it finds on its disk."""
        if self._epoch:
            return frozenset(self._standbys)
        prefix = f"{self._settings.topic_appends}-"
        found = self._settings.state_dir.glob(f"{prefix}*")
        numbers = (path.name.removeprefix(prefix) for path in found)
        return frozenset(int(number) for number in numbers if number.isdecimal())

    @property
    def standbys(self) -> dict[int, Progress]:
        """How far the copies of other workers' partitions are."""
        return {p: standby.progress for p, standby in self._standbys.items()}

    def _store(self, partition: int) -> Store:
        store = self._stores.get(partition)
        if store is None:
            s = self._settings
            store = Store.open(
                s.state_dir / f"{s.topic_appends}-{partition}",
                map_bytes=s.store_map_bytes,
                hot_bytes=s.hot_bytes,
                ttl_ms=round(s.session_ttl_s * 1000),
                quota_bytes=s.quota_bytes,
                sync=s.store_sync,
            )
            self._stores[partition] = store
        return store

    def _on_assigned(self, partitions: frozenset[int]) -> None:
        # Only recorded here: no heartbeat is sent while this runs, and errors are swallowed.
        self._epoch += 1
        self._assigned = partitions
        if self._consumer is not None:
            self._copied = self._consumer.standby
        self._joined = True

    def _on_revoked(self, partitions: frozenset[int]) -> None:
        self._epoch += 1
        self._assigned = frozenset()
        self._joined = False
        self.ready.clear()

    def _on_verdict(self, sample: Sample, record: CheckRecord) -> None:
        life = self._lives.get(sample.partition)
        if life is not None:
            life.verdict(sample, record)

    async def _shut_down(self, consumer: GroupConsumer, background: ThreadPoolExecutor) -> None:
        deadline = self._settings.shutdown_deadline_s
        in_time = await asyncio.gather(*(life.stop(deadline) for life in self._lives.values()))
        self.abandoned = not all(in_time)
        await asyncio.gather(*(standby.stop() for standby in self._standbys.values()))
        if self._batcher is not None:
            await asyncio.get_running_loop().run_in_executor(background, self._batcher.stop)
        await self._verifier.stop()
        await consumer.stop()
        # Engines that are being compiled cannot be interrupted, and nothing waits for them.
        if self._warmed:
            await asyncio.to_thread(background.shutdown)
        else:
            background.shutdown(wait=False, cancel_futures=True)

    def _close_stores(self) -> None:
        """When nothing uses them any more."""
        for partition, store in self._stores.items():
            try:
                store.close()
            except ToktierError as error:
                _LOG.error("store_not_closed", partition=partition, code=error.code.value)
        self._stores.clear()
        for device in self._devices.values():
            device.close()
        _LOG.info("worker_stopped")


def health_of(s: Settings) -> Health:
    """What probes are told about a worker with these settings."""
    return Health(s.heartbeat_limit_s, broker_limit_s=max(30.0, s.heartbeat_limit_s))


def topic_specs(s: Settings) -> tuple[TopicSpec, ...]:
    """The five topics, all with the input's partition count."""
    record = s.max_event_bytes + 64 * KIB
    return (
        TopicSpec(s.topic_appends, s.partitions, False, record),
        TopicSpec(s.topic_tokens, s.partitions, False, s.part_bytes + 64 * KIB),
        TopicSpec(s.topic_checks, s.partitions, False, 64 * KIB),
        TopicSpec(s.topic_rejects, s.partitions, False, record + 64 * KIB),
        TopicSpec(s.topic_sessions, s.partitions, True, 256 * KIB),
    )
