"""What one batch costs on the card, part by part, and beside it on the machine's cores."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from toktier_gpu.batch import Batch
from toktier_gpu.device import Device, DeviceError, Plan
from toktier_gpu.host import GpuEncoder
from toktier_gpu.plan import TOKENS, Limits
from toktier_gpu.tables import DeviceTables
from toktier_stream.bench.gpu_peers import GpuPeers, opened
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import ReferenceEncoder

if TYPE_CHECKING:
    from toktier_stream.tokenizer.encoder import FastEncoder

REFERENCE_BYTES: Final = 1_100_000
"""The reference is timed up to this size."""
_BYTES_OF_REPEATS: Final = 60_000_000


class Card(Device, Protocol):
    """A device that can be waited for and looked into."""

    def synchronize(self) -> None:
        """Wait for all that was started."""
        ...

    def profile(self, plan: Plan, repeats: int = 5) -> list[tuple[str, float]]:
        """Microseconds of each launch."""
        ...


OpenCard = Callable[[bool], Card]
"""A device, with CUDA graphs or without. Raises DeviceError."""


@dataclass(frozen=True, slots=True)
class Family:
    """One tokenizer on the card's machine."""

    name: str
    artifact: Artifact
    tables: DeviceTables
    reference: ReferenceEncoder
    cpu: FastEncoder | None
    """The exact CPU engine, where it can run."""
    vocabulary: Sequence[str]
    literals: Sequence[str]

    @property
    def fallback(self) -> Encoder:
        """What encodes the texts that the device leaves."""
        return self.cpu or self.reference


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """Another tokenizer on the same texts, from strings to what it gives."""

    us: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Timing:
    """One workload, medians in microseconds over the same texts given again: the memories of
    engines that have some are full. ``encode`` is the whole call, ids and byte lengths in host
    memory; the parts were measured one by one, with a wait behind each."""

    texts: int
    characters: int
    bytes: int
    tokens: int
    left_to_cpu: int
    encode_graph: float
    encode_eager: float
    pack: float
    upload: float
    kernels_graph: float
    kernels_eager: float
    download_ids: float
    download_ids_and_lengths: float
    cpu_engine: float | None
    """On one thread."""
    cpu_engine_threads: float | None
    """On as many as there are cores."""
    reference: float | None
    peers: Mapping[str, PeerTiming]

    @property
    def megabytes_per_second(self) -> float:
        """Of the whole call with graphs."""
        return self.bytes / self.encode_graph


class Clock:
    """Times workloads of one family on two devices: one replays graphs, one launches."""

    def __init__(
        self,
        family: Family,
        open_card: OpenCard,
        limits: Limits,
        repeats: int,
        stack: ExitStack,
        *,
        peers: bool,
    ) -> None:
        """Everything is given back when ``stack`` is left. Raises DeviceError."""
        self._family = family
        self._repeats = repeats
        self.peers = opened(family.artifact, stack) if peers else GpuPeers({}, {})
        self._threads = len(os.sched_getaffinity(0))
        self._pool = stack.enter_context(ThreadPoolExecutor(self._threads))
        self._cards: dict[bool, Card] = {}
        self._encoders: dict[bool, GpuEncoder] = {}
        for graphs in (True, False):
            self._cards[graphs] = card = open_card(graphs)
            stack.callback(card.close)
            self._encoders[graphs] = GpuEncoder(family.tables, family.fallback, card, limits)
            self._encoders[graphs].warm()

    def time(self, texts: Sequence[bytes]) -> Timing:
        """Raises DeviceError, also if ids or lengths differ from the CPU's."""
        encoder = self._encoders[True]
        before = sum(encoder.fallbacks.values())
        batch = encoder.encode(texts)
        left = sum(encoder.fallbacks.values()) - before
        oracle = self._family.fallback
        for i, text in enumerate(texts):
            expected, ours = oracle.encode(text), batch[i]
            same = np.array_equal(expected.ids, ours.ids)
            if not (same and np.array_equal(expected.lengths, ours.lengths)):
                raise DeviceError(f"text {i} of a timed batch differs")
        size = sum(map(len, texts))
        repeats = max(3, min(self._repeats, _BYTES_OF_REPEATS // size))
        whole = {
            graphs: _median(repeats, lambda e=e: e.encode(texts))  # type: ignore[misc]
            for graphs, e in self._encoders.items()
        }
        reference = self._family.reference
        on_one, on_all = self._cpu(texts)
        return Timing(
            texts=len(texts),
            characters=sum(len(t.decode()) for t in texts),
            bytes=size,
            tokens=len(batch.ids),
            left_to_cpu=left,
            encode_graph=whole[True],
            encode_eager=whole[False],
            **self._parts(texts, size, repeats),
            cpu_engine=on_one,
            cpu_engine_threads=on_all,
            reference=_median(1, lambda: [reference.encode(t) for t in texts])
            if size <= REFERENCE_BYTES
            else None,
            peers=self._peers(texts, batch),
        )

    def _cpu(self, texts: Sequence[bytes]) -> tuple[float | None, float | None]:
        """Our CPU engine on one thread and on all cores."""
        cpu = self._family.cpu
        if cpu is None:
            return None, None

        def threaded() -> object:
            if len(texts) == 1:
                return cpu.encode_parallel(texts[0], self._threads)
            return list(self._pool.map(cpu.encode, texts))

        return _median(3, lambda: [cpu.encode(t) for t in texts]), _median(3, threaded)

    def _peers(self, texts: Sequence[bytes], batch: Batch) -> dict[str, PeerTiming]:
        given = [t.decode() for t in texts]
        timings = {}
        for name, (encode, ids_of) in self.peers.encode.items():
            ids = ids_of(encode(given))
            exact = len(ids) == len(batch) and all(
                np.array_equal(found, batch[i].ids) for i, found in enumerate(ids)
            )
            timings[name] = PeerTiming(_median(3, lambda e=encode: e(given)), exact)  # type: ignore[misc]
        return timings

    def _parts(self, texts: Sequence[bytes], size: int, repeats: int) -> dict[str, float]:
        encoder, card = self._encoders[True], self._cards[True]
        plan = encoder.plan_for(size)
        data = encoder.packed(texts, size)

        def upload() -> None:
            card.upload(encoder.buffers.input, data)
            card.synchronize()

        def kernels(graphs: bool) -> None:
            self._cards[graphs].run(self._encoders[graphs].plan_for(size))
            self._cards[graphs].synchronize()

        upload()
        other = self._encoders[False]
        self._cards[False].upload(other.buffers.input, data)
        self._cards[False].synchronize()
        card.run(plan)
        report = card.download(encoder.buffers.report, encoder.buffers.report_size)
        count = int(report.view("<u4")[TOKENS])
        return {
            "pack": _median(repeats, lambda: encoder.packed(texts, size)),
            "upload": _median(repeats, upload),
            "kernels_graph": _median(repeats, lambda: kernels(True)),
            "kernels_eager": _median(repeats, lambda: kernels(False)),
            "download_ids": _median(repeats, lambda: card.download(encoder.buffers.out, 4 * count)),
            "download_ids_and_lengths": _median(
                repeats, lambda: card.download(encoder.buffers.out, 8 * count)
            ),
        }

    def profile(self, texts: Sequence[bytes]) -> list[tuple[str, float]]:
        """Microseconds of each kernel on one batch. Raises DeviceError."""
        encoder, card = self._encoders[False], self._cards[False]
        size = sum(map(len, texts))
        card.upload(encoder.buffers.input, encoder.packed(texts, size))
        return card.profile(encoder.plan_for(size))


def _median(repeats: int, action: Callable[[], object]) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)
