"""What a batch of texts became: ids and byte lengths of all, and where each text's begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer.face import Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens of several texts in one array. ``ids`` and ``lengths`` are uint32[n]; text i has
    ``offsets[i]`` to ``offsets[i + 1]`` (int64[texts + 1])."""

    ids: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        """The tokens of one text, as views. Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        first, last = self.offsets[index], self.offsets[index + 1]
        return Tokens(self.ids[first:last], self.lengths[first:last])

    @classmethod
    def join(cls, parts: Sequence[Tokens]) -> Batch:
        """One batch of texts that were encoded one by one."""
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(p) for p in parts], out=offsets[1:])
        empty: list[npt.NDArray[Any]] = [np.zeros(0, dtype=np.uint32)]
        return cls(
            np.concatenate([p.ids for p in parts] or empty),
            np.concatenate([p.lengths for p in parts] or empty),
            offsets,
        )
