"""A CUDA device by CuPy: kernels by NVRTC, pinned host memory, plans replayed as CUDA graphs."""

from __future__ import annotations

import contextlib
import importlib
import logging
from itertools import pairwise
from typing import Any, Final

import numpy as np

from toktier_gpu import sources
from toktier_gpu.device import Buffer, DeviceError, Launch, Plan, Raw
from toktier_gpu.nvrtc import OPTIONS

log = logging.getLogger(__name__)

BLOCKS_PER_MULTIPROCESSOR: Final = 8
"""Of 256 threads: all that a multiprocessor can hold."""


class CupyDevice:
    """One GPU. See :class:`toktier_gpu.device.Device`.

    A plan is launched kernel by kernel the first time (that loads the code: CUDA loads it lazily,
    which a capture would not stand), then captured, then replayed. Where capturing fails, plans go
    on being launched. Nothing is allocated on the device after construction of the encoder.
    """

    def __init__(self, number: int = 0, graphs: bool = True) -> None:
        """Raises DeviceError if there is no CuPy, no GPU, or the kernels do not compile."""
        try:
            self._cupy: Any = importlib.import_module("cupy")
        except (ImportError, OSError, RuntimeError) as error:
            raise DeviceError(f"CuPy cannot be imported (toktier-stream[gpu]): {error}") from error
        self._runtime = self._cupy.cuda.runtime
        self._pinned = self._cupy.cuda.PinnedMemoryPool()
        self._number = number
        self._use_graphs = graphs
        self._graphs: dict[int, Any] = {}
        self._seen: dict[int, Plan] = {}
        self._memory: list[Any] = []
        self._staged: list[Any] = []
        with self._errors():
            self._device = self._cupy.cuda.Device(number)
            with self._device:
                self._stream = self._cupy.cuda.Stream(non_blocking=True)
                properties = self._runtime.getDeviceProperties(number)
                self.name = str(properties["name"].decode())
                self._blocks = int(properties["multiProcessorCount"]) * BLOCKS_PER_MULTIPROCESSOR
                source = sources.joined()
                module = self._cupy.RawModule(code=source, options=OPTIONS)
                self._kernels = {
                    kernel.name: (module.get_function(kernel.name), kernel.arguments)
                    for kernel in sources.kernels(source)
                }

    @contextlib.contextmanager
    def _errors(self) -> Any:
        cuda = self._cupy.cuda
        known = (
            RuntimeError,  # the runtime's, the driver's and NVRTC's own, and libraries not found
            OSError,
            ImportError,
            MemoryError,
            cuda.compiler.CompileException,
            cuda.memory.OutOfMemoryError,
        )
        try:
            yield
        except known as error:
            raise DeviceError(f"{type(error).__name__}: {str(error)[:2000]}") from error

    @property
    def blocks(self) -> int:
        return self._blocks

    def allocate(self, size: int) -> Buffer:
        with self._errors(), self._device:
            memory = self._cupy.cuda.memory.Memory(max(size, 1))
            self._memory.append(memory)
            return Buffer(int(memory.ptr))

    def staging(self, size: int) -> Raw:
        with self._errors(), self._device:
            memory = self._pinned.malloc(size)
            return np.frombuffer(memory, dtype=np.uint8, count=size)

    def upload(self, to: Buffer, data: Raw) -> None:
        kind = self._runtime.memcpyHostToDevice
        with self._errors(), self._device:
            # Kept until the stream has read it: see synchronize().
            self._staged.append(data)
            self._runtime.memcpyAsync(
                to.handle + to.offset, data.ctypes.data, len(data), kind, self._stream.ptr
            )

    def run(self, plan: Plan) -> None:
        key = id(plan)
        with self._errors(), self._device, self._stream:
            if key in self._graphs:
                self._graphs[key].launch(self._stream)
            elif key not in self._seen or not self._use_graphs:
                self._launch(plan)
                self._seen[key] = plan
            elif (graph := self._captured(plan)) is not None:
                self._graphs[key] = graph
                graph.launch(self._stream)
            else:
                self._launch(plan)

    def _captured(self, plan: Plan) -> Any | None:
        """The plan as a graph; None, and no more tries, if the driver will not have it. A capture
        that fails has run nothing, and leaves the context as it was."""
        try:
            self._stream.begin_capture(self._runtime.streamCaptureModeRelaxed)
            try:
                self._launch(plan)
            finally:
                # Also after an error, or the stream would stay in capture.
                graph = self._stream.end_capture()
        except RuntimeError as error:
            self._use_graphs = False
            log.warning("no CUDA graphs on %s: %s", self.name, str(error)[:500])
            return None
        return graph

    def _launch(self, plan: Plan) -> None:
        for launch in plan.launches:
            self._launch_one(launch)

    def _launch_one(self, launch: Launch) -> None:
        function, types = self._kernels[launch.kernel]
        values = [_value(a, t) for a, t in zip(launch.arguments, types, strict=True)]
        function((launch.grid,), (launch.block,), tuple(values), shared_mem=launch.shared)

    def profile(self, plan: Plan, repeats: int = 5) -> list[tuple[str, float]]:
        """Each launch of a plan on what is uploaded now: kernel and median microseconds."""
        event = self._cupy.cuda.Event
        times: list[list[float]] = [[] for _ in plan.launches]
        with self._errors(), self._device, self._stream:
            for _ in range(repeats):
                marks = [event()]
                marks[0].record(self._stream)
                for launch in plan.launches:
                    self._launch_one(launch)
                    marks.append(event())
                    marks[-1].record(self._stream)
                self._stream.synchronize()
                for i, (a, b) in enumerate(pairwise(marks)):
                    times[i].append(1000.0 * self._cupy.cuda.get_elapsed_time(a, b))
        names = [launch.kernel for launch in plan.launches]
        return [(n, sorted(t)[len(t) // 2]) for n, t in zip(names, times, strict=True)]

    def synchronize(self) -> None:
        """Wait for all that was started."""
        with self._errors(), self._device:
            self._stream.synchronize()
            self._staged.clear()

    def download(self, source: Buffer, size: int) -> Raw:
        kind = self._runtime.memcpyDeviceToHost
        data = self.staging(max(size, 1))[:size]
        with self._errors(), self._device:
            if size:
                self._runtime.memcpyAsync(
                    data.ctypes.data, source.handle + source.offset, size, kind, self._stream.ptr
                )
        self.synchronize()
        return data

    def recover(self) -> bool:
        """An error of a launch poisons the whole context, for as long as the process lives; one
        of an allocation or a copy does not."""
        try:
            self.synchronize()
        except DeviceError:
            return False
        return True

    def close(self) -> None:
        # Nothing may be freed under a copy or a kernel that is still at work.
        with contextlib.suppress(DeviceError):
            self.synchronize()
        with contextlib.suppress(DeviceError), self._errors(), self._device:
            self._graphs.clear()
            self._memory.clear()
            self._staged.clear()
            self._pinned.free_all_blocks()


def _value(argument: Buffer | int, kind: str) -> Any:
    if isinstance(argument, Buffer):
        return np.uint64(argument.handle + argument.offset)
    return np.uint32(argument) if kind == "u32" else np.uint64(argument)
