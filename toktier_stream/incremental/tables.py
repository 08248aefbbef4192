"""Everything precomputed for one BPE model, as read-only arrays that can be stored on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental import automaton, centroid, layout
from toktier_stream.incremental.automaton import Automaton
from toktier_stream.incremental.canonical import normalize
from toktier_stream.incremental.centroid import Centroids
from toktier_stream.incremental.forest import Forest, grow
from toktier_stream.incremental.rules import Ints, Rules
from toktier_stream.incremental.search import Search

DEEPEST_WALK = 32
"""In a deeper forest the walk has no useful worst case; the centroid search takes over."""

FORMAT = 5
"""Version of the stored arrays. Tables of another version are not read, they are built again."""


@dataclass(frozen=True)
class Tables:
    """One model. Safe to share between threads.

    ``points[A]`` byte or code point of each symbol; ``ids[N+1]`` vocabulary id and ``size[N+1]``
    UTF-8 bytes of each forest node; ``whole`` ids of the tokens that are not canonical, by their
    bytes, where the model has ``ignore_merges``: a piece that equals one is that token.
    """

    bytewise: bool
    points: Ints
    ids: npt.NDArray[np.uint32]
    size: Ints
    whole: Mapping[bytes, int]
    forest: Forest
    automaton: Automaton

    @cached_property
    def steps(self) -> layout.Steps:
        """The layout of the walk."""
        return layout.index(self.forest)

    @cached_property
    def centroids(self) -> Centroids:
        """The search trees; built when a centroid search is first asked for."""
        return centroid.build(self.forest, self.automaton)

    @property
    def search(self) -> Search:
        """The search that production uses on this model."""
        return Search.HYBRID if self.forest.depth > DEEPEST_WALK else Search.WALK

    @property
    def longest(self) -> int:
        """Symbols of the longest canonical token."""
        return self.automaton.depth

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, the search trees not counted."""
        forest = (getattr(self.forest, f.name) for f in fields(Forest))
        arrays = [self.points, self.ids, self.size, *forest, *self.automaton, *self.steps]
        return sum({id(a): a.nbytes for a in arrays if isinstance(a, np.ndarray)}.values())

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays by name, the walk's layout among them."""
        out: dict[str, npt.NDArray[Any]] = {
            "format": np.array([FORMAT, int(self.bytewise), self.forest.depth], dtype=np.int64),
            "points": self.points,
            "ids": self.ids,
            "size": self.size,
            "whole_bytes": np.frombuffer(b"".join(self.whole), dtype=np.uint8),
            "whole_lengths": np.array([len(w) for w in self.whole], dtype=np.int64),
            "whole_ids": np.array(list(self.whole.values()), dtype=np.uint32),
        }
        for field in fields(Forest):
            if field.name != "depth":
                out["forest_" + field.name] = getattr(self.forest, field.name)
        for name, array in self.automaton._asdict().items():
            out["automaton_" + name] = array
        for name in layout.STORED:
            out["steps_" + name] = getattr(self.steps, name)
        return out


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> Tables:
    """The inverse of :meth:`Tables.to_arrays`. Raises ``STORE_FORMAT`` for another version."""
    try:
        version, bytewise, depth = (int(v) for v in arrays["format"])
    except (KeyError, ValueError) as error:
        raise ToktierError(Code.STORE_FORMAT, "not the tables of every-prefix BPE") from error
    if version != FORMAT:
        raise ToktierError(Code.STORE_FORMAT, f"tables of version {version}, not {FORMAT}")
    names = [f.name for f in fields(Forest) if f.name != "depth"]
    data = np.asarray(arrays["whole_bytes"]).tobytes()
    ends = np.cumsum(arrays["whole_lengths"]).tolist()
    words = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    found = Tables(
        bytewise=bool(bytewise),
        points=_shared(arrays["points"]),
        ids=_shared(arrays["ids"]),
        size=_shared(arrays["size"]),
        whole=dict(zip(words, np.asarray(arrays["whole_ids"]).tolist(), strict=True)),
        forest=Forest(**{n: _shared(arrays["forest_" + n]) for n in names}, depth=depth),
        automaton=Automaton(*(_shared(arrays["automaton_" + n]) for n in Automaton._fields)),
    )
    laid_out = (arrays["steps_" + name] for name in layout.STORED)
    found.__dict__["steps"] = layout.laid_out(found.forest, *laid_out)
    return found


def build(rules: Rules) -> Tables:
    """Tables of one model: under a second for 262 K tokens, once the kernels are compiled."""
    canonical = normalize(rules)
    forest = grow(rules, canonical)
    ids = np.zeros(forest.nodes + 1, dtype=np.uint32)
    ids[1:] = rules.ids[forest.row[1:]]
    width = np.ones(len(rules.points), dtype=np.int64)
    if not rules.bytewise:
        for limit in (0x80, 0x800, 0x10000):
            width += rules.points >= limit
    # Unknown characters (symbol -1) occur in dropped tokens only: any width will do.
    total = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(width[rules.spelling])))
    size = np.zeros(forest.nodes + 1, dtype=np.int32)
    rows = forest.row[1:]
    size[1:] = total[rules.starts[rows + 1]] - total[rules.starts[rows]]
    whole: dict[bytes, int] = {}
    if rules.bytewise and rules.ignore_merges:
        for row in np.flatnonzero(~canonical.keep):
            spelled = rules.spelling[rules.starts[row] : rules.starts[row + 1]]
            if len(spelled) and spelled.min() >= 0:
                whole[rules.points[spelled].astype(np.uint8).tobytes()] = int(rules.ids[row])
    return Tables(
        bytewise=rules.bytewise,
        points=_shared(rules.points),
        ids=_shared(ids),
        size=_shared(size),
        whole=whole,
        forest=forest,
        automaton=automaton.build(rules, forest),
    )


def _shared(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array
