"""The kernels on one CPU core, for tests: built with g++ through ``shim/``, run in a process.

The process is its own so that sanitizers work in it unhindered; see ``shim/cuda_shim.hpp``.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import numpy as np

from toktier_gpu import sources
from toktier_gpu.device import Buffer, DeviceError, Launch, Plan, Raw

FOLDER: Final = Path(__file__).parent / "shim"
HEADER: Final = "cuda_shim.hpp"
FILES: Final = ("scheduler.cpp", "driver.cpp")

_ADDRESS = "-fsanitize=address,undefined"

BUILDS: Final = {
    "plain": (("-O2",), ("-O2",), ()),
    "address": (("-O1", "-g", _ADDRESS, "-fno-sanitize-recover=all"),) * 2 + ((_ADDRESS,),),
    "thread": (
        ("-O1", "-g", "-fsanitize=thread"),
        ("-O1", "-DTOKTIER_TSAN"),
        ("-fsanitize=thread",),
    ),
}
"""Name of a build to the compiler's flags for the kernels, for the shim, and for linking. Under
TSan the shim's own doings must go unseen."""

MODES: Final = {"ordered": 0, "shuffled": 1, "preempted": 2}
"""``shuffled``: threads and blocks in random order; ``preempted``: besides, three blocks at once,
and a thread may have to wait at each atomic operation."""


def compiler() -> str:
    """The C++ compiler: ``$CXX``, else g++."""
    return os.environ.get("CXX", "g++")


def build(folder: Path, kind: str = "plain", source: str | None = None) -> Path:
    """Compile the driver program for a build of :data:`BUILDS` into ``folder``; reuse what is
    there. ``source`` replaces the kernels' text. Raises DeviceError with the compiler's words."""
    of_kernels, of_shim, of_linking = BUILDS[kind]
    unit = _unit(sources.joined() if source is None else source)
    objects = [_object(folder, unit, of_kernels)]
    objects += [_object(folder, (FOLDER / name).read_text(), of_shim) for name in FILES]
    arguments = [*of_linking, *map(str, objects)]
    return _made(folder, f"shim-{kind}", arguments, "")


def _object(folder: Path, text: str, flags: Sequence[str]) -> Path:
    return _made(
        folder, "object", ["-std=c++17", *_WARNINGS, *flags, "-I", str(FOLDER), "-c"], text
    )


def _made(folder: Path, name: str, arguments: list[str], text: str) -> Path:
    """The compiler's output for ``arguments`` and a source, under a hash of all that goes in."""
    parts = [compiler(), *arguments, text, (FOLDER / HEADER).read_text()]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    target = folder / f"{name}-{digest}{'.o' if text else ''}"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [compiler(), *arguments, "-o", str(Path(scratch) / "made")]
        if text:
            file = Path(scratch) / "unit.cpp"
            file.write_text(text)
            command.append(str(file))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeviceError(f"the shim does not compile:\n{done.stderr[-4000:]}")
        (Path(scratch) / "made").replace(target)
    return target


_WARNINGS: Final = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")


def _unit(source: str) -> str:
    """The kernels, and for each a function that takes its arguments as 64-bit numbers."""
    lines = ['#include "cuda_shim.hpp"', source]
    lines += ["struct Kernel { const char *name; unsigned arguments; shim::Call call; };"]
    rows = []
    for kernel in sources.kernels(source):
        casts = ", ".join(f"({t})a[{i}]" for i, t in enumerate(kernel.arguments))
        lines.append(
            f"static void call_{kernel.name}(const uint64_t *a) {{ {kernel.name}({casts}); }}"
        )
        rows.append(f'{{"{kernel.name}", {len(kernel.arguments)}, call_{kernel.name}}}')
    lines.append(f"extern const Kernel kernels[]; const Kernel kernels[] = {{{', '.join(rows)}}};")
    lines.append(f"extern const unsigned kernel_count; const unsigned kernel_count = {len(rows)};")
    return "\n".join(lines)


class ShimDevice:
    """A device that runs on one CPU core. See :class:`toktier_gpu.device.Device`."""

    name = "shim"

    def __init__(
        self, program: Path, mode: str = "ordered", seed: int = 1, blocks: int = 3
    ) -> None:
        """``program`` is from :func:`build`. ``blocks`` small makes every kernel loop."""
        self._program = program
        self._mode = mode
        self._seed = seed
        self._blocks = blocks
        self._next = 0
        # Lives as long as the process; close() closes it.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "ASAN_OPTIONS": "detect_leaks=0",
            "TSAN_OPTIONS": "halt_on_error=1 report_bugs=1",
        }
        process = subprocess.Popen(
            [str(self._program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
        )  # fmt: skip
        self._process = process
        self._send(b"M" + struct.pack("<BQ", MODES[self._mode], self._seed))
        return process

    @property
    def blocks(self) -> int:
        return self._blocks

    def set_mode(self, mode: str, seed: int) -> None:
        """Change the order in which threads run. Flushed with the next command."""
        self._send(b"M" + struct.pack("<BQ", MODES[mode], seed))

    def _send(self, *parts: bytes | Raw) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise DeviceError("the shim has no input")
        try:
            for part in parts:
                pipe.write(part if isinstance(part, bytes) else part.data)
        except (OSError, ValueError) as error:  # a broken pipe, or one that close() closed
            raise DeviceError(self._last_words()) from error

    def _receive(self, size: int) -> bytes:
        if self._process.stdin is None or self._process.stdout is None:
            raise DeviceError("the shim has no output")
        try:
            self._process.stdin.flush()
            data = self._process.stdout.read(size)
        except (OSError, ValueError) as error:  # a broken pipe, or one that close() closed
            raise DeviceError(self._last_words()) from error
        if len(data) != size:
            raise DeviceError(self._last_words())
        return data

    def _last_words(self) -> str:
        self._process.wait()
        if self._errors.closed:
            return "the shim is closed"
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace")
        return f"the shim ended with {self._process.returncode}: {words[:4000]}"

    def allocate(self, size: int) -> Buffer:
        buffer = Buffer(self._next)
        self._next += 1
        self._send(b"A" + struct.pack("<IQ", buffer.handle, max(size, 1)))
        return buffer

    def staging(self, size: int) -> Raw:
        return np.zeros(size, dtype=np.uint8)

    def upload(self, to: Buffer, data: Raw) -> None:
        self._send(b"P" + struct.pack("<IQQ", to.handle, to.offset, len(data)), data)

    def run(self, plan: Plan) -> None:
        for launch in plan.launches:
            self._launch(launch)

    def _launch(self, launch: Launch) -> None:
        name = launch.kernel.encode()
        command = [b"L", bytes((len(name),)), name]
        command.append(struct.pack("<III", launch.grid, launch.block, launch.shared))
        command.append(bytes((len(launch.arguments),)))
        command += [_argument(a) for a in launch.arguments]
        self._send(b"".join(command))
        if self._receive(1) != b"\0":
            size = struct.unpack("<I", self._receive(4))[0]
            words = self._receive(size).decode()
            self.close()
            raise DeviceError(f"{launch.kernel}: {words}")

    def download(self, source: Buffer, size: int) -> Raw:
        self._send(b"G" + struct.pack("<IQQ", source.handle, source.offset, size))
        return np.frombuffer(self._receive(size), dtype=np.uint8)

    def synchronize(self) -> None:
        """Nothing is ever under way here."""

    def profile(self, plan: Plan, repeats: int = 1) -> list[tuple[str, float]]:
        """Each launch of a plan on what is uploaded now: kernel and median microseconds, of one
        CPU core."""
        times: list[list[float]] = [[] for _ in plan.launches]
        for _ in range(repeats):
            for taken, launch in zip(times, plan.launches, strict=True):
                start = time.perf_counter()
                self._launch(launch)
                taken.append(1e6 * (time.perf_counter() - start))
        return [
            (launch.kernel, sorted(taken)[len(taken) // 2])
            for launch, taken in zip(plan.launches, times, strict=True)
        ]

    def recover(self) -> bool:
        return False

    def close(self) -> None:
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
        process.terminate()
        process.wait()
        self._errors.close()


def _argument(value: Buffer | int) -> bytes:
    if isinstance(value, Buffer):
        return struct.pack("<BQQ", 1, value.handle, value.offset)
    return struct.pack("<BQQ", 0, value, 0)


def compiler_is_there() -> bool:
    """Whether :func:`build` can work here."""
    try:
        return (
            subprocess.run([compiler(), "--version"], capture_output=True, check=False).returncode
            == 0
        )
    except OSError:
        return False


def builds() -> Sequence[str]:
    """The names of the builds."""
    return tuple(BUILDS)
