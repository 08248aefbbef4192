"""How the kernels of this room are compiled: without the GIL, cached on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile ``function`` to machine code on first call; it releases the GIL while it runs."""
    return cast(F, njit(nogil=True, cache=True)(function))
