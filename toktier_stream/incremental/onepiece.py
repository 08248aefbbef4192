"""A session of a one-piece family: its whole text is one piece, cut only by added tokens.

The state is theta over symbols with the source bytes of each. The text itself can be told from it
and is kept nowhere else: 5 bytes per character. Exact after every append and edit.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.change import START, Change, Settled, smallest
from toktier_stream.incremental.jit import kernel
from toktier_stream.incremental.pipeline import CODE_POINTS, LONGEST_LITERAL
from toktier_stream.incremental.rules import Ints, Symbols
from toktier_stream.incremental.segments import Reader
from toktier_stream.incremental.state import State, room
from toktier_stream.incremental.tables import Tables
from toktier_stream.tokenizer.face import Tokens

_BLOCK = 4096
"""Symbols between two remembered byte positions."""

_CHUNK = 2 * (LONGEST_LITERAL + 1)
"""Bytes of unchanged text behind an edit that are read at first; doubled until in step."""


class Family(Protocol):
    """What a session reads of its family (families.py has it)."""

    @property
    def tables(self) -> Tables: ...

    @property
    def reader(self) -> Reader: ...

    @property
    def literal_reach(self) -> int: ...

    def emit(self, nodes: Ints, widths: Ints) -> Tokens: ...

    def spell(self, theta: Ints, widths: Symbols) -> bytes: ...


class OnePieceSession:
    """The tokens of one growing text. Positions are bytes of UTF-8. Not thread-safe."""

    def __init__(self, encoder: Family, base: Settled = START) -> None:
        self._encoder = encoder
        self._base = base
        self._state = State(encoder.tables)
        self._widths: Symbols = np.zeros(64, dtype=np.uint8)  # [j]: source bytes of symbol j >= 1
        self._marks = [0]  # source bytes before every _BLOCK-th symbol, as far as asked for
        self._decided = 0  # symbols that no append changes, and their bytes
        self._decided_bytes = 0
        self._pending = b""  # the undecided text after them
        self._tokens = 0

    @classmethod
    def resume(cls, encoder: Family, settled: Settled, tail: bytes) -> OnePieceSession:
        """Continue a session from a settled boundary and the text after it; what lies before
        needs no memory."""
        session = cls(encoder, settled)
        session.append(tail)
        return session

    def __len__(self) -> int:
        """Bytes of the text."""
        return self._base.size + self._size

    @property
    def _size(self) -> int:
        return self._decided_bytes + len(self._pending)

    @property
    def count(self) -> int:
        """Tokens of the text."""
        return self._base.tokens + self._tokens

    @property
    def nbytes(self) -> int:
        """Memory held, without the shared tables."""
        return self._state.nbytes + self._widths.nbytes

    @property
    def earliest(self) -> int:
        """The smallest start of an edit: 0, unless the session was resumed."""
        return self._base.since

    def tokens(self) -> Tokens:
        """Ids and byte lengths, from the resumed boundary on."""
        return self._expand(self._state.length, 0)

    def text(self) -> bytes:
        """The text, from the resumed boundary on."""
        return self._text(0, self._state.length)

    def append(self, text: bytes) -> Change:
        """Extend the text by valid UTF-8."""
        return self._continue(self._decided, self._decided_bytes, self._pending + text)

    def edit(self, start: int, end: int, text: bytes) -> Change:
        """Replace the bytes [start, end) by valid UTF-8.

        Costs the edit, the way back to step with the old tokens, and, if text remains behind it,
        one copy of the state. Raises ``OFFSET_RANGE`` (outside the text, or before ``earliest``)
        and ``OFFSET_IN_CHARACTER``.
        """
        if not self.earliest <= start <= end <= len(self):
            raise ToktierError(Code.OFFSET_RANGE, f"{start} to {end} of {len(self)} bytes")
        start, end = start - self._base.size, end - self._base.size
        for at in (start, end):
            if 0x80 <= next(iter(self._between(at, min(at + 1, self._size))), 0) < 0xC0:
                raise ToktierError(Code.OFFSET_IN_CHARACTER, f"byte {at + self._base.size}")
        # Whether an added token starts at a place depends on literal_reach bytes from there.
        first, first_bytes = self._locate(max(0, start - self._encoder.literal_reach))
        if first > self._decided:
            first, first_bytes = self._decided, self._decided_bytes
        left = self._between(first_bytes, start)
        if end == self._size:
            return self._continue(first, first_bytes, left + text)
        return self._splice(first, first_bytes, left + text, end, len(text) - (end - start))

    def settled(self, before: int | None = None) -> Settled:
        """The last boundary that stays in every text that goes on as this one does up to byte
        ``before`` (None: to its end); see :meth:`State.settled`.

        Raises ``OFFSET_RANGE`` for a byte outside the text or before ``earliest``.
        """
        here, here_bytes, since = self._decided, self._decided_bytes, len(self)
        if before is not None:
            if not self.earliest <= before <= since:
                raise ToktierError(Code.OFFSET_RANGE, f"{before} of {since} bytes")
            # Whether an added token starts at a place depends on literal_reach bytes from there.
            size = before - self._base.size - self._encoder.literal_reach
            here, here_bytes = min((here, here_bytes), self._locate(max(0, size)))
            since = before
        at = self._state.settled(here)
        if at == 0:
            return self._base
        size = here_bytes - int(self._widths[at + 1 : here + 1].sum())
        return Settled(
            size=self._base.size + size,
            tokens=self.count - self._count_back(at)[1],
            inside=not self._opens_segment(at),
            since=since,
        )

    def _continue(self, first: int, first_bytes: int, text: bytes) -> Change:
        """Replace everything from symbol ``first`` on by ``text``."""
        state, before = self._state, self.count
        left = int(state.boundaries(state.length, first)[0])
        dropped = self._expand(state.length, left)
        self._rewind(first, first_bytes)
        self._feed(text)
        meeting = state.meet(left, state.length)
        return self._changed(before, _joined(self._expand(left, meeting), dropped), meeting)

    def _changed(self, before: int, old: Tokens, meeting: int) -> Change:
        new = self._expand(self._state.length, meeting)
        self._tokens += len(new) - len(old)
        return smallest(before - len(old), old, new)

    def _splice(self, first: int, first_bytes: int, text: bytes, end: int, shift: int) -> Change:
        """The same with the old text from byte ``end`` on behind it. The new state is built beside
        the old one; where both are in step, the rest is copied."""
        new = OnePieceSession(self._encoder, self._base)
        new._state = self._state.copy(first)
        new._reserve(first)
        new._widths[: first + 1] = self._widths[: first + 1]
        new._marks = self._marks[: first // _BLOCK + 1]
        new._rewind(first, first_bytes)
        new._feed(text)
        fed, chunk, step = end, _CHUNK, -1
        while fed < self._size and step < 0:
            upto = self._locate(min(fed + chunk, self._size))[1]
            new._feed(self._between(fed, upto))
            fed, chunk = upto, 2 * chunk
            step = self._in_step(new, end, shift)
        old_end, new_end, tail = self._state.length, new._state.length, 0
        if step >= 0:
            at = new._decided
            new._follow(self, step, shift)
            new_end, tail = new._count_back(at)
            old_end = new_end - at + step
        left = int(self._state.boundaries(old_end, first)[0])
        meeting = new._state.meet(left, new_end)
        old = self._expand(old_end, meeting)
        added = new._expand(new_end, meeting)
        new._tokens = self._tokens + len(added) - len(old)
        change = smallest(self.count - len(old) - tail, old, added, tail)
        self.__dict__.update(new.__dict__)  # this session goes on as the new one
        return change

    def _in_step(self, new: OnePieceSession, end: int, shift: int) -> int:
        """The symbol of the old text at which ``new`` has decided the same; -1 if not in step."""
        window, at = self._encoder.tables.longest, new._decided
        there = new._decided_bytes - shift
        if there < end:
            return -1
        step, there_too = self._locate(there)
        if there != there_too or step > self._decided or min(step, at) < window:
            return -1
        mine, other = slice(step - window + 1, step + 1), slice(at - window + 1, at + 1)
        same = np.array_equal(self._state.theta[mine], new._state.theta[other])
        return step if same and np.array_equal(self._widths[mine], new._widths[other]) else -1

    def _follow(self, old: OnePieceSession, step: int, shift: int) -> None:
        """Go on as ``old`` went on after its symbol ``step``."""
        at = self._decided
        self._state.cut(at)
        self._state.follow(old._state, step)
        self._reserve(self._state.length)
        rest = old._widths[step + 1 : old._state.length + 1]
        self._widths[at + 1 : self._state.length + 1] = rest
        self._decided = old._decided - step + at
        self._decided_bytes = old._decided_bytes + shift
        self._pending = old._pending

    def _rewind(self, first: int, first_bytes: int) -> None:
        """Forget everything from symbol ``first`` on."""
        self._state.cut(first)
        self._decided, self._decided_bytes, self._pending = first, first_bytes, b""

    def _feed(self, text: bytes) -> None:
        """Read more text from the last decided symbol on."""
        data = self._pending + text
        self._state.cut(self._decided)
        del self._marks[self._decided // _BLOCK + 1 :]
        read = self._encoder.reader.read(data, self._opens_segment(self._decided))
        end = self._decided + len(read.codes)
        self._reserve(end)
        self._widths[self._decided + 1 : end + 1] = read.widths
        self._state.extend(read.codes)
        self._decided += read.decided
        self._decided_bytes += read.decided_bytes
        self._pending = data[read.decided_bytes :]

    def _reserve(self, length: int) -> None:
        if length >= len(self._widths):
            grown = np.zeros(room(length, len(self._widths)), dtype=np.uint8)
            grown[: len(self._widths)] = self._widths
            self._widths = grown

    def _opens_segment(self, at: int) -> bool:
        """Whether a segment begins behind symbol ``at``: at the start or behind an added token."""
        if at == 0:
            return not self._base.inside
        return bool(self._state.theta[at] < -CODE_POINTS)

    def _expand(self, end: int, stop: int) -> Tokens:
        """Tokens between two boundaries of one prefix."""
        bounds = self._state.boundaries(end, stop)
        nodes = self._state.theta[bounds[1:]]
        if len(nodes) == 0:
            return self._encoder.emit(nodes, nodes)
        widths = self._widths[bounds[0] + 1 : end + 1].astype(np.int32)
        return self._encoder.emit(nodes, np.add.reduceat(widths, bounds[:-1] - bounds[0]))

    def _count_back(self, stop: int) -> tuple[int, int]:
        """The last boundary <= ``stop`` of the text, and the tokens after it."""
        length = self._encoder.tables.forest.length
        end, tokens = _count_back(self._state.theta, length, self._widths, self._state.length, stop)
        return int(end), int(tokens)

    def _locate(self, byte: int) -> tuple[int, int]:
        """The last symbol boundary at or before a byte, as (symbols, bytes); of several at one
        byte (a prepended symbol has no width) the first."""
        marks, length = self._marks, self._state.length
        while marks[-1] <= byte and len(marks) * _BLOCK <= length:
            at = (len(marks) - 1) * _BLOCK
            marks.append(marks[-1] + int(self._widths[at + 1 : at + _BLOCK + 1].sum()))
        block = bisect_right(marks, byte) - 1
        at = block * _BLOCK
        sums = np.cumsum(self._widths[at + 1 : min(at + _BLOCK, length) + 1], dtype=np.int64)
        passed = int(np.searchsorted(sums, byte - marks[block], side="right"))
        bytes_there = marks[block] + (int(sums[passed - 1]) if passed else 0)
        at += passed
        while at > 0 and self._widths[at] == 0:
            at -= 1
        return at, bytes_there

    def _between(self, start: int, end: int) -> bytes:
        """The text's bytes [start, end), counted from the resumed boundary."""
        first, first_bytes = self._locate(start)
        last, last_bytes = self._locate(end)
        while last_bytes < end:
            last += 1
            last_bytes += int(self._widths[last])
        return self._text(first, last)[start - first_bytes : end - first_bytes]

    def _text(self, first: int, last: int) -> bytes:
        return self._encoder.spell(
            self._state.theta[first + 1 : last + 1], self._widths[first + 1 : last + 1]
        )


def _joined(a: Tokens, b: Tokens) -> Tokens:
    return Tokens(np.concatenate((a.ids, b.ids)), np.concatenate((a.lengths, b.lengths)))


@kernel
def _count_back(theta: Ints, length: Ints, widths: Symbols, p: int, stop: int) -> tuple[int, int]:
    tokens = 0
    while p > stop:
        # A character outside the vocabulary has one token for each of its bytes.
        tokens += widths[p] if 0 > theta[p] >= -CODE_POINTS else 1
        p -= length[theta[p]] if theta[p] > 0 else 1
    return p, tokens
