"""Memory for tables that are looked up all over: on large pages, where the system has them.

On pages of 4 KiB the processor has to search for the addresses of most look-ups in tables of
several megabytes; on pages of 2 MiB it knows them.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

PAGE: Final = 2 << 20
"""Bytes of a large page."""
_LINE: Final = 64

K = TypeVar("K")


def large(size: int) -> npt.NDArray[np.uint8]:
    """``size`` zeros from the start of a large page on; of this process and, after a fork, of each
    of the two."""
    whole = -(-size // PAGE) * PAGE
    held = mmap.mmap(-1, whole + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        held.madvise(mmap.MADV_HUGEPAGE)
    room = np.frombuffer(held, dtype=np.uint8)
    skip = -room.ctypes.data % PAGE
    return room[skip : skip + size]


def together(arrays: Mapping[K, npt.NDArray[Any]]) -> dict[K, npt.NDArray[Any]]:
    """Copies side by side in one such memory, none in a cache line with another; they cannot be
    written."""
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = end
        end += -(-array.nbytes // _LINE) * _LINE
    room = large(max(end, 1))
    copies = {}
    for name, array in arrays.items():
        part = room[places[name] : places[name] + array.nbytes]
        copy = part.view(array.dtype).reshape(array.shape)
        copy[...] = array
        copy.setflags(write=False)
        copies[name] = copy
    return copies
