"""The slow lane: full texts are encoded off the partitions' threads, in batches, within bounds.

A full text (a state miss, a fresh session) costs a thousand times an append. A partition hands it
over, goes on with other sessions' events, and applies it when it comes back. One batcher serves all
partitions of a worker, in turn:

    submit ──▶ device queue ──▶ device thread: one launch for what has gathered ──┐
          │         │ backlog, or too little for the device                       │ ids, lengths
          │         ▼                                                             ▼
          └──▶ CPU queue ──────▶ CPU threads: encode, cut into pages, digest ──▶ miss.done

The queues are bounded together: beyond that ``submit`` says no, and the caller, who encodes by
itself, reads no further meanwhile. Ids never depend on the way a text took.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from toktier_stream import telemetry
from toktier_stream.errors import ToktierError
from toktier_stream.pipeline.fair_queue import FairQueue
from toktier_stream.session.prepared import Prepared, prepare
from toktier_stream.tokenizer.face import Encoder, Tokens
from toktier_stream.wire.messages import Route

_LOG = telemetry.logger(__name__)

DIVIDED_BYTES: Final = 1 << 18
"""A text of this size may be encoded by several threads, if they have nothing else to do."""


class DeviceEncoder(Protocol):
    """One tokenizer on a device. Called by one thread."""

    @property
    def min_bytes(self) -> int:
        """Batches below this are faster on the CPU."""
        ...

    @property
    def max_bytes(self) -> int:
        """Largest batch."""
        ...

    @property
    def max_texts(self) -> int:
        """Most texts of a batch."""
        ...

    @property
    def works(self) -> bool:
        """False once the device is given up."""
        ...

    def encode(self, texts: Sequence[bytes]) -> Sequence[Tokens | str]:
        """For each text its tokens, or the reason (a metric's attribute) why the device leaves it
        to the CPU. A device that fails leaves all of them; raises nothing."""
        ...


@dataclass(slots=True, eq=False)
class Miss:
    """One full text on its way through the lane."""

    partition: int
    encoder: Encoder
    text: bytes
    done: Callable[[Miss], None]
    """Called once, by a thread of the batcher, when ``prepared`` or ``error`` is there."""
    prepared: Prepared | None = None
    error: Exception | None = None
    tokens: Tokens | None = None
    device_ns: int = 0
    submitted: int = 0
    """``time.time_ns()`` when it was submitted, begun and done."""
    began: int = 0
    ended: int = 0


class Batcher:
    """See the module. ``start`` before the first ``submit``; safe for threads."""

    def __init__(
        self,
        instruments: telemetry.Instruments,
        *,
        threads: int = 0,
        queue_bytes: int,
        linger_s: float = 0.0,
        devices: Mapping[str, DeviceEncoder] | None = None,
    ) -> None:
        """``threads``: for the CPU; 0: one less than there are cores, at least one. ``devices``:
        by the fingerprint of their tokenizer's encoder. ``linger_s``: how long the first text of
        a launch waits for others."""
        self._instruments = instruments
        self._threads = threads or max(1, len(os.sched_getaffinity(0)) - 1)
        self._limit = queue_bytes
        self._linger_s = linger_s
        self._devices = dict(devices or {})
        self._cpu: FairQueue[int, Miss] = FairQueue(_text_bytes)
        self._device: FairQueue[int, Miss] = FairQueue(_text_bytes)
        self._held = 0  # bytes of everything submitted and not done
        self._idle = 0
        self._stopping = False
        self._lock = threading.Lock()
        self._for_cpu = threading.Condition(self._lock)
        self._for_device = threading.Condition(self._lock)
        self._running: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        targets = [("miss-cpu", self._encode_on_cpu)] * self._threads
        if self._devices:
            targets.append(("miss-device", self._run_device))
        for name, target in targets:
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._running.append(thread)

    def stop(self) -> None:
        """Finish what is in the making, drop what waits, end the threads. Blocks that long."""
        with self._lock:
            self._stopping = True
            self._for_cpu.notify_all()
            self._for_device.notify_all()
        for thread in self._running:
            thread.join()
        self._running.clear()

    @property
    def held_bytes(self) -> int:
        """Bytes of the texts submitted and not done."""
        return self._held

    def submit(self, miss: Miss) -> bool:
        """Take a text, or say no because too much waits. A single text is always taken by an
        empty lane, whatever its size."""
        size = _size(miss)
        with self._lock:
            if self._stopping or (self._held and self._held + size > self._limit):
                return False
            self._held += size
            miss.submitted = time.time_ns()
            if self._device_of(miss) is not None:
                self._device.put(miss.partition, miss)
                self._for_device.notify()
                if self._backlog():
                    self._for_cpu.notify()
            else:
                self._cpu.put(miss.partition, miss)
                self._for_cpu.notify()
        return True

    # The CPU's threads

    def _encode_on_cpu(self) -> None:
        while True:
            with self._lock:
                while (miss := self._next_for_cpu()) is None:
                    if self._stopping:
                        return
                    self._idle += 1
                    self._for_cpu.wait()
                    self._idle -= 1
                helpers = self._idle if len(miss.text) >= DIVIDED_BYTES else 0
            if not miss.began:
                miss.began = time.time_ns()
            try:
                self._prepare(miss, 1 + helpers)
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
                miss.error = error
            self._finish(miss)

    def _next_for_cpu(self) -> Miss | None:
        if self._stopping:
            return None
        miss = self._cpu.take()
        if miss is None and self._backlog():
            miss = self._device.take()
            if miss is not None:
                self._instruments.add("toktier.misses.spilled", reason="backlog")
        return miss

    def _backlog(self) -> bool:
        """Whether more waits for the device than its next launch can take."""
        return bool(self._device) and self._device.bytes > max(
            d.max_bytes for d in self._devices.values()
        )

    def _prepare(self, miss: Miss, threads: int) -> None:
        if miss.tokens is not None:
            try:
                prepared = prepare(miss.encoder, miss.text, tokens=miss.tokens, route=Route.GPU)
            except ValueError:
                # Lengths that do not make up the text: memory of the device or a bus went wrong.
                _LOG.error("device_damaged_tokens", bytes=len(miss.text))
                self._instruments.add("toktier.misses.spilled", reason="damaged")
            else:
                elapsed = prepared.elapsed_ns + miss.device_ns
                miss.prepared = replace(prepared, elapsed_ns=elapsed)
                return
        miss.prepared = prepare(miss.encoder, miss.text, threads=threads)

    def _finish(self, miss: Miss) -> None:
        miss.ended = time.time_ns()
        with self._lock:
            self._held -= _size(miss)
        route = miss.prepared.route.value if miss.prepared is not None else "error"
        self._instruments.add("toktier.misses", route=route)
        self._instruments.record("toktier.miss.wait", (miss.began - miss.submitted) / 1e9)
        miss.done(miss)

    # The device's thread

    def _device_of(self, miss: Miss) -> DeviceEncoder | None:
        device = self._devices.get(miss.encoder.fingerprint)
        if device is None or not device.works or len(miss.text) > device.max_bytes:
            return None
        return device

    def _run_device(self) -> None:
        while True:
            with self._lock:
                while not self._device and not self._stopping:
                    self._for_device.wait()
                if self._stopping:
                    return
                if self._linger_s:
                    self._gather()
                batch = self._next_for_device()
            if batch:
                self._launch(batch)

    def _gather(self) -> None:
        """Wait for more, for as long as a text may linger or until a launch is full."""
        until = time.monotonic() + self._linger_s
        full = max(d.max_bytes for d in self._devices.values())
        while not self._stopping and self._device.bytes < full:
            left = until - time.monotonic()
            if left <= 0:
                return
            self._for_device.wait(left)

    def _next_for_device(self) -> list[Miss]:
        """The texts of one launch: of one tokenizer, from all partitions in turn. Empty if the
        CPU is better for them."""
        first = self._device.take()
        if first is None:
            return []
        batch = [first]
        device = self._device_of(first)
        if device is None:
            self._to_cpu(batch, "device")
            return []
        size = len(first.text)
        fingerprint = first.encoder.fingerprint

        def fits(miss: Miss) -> bool:
            same = miss.encoder.fingerprint == fingerprint
            return same and size + len(miss.text) <= device.max_bytes

        while len(batch) < device.max_texts and (miss := self._device.take(fits)) is not None:
            batch.append(miss)
            size += len(miss.text)
        if size < device.min_bytes:
            self._to_cpu(batch, "small")
            return []
        return batch

    def _launch(self, batch: list[Miss]) -> None:
        device = self._devices[batch[0].encoder.fingerprint]
        began = time.time_ns()
        try:
            results = device.encode([miss.text for miss in batch])
        except Exception as error:  # noqa: BLE001 - a device must not take the worker down
            _LOG.error("device_raised", error=type(error).__name__, texts=len(batch))
            results = ["raised"] * len(batch)
        elapsed = time.time_ns() - began
        self._instruments.record("toktier.device.batch", len(batch))
        self._instruments.record("toktier.device.duration", elapsed / 1e9)
        encoded = 0
        with self._lock:
            for miss, result in zip(batch, results, strict=True):
                miss.began = began
                if isinstance(result, str):
                    self._instruments.add("toktier.misses.spilled", reason=result)
                else:
                    miss.tokens = result
                    miss.device_ns = elapsed
                    encoded += len(miss.text)
                self._cpu.put(miss.partition, miss)
            self._for_cpu.notify_all()
        self._instruments.add("toktier.device.encoded", encoded)

    def _to_cpu(self, batch: list[Miss], reason: str) -> None:
        for miss in batch:
            self._instruments.add("toktier.misses.spilled", reason=reason)
            self._cpu.put(miss.partition, miss)
        self._for_cpu.notify_all()


def outcome(miss: Miss) -> Prepared | None:
    """What came of a miss: None where the answer needs the text encoded again, to meet the same
    refusal in its place. Raises what nobody foresaw."""
    if miss.error is not None and not isinstance(miss.error, ToktierError):
        raise miss.error
    return miss.prepared


def _text_bytes(miss: Miss) -> int:
    return len(miss.text)


def _size(miss: Miss) -> int:
    # Ids, lengths and pages are there beside the text before the text is done.
    return 4 * len(miss.text) + 1024
