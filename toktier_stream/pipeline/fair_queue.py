"""A queue that serves its keys in turn, so that none waits behind all that another has queued."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[K, T]):
    """Items by key: in order within a key, keys in turn. Not safe for threads by itself."""

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self._size_of = size_of
        self._lines: OrderedDict[K, deque[T]] = OrderedDict()
        self._length = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._length

    def put(self, key: K, item: T) -> None:
        """Queue behind the key's other items."""
        self._lines.setdefault(key, deque()).append(item)
        self._length += 1
        self.bytes += self._size_of(item)

    def take(self, wanted: Callable[[T], bool] | None = None) -> T | None:
        """The first item of the first key in turn whose first item is ``wanted``; that key goes
        behind the others. None if there is no such item."""
        for key, line in self._lines.items():
            if wanted is None or wanted(line[0]):
                item = line.popleft()
                self._lines.move_to_end(key)
                if not line:
                    del self._lines[key]
                self._length -= 1
                self.bytes -= self._size_of(item)
                return item
        return None
