"""Threads that share a list of work with their caller, and stay for the next one.

A thread that is started for one text begins on its caller's core and is moved only after some
milliseconds, which is longer than most texts take. Threads that stay are woken where they ran.
The caller works too, so nothing ever waits for a thread that is busy elsewhere.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_MOST: Final = 64
"""Threads that stay, at most."""

_T = TypeVar("_T")


class _Staying:
    """The process's executor; a forked child has none of its parent's threads and starts anew."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self.executor = ThreadPoolExecutor(_MOST, thread_name_prefix="toktier-encode")


_staying = _Staying()


def share(work: Callable[[deque[_T]], None], items: deque[_T], threads: int) -> None:
    """Run ``work(items)`` here and on up to ``threads - 1`` other threads; each takes items off
    the left until none is left. Returns when all that were taken are done.

    An exception of any of them is raised here, after the others have stopped.
    """
    futures = [_staying.executor.submit(work, items) for _ in range(threads - 1)]
    try:
        work(items)
    finally:
        items.clear()
        begun = [f for f in futures if not f.cancel()]
        errors = [error for f in begun if (error := f.exception()) is not None]
    if errors:
        raise errors[0]
