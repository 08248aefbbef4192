"""The end of a growing byte-level text as a value, so that a few characters more cost just these.

Kept of a text: where its last piece that is certain to start begins (the *open piece*), the
machine's memory at the end (machine.py) and theta of the open piece (walk.py). The text from there
on and its tokens are somebody else's, who has the whole. Reading on (reading.py):

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

All numbers and theta are one array, the *block*, so that an append takes and makes one: what
compiled code spends on an array that comes or goes is what it spends on a hundred bytes of text.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from toktier_stream.incremental import reading
from toktier_stream.incremental.carried import carried
from toktier_stream.incremental.machine import MEMORY, Machine, Position
from toktier_stream.incremental.rules import Ints, Longs
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables
from toktier_stream.tokenizer.encoder import Compiled

LONG: Final = 1024
"""Bytes of an open piece from which on its first part is let go: less than a session's end has in
memory (session/end.py), so that nothing else is read."""
OPEN: Final = 1 << 14
"""Bytes of an open piece, at most: its first part cannot always be let go."""
MOST: Final = 1 << 17
"""Bytes of an open piece and an append, at most."""
_MARGIN: Final = 16
"""Bytes beyond twice the longest added token, behind which text tells nothing of such tokens."""
_LOOK: Final = 48
"""Bytes of an open piece from which on it is looked at for settled tokens inside."""


class Tail(NamedTuple):
    """The end of one text of ``size`` bytes and ``total`` tokens. The open piece begins at byte
    ``at``, behind ``tokens`` tokens; ``begun`` is where it began before any part of it was let go.
    No continuation changes the first ``settled`` tokens. ``block``: int64, see
    :data:`reading.HEAD`; nobody writes to it."""

    size: int
    total: int
    at: int
    tokens: int
    begun: int
    settled: int
    block: Longs

    @property
    def open(self) -> int:
        """Bytes of the open piece, and of what was let go of it."""
        return self.size - self.begun

    @property
    def theta(self) -> Ints:
        """Theta of the open piece."""
        theta: Ints = self.block[reading.HEAD :].view(np.int32)[: self.size - self.at + 1]
        return theta

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        return 300 + self.block.nbytes


class Place(NamedTuple):
    """A settled boundary: bytes and tokens left of it, the machine's state there, and whether it is
    ``inside`` a piece or may be. It is there in every text that begins with the same first
    ``since`` bytes."""

    at: int
    tokens: int
    since: int
    state: int
    inside: bool


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
        self.reach = compiled.added.any.reach
        """Bytes of the longest added token."""
        self._longest_whole = max(map(len, tables.whole), default=0)
        self._packed = carried(compiled, machine, tables)
        self.plan: Longs = self._packed.plan
        """For :func:`reading.follow`."""

    @property
    def margin(self) -> int:
        """Bytes besides twice :attr:`reach` before the end of a text that are not counted on."""
        return _MARGIN

    def empty(self, at: int, tokens: int, size: int, place: Place | None = None) -> Tail:
        """The tail of a text that ends at byte ``at``, behind ``tokens`` tokens: a safe cut or an
        added token, or where an earlier value had this ``place``. What is read on there is known to
        be the text up to ``size`` bytes."""
        block = np.full(reading.HEAD + 1, -1, dtype=np.int64)
        block[reading.LEFT : reading.LEFT + 2] = 0
        block[[reading.AT, reading.TOKENS, reading.BEGUN, reading.KNOWN]] = at, tokens, at, size
        block[reading.SETTLED] = 0 if place is None else tokens
        block[reading.INSIDE] = place is not None and place.inside
        if place is not None:
            block[reading.LEFT] = place.state
        block[reading.STATE] = block[reading.LEFT]
        block[reading.JOINED], block[reading.OPENED], block[reading.SIZE] = True, False, 1
        block[reading.HEAD] = 0
        return Tail(at, tokens, at, tokens, at, int(block[reading.SETTLED]), block)

    def place(self, tail: Tail, *, now: bool) -> Place:
        """The open piece's beginning as a place to begin anew: at once, where its first part was
        just let go, or ``now`` is not yet and it is one when the text reaches to its ``since``
        without anything unusual: then added tokens are decided as far as the text that made it
        known."""
        block = tail.block
        since = int(block[reading.KNOWN]) + (0 if now else 2 * self.reach + self.margin)
        inside, state = bool(block[reading.INSIDE]), int(block[reading.STATE])
        return Place(tail.at, tail.tokens, since, state, inside)

    def settled(self, tail: Tail) -> int:
        """Tokens of the text that no continuation changes."""
        block, known = tail.block, tail.settled
        if known < tail.tokens or tail.size - tail.at < _LOOK or block[reading.OPENED]:
            return known
        theta = tail.theta
        memory = block[reading.LEFT : reading.LEFT + MEMORY]
        state, at, last, before, *registers = memory.tolist()
        position = Position(state, at, last, before, tuple(registers))
        held = min(self.machine.held(position, 0), len(theta) - 1)
        if block[reading.INSIDE]:
            # Chains of earlier prefixes need not meet where the piece was let go.
            if tail.at + held - self.tables.longest < block[reading.KNOWN]:
                return known
        elif held <= self._longest_whole:
            return known
        found = State.of(self.tables, theta)
        return max(known, tail.tokens + len(found.boundaries(found.settled(held))) - 1)
