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

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from toktier_stream.incremental.automaton import trie
from toktier_stream.incremental.jit import Packed, kernel, pointer
from toktier_stream.incremental.machine import MEMORY, Machine, Position, run
from toktier_stream.incremental.rules import Ints, Longs, Symbols
from toktier_stream.incremental.search import Search
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables
from toktier_stream.incremental.walk import Laid, walk_on
from toktier_stream.tokenizer.encoder import Compiled
from toktier_stream.tokenizer.face import Ids
from toktier_stream.tokenizer.literals import grows_from, longest_at
from toktier_stream.tokenizer.runs import SAFE
from toktier_stream.tokenizer.utf8 import character_start, decode

LONG: Final = 4096
"""Bytes of an open piece from which on its first part is let go: a value is copied with every
append."""
MOST: Final = 1 << 17
"""Bytes of an open piece and an append, at most."""
_HELD: Final = 512
"""Bytes behind a start that is only known at the end of the text, at most: they are read again."""
_MARGIN: Final = 16
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
        m, literals = machine.matcher, compiled.added.any
        self._kinds = np.zeros(0, dtype=np.uint8)
        if compiled.normalizer is not None:
            self._kinds = compiled.normalizer.kinds
        self._literals = (literals.first, literals.edges, literals.shift, literals.final)
        self._reach = literals.reach
        child, label, whole = _whole_words(tables)
        self._longest_whole = max(map(len, tables.whole), default=0)
        steps = tables.steps
        # A token's id and length in one number, as the tokens of a text are all over the table.
        tokens_of = tables.ids.astype(np.uint64) | tables.forest.length.astype(np.uint64) << _HALF
        numbers = (m.end_of_text, int(literals.shift), self._reach, self._longest_whole)
        self._packed = Packed(
            (m.next_state, np.uint16), (m.action, np.uint16), (m.class_of, np.uint8),
            (m.program_start, np.int32), (m.program, np.int16), (literals.first, np.bool_),
            (literals.edges, np.uint64), (literals.final, np.int64), (self._kinds, np.uint8),
            (steps.kids, np.uint32), (steps.marks, np.uint64), (steps.sign, np.uint16),
            (steps.pairs, np.uint32), (steps.buckets, np.uint32), (tables.forest.length, np.int32),
            (tokens_of, np.uint64), (child, np.int32), (label, np.uint8), (whole, np.int64),
            (np.array(numbers), np.int64), (machine.live, np.int64), (steps.root, np.int32),
            (steps.symbol, np.int32),
        )  # fmt: skip

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
        old = tail.context
        data = old + text
        size = len(tail.theta) - 1
        piece = len(old) - size
        if size + len(text) > MOST or size > 4 * LONG:
            return None
        memory = np.empty(MEMORY, dtype=np.int64)
        # A copy that can be written: numba takes such arrays much faster.
        found = _follow(
            np.frombuffer(bytearray(data), dtype=np.uint8), piece, len(old), old_literals,
            tail.inside, tail.joined, tail.memory, tail.theta, tail.ids, tail.lengths, memory,
            self._packed.plan,
        )  # fmt: skip
        (
            closed, steady, common, common_bytes, start, theta, ids, lengths, again, opened, inside,
            joined,
        ) = found  # fmt: skip
        if closed < 0:
            return None
        settled = tail.settled
        if not opened:
            # Where text is normalized, the last character may become another one.
            certain = closed
            if len(self._kinds):
                certain = steady if old_literals else max(steady, 0)
            if certain >= 0:
                settled = max(settled, tail.tokens + certain)
        moved, end = start - piece, tail.at + size + len(text)
        # The machine's state is known where the last append ended, and where it was known before.
        state, back = tail.state, tail.back + moved
        if start >= len(old):
            state, back = int(tail.memory[0]), start - len(old)
        kept = max(0, min(start - back, len(data) - self._reach))
        new = Tail(
            at=tail.at + moved,
            tokens=tail.tokens + closed,
            context=data[kept:],
            memory=memory,
            theta=theta,
            ids=ids[closed:],
            lengths=lengths[closed:],
            settled=settled,
            inside=inside,
            known=end if moved or (tail.inside and not inside) else tail.known,
            state=state,
            back=back,
            joined=joined,
        )
        place = None
        if len(theta) > LONG:
            new, place = self._let_go(new)
        return Grown(
            tail=new,
            keep=tail.tokens + common,
            begin=tail.at + common_bytes,
            ids=ids[common:],
            lengths=lengths[common:],
            text=data[piece + common_bytes :],
            again=again,
            place=place,
        )

    def _let_go(self, tail: Tail) -> tuple[Tail, Place | None]:
        """The tail without the first part of its long open piece, and where it begins then."""
        data = tail.context
        piece = len(data) - len(tail.theta) + 1
        stop = len(data) - 2 * self._reach - _MARGIN
        while stop > piece and data[stop] & 0xC0 == 0x80:
            stop -= 1
        if stop <= piece:
            return tail, None
        memory = tail.memory.copy()
        cut, gone, state = _let_go(
            np.frombuffer(bytearray(data), dtype=np.uint8), piece, piece - tail.back, tail.state,
            stop, tail.known - tail.at, tail.theta, tail.lengths, self.tables.longest, memory,
            self._packed.plan,
        )  # fmt: skip
        if cut <= 0:
            return tail, None
        place = Place(tail.at + cut, tail.tokens + gone, tail.size, state, True)
        kept = max(0, min(piece + cut, len(data) - self._reach))
        new = Tail(
            at=place.at,
            tokens=place.tokens,
            context=tail.context[kept:],
            memory=memory,
            theta=tail.theta[cut:].copy(),
            ids=tail.ids[gone:].copy(),
            lengths=tail.lengths[gone:].copy(),
            settled=max(tail.settled, place.tokens),
            inside=True,
            known=tail.size,
            state=place.state,
            back=0,
            joined=tail.joined,
        )
        return new, place

    def place(self, tail: Tail) -> Place:
        """The open piece's beginning as a place to begin anew, once the text reaches to its
        ``since`` without anything unusual: then added tokens are decided as far as the text that
        made it known."""
        data, state = tail.context, tail.state
        piece = len(data) - len(tail.theta) + 1
        if tail.back:
            text = np.frombuffer(bytearray(data), dtype=np.uint8)
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


_HALF: Final = np.uint64(32)
_NONE: Final = np.zeros(0, dtype=np.uint32)
_START: Final = np.zeros(1, dtype=np.int32)
_FRESH: Final = np.full(MEMORY, -1, dtype=np.int64)
_FRESH[0:2] = 0
for _array in (_NONE, _START, _FRESH):
    _array.setflags(write=False)


def _whole_words(tables: Tables) -> tuple[Ints, Symbols, Longs]:
    """The trie of the strings that are one token as a whole piece only, and their ids (-1)."""
    words = sorted(tables.whole.items())
    spelling = np.frombuffer(b"".join(w for w, _ in words), dtype=np.uint8)
    sizes = np.array([len(w) for w, _ in words], dtype=np.int64)
    child, label, ends, _ = trie(spelling, np.cumsum(sizes) - sizes, sizes, wide=False)
    ids = np.full(len(label), -1, dtype=np.int64)
    ids[ends] = [token for _, token in words]
    return child, label, ids


@kernel
def _follow(
    text: Symbols,
    piece: int,
    old_end: int,
    old_literals: bool,
    inside: bool,
    old_joined: bool,
    old_memory: Longs,
    old_theta: Ints,
    old_ids: Ids,
    old_lengths: Ids,
    memory: Longs,
    plan: Longs,
) -> Any:
    """One append; see the module. All places are bytes of ``text``, where the open piece begins at
    ``piece`` and the new bytes at ``old_end``.

    Returns the tokens of pieces that are closed now (-1: unusual), those of pieces closed before
    the last character was read (-1: none started), tokens and bytes in common with the old
    ones, the start of the open piece, its theta, ids and lengths from the old open piece on, bytes
    read again, whether an added token may have begun, whether the open piece is a part still, and
    whether its tokens are theta's.
    """
    next_state = carray(pointer(plan[0, 0]), (plan[0, 1], plan[0, 2]), np.uint16)
    action = carray(pointer(plan[1, 0]), (plan[1, 1], plan[1, 2]), np.uint16)
    class_of = carray(pointer(plan[2, 0]), (plan[2, 1],), np.uint8)
    program_start = carray(pointer(plan[3, 0]), (plan[3, 1],), np.int32)
    program = carray(pointer(plan[4, 0]), (plan[4, 1], plan[4, 2]), np.int16)
    first = carray(pointer(plan[5, 0]), (plan[5, 1],), np.bool_)
    edges = carray(pointer(plan[6, 0]), (plan[6, 1],), np.uint64)
    final = carray(pointer(plan[7, 0]), (plan[7, 1],), np.int64)
    kinds = carray(pointer(plan[8, 0]), (plan[8, 1],), np.uint8)
    steps = Laid(
        np.uint64(plan[9, 0]), np.uint64(plan[10, 0]), np.uint64(plan[11, 0]),
        np.uint64(plan[12, 0]), np.uint64(plan[13, 0]), np.uint64(plan[21, 0]),
        np.uint64(plan[22, 0]), np.uint64(plan[21, 1]), np.uint64(0), np.uint64(plan[13, 1] - 2),
    )  # fmt: skip
    tokens_of = carray(pointer(plan[15, 0]), (plan[15, 1],), np.uint64)
    child = carray(pointer(plan[16, 0]), (plan[16, 1],), np.int32)
    label = carray(pointer(plan[17, 0]), (plan[17, 1],), np.uint8)
    whole = carray(pointer(plan[18, 0]), (plan[18, 1],), np.int64)
    numbers = carray(pointer(plan[19, 0]), (plan[19, 1],), np.int64)
    end_of_text, reach, longest_whole = numbers[0], numbers[2], numbers[3]
    shift = np.uint64(numbers[1])

    size = len(text)
    ids = np.empty(size - piece, np.uint32)
    lengths = np.empty(size - piece, np.uint32)
    theta = np.empty(size - piece + 1, np.int32)
    opened = False
    for at in range(size if old_literals else max(0, old_end - reach + 1), size):
        if first[text[at]]:
            stop, token = longest_at(text, at, size, edges, shift, final)
            if token >= 0 and stop > old_end:
                return -1, -1, 0, 0, 0, theta, ids, lengths, 0, opened, inside, False
    opened = grows_from(text, size - reach, first, edges, shift, final) < size
    at = old_end
    while at < size and len(kinds):
        point, width = decode(text, at)
        if kinds[point] != SAFE:
            return -1, -1, 0, 0, 0, theta, ids, lengths, 0, opened, inside, False
        at += width
    last = character_start(text, size - 1)

    for i in range(len(memory)):
        place = old_memory[i]
        memory[i] = place + piece if i > 1 and place >= 0 else place
    starts = np.empty(size - piece + 4, np.int64)
    count = run(
        text, old_end, last, False, size + 1, next_state, action, class_of, end_of_text,
        program_start, program, memory, starts,
    )  # fmt: skip
    before_last = count
    count += run(
        text, last, size, False, size + 1, next_state, action, class_of, end_of_text,
        program_start, program, memory, starts[count:],
    )  # fmt: skip

    # Pieces that are closed for certain.
    theta[: len(old_theta)] = old_theta
    base, filled, out, again = piece, old_end, 0, 0
    steady = -1
    for i in range(count):
        place = starts[i]
        if place > filled:
            walk_on(text, filled, place, theta, filled - base, steps)
            filled = place
        if place > base:
            out = _emit(
                text, theta, base, place, tokens_of, child, label, whole,
                0 if inside else longest_whole, ids, lengths, out,
            )  # fmt: skip
            if out < 0:
                return -1, -1, 0, 0, 0, theta, ids, lengths, 0, opened, inside, False
            again += max(0, old_end - place)
            base = filled = place
            theta[0] = 0
        if place >= base:
            inside = False
        if i < before_last:
            steady = out
    walk_on(text, filled, size, theta, filled - base, steps)
    closed = out

    # What the end of the text adds.
    ended = memory.copy()
    count = run(
        text, size, size, True, size + 1, next_state, action, class_of, end_of_text,
        program_start, program, ended, starts,
    )  # fmt: skip
    theta = theta[: size - base + 1]
    if base > piece:
        theta = theta.copy()
    start, nodes, part = base, theta, inside
    for i in range(count):
        place = starts[i]
        if place == start:
            part = False
        if place <= start:
            continue
        if size - place > _HELD:
            return -1, -1, 0, 0, 0, theta, ids, lengths, 0, opened, inside, False
        out = _emit(
            text, nodes, start, place, tokens_of, child, label, whole,
            0 if part else longest_whole, ids, lengths, out,
        )  # fmt: skip
        part = False
        if out < 0:
            return -1, -1, 0, 0, 0, theta, ids, lengths, 0, opened, inside, False
        start = place
        nodes = np.empty(size - start + 1, np.int32)
        nodes[0] = 0
        walk_on(text, start, size, nodes, 0, steps)
        again += max(0, old_end - start)
    common = common_bytes = 0
    whole_size = 0 if part else longest_whole
    if old_joined and start == piece and old_end - piece > whole_size:
        # Old and new tokens are chains of one theta: the same left of a boundary of both.
        common, common_bytes, out = _rejoin(
            theta, size - piece, tokens_of, old_end - piece, old_ids, old_lengths, ids, lengths
        )
    else:
        out = _emit(
            text, nodes, start, size, tokens_of, child, label, whole, whole_size, ids, lengths, out
        )
    if out < 0:
        return -1, -1, 0, 0, 0, theta, ids, lengths, 0, opened, inside, False

    while common < min(out, len(old_ids)):
        if ids[common] != old_ids[common] or lengths[common] != old_lengths[common]:
            break
        common_bytes += lengths[common]
        common += 1
    for i in range(1, len(memory)):
        memory[i] = memory[i] - base if memory[i] >= base else -1
    return (
        closed, steady, common, common_bytes, base, theta, ids[:out], lengths[:out], again, opened,
        inside, start == base,
    )  # fmt: skip


@kernel
def _rejoin(
    theta: Ints,
    p: int,
    tokens_of: npt.NDArray[np.uint64],
    q: int,
    old_ids: Ids,
    old_lengths: Ids,
    ids: Ids,
    lengths: Ids,
) -> tuple[int, int, int]:
    """Write the tokens of prefix ``p``, given those of prefix ``q``: the tokens and bytes in common
    with these, and the end of the output, -1 where a byte has no token."""
    kept, at = len(old_ids), len(ids)
    while p != q:
        if q > p:
            kept -= 1
            q -= int(np.int64(old_lengths[kept]))
            continue
        node = np.int64(theta[p])
        if node <= 0:
            return 0, 0, -1
        token = tokens_of[node]
        at -= 1
        ids[at] = np.uint32(token)
        lengths[at] = np.uint32(token >> np.uint64(32))
        p -= int(np.int64(token >> np.uint64(32)))
    fresh = len(ids) - at
    for i in range(fresh):
        ids[kept + i], lengths[kept + i] = ids[at + i], lengths[at + i]
    for i in range(kept):
        ids[i], lengths[i] = old_ids[i], old_lengths[i]
    return kept, p, kept + fresh


@kernel
def _emit(
    text: Symbols,
    theta: Ints,
    start: int,
    end: int,
    tokens_of: npt.NDArray[np.uint64],
    child: Ints,
    label: Symbols,
    whole: Longs,
    longest_whole: int,
    ids: Ids,
    lengths: Ids,
    out: int,
) -> int:
    """Write the tokens of the piece ``text[start:end]``; the new end of the output, -1 where a
    byte has no token."""
    size = end - start
    if size == 0:
        return out
    if size <= longest_whole:
        state = 0
        for at in range(start, end):
            a, b = child[state], child[state + 1]
            while a < b and label[a] < text[at]:
                a += 1
            if a == b or label[a] != text[at]:
                state = -1
                break
            state = a
        if state > 0 and whole[state] >= 0:
            ids[out] = whole[state]
            lengths[out] = size
            return out + 1
    p, at = size, len(ids)
    while p > 0:
        node = np.int64(theta[p])
        if node <= 0:
            return -1
        token = tokens_of[node]
        at -= 1
        ids[at] = np.uint32(token)
        lengths[at] = np.uint32(token >> np.uint64(32))
        p -= int(np.int64(token >> np.uint64(32)))
    # From the end of the room to where they belong: never further right.
    count = len(ids) - at
    for i in range(count):
        ids[out + i], lengths[out + i] = ids[at + i], lengths[at + i]
    return out + count


@kernel
def _let_go(
    text: Symbols,
    piece: int,
    start: int,
    state: int,
    stop: int,
    known: int,
    theta: Ints,
    lengths: Ids,
    longest: int,
    end_memory: Longs,
    plan: Longs,
) -> Any:
    """Where a long open piece can be let go up to, see the module: bytes and tokens of it, and the
    machine's state there; 0 bytes: nowhere. The machine was in ``state`` at ``start``; ``known``
    counts from the piece's beginning, and so does ``end_memory``, before and after."""
    next_state = carray(pointer(plan[0, 0]), (plan[0, 1], plan[0, 2]), np.uint16)
    action = carray(pointer(plan[1, 0]), (plan[1, 1], plan[1, 2]), np.uint16)
    class_of = carray(pointer(plan[2, 0]), (plan[2, 1],), np.uint8)
    program_start = carray(pointer(plan[3, 0]), (plan[3, 1],), np.int32)
    program = carray(pointer(plan[4, 0]), (plan[4, 1], plan[4, 2]), np.int16)
    length = carray(pointer(plan[14, 0]), (plan[14, 1],), np.int32)
    numbers = carray(pointer(plan[19, 0]), (plan[19, 1],), np.int64)
    live = carray(pointer(plan[20, 0]), (plan[20, 1],), np.int64)
    nowhere = 0, 0, 0
    if known > stop - piece:
        return nowhere

    # The machine up to ``stop``, with a stop on the way: b is most likely behind it.
    starts = np.empty(stop - start + 4, np.int64)
    memory = np.full(MEMORY, -1, np.int64)
    memory[0] = state
    way = max(start, character_start(text, max(0, stop - 4 * longest)))
    run(text, start, way, False, len(text) + 1, next_state, action, class_of, numbers[0],
        program_start, program, memory, starts)  # fmt: skip
    there = memory[0]
    run(text, way, stop, False, len(text) + 1, next_state, action, class_of, numbers[0],
        program_start, program, memory, starts)  # fmt: skip
    held = stop
    for i in range(2, MEMORY):
        read = i < 4 or live[memory[0]] >> (i - 4) & 1
        if read and memory[i] > piece:
            held = min(held, memory[i])
    held -= piece
    if held - longest < known or held <= numbers[3]:
        return nowhere

    cut = held
    for prefix in range(held - 1, held - longest - 1, -1):
        p = prefix
        while p != cut:
            if p > cut:
                p -= length[theta[p]]
            else:
                cut -= length[theta[cut]]
    # At a character, and with as much behind it as the next steps may read.
    while cut > 0 and (len(theta) - cut <= longest + 8 or text[piece + cut] & 0xC0 == 0x80):
        cut -= length[theta[cut]]
    if cut <= 0:
        return nowhere
    tokens, covered = 0, 0
    while covered < cut:
        covered += lengths[tokens]
        tokens += 1
    if covered != cut:
        return nowhere
    memory[:] = -1
    begin = start if piece + cut < way else way
    memory[0] = state if piece + cut < way else there
    run(text, begin, piece + cut, False, len(text) + 1, next_state, action, class_of, numbers[0],
        program_start, program, memory, starts)  # fmt: skip
    for i in range(1, MEMORY):
        end_memory[i] = end_memory[i] - cut if end_memory[i] >= cut else -1
    return cut, tokens, memory[0]
