"""How kernels are compiled: numba without the GIL, cached on disk under a hash of their sources.

numba's own cache compares one file's time stamp, so a change in a kernel that another file calls
would go unseen. Here the cache folder is named by a hash over all kernel sources, and old machine
code can never meet new tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from toktier_stream.tokenizer.paths import cache_root

F = TypeVar("F", bound=Callable[..., Any])

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Places32 = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int16]
Number = Any
"""An unsigned integer, of the width that the kernel gives it."""
signed: Any = np.int64
"""To a signed place or size."""
Address = Any
"""uint64: where an array lies, from :func:`address_of`."""

KERNEL_FILES: Final = (
    "jit.py", "tables.py", "utf8.py", "bpe.py", "merge_build.py", "literals.py", "marks.py",
    "kernels.py", "runs.py", "cuts.py",
)  # fmt: skip
"""Every file of this room that holds compiled code."""


@cache
def source_hash() -> str:
    """A hash over the kernels' sources and the compiler's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    folder = Path(__file__).parent
    for name in KERNEL_FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:24]


def cached(function: F, sources: str) -> F:
    """Compile a function that Python calls: releases the GIL, machine code kept on disk.

    ``sources`` is a hash over all that it can call. Where the cache folder cannot be written, it is
    compiled anew in each process.
    """
    config: Any = numba.config
    previous = config.CACHE_DIR
    config.CACHE_DIR = str(cache_root() / "kernels" / sources)
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except OSError:
        return cast(F, numba.njit(nogil=True)(function))
    finally:
        config.CACHE_DIR = previous


def entry(function: F) -> F:
    """:func:`cached`, for the kernels of this room."""
    return cached(function, source_hash())


def inner(function: F) -> F:
    """Compile a function that only kernels call."""
    return cast(F, numba.njit(nogil=True)(function))


def forced(function: F) -> F:
    """As :func:`inner`, and always inlined: for what every piece or pair runs through."""
    return cast(F, numba.njit(nogil=True, forceinline=True)(function))


def _loader(bits: int, step: int) -> Any:
    """An intrinsic ``load(address, i)``: an unsigned integer of ``bits`` at ``i * step`` bytes."""

    def load(typing_context: Any, address: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = _place(builder, arguments, signature, bits, step)
            return builder.load(place, align=step, typ=ir.IntType(bits))

        return types.Integer.from_bitwidth(bits, signed=False)(address, index), generate

    return intrinsic(load)


def _storer(bits: int, step: int) -> Any:
    """An intrinsic ``store(address, i, value)``, at ``i * step`` bytes."""
    number = types.Integer.from_bitwidth(bits, signed=False)

    def store(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            cast = context.cast(builder, arguments[2], signature.args[2], number)
            builder.store(cast, _place(builder, arguments, signature, bits, step), align=step)
            return context.get_dummy_value()

        return types.void(address, index, value), generate

    return intrinsic(store)


def _place(builder: Any, arguments: Any, signature: Any, bits: int, step: int) -> Any:
    wide = ir.IntType(64)
    address, index = arguments[0], arguments[1]
    if index.type != wide:
        extend = builder.sext if signature.args[1].signed else builder.zext
        index = extend(index, wide)
    start = builder.inttoptr(address, ir.IntType(8).as_pointer())
    offset = builder.mul(index, ir.Constant(wide, step))
    place = builder.gep(start, [offset], source_etype=ir.IntType(8))
    return builder.bitcast(place, ir.IntType(bits).as_pointer())


# Kernels that run for every piece work on addresses: numba counts references to arrays, and does
# so on each use of an array that comes out of a tuple. ``address_of`` is taken once per call, where
# the arrays are arguments and so stay alive. Indices are trusted.
load_u8: Any = _loader(8, 1)
load_u32: Any = _loader(32, 4)
load_u64: Any = _loader(64, 8)
load_text: Any = _loader(64, 1)
"""``load_text(address, i)``: the 8 bytes from byte ``i``, at any alignment, as one number."""
store_u16: Any = _storer(16, 2)
store_u32: Any = _storer(32, 4)
store_u64: Any = _storer(64, 8)
store_text: Any = _storer(64, 1)
"""``store_text(address, i, value)``: 8 bytes from byte ``i`` on, at any alignment."""


@forced
def address_of(array: Any) -> Any:
    """The address of a contiguous array's first element."""
    return np.uint64(array.ctypes.data)
