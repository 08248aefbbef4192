"""The end of a growing byte-level text as a value, so that a few characters more cost just these.

Kept of a text: where its last piece that is certain to start begins (the *open piece*), the
machine's memory at the end (machine.py), theta of the open piece (walk.py), and the tokens of the
text from there on as it ends now. Reading on:

1. Added tokens. An occurrence that ends in the new bytes begins at most ``reach`` - 1 bytes before
   them. If there is one, the append is *unusual*: whoever asked goes another way. If there is
   none, what was matched before is what is matched now.
2. Normalization. Every new character is its own normal form and composes with nothing on its left,
   else the append is unusual. So old and new text are their own normal form.
3. Pieces. The machine goes on from its memory; it is deterministic, so it emits what it would emit
   on the whole text. A start that it emits is one of every continuation.
4. Tokens. Each piece is encoded on its own. Its theta is exact at every prefix, so wherever a piece
   turns out to end, its tokens are the chain from there: text that is read twice is only what lies
   behind a start that the machine emits late.
5. The end. From a copy of the memory the machine is told that the text ends. Pieces and tokens that
   follow from it are those of the text as it is now, and the open piece keeps theta over all of it.
6. Long open pieces. Their first part is let go up to a settled boundary b (state.py), found at a
   place m far enough before the end that added tokens left of m are decided: where a piece can
   still start, read up to m, is h or behind it, so the bytes up to h are in the piece for certain;
   b is what the chains of the last ``longest`` prefixes up to h have in common, which are at least
   those that the theorem asks for. Theta behind b is kept as it is, ``longest`` values at least,
   and so goes on as ever. b and the machine's state there are also a :class:`Place` to begin anew.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from toktier_stream.incremental.carried import carried
from toktier_stream.incremental.machine import MEMORY, Machine, Position
from toktier_stream.incremental.reading import follow
from toktier_stream.incremental.rules import Ints, Longs
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables
from toktier_stream.tokenizer.encoder import Compiled
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.literals import grows_from

LONG: Final = 4096
"""Bytes of an open piece from which on its first part is let go: a value is copied with every
append."""
MOST: Final = 1 << 17
"""Bytes of an open piece and an append, at most."""
_MARGIN: Final = 16
"""Bytes beyond twice the longest added token, behind which text tells nothing of such tokens."""
_LOOK: Final = 48
"""Bytes of an open piece from which on it is looked at for settled tokens inside."""


class Tail(NamedTuple):
    """The end of one text. Positions and counts without the text's own first part: whoever holds
    it knows what ``tokens`` = 0 and ``at`` = 0 mean.

    ``at`` bytes and ``tokens`` tokens stand before the open piece; ``ids`` and ``lengths``
    (uint32) are the tokens from there on. ``context`` ends with the open piece, which is
    ``theta`` - 1 bytes long; ``memory`` counts places from the open piece. ``settled``: tokens that
    no continuation changes.

    ``inside``: the first part of the open piece was let go. ``known``: bytes of the text when the
    open piece became known to begin there. The machine was in ``state`` ``back`` bytes before it.
    ``joined``: the text's end adds no start of a piece, so the tokens are theta's.
    """

    at: int
    tokens: int
    context: bytes
    memory: Longs
    theta: Ints
    ids: Ids
    lengths: Ids
    settled: int
    inside: bool
    known: int
    state: int
    back: int
    joined: bool = True

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return self.at + len(self.theta) - 1

    @property
    def total(self) -> int:
        """Tokens of the text."""
        return self.tokens + len(self.ids)

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        return 800 + len(self.context) + 4 * len(self.theta) + 8 * len(self.ids)


class Place(NamedTuple):
    """A settled boundary: bytes and tokens left of it, the machine's state there, and whether it is
    ``inside`` a piece or may be. It is there in every text that begins with the same first
    ``since`` bytes."""

    at: int
    tokens: int
    since: int
    state: int
    inside: bool


class Grown(NamedTuple):
    """A text after an append: its tail, and what the append changed. The first ``keep`` tokens
    stay, which end at byte ``begin``; ``ids`` and ``lengths`` follow and cover ``text``; ``again``
    old bytes were read once more; ``place`` if a long piece's first part was let go."""

    tail: Tail
    keep: int
    begin: int
    ids: Ids
    lengths: Ids
    text: bytes
    again: int
    place: Place | None = None


class Follower:
    """Reads on at the end of texts of one tokenizer. Immutable, safe for threads."""

    def __init__(self, compiled: Compiled, machine: Machine, tables: Tables) -> None:
        """Raises ValueError where literals are looked for in normalized text, and for a forest that
        is too deep to be walked."""
        if compiled.normalizer is not None and compiled.added.normalized.reach > 0:
            raise ValueError("added tokens are matched in normalized text")
        if tables.search is not Search.WALK:
            raise ValueError("the forest is too deep to be walked")
        self.machine = machine
        self.tables = tables
        literals = compiled.added.any
        self._normalizes = compiled.normalizer is not None
        self._literals = (literals.first, literals.edges, literals.shift, literals.final)
        self._reach = literals.reach
        self._longest_whole = max(map(len, tables.whole), default=0)
        self._packed = carried(compiled, machine, tables)

    def begin(
        self, at: int, tokens: int, before: bytes, text: bytes, place: Place | None = None
    ) -> Grown | None:
        """The tail of a text whose tokens from byte ``at`` on are those of ``text``, whatever
        follows: behind a safe cut or an added token; with all these tokens as new ones.

        ``before``: the bytes left of it, at least as many as the longest added token has.
        ``place``: of an earlier value, instead of a cut. None: unusual."""
        memory = _FRESH
        if place is not None:
            memory = _FRESH.copy()
            memory[0] = place.state
        start = Tail(
            at=at,
            tokens=tokens,
            context=before[max(0, len(before) - self._reach) :],
            memory=memory,
            theta=_START,
            ids=_NONE,
            lengths=_NONE,
            settled=0 if place is None else tokens,
            inside=place is not None and place.inside,
            known=at + len(text),
            state=int(memory[0]),
            back=0,
        )
        if not text:
            return Grown(start._replace(settled=tokens), tokens, at, _NONE, _NONE, b"", 0)
        # Added tokens on the left were decided with the text as it is.
        return self._read(start, text, old_literals=True)

    def append(self, tail: Tail, text: bytes) -> Grown | None:
        """Read on. None: unusual, or not worth it."""
        return self._read(tail, text, old_literals=False)

    def _read(self, tail: Tail, text: bytes, *, old_literals: bool) -> Grown | None:
        old, size = tail.context, len(tail.theta) - 1
        if size + len(text) > MOST or size > 4 * LONG:
            return None
        data = old + text
        piece = len(old) - size
        memory = np.empty(MEMORY, dtype=np.int64)
        # A copy that can be written: numba takes such arrays much faster.
        (
            closed, steady, common, common_bytes, start, again, opened, inside, joined, cut, gone,
            state, theta, ids, lengths,
        ) = follow(
            np.frombuffer(bytearray(data), dtype=np.uint8), piece, len(old), old_literals,
            tail.inside, tail.joined, tail.known - tail.at, tail.state, tail.back, LONG,
            2 * self._reach + _MARGIN,
            tail.memory, tail.theta, tail.ids, tail.lengths, memory, self._packed.plan,
        )  # fmt: skip
        if closed < 0:
            return None
        settled = tail.settled
        if not opened:
            # Where text is normalized, the last character may become another one.
            certain = closed
            if self._normalizes:
                certain = steady if old_literals else max(steady, 0)
            if certain >= 0:
                settled = max(settled, tail.tokens + certain)
        end = tail.at + size + len(text)
        at, tokens, known = tail.at + start - piece, tail.tokens + closed, tail.known
        place = None
        if cut:
            at, tokens, known, inside = at + cut, tokens + gone, end, True
            settled = max(settled, tokens)
            place = Place(at, tokens, end, state, True)
            back = 0
        else:
            state, back = tail.state, tail.back + start - piece
            if start > piece or (tail.inside and not inside):
                known = end
            # The machine's state is known where the last append ended, too.
            if start >= len(old):
                state, back = int(tail.memory[0]), start - len(old)
        kept = max(0, min(start + cut - back, len(data) - self._reach))
        new = Tail(
            at, tokens, data[kept:], memory, theta, ids[closed + gone :], lengths[closed + gone :],
            settled, inside, known, state, back, joined,
        )  # fmt: skip
        return Grown(
            new, tail.tokens + common, tail.at + common_bytes, ids[common:], lengths[common:],
            data[piece + common_bytes :], again, place,
        )  # fmt: skip

    def place(self, tail: Tail) -> Place:
        """The open piece's beginning as a place to begin anew, once the text reaches to its
        ``since`` without anything unusual: then added tokens are decided as far as the text that
        made it known."""
        data, state = tail.context, tail.state
        piece = len(data) - len(tail.theta) + 1
        if tail.back:
            text = np.frombuffer(bytes(data), dtype=np.uint8)
            state = self.machine.run(text, piece - tail.back, piece, state)[0].state
        since = tail.known + 2 * self._reach + _MARGIN
        return Place(tail.at, tail.tokens, since, state, tail.inside)

    def settled(self, tail: Tail) -> int:
        """Tokens of the text that no continuation changes."""
        if tail.settled < tail.tokens or len(tail.theta) <= _LOOK:
            return tail.settled
        data = np.frombuffer(tail.context, dtype=np.uint8)
        if grows_from(data, len(data) - self._reach, *self._literals) < len(data):
            return tail.settled
        state, at, last, before, *registers = tail.memory.tolist()
        position = Position(state, at, last, before, tuple(registers))
        held = min(self.machine.held(position, 0), len(tail.theta) - 1)
        if tail.inside:
            # Chains of earlier prefixes need not meet where the piece was let go.
            if tail.at + held - self.tables.longest < tail.known:
                return tail.settled
        elif held <= self._longest_whole:
            return tail.settled
        boundary = State.of(self.tables, tail.theta).settled(held)
        ends = np.cumsum(tail.lengths, dtype=np.int64)
        return max(tail.settled, tail.tokens + int(np.searchsorted(ends, boundary, "right")))


_NONE: Final = np.zeros(0, dtype=np.uint32)
_START: Final = np.zeros(1, dtype=np.int32)
_FRESH: Final = np.full(MEMORY, -1, dtype=np.int64)
_FRESH[0:2] = 0
for _array in (_NONE, _START, _FRESH):
    _array.setflags(write=False)
