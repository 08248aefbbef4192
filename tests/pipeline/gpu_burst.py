"""How long appends take while full texts keep the device busy, beside a quiet worker.

    python tests/pipeline/gpu_burst.py --appends 1000

The device is the GPU's kernels on one CPU core, which takes that core from the worker: a card would
not. ``--cpu`` gives the burst to the CPU's threads instead.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pipeline_harness import Backend, Hands, Running, local_backend, make_settings
from shim_card import Cards

from toktier_stream.broker.port import OutRecord
from toktier_stream.cli.worker import SWITCH_S
from toktier_stream.config import MIB
from toktier_stream.wire.codec import encode_event
from toktier_stream.wire.messages import AppendEvent, Edit, Reset, TokenUpdate

LINE = "{0}.{1}: größe 漢字 don't 12345 and some more words of a turn\n"
BURST_BYTES = 1 << 16
"""Of one full text."""
AHEAD = 24
"""Full texts that are always under way."""


@dataclass(frozen=True)
class Burst:
    """Milliseconds from sending an append to its answer."""

    quiet: list[float]
    busy: list[float]
    full_texts: int
    """Answered while the busy ones were measured."""
    launches: list[int]
    """Texts of each launch."""

    def row(self) -> str:
        """For people."""
        cells = []
        for name, times in (("quiet", self.quiet), ("burst", self.busy)):
            p50, p99 = np.percentile(times, [50, 99])
            cells.append(f"{name}: P50 {p50:.2f} ms, P99 {p99:.2f} ms")
        sizes = f"{np.mean(self.launches):.1f} of {max(self.launches)}" if self.launches else "-"
        return (
            f"{len(self.busy)} appends. {'; '.join(cells)}; {self.full_texts} full texts of 64 KiB "
            f"meanwhile, texts a launch (mean of most) {sizes}; load average "
            f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
        )


def full_text(number: int) -> bytes:
    """A text unlike the others."""
    lines = "".join(LINE.format(number, i) for i in range(BURST_BYTES // 60))
    return lines.encode()[:BURST_BYTES].decode(errors="ignore").encode()


async def measure(backend: Backend, state_dir: Path, appends: int, *, device: bool) -> Burst:
    """Appends one after another, each waited for: first alone, then amid full texts."""
    settings = make_settings(
        backend, state_dir, gpu="required" if device else "off", gpu_min_bytes=1,
        gpu_batch_bytes=2 * MIB, miss_bytes=1024, verify_rate=0,
    )  # fmt: skip
    cards = Cards()
    async with Running(backend, settings, open_card=cards):
        client = backend.connect()
        await client.start()
        hands = Hands(client, settings)
        await hands.open()
        driver = _Driver(hands)
        await driver.begin()
        quiet = [await driver.append() for _ in range(appends)]
        if device:
            cards.one.watch()
        await driver.refill()
        busy: list[float] = []
        while len(busy) < appends or driver.full_texts < 2 * AHEAD:
            busy.append(await driver.append(refill=True))
        done = driver.full_texts
        await driver.finish()
        await hands.close()
        await client.stop()
        return Burst(quiet, busy, done, list(cards.one.launches) if device else [])


class _Driver:
    """Sends, and keeps count of what is under way."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._publisher = hands.broker.publisher()
        self._sent = self.full_texts = 0
        self._revision = 0

    async def begin(self) -> None:
        """A session of 64 KiB to append to."""
        await self._publisher.start()
        await self._send("hits", Reset(full_text(0)))
        await self._answers("hits")

    async def _send(self, session: str, op: Reset | Edit) -> None:
        if session == "hits":
            self._revision += 1
        revision = self._revision if session == "hits" else 1
        event = encode_event(AppendEvent(session, revision, op))
        topic = self._hands.settings.topic_appends
        await (await self._publisher.send(OutRecord(topic, *event)))

    async def append(self, *, refill: bool = False) -> float:
        """One append; milliseconds."""
        started = time.perf_counter()
        await self._send("hits", Edit(f" and {self._revision} words more.\n".encode()))
        await self._answers("hits")
        taken = 1000 * (time.perf_counter() - started)
        if refill:
            await self.refill(most=1)
        return taken

    async def refill(self, most: int = AHEAD) -> None:
        """Bring the full texts that are under way up to the number, by ``most`` at once: a worker
        that is given all that it can take has no latency to speak of."""
        for _ in range(min(most, AHEAD - (self._sent - self.full_texts))):
            self._sent += 1
            await self._send(f"full{self._sent}", Reset(full_text(self._sent)))

    async def finish(self) -> None:
        """Wait for all of them."""
        while self.full_texts < self._sent:
            self._count(await self._hands.next())
        await self._publisher.stop()

    async def _answers(self, session: str) -> None:
        while not any(a.session_id == session for a in self._count(await self._hands.next())):
            pass

    def _count(self, answers: list[TokenUpdate]) -> list[TokenUpdate]:
        self.full_texts += sum(a.session_id != "hits" for a in answers)
        return answers


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=500)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)  # as a worker's process does
    with tempfile.TemporaryDirectory() as folder:
        backend, state = local_backend(), Path(folder)
        burst = asyncio.run(measure(backend, state, options.appends, device=not options.cpu))
    print("CPU threads." if options.cpu else "Kernels on a CPU core.", burst.row())


if __name__ == "__main__":
    main()
