"""How the kernels of this room are compiled: without the GIL, cached on disk under a hash of the
sources of everything they can call (see tokenizer/jit.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from toktier_stream.tokenizer import jit

F = TypeVar("F", bound=Callable[..., Any])


@cache
def source_hash() -> str:
    """A hash over the sources of this room and the kernels of the room below."""
    digest = hashlib.sha256(jit.source_hash().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def kernel(function: F) -> F:
    """Compile ``function`` to machine code on first call; it releases the GIL while it runs."""
    return jit.cached(function, source_hash())


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


pointer: Any = _pointer
"""``pointer(address)``: what :func:`numba.carray` takes."""


class Packed:
    """Constant arrays of a kernel as one array of addresses and shapes: a call that takes two
    dozen arrays spends longer on taking them than a short kernel runs.

    ``plan`` is int64[k, 3]: address, rows, columns (1 for vectors) of each.
    """

    def __init__(self, *arrays: tuple[npt.NDArray[Any], Any]) -> None:
        """Each array with the type that the kernel takes it for."""
        self._kept = [np.ascontiguousarray(a, dtype=of) for a, of in arrays]
        rows = [(a.ctypes.data, a.shape[0], a.shape[-1] if a.ndim > 1 else 1) for a in self._kept]
        self.plan = np.array(rows, dtype=np.int64)
