"""The port to a device: memory, copies and launches. CuPy and the shim implement it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Raw = npt.NDArray[np.uint8]


class DeviceError(Exception):
    """The device, its driver or its compiler failed. Never holds text of a session."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Device memory: what the device calls it (an address, a number), and a place within."""

    handle: int
    offset: int = 0

    def at(self, offset: int) -> Buffer:
        """The same memory from ``offset`` bytes on."""
        return Buffer(self.handle, self.offset + offset)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. ``arguments`` are in the order of the kernel's signature."""

    kernel: str
    grid: int
    block: int
    shared: int
    """Bytes of dynamic shared memory."""
    arguments: tuple[Buffer | int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A fixed sequence of launches for batches of up to ``capacity`` bytes."""

    capacity: int
    launches: Sequence[Launch]


class Device(Protocol):
    """Every call may raise :class:`DeviceError`; after one the device is not used again until
    :meth:`recover` says it may be. One thread at a time."""

    @property
    def name(self) -> str:
        """What it is, for people and traces."""
        ...

    @property
    def blocks(self) -> int:
        """Blocks of 256 threads that keep the whole device busy."""
        ...

    def allocate(self, size: int) -> Buffer:
        """``size`` bytes that live as long as the device."""
        ...

    def staging(self, size: int) -> Raw:
        """Host memory that uploads fast; each call's memory is the caller's own."""
        ...

    def upload(self, to: Buffer, data: Raw) -> None:
        """Copy to the device. ``data`` is not changed before the next :meth:`download`."""
        ...

    def run(self, plan: Plan) -> None:
        """Start the launches of a plan, behind what was started before."""
        ...

    def download(self, source: Buffer, size: int) -> Raw:
        """Wait for all that was started, and copy ``size`` bytes into new host memory. It may be
        pinned, and is given back with the array: copy what is to stay for long."""
        ...

    def recover(self) -> bool:
        """Whether the device works again after an error."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
