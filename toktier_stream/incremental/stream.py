"""One growing piece of a byte-level vocabulary: append bytes, cut back, get exact tokens.

A piece is what the pre-tokenizer hands to BPE as one unit: a run without a boundary can be as long
as the session. The stream costs O(append) per append, however long the piece has become.
"""

from __future__ import annotations

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.change import START, Change, Settled, smallest
from toktier_stream.incremental.rules import Ints
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables
from toktier_stream.tokenizer.face import Tokens


class PieceStream:
    """The tokens of one piece, exact after every append. Positions are bytes of the piece.

    Bytes may end inside a UTF-8 character. Memory is 4 bytes per byte of the piece (``nbytes``),
    counted from where the stream was resumed. Not thread-safe.
    """

    def __init__(self, tables: Tables, search: Search | None = None) -> None:
        """An empty piece. Raises ``TOKENIZER_UNSUPPORTED`` where tokens are not bytes."""
        if not tables.bytewise:
            raise ToktierError(Code.TOKENIZER_UNSUPPORTED, "the vocabulary is not byte-level")
        self.tables = tables
        self._state = State(tables, search)
        self._base = START
        self._chain = 0  # tokens of the state
        # Vocabulary strings that win over BPE as a whole piece; only short pieces can be one.
        self._longest_whole = max(map(len, tables.whole), default=0)
        self._whole: int | None = None
        self._head = b""

    @classmethod
    def resume(cls, tables: Tables, settled: Settled, tail: bytes) -> PieceStream:
        """Continue a piece from a settled boundary and the text after it.

        Everything before the boundary is left alone and needs no memory.
        """
        stream = cls(tables)
        stream._base = settled
        stream.append(tail)
        return stream

    def __len__(self) -> int:
        """Bytes of the piece."""
        return self._base.size + self._state.length

    @property
    def count(self) -> int:
        """Tokens of the piece."""
        return self._base.tokens + (self._chain if self._whole is None else 1)

    @property
    def nbytes(self) -> int:
        """Memory held by the state, without the shared tables."""
        return self._state.nbytes

    def append(self, text: bytes) -> Change:
        """Extend the piece."""
        return self._update(self._state.length, text)

    def rewind(self, size: int) -> Change:
        """Go back to the piece's first ``size`` bytes.

        Raises ``OFFSET_RANGE`` beyond the end, or before ``earliest``.
        """
        if not self.earliest <= size <= len(self):
            raise ToktierError(Code.OFFSET_RANGE, f"{size} is not {self.earliest} to {len(self)}")
        return self._update(size - self._base.size, b"")

    @property
    def earliest(self) -> int:
        """The shortest prefix that :meth:`rewind` reaches: 0, unless the stream was resumed."""
        return self._base.since

    def tokens(self) -> Tokens:
        """Ids and byte lengths of the piece, from the resumed boundary on."""
        if self._whole is not None:
            return Tokens(np.array([self._whole], np.uint32), np.array([len(self)], np.uint32))
        return self._expand(self._nodes(self._state.length, 0))

    def settled(self, before: int | None = None) -> Settled:
        """The last boundary that stays in every piece that begins with the first ``before`` bytes
        of this one (None: with all of it); see :meth:`State.settled`.

        Raises ``OFFSET_RANGE`` beyond the end, or before ``earliest``.
        """
        since = len(self) if before is None else before
        if not self.earliest <= since <= len(self):
            raise ToktierError(Code.OFFSET_RANGE, f"{since} is not {self.earliest} to {len(self)}")
        if since <= self._longest_whole:
            return self._base  # the piece may be, or become, one whole token
        at = self._state.settled(since - self._base.size)
        if at == 0:
            return self._base
        behind = len(self._state.boundaries(self._state.length, at)) - 1
        return Settled(self._base.size + at, self.count - behind, True, since)

    def _update(self, start: int, text: bytes) -> Change:
        state, before = self._state, self.count
        whole_before = self._whole
        old = state.boundaries(state.length, start)
        dropped = state.theta[old[1:]].copy()
        if start < state.length:
            state.cut(start)
        if text:
            state.extend(np.frombuffer(text, dtype=np.uint8))
        meeting = state.meet(int(old[0]), state.length)
        dropped = np.concatenate((self._nodes(int(old[0]), meeting), dropped))
        added = self._nodes(state.length, meeting)
        self._chain += len(added) - len(dropped)
        self._look_up_whole(start, text)
        if self._whole is not None or whole_before is not None:
            now = self.tokens()
            return Change(self._base.tokens, before - self._base.tokens, now.ids, now.lengths)
        return smallest(before - len(dropped), self._expand(dropped), self._expand(added))

    def _look_up_whole(self, start: int, text: bytes) -> None:
        self._whole = None
        if self._base.size == 0 and self._state.length <= self._longest_whole:
            self._head = self._head[:start] + text
            self._whole = self.tables.whole.get(self._head)
        elif self._longest_whole:
            room = self._longest_whole
            self._head = (self._head[:start] + text[:room])[:room]

    def _nodes(self, end: int, stop: int) -> Ints:
        return self._state.theta[self._state.boundaries(end, stop)[1:]]

    def _expand(self, nodes: Ints) -> Tokens:
        return Tokens(self.tables.ids[nodes], self.tables.size[nodes].astype(np.uint32))
