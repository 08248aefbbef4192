"""A card for workers under test: the GPU's kernels on their CPU target, with a gate and faults."""

from __future__ import annotations

import threading

import numpy as np

from toktier_gpu.device import Buffer, DeviceError, Plan, Raw
from toktier_gpu.shim_device import ShimDevice, build
from toktier_stream.tokenizer.paths import cache_root

WITHIN_S = 30.0


class ShimCard:
    """One device as :class:`toktier_gpu.device.Device` says. ``launches``: the texts of each batch
    since :meth:`watch`; ``gate``: closed, a launch stays on the device; ``dies``: at the next
    launch its process ends, as a card falls off its bus."""

    name = "shim"

    def __init__(self) -> None:
        self._inner = ShimDevice(build(cache_root() / "gpu-shim"))
        self.gate = threading.Event()
        self.gate.set()
        self.busy = threading.Event()
        self.dies = False
        self.closed = False
        self.launches: list[int] = []
        self._texts = 0

    def watch(self) -> None:
        """Forget what was launched to open the device."""
        self.launches.clear()
        self.busy.clear()

    @property
    def blocks(self) -> int:
        return self._inner.blocks

    def allocate(self, size: int) -> Buffer:
        return self._inner.allocate(size)

    def staging(self, size: int) -> Raw:
        return self._inner.staging(size)

    def upload(self, to: Buffer, data: Raw) -> None:
        # The head of a batch: its bytes, then its number of texts.
        self._texts = int(data[:8].view(np.uint32)[1]) if len(data) >= 8 else 0
        self._inner.upload(to, data)

    def run(self, plan: Plan) -> None:
        self.launches.append(self._texts)
        self.busy.set()
        if not self.gate.wait(WITHIN_S):
            raise DeviceError("the gate was never opened")
        if self.dies:
            self._inner.close()
        self._inner.run(plan)

    def download(self, source: Buffer, size: int) -> Raw:
        return self._inner.download(source, size)

    def recover(self) -> bool:
        return self._inner.recover()

    def close(self) -> None:
        self.closed = True
        self.gate.set()
        self._inner.close()


class Cards:
    """Opens cards, and keeps hold of them."""

    def __init__(self) -> None:
        self.opened: list[ShimCard] = []

    def __call__(self) -> ShimCard:
        self.opened.append(ShimCard())
        return self.opened[-1]

    @property
    def one(self) -> ShimCard:
        """The only one."""
        (card,) = self.opened
        return card
