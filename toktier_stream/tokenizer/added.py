"""Added tokens: literals cut out of the text before anything else sees it.

The reference looks for tokens with ``normalized = false`` in the text as it came, then normalizes
what is left between them, and looks there for the others (whose literals it has normalized too).
Each search is leftmost-longest, and knows nothing of the other. Whether a token is special makes
no difference to encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer import literals
from toktier_stream.tokenizer.artifact import AddedToken
from toktier_stream.tokenizer.tables import Refusal


@dataclass(frozen=True, slots=True, eq=False)
class LiteralTable:
    """A set of literals as a trie for the kernels of :mod:`literals`."""

    first: npt.NDArray[np.bool_]
    """bool[256]: bytes that start a literal."""
    only: int
    """The single such byte, or -1."""
    edges: npt.NDArray[np.uint64]
    """uint64[2**k]: ``node << 40 | byte << 32 | child``; all ones: unused. Node 0 is the root."""
    shift: np.uint64
    """What the edges' hash is shifted by."""
    final: npt.NDArray[np.int64]
    """int64[nodes]: the id of the literal that ends at a node, or -1."""
    reach: int
    """Bytes of the longest literal; 0 if there is none."""

    @classmethod
    def build(cls, content: Mapping[bytes, int]) -> LiteralTable:
        """From literals to ids. Empty literals never match and are left out, as the reference
        does."""
        children: dict[tuple[int, int], int] = {}
        final = [-1]
        for literal, token in content.items():
            node = 0
            for byte in literal:
                if (node, byte) not in children:
                    children[node, byte] = len(final)
                    final.append(-1)
                node = children[node, byte]
            if node:
                final[node] = token
        first = np.zeros(256, dtype=np.bool_)
        for node, byte in children:
            first[byte] |= node == 0
        starts = np.flatnonzero(first)
        size = 1 << max(4, (2 * len(children)).bit_length())
        edges = np.full(size, np.iinfo(np.uint64).max, dtype=np.uint64)
        shift = np.uint64(64 - (size.bit_length() - 1))
        table = np.array([(n, b, c) for (n, b), c in children.items()], dtype=np.uint64)
        table = table.reshape(-1, 3)
        literals.fill_edges(
            edges,
            shift,
            np.ascontiguousarray(table[:, 0]),
            np.ascontiguousarray(table[:, 1]),
            np.ascontiguousarray(table[:, 2]),
        )
        return cls(
            first=first,
            only=int(starts[0]) if len(starts) == 1 else -1,
            edges=edges,
            shift=shift,
            final=np.array(final, dtype=np.int64),
            reach=max(map(len, content), default=0),
        )

    def split(
        self, text: npt.NDArray[np.uint8], segments: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Cut the literals out of the text segments; returns the new segments.

        Segments are int64[k, 3]: start, end, id of an added token or -1.
        """
        room = 2 * len(segments) + 64 + len(text) // 64
        while True:
            out = np.empty((room, 3), dtype=np.int64)
            n = literals.split(
                text, segments, self.first, self.only, self.edges, self.shift, self.final, out
            )
            if n != literals.FULL:
                return out[:n]
            room *= 4


@dataclass(frozen=True, slots=True, eq=False)
class AddedTables:
    """The two searches, and all literals together for the guards of cuts."""

    raw: LiteralTable
    """Literals looked for in the text as it came."""
    normalized: LiteralTable
    """Literals looked for in the normalized text."""
    any: LiteralTable
    """Both kinds: no cut may stand inside an occurrence of one."""

    @classmethod
    def build(
        cls, raw: Mapping[bytes, int], normalized: Mapping[bytes, int], longest: int
    ) -> AddedTables:
        """From literals (in the second mapping: after normalization) to ids."""
        either = {**raw, **normalized}
        return cls(
            LiteralTable.build(raw),
            LiteralTable.build(normalized),
            LiteralTable.build(either),
            longest,
        )

    longest: int
    """Characters of the longest added token, as the file writes it."""

    @property
    def reach(self) -> int:
        """Bytes of the longest literal."""
        return self.any.reach

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays; inverse of :meth:`from_arrays`."""
        arrays: dict[str, npt.NDArray[Any]] = {"longest": np.asarray(self.longest)}
        for name, table in (("raw", self.raw), ("normalized", self.normalized), ("any", self.any)):
            arrays[f"{name}_first"] = table.first
            arrays[f"{name}_edges"] = table.edges
            arrays[f"{name}_final"] = table.final
            arrays[f"{name}_numbers"] = np.array(
                [table.only, int(table.shift), table.reach], dtype=np.int64
            )
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> AddedTables:
        """Raises KeyError if an array is missing."""
        tables = []
        for name in ("raw", "normalized", "any"):
            only, shift, reach = (int(x) for x in arrays[f"{name}_numbers"])
            tables.append(
                LiteralTable(
                    first=arrays[f"{name}_first"],
                    only=only,
                    edges=arrays[f"{name}_edges"],
                    shift=np.uint64(shift),
                    final=arrays[f"{name}_final"],
                    reach=reach,
                )
            )
        raw, normalized, either = tables
        return cls(raw, normalized, either, int(arrays["longest"]))


def refusal(tokens: Iterable[AddedToken]) -> Refusal | None:
    """Why these added tokens are not bare literals; None if they are."""
    reasons = []
    for flag in ("lstrip", "rstrip", "single_word"):
        count = sum(bool(getattr(t, flag)) for t in tokens)
        if count:
            reasons.append(f"{count} added tokens reach into their surroundings ({flag})")
    return Refusal(tuple(reasons)) if reasons else None
