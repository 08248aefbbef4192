"""Compile the kernels with NVRTC alone (``pip install nvidia-cuda-nvrtc``): no GPU, no driver.

What it gives is what ptxas would: machine code for each architecture, and how many registers and
how much local memory every kernel takes. ``python -m toktier_gpu.nvrtc`` prints the table.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toktier_gpu import sources
from toktier_gpu.device import DeviceError

OPTIONS: Final = ("--std=c++17",)
"""What we ask of the compiler."""
CUPY_OPTIONS: Final = ("-ftz=true", "--device-as-default-execution-space")
"""What CuPy adds."""
ARCHITECTURES: Final = (80, 90, 120)
"""Compute capabilities that must compile where the compiler knows them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel takes of a multiprocessor, per thread."""

    kernel: str
    registers: int
    local_bytes: int
    """Stack frame: spilled registers and arrays with computed indices."""


class Nvrtc:
    """The compiler's library."""

    def __init__(self, library: Path | None = None) -> None:
        """Raises DeviceError if there is none."""
        path = library or next(iter(_libraries()), None)
        if path is None:
            raise DeviceError("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
        self._library = ctypes.CDLL(str(path))

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            raise DeviceError(f"{name} returned {result}")

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor version of CUDA."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that this version knows, as 80 for 8.0."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", known)
        return tuple(known)

    def compile(self, source: str, architecture: int) -> bytes:
        """Machine code (a CUBIN) of a translation unit. Raises DeviceError with the compiler's
        words; warnings count as errors."""
        options = [*OPTIONS, *CUPY_OPTIONS, f"--gpu-architecture=sm_{architecture}"]
        program = ctypes.c_void_p()
        text = source.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, b"toktier.cu", 0, None, None)
        try:
            encoded = [option.encode() for option in options]
            failed = self._library.nvrtcCompileProgram(
                program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)
            )
            words = self._log(program)
            if failed or "warning" in words:
                raise DeviceError(f"sm_{architecture}: {words}")
            size = ctypes.c_size_t()
            self._call("nvrtcGetCUBINSize", program, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            self._call("nvrtcGetCUBIN", program, code)
            return code.raw
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        words = ctypes.create_string_buffer(size.value)
        self._call("nvrtcGetProgramLog", program, words)
        return words.value.decode(errors="replace")


def _libraries() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            # The builtins are found beside the library only if they are loaded already.
            for part in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)
            yield path


def usage(cubin: bytes) -> tuple[Usage, ...]:
    """Registers and local memory of each kernel, read from the code's own ELF notes.

    The records of ``.nv.info`` give both by symbol: attribute 0x2F (EIATTR_REGCOUNT) and 0x11
    (EIATTR_FRAME_SIZE).
    """
    registers, frames = _records(cubin, 0x2F), _records(cubin, 0x11)
    return tuple(Usage(k, registers[k], frames.get(k, 0)) for k in sorted(registers))


@dataclass(frozen=True, slots=True)
class _Section:
    offset: int
    size: int
    link: int
    info: int


def _sections(elf: bytes) -> dict[str, _Section]:
    table = struct.unpack_from("<Q", elf, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    raw = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry) for i in range(count)]
    strings = raw[names][4]
    return {_text(elf, strings + r[0]): _Section(r[4], r[5], r[6], r[7]) for r in raw}


def _text(elf: bytes, at: int) -> str:
    return elf[at : elf.index(b"\0", at)].decode()


def _records(elf: bytes, wanted: int) -> dict[str, int]:
    """The numbers that an attribute of ``.nv.info`` gives to symbols."""
    sections = _sections(elf)
    symbols, strings, info = sections[".symtab"], sections[".strtab"], sections[".nv.info"]
    numbers = {}
    at = info.offset
    while at < info.offset + info.size:
        form, attribute, size = struct.unpack_from("<BBH", elf, at)
        if form == _SIZED and attribute == wanted:
            symbol, number = struct.unpack_from("<II", elf, at + 4)
            name = struct.unpack_from("<I", elf, symbols.offset + 24 * symbol)[0]
            numbers[_text(elf, strings.offset + name)] = number
        at += 4 + (size if form == _SIZED else 0)
    return numbers


_SIZED: Final = 4
"""The form of a record that carries ``size`` bytes; other forms carry a value instead."""


def main(arguments: Sequence[str]) -> int:
    """Compile for the architectures named (all known ones of ARCHITECTURES), print the usage."""
    compiler = Nvrtc()
    known = compiler.architectures()
    wanted = [int(a) for a in arguments] or [a for a in ARCHITECTURES if a in known]
    print("NVRTC", ".".join(map(str, compiler.version)), "knows", *known)
    for architecture in wanted:
        code = compiler.compile(sources.joined(), architecture)
        print(f"sm_{architecture}: {len(code)} bytes")
        for u in usage(code):
            print(
                f"  {u.kernel:20} {u.registers:4} registers {u.local_bytes:5} bytes of local memory"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
