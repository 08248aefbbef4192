"""The exact engine behind the encoder's face: no reference call on the way, except to normalize
the few places that need it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer import kernels, normalization, runs
from toktier_stream.tokenizer.added import AddedTables
from toktier_stream.tokenizer.cuts import find_cut, find_second_cut
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.tokenizer.marks import machine_rows, program_rows
from toktier_stream.tokenizer.memory import together
from toktier_stream.tokenizer.merge_build import WORD_SLOT
from toktier_stream.tokenizer.merges import PADDING, MergeTables, top_bits
from toktier_stream.tokenizer.normalization import Normalizer
from toktier_stream.tokenizer.tables import MatcherTables
from toktier_stream.tokenizer.threads import share
from toktier_stream.tokenizer.workspace import Pool, Room, Workspace, first_memo, places

ENGINE: Final = "exact-1"
"""Changes with every change that could change ids."""

MAX_BYTES: Final = (1 << 31) - 64
"""Places in a text are 32-bit numbers."""

MIN_CHUNK: Final = 1 << 15
"""Bytes below which a part of a text is not worth a thread."""
CHUNK: Final = 1 << 19
"""Bytes of the parts that threads take in turn: a thread that comes late costs little."""

DIVIDED_BYTES: Final = 1 << 18
"""From this size on a text is large."""

_NOTHING: Final = Tokens(np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.uint32))


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """Everything that an encoder of one tokenizer needs; what the cache on disk holds."""

    matcher: MatcherTables
    merges: MergeTables
    added: AddedTables
    normalizer: Normalizer | None

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays; inverse of :meth:`from_arrays`."""
        form, kinds = "", np.zeros(0, dtype=np.uint8)
        if self.normalizer is not None:
            form, kinds = self.normalizer.form, self.normalizer.kinds
        parts = {
            "matcher": self.matcher.to_arrays(),
            "merges": self.merges.to_arrays(),
            "added": self.added.to_arrays(),
            "normalizer": normalization.to_arrays(form, kinds),
        }
        return {f"{part}.{name}": a for part, arrays in parts.items() for name, a in arrays.items()}

    def gathered(self) -> Compiled:
        """The same with what every piece of text is looked up in side by side in memory."""
        parts = {"matcher": self.matcher.to_arrays(), "merges": self.merges.to_arrays()}
        copies = together({(p, n): a for p, arrays in parts.items() for n, a in arrays.items()})
        for (part, name), copy in copies.items():
            parts[part][name] = copy
        return replace(
            self,
            matcher=MatcherTables.from_arrays(parts["matcher"]),
            merges=MergeTables.from_arrays(parts["merges"]),
        )

    def frozen(self) -> Compiled:
        """The same with arrays that cannot be written: what :meth:`from_arrays` gives, too, so
        that kernels are compiled for one kind of array only."""
        arrays = self.to_arrays()
        for array in arrays.values():
            array.setflags(write=False)
        return Compiled.from_arrays(arrays)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Compiled:
        """Raises KeyError or ValueError if the arrays are not of this format."""

        def part(prefix: str) -> dict[str, npt.NDArray[Any]]:
            return {
                name.removeprefix(prefix): a
                for name, a in arrays.items()
                if name.startswith(prefix)
            }

        return cls(
            matcher=MatcherTables.from_arrays(part("matcher.")),
            merges=MergeTables.from_arrays(part("merges.")),
            added=AddedTables.from_arrays(part("added.")),
            normalizer=normalization.from_arrays(part("normalizer.")),
        )


def divided(size: int, parts: int, cut_from: Callable[[int], int]) -> list[int]:
    """Places from 0 to ``size`` at about even distances. ``cut_from(at)``: the first cut from there
    on, or -1."""
    cuts = [0]
    for i in range(1, parts):
        target = size * i // parts
        if target > cuts[-1]:
            cut = cut_from(target)
            if cut > cuts[-1]:
                cuts.append(cut)
    return [*cuts, size]


def behind(tokens: Tokens, room: int) -> Tokens:
    """A copy behind ``room`` entries that are not set."""
    ids = np.empty(room + len(tokens.ids), dtype=np.uint32)
    lengths = np.empty_like(ids)
    ids[room:] = tokens.ids
    lengths[room:] = tokens.lengths
    return Tokens(ids, lengths)


class FastEncoder:
    """The exact engine of one tokenizer. Safe for threads; safe to fork after construction."""

    def __init__(self, fingerprint: str, compiled: Compiled) -> None:
        """``fingerprint`` as the face says. Raises ValueError for a machine beyond the kernels."""
        self._fingerprint = fingerprint
        self.compiled = compiled = compiled.gathered()
        matcher, merges, added = compiled.matcher, compiled.merges, compiled.added
        self.normalizer = compiled.normalizer
        self._added = added
        self._pool = Pool(first_memo(merges.words))
        rows, program = machine_rows(matcher), program_rows(matcher)
        self._alive = (rows, program)
        self._places = places(
            merges.byte_pairs,
            merges.pairs,
            top_bits(len(merges.pairs)),
            merges.emit,
            merges.words,
            top_bits(len(merges.words) // WORD_SLOT),
            merges.long_words,
            merges.long_words.size // 2 - 1,
            merges.long_index,
            merges.blob,
            merges.spans,
            kernels.PART_TAG if merges.separate else 0,
            rows,
            matcher.class_of,
            matcher.classes,
            matcher.program_start,
            program,
            matcher.two_sided,
        )
        no_kinds = np.zeros(0, dtype=np.uint8)
        no_kinds.setflags(write=False)
        table = added.any
        self._guards = (
            no_kinds if self.normalizer is None else self.normalizer.kinds,
            table.reach,
            self.normalizer is not None and added.normalized.reach > 0,
            table.first,
            table.edges,
            table.shift,
            table.final,
        )
        highest = max(
            int((merges.emit & np.uint64(0xFFFFFFFF)).max()), int(added.any.final.max(initial=0))
        )
        self._is_added = np.zeros(highest + 1, dtype=np.bool_)
        self._is_added[added.any.final[added.any.final >= 0]] = True
        self.threads = 1
        """How many threads :meth:`encode` uses for a large text: set once, by whoever knows what
        else the process does."""

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def engine(self) -> str:
        return ENGINE

    @property
    def longest_token(self) -> int:
        return max(self.compiled.merges.longest, self._added.longest)

    @property
    def literal_reach(self) -> int:
        return self._added.reach

    @property
    def splices(self) -> bool:
        return True

    @property
    def tables(self) -> npt.NDArray[np.uint64]:
        """The tokenizer's, for :func:`kernels.encode_segments`."""
        return self._places

    @property
    def pool(self) -> Pool:
        """Where its workspaces are."""
        return self._pool

    def warm(self) -> None:
        """Load or compile the kernels now: before a fork, before the first event."""
        self.encode(b"a")
        self.last_cut(b"a a", 0, 3)

    def encode(self, text: bytes) -> Tokens:
        """See the face. Raises ``SESSION_TOO_LARGE`` from 2 GiB on."""
        if self.threads > 1 and len(text) >= DIVIDED_BYTES:
            return self.encode_parallel(text, self.threads)
        workspace = self._pool.take()
        tokens = behind(self._encode(workspace, text), 0)
        self._pool.give(workspace)
        return tokens

    def encode_behind(self, text: bytes, start: int, room: int) -> Tokens:
        """The tokens of ``text[start:]`` as :meth:`encode` gives them, behind ``room`` entries that
        are not set: for a caller that has others to put in front, and would copy all for that."""
        if self.threads > 1 and len(text) - start >= DIVIDED_BYTES:
            return behind(self.encode_parallel(text[start:], self.threads), room)
        workspace = self._pool.take()
        tokens = behind(self._encode(workspace, memoryview(text)[start:]), room)
        self._pool.give(workspace)
        return tokens

    def _encode(self, workspace: Workspace, text: bytes | memoryview) -> Tokens:
        """As :meth:`encode`; the arrays are the workspace's own, until it encodes again."""
        size = len(text)
        if size > MAX_BYTES:
            raise ToktierError(Code.SESSION_TOO_LARGE, f"{size} bytes")
        if not size:
            return Tokens(np.zeros(0, dtype=np.uint32), np.zeros(0, dtype=np.uint32))
        room = workspace.room(size)
        room.fill(text)
        segments = np.array(((0, size, -1),), dtype=np.int64)
        if self._added.raw.reach:
            segments = self._added.raw.split(room.text, segments)
        normalized = None
        if self.normalizer is not None:
            normalized = self.normalizer.apply(text, room.text, segments, room.spare)
        if normalized is None:
            return self._encode_segments(workspace, room, room.text, segments)
        grown = room
        if len(normalized.text) > len(room.text):
            grown = Room(len(normalized.text) - PADDING)
        tokens = self._encode_segments(workspace, grown, normalized.text, normalized.segments)
        runs.source_lengths(
            normalized.text,
            room.text,
            size,
            normalized.changes,
            normalized.origin,
            tokens.ids,
            self._is_added,
            tokens.lengths,
        )
        return tokens

    def _encode_segments(
        self,
        workspace: Workspace,
        room: Room,
        text: npt.NDArray[np.uint8],
        segments: npt.NDArray[np.int64],
    ) -> Tokens:
        if self._added.normalized.reach:
            segments = self._added.normalized.split(text, segments)
        count = kernels.encode_segments(text, segments, self._places, workspace.places, room.places)
        return Tokens(room.ids[:count], room.lengths[:count])

    def encode_parallel(self, text: bytes, threads: int) -> Tokens:
        """As :meth:`encode`, on up to ``threads`` threads: the text is divided at two-sided cuts,
        about evenly. With none in reach of a place, fewer parts are made."""
        threads = min(threads, len(text) // MIN_CHUNK)
        if threads < 2:
            return self.encode(text)
        cuts = self.divide(text, max(threads, len(text) // CHUNK))
        parts = list(pairwise(cuts))
        done: list[Tokens] = [_NOTHING] * len(parts)

        def work(items: deque[int]) -> None:
            workspace = self._pool.take()
            while items:
                try:
                    i = items.popleft()
                except IndexError:
                    break
                start, end = parts[i]
                tokens = self._encode(workspace, text[start:end])
                done[i] = Tokens(tokens.ids.copy(), tokens.lengths.copy())
            self._pool.give(workspace)

        share(work, deque(range(len(parts))), min(threads, len(parts)))
        return Tokens(
            np.concatenate([t.ids for t in done]), np.concatenate([t.lengths for t in done])
        )

    def divide(self, text: bytes, parts: int) -> list[int]:
        """Places from 0 to ``len(text)`` that divide it in about ``parts`` even parts (fewer, where
        there are no cuts): the tokens of the text are those of its parts."""
        two_sided = self.compiled.matcher.two_sided
        last = len(text) - 1
        return divided(len(text), parts, lambda at: self._cut(text, at, last, 1, two_sided))

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        """See the face; looks at no more of ``text`` than it passes over, and the reach of
        literals around it."""
        return self._cut(text, low, high, -1, self.compiled.matcher.one_sided)

    def second_cut(self, text: bytes, low: int, high: int) -> int:
        """The second safe cut that :meth:`last_cut` would find from ``high`` back; -1: none."""
        source = np.frombuffer(text, dtype=np.uint8)
        matcher = self.compiled.matcher
        return int(
            find_second_cut(source, low, high, matcher.class_of, matcher.one_sided, *self._guards)
        )

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        """See the face."""
        return self._cut(text, low, high, 1, self.compiled.matcher.one_sided)

    def is_added(self, token: int) -> bool:
        """Whether an id is an added token's."""
        return token < len(self._is_added) and bool(self._is_added[token])

    def _cut(
        self, text: bytes, low: int, high: int, step: int, boundary: npt.NDArray[np.bool_]
    ) -> int:
        source = np.frombuffer(text, dtype=np.uint8)
        class_of = self.compiled.matcher.class_of
        return int(find_cut(source, low, high, step, class_of, boundary, *self._guards))
