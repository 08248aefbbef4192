"""Batched exact full tokenization on a device. What the device leaves, or fails at, the CPU
engine encodes: ids never depend on where they were computed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt

from toktier_gpu import plan as plans
from toktier_gpu.batch import Batch
from toktier_gpu.device import Device, DeviceError, Plan, Raw
from toktier_gpu.plan import Buffers, Limits
from toktier_gpu.tables import DeviceTables
from toktier_stream.tokenizer.face import Encoder, Tokens

log = logging.getLogger(__name__)

Flags = npt.NDArray[np.uint32]

WARM_RUNS: Final = 3
"""Load the code, capture, replay."""

SELF_TEST: Final = "It's  1234 unbelievable\r\n\t日本語の文章です: mxyzptlk".encode()
"""No normalizer changes it."""


class Fallback(Enum):
    """Why the CPU engine encoded a text. Values are names for metrics."""

    NORMALIZATION = "normalization"
    """The reference's normalizer may change it."""
    SEGMENT = "segment"
    """No synchronizing boundary for longer than the limit."""
    PIECE = "piece"
    """A piece is longer than the limit, or takes too many merge rounds."""
    LITERALS = "literals"
    """Added tokens overlap each other over more than the limit."""
    SIZE = "size"
    """The text is larger than a batch may be."""
    DEVICE = "device"
    """The device failed."""


# Bits of a text's flags, as common.cu has them; the first that is set is counted.
_BITS: Final = (
    (1, Fallback.NORMALIZATION),
    (2, Fallback.SEGMENT),
    (4, Fallback.PIECE),
    (8, Fallback.LITERALS),
)


class GpuEncoder:
    """One tokenizer on one device. Safe for threads: they take turns on the device."""

    def __init__(
        self, tables: DeviceTables, cpu: Encoder, device: Device, limits: Limits | None = None
    ) -> None:
        """Allocates all device memory and compares a first text with ``cpu``.

        Raises DeviceError if the device fails, or disagrees with ``cpu``.
        """
        self.limits = limits or Limits()
        self._cpu = cpu
        self._device = device
        self._lock = threading.Lock()
        self._works = True
        self._fallbacks = dict.fromkeys(Fallback, 0)
        self.buffers = Buffers(device, self.limits)
        placed = plans.upload_tables(device, tables)
        capacities = [c for c in self.limits.buckets if c < self.limits.bytes]
        self.plans = tuple(
            plans.make_plan(device, self.buffers, tables, placed, self.limits, capacity)
            for capacity in (*capacities, self.limits.bytes)
        )
        self._self_test()

    def _self_test(self) -> None:
        ours, flags = self._run([SELF_TEST])
        theirs = self._cpu.encode(SELF_TEST)
        equal = np.array_equal(ours.ids, theirs.ids)
        if flags.any() or not equal or not np.array_equal(ours.lengths, theirs.lengths):
            raise DeviceError(f"{self._device.name} disagrees with the CPU engine")

    @property
    def fallbacks(self) -> Mapping[Fallback, int]:
        """Texts that the CPU engine encoded, by reason."""
        return dict(self._fallbacks)

    @property
    def works(self) -> bool:
        """False once the device is given up: everything then goes to the CPU engine."""
        return self._works

    def attempt(self, texts: Sequence[bytes]) -> list[Tokens | Fallback]:
        """For each UTF-8 text its ids and byte lengths, or why the device leaves it to the CPU
        (which is counted). Raises nothing.

        The arrays may be views of pinned memory: copy what is to stay for long.
        """
        results: list[Tokens | Fallback] = [Fallback.SIZE] * len(texts)
        for members in self._groups(texts):
            done = self._try_run([texts[i] for i in members])
            for number, result in zip(members, _results(done, len(members)), strict=True):
                results[number] = result
        self._count(results)
        return results

    def encode(self, texts: Sequence[bytes]) -> Batch:
        """Ids and byte lengths of UTF-8 texts, equal to the reference's on each text alone.

        Raises what the CPU engine raises; never DeviceError.
        """
        if len(texts) <= self.limits.texts and sum(map(len, texts)) <= self.limits.bytes:
            done = self._try_run(texts)
            if done is not None and not done[1].any():
                return done[0]  # as it came from the device: nothing is copied
            results = _results(done, len(texts))
            self._count(results)
        else:
            results = self.attempt(texts)
        return Batch.join(
            [
                self._cpu.encode(text) if isinstance(result, Fallback) else result
                for result, text in zip(results, texts, strict=True)
            ]
        )

    def _count(self, results: Sequence[Tokens | Fallback]) -> None:
        with self._lock:
            for result in results:
                if isinstance(result, Fallback):
                    self._fallbacks[result] += 1

    def warm(self) -> None:
        """Run every plan as often as a device needs to replay it at its best.

        Raises DeviceError.
        """
        with self._lock:
            for plan in self.plans:
                for _ in range(WARM_RUNS):
                    self._run([SELF_TEST], plan)

    def compare(self, texts: Sequence[bytes]) -> None:
        """Hold the device to the CPU engine on texts, in one launch or several, before it serves
        any. Raises DeviceError if it differs or fails."""
        for number, ours in enumerate(self.attempt(texts)):
            if ours is Fallback.DEVICE:
                raise DeviceError(f"{self._device.name} failed on the first texts")
            if isinstance(ours, Fallback):
                continue
            theirs = self._cpu.encode(texts[number])
            same = np.array_equal(ours.ids, theirs.ids)
            if not (same and np.array_equal(ours.lengths, theirs.lengths)):
                raise DeviceError(f"{self._device.name} disagrees with the CPU engine")

    def close(self) -> None:
        """Give the device back. Later texts go to the CPU engine."""
        with self._lock:
            self._works = False
            self._device.close()

    def _groups(self, texts: Sequence[bytes]) -> Iterator[list[int]]:
        """Numbers of texts that fit a batch together, in order; none of a text above a batch."""
        members: list[int] = []
        size = 0
        for number, text in enumerate(texts):
            if len(text) > self.limits.bytes:
                continue
            if size + len(text) > self.limits.bytes or len(members) == self.limits.texts:
                yield members
                members, size = [], 0
            members.append(number)
            size += len(text)
        if members:
            yield members

    def _try_run(self, texts: Sequence[bytes]) -> tuple[Batch, Flags] | None:
        """None if the device fails; it is given up unless it recovers."""
        with self._lock:
            if not self._works:
                return None
            try:
                return self._run(texts)
            except DeviceError as error:
                self._works = self._device.recover()
                log.warning("a batch of %d texts goes to the CPU: %s", len(texts), error)
                return None

    def _run(self, texts: Sequence[bytes], plan: Plan | None = None) -> tuple[Batch, Flags]:
        """One batch on the device: its tokens (of no use where a text's flags are set)."""
        size = sum(map(len, texts))
        if not size:
            empty = np.zeros(0, dtype=np.uint32)
            offsets = np.zeros(len(texts) + 1, dtype=np.int64)
            return Batch(empty, empty, offsets), np.zeros(len(texts), dtype=np.uint32)
        buffers, device = self.buffers, self._device
        device.upload(buffers.input, self.packed(texts, size))
        device.run(plan or self.plan_for(size))
        report = device.download(buffers.report, buffers.report_size).view(np.uint32)
        count = int(report[plans.TOKENS])
        offsets = report[buffers.offsets_at // 4 :][: len(texts) + 1].astype(np.int64)
        if count > size or int(offsets[-1]) != count:
            raise DeviceError(f"{self._device.name} reports {count} tokens of {size} bytes")
        flags = report[buffers.flags_at // 4 :][: len(texts)].copy()
        counts, sizes = np.diff(offsets), np.array([len(text) for text in texts])
        wrong = (counts > sizes) | ((counts <= 0) & (sizes > 0))
        if (wrong & (flags == 0)).any():
            raise DeviceError(f"{self._device.name} reports numbers of tokens that cannot be")
        out = device.download(buffers.out, 8 * count).view(np.uint32)
        return Batch(out[:count], out[count:], offsets), flags

    def plan_for(self, size: int) -> Plan:
        """The smallest plan for a batch of ``size`` bytes."""
        return next(p for p in self.plans if p.capacity >= size)

    def packed(self, texts: Sequence[bytes], size: int) -> Raw:
        """Head, starts and texts as one upload."""
        buffers = self.buffers
        data = self._device.staging(buffers.text_at + size + plans.PADDING)
        words = data[: buffers.text_at].view(np.uint32)
        words[:2] = size, len(texts)
        starts = words[buffers.starts_at // 4 :][: len(texts) + 1]
        starts[0] = 0
        np.cumsum([len(t) for t in texts], out=starts[1:])
        room = data.data
        at = buffers.text_at
        for text in texts:
            room[at : at + len(text)] = text
            at += len(text)
        data[at:] = 0
        return data


def _results(done: tuple[Batch, Flags] | None, texts: int) -> list[Tokens | Fallback]:
    """What a launch came to, by text; None: the device failed."""
    if done is None:
        return [Fallback.DEVICE] * texts
    batch, flags = done
    return [_reason(int(flags[i])) if flags[i] else batch[i] for i in range(texts)]


def _reason(flags: int) -> Fallback:
    return next(reason for bit, reason in _BITS if flags & bit)
