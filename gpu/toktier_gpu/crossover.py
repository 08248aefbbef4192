"""Where the device starts to win: measured on this machine, with this tokenizer."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from toktier_gpu.host import GpuEncoder
from toktier_stream.tokenizer.face import Encoder

SIZES: Final = tuple(1 << k for k in range(11, 23))
"""Bytes of a batch that are tried."""
REPEATS: Final = 5


def crossover(
    encoder: GpuEncoder,
    cpu: Encoder,
    text: bytes,
    *,
    sizes: Sequence[int] = SIZES,
    clock: Callable[[], float] = time.perf_counter,
) -> int | None:
    """The smallest batch, in bytes, from which the device is faster at every size tried; None if
    the CPU engine is still faster at the largest.

    ``text`` is like the texts to come, and at least as long as the largest size. Takes about a
    second: call it when a worker starts, after :meth:`GpuEncoder.warm`.
    """
    wins: int | None = None

    def on_device(part: bytes) -> None:
        encoder.encode([part])

    def on_cpu(part: bytes) -> None:
        cpu.encode(part)

    for size in sorted(sizes):
        if size > min(len(text), encoder.limits.bytes):
            break
        part = text[:size].decode(errors="ignore").encode()
        slower = _seconds(on_device, part, clock) >= _seconds(on_cpu, part, clock)
        if slower or not encoder.works:
            wins = None
        elif wins is None:
            wins = size
    return wins


def sources_text(size: int) -> bytes:
    """About ``size`` bytes of real text that every machine has: the standard library's sources,
    as many as there are."""
    parts: list[bytes] = []
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if size <= 0:
            break
        part = file.read_bytes()[:size].decode(errors="ignore").encode()
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _seconds(action: Callable[[bytes], None], part: bytes, clock: Callable[[], float]) -> float:
    """The least of a few tries."""
    times = []
    for _ in range(REPEATS):
        start = clock()
        action(part)
        times.append(clock() - start)
    return min(times)
