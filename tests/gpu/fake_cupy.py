"""The few things of CuPy that the host uses, over the shim: addresses, streams, graphs, events.

Argument types are checked as the real launch would misread them: 4 bytes for u32, 8 for the rest.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from toktier_gpu import sources
from toktier_gpu.device import Buffer, DeviceError, Launch, Plan
from toktier_gpu.shim_device import ShimDevice

_STEP = 1 << 40
"""Addresses are ``(buffer + 1) * _STEP + offset``."""


class CudaError(RuntimeError):
    """What the fake runtime raises."""


def _buffer(address: int) -> Buffer:
    return Buffer(address // _STEP - 1, address % _STEP)


class Cuda:
    """One fake card. Like a real one it works behind the caller: copies and launches are done when
    the stream is waited for, errors are met there, and stay."""

    def __init__(self, shim: ShimDevice) -> None:
        self.shim = shim
        self.queue: list[Callable[[], None]] = []
        self.captured: list[Launch] | None = None
        self.captures = 0
        self.replays = 0
        self.loaded: set[str] = set()
        self.failing = False
        self.captures_fail = False
        self.no_compiler = False

    def do(self, action: Callable[[], Any]) -> Any:
        """Run an action of the shim, with its errors as the runtime's."""
        if self.failing:
            raise CudaError("cudaErrorLaunchFailure: unspecified launch failure")
        try:
            return action()
        except DeviceError as error:
            raise CudaError(str(error)) from error

    def not_capturing(self) -> None:
        """What may not be called while a stream captures."""
        if self.captured is not None:
            self.captured = None
            raise CudaError("cudaErrorStreamCaptureUnsupported")

    def launch(self, launches: Sequence[Launch]) -> None:
        """Queue kernels."""
        plan = Plan(0, tuple(launches))
        self.queue.append(lambda: self.do(lambda: self.shim.run(plan)))

    def copy(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        """cudaMemcpyAsync: the host's memory is read or written when the copy's turn comes."""
        self.not_capturing()

        def up() -> None:
            data = np.frombuffer(ctypes.string_at(source, size), dtype=np.uint8)
            self.do(lambda: self.shim.upload(_buffer(to), data))

        def down() -> None:
            found = self.do(lambda: self.shim.download(_buffer(source), size))
            ctypes.memmove(to, found.ctypes.data, size)

        self.queue.append(up if kind == 1 else down)

    def synchronize(self) -> None:
        """cudaStreamSynchronize."""
        self.not_capturing()
        self.do(lambda: None)
        while self.queue:
            self.queue.pop(0)()


class _Pinned:
    """A pool whose memory is overwritten when it is given back, and handed out again."""

    def __init__(self) -> None:
        self._free: dict[int, list[Any]] = {}

    def malloc(self, size: int) -> Any:
        room = 1 << max(9, (size - 1).bit_length())
        idle = self._free.setdefault(room, [])
        memory = idle.pop() if idle else bytearray(room)

        def give_back(block: object) -> None:
            memory[:] = b"\xdd" * room
            idle.append(memory)

        block = type("Block", (ctypes.c_ubyte * room,), {"__del__": give_back})
        return block.from_buffer(memory)

    def free_all_blocks(self) -> None:
        self._free.clear()


class _Context:
    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *details: object) -> None:
        return None


def module(card: Cuda, source: str | None = None) -> ModuleType:
    """A ``cupy`` whose only device is ``card``."""
    signatures = {k.name: k.arguments for k in sources.kernels(source or sources.joined())}

    class Stream(_Context):
        ptr = 7

        def __init__(self, non_blocking: bool) -> None:
            assert non_blocking

        def begin_capture(self, mode: int) -> None:
            card.captured = []

        def end_capture(self) -> Any:
            launches, card.captured = card.captured, None
            if launches is None or card.captures_fail:
                raise CudaError("cudaErrorStreamCaptureInvalidated")
            card.captures += 1
            return Graph(launches)

        def synchronize(self) -> None:
            card.synchronize()

    class Graph:
        def __init__(self, launches: list[Launch]) -> None:
            self.launches = launches

        def launch(self, stream: Stream) -> None:
            card.replays += 1
            card.launch(self.launches)

    class RawModule:
        def __init__(self, code: str, options: tuple[str, ...]) -> None:
            if card.no_compiler:
                raise RuntimeError("CuPy failed to load libnvrtc.so.12")
            assert code == sources.joined()

        def get_function(self, name: str) -> Any:
            types = signatures[name]

            def run(grid: Any, block: Any, arguments: Any, shared_mem: int) -> None:
                values: list[Buffer | int] = []
                for value, kind in zip(arguments, types, strict=True):
                    assert value.dtype.itemsize == (4 if kind == "u32" else 8)
                    values.append(_buffer(int(value)) if kind.endswith("*") else int(value))
                launch = Launch(name, grid[0], block[0], shared_mem, tuple(values))
                if card.captured is None:
                    card.loaded.add(name)
                    card.launch([launch])
                else:
                    # Code is loaded by a kernel's first launch: nothing that a capture stands.
                    assert name in card.loaded
                    card.captured.append(launch)

            return run

    class Memory:
        def __init__(self, size: int) -> None:
            card.not_capturing()
            buffer = card.do(lambda: card.shim.allocate(size))
            self.ptr = (buffer.handle + 1) * _STEP

    class Event:
        def record(self, stream: Stream) -> None:
            return None

    fake: Any = ModuleType("cupy")
    fake.RawModule = RawModule
    cuda: Any = ModuleType("cupy.cuda")
    fake.cuda = cuda
    cuda.runtime = ModuleType("runtime")
    cuda.runtime.CUDARuntimeError = CudaError
    cuda.runtime.memcpyAsync = card.copy
    cuda.runtime.memcpyHostToDevice, cuda.runtime.memcpyDeviceToHost = 1, 2
    cuda.runtime.streamCaptureModeRelaxed = 2
    properties = {"name": b"fake", "multiProcessorCount": 1}
    cuda.runtime.getDeviceProperties = lambda number: properties
    for name in ("compiler", "memory"):
        setattr(cuda, name, ModuleType(name))
    cuda.compiler.CompileException = CudaError
    cuda.memory.OutOfMemoryError = MemoryError
    cuda.memory.Memory = Memory
    cuda.PinnedMemoryPool = _Pinned
    cuda.Device = lambda number: _Context()
    cuda.Stream = Stream
    cuda.Event = Event
    cuda.get_elapsed_time = lambda a, b: 0.5
    return fake


@contextmanager
def installed(card: Cuda) -> Iterator[None]:
    """``import cupy`` gives the fake."""
    before = sys.modules.get("cupy")
    sys.modules["cupy"] = module(card)
    try:
        yield
    finally:
        if before is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = before
