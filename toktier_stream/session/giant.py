"""Appends to a session that ends in a long run without cuts: one giant piece, or many pieces that
nothing separates for certain (a wall of digits). They cost what they append, however long the run.

A *mark* is a place b near the session's end such that in every text that begins with the same
first ``since`` bytes, a token boundary is at b, the tokens left of it are the session's, and those
right of it follow from the mark and the text right of it. Why there is such a place:

1. *Literals.* Whether an added token starts at a place left of m is decided by the bytes up to
   twice the longest literal behind m (one for it, one for a literal in the way of its end). Let s
   be the end of the last one before m, or a safe cut with none behind it: the pre-tokenizer starts
   anew at s, and from s to m there is nothing but text. ``since`` is m plus that reach.
2. *Normalization.* Behind the cut every character is its own normal form and composes with nothing
   on its left: so is the text, whatever of this kind follows. Other text goes the old way.
3. *Pieces.* The machine of tokenizer/tables.py reads from s up to m. What it has emitted stands in
   every continuation; let E be the last piece start of these. Later ones are places that it has in
   hand (live registers, the last two characters) or behind m. Let h be the first such place behind
   E: in every continuation the bytes [E, h) are in one piece, which starts at E.
4. *Tokens.* A piece is encoded on its own. Every-prefix BPE names a boundary in [E, h] that stays
   in every piece that begins with these bytes, with tokens on the left that stay and tokens on the
   right that are those of the right part alone (incremental/state.py; under ``ignore_merges`` the
   bytes must be too many for a whole word). So does every boundary left of it in its chain. b is
   the last of them that stands at a character, or E.
5. *Going on.* The machine's state at b is stored. From it, on the text from b, the machine emits
   what it would emit on the whole text, as it is deterministic. Places left of b are unknown to it,
   but pieces that start there are those up to E. If b is E, the first piece is whole; else it is
   the right part of one, or empty if a piece starts at b after all.

Behind the first safe cut or literal that follows, tokens are the encoder's. As in splice.py a run
of equal tokens behind the mark is asked for: two at least, and more characters than the longest
token.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental import merged, stored
from toktier_stream.incremental.change import START, Settled
from toktier_stream.incremental.machine import Machine
from toktier_stream.incremental.state import State
from toktier_stream.incremental.stream import PieceStream
from toktier_stream.incremental.tables import Tables
from toktier_stream.incremental.tail import Follower
from toktier_stream.session import kernels
from toktier_stream.session.growing import thin
from toktier_stream.session.splice import Splice, Stored, splice
from toktier_stream.tokenizer.encoder import FastEncoder
from toktier_stream.tokenizer.face import Tokens
from toktier_stream.wire.messages import Evidence, Route

GIANT: Final = 4096
"""Bytes without a cut, at the session's end, from which on marks are kept."""

_MARGIN: Final = 16
_SPAN: Final = 4
"""Longest tokens between a fresh mark and the end: room for the run that an append must repeat."""


class Mark(NamedTuple):
    """A place as the module's text says: its byte, the tokens left of it, ``since``, whether it is
    inside a piece, the machine's state there, and the machine's check."""

    size: int
    tokens: int
    since: int
    inside: bool
    state: int
    check: int


Marks = tuple[Mark, ...]


class Kit:
    """What giant pieces and streams of an encoder need. Immutable once built."""

    def __init__(self, encoder: FastEncoder) -> None:
        """Raises ValueError or ``TOKENIZER_UNSUPPORTED`` where there is no such thing."""
        compiled = encoder.compiled
        self.machine = Machine(compiled.matcher)
        if not compiled.matcher.byte_level or compiled.matcher.space_marker:
            raise ValueError("pieces are not in the byte-level alphabet")
        merges = compiled.merges
        self.tables: Tables = stored.tables(
            stored.origin_of(merges), lambda: merged.from_tables(merges)
        )
        try:
            self.follower: Follower | None = Follower(compiled, self.machine, self.tables)
        except ValueError:
            self.follower = None
        self.longest_whole = max(map(len, self.tables.whole), default=0)
        self._added = compiled.added
        self._kinds = None if compiled.normalizer is None else compiled.normalizer.kinds
        self.wide = self._kinds is not None and self._added.normalized.reach > 0
        self.margin = 2 * encoder.literal_reach + _MARGIN

    def plain(self, text: bytes) -> bool:
        """Whether normalization leaves ``text`` alone, and what is left of it."""
        if self._kinds is None:
            return True
        points = np.frombuffer(text.decode().encode("utf-32-le"), dtype=np.uint32)
        return not self._kinds[points].any()

    def segments(self, text: bytes) -> npt.NDArray[np.int64]:
        """As :meth:`tokenizer.added.LiteralTable.split`, for text that nothing normalizes."""
        data = np.frombuffer(text, dtype=np.uint8)
        found = np.array(((0, len(text), -1),), dtype=np.int64)
        for table in (self._added.raw, self._added.normalized):
            if table.reach:
                found = table.split(data, found)
        return found

    def settle(
        self, text: bytes, start: int, stop: int, state: int, inside: bool
    ) -> tuple[int, bool, int]:
        """The place b for m = ``stop``, given one at ``start``: b, whether it is inside a piece,
        and the machine's state there."""
        data = np.frombuffer(text, dtype=np.uint8)
        position, starts = self.machine.run(data, start, stop, state)
        inside = inside and not len(starts)
        piece = int(starts[-1]) if len(starts) else start
        held = self.machine.held(position, piece)
        # A part of a piece is never a whole word: its stream starts beyond their length.
        room = self.longest_whole + 1
        base = Settled(room, 0, inside=True, since=room) if inside else START
        stream = PieceStream.resume(self.tables, base, text[piece:held])
        settled = stream.settled().tokens - base.tokens
        place = piece
        ends = piece + np.cumsum(stream.tokens().lengths[:settled], dtype=np.int64)
        for end in ends[::-1].tolist():
            if end == len(text) or text[end] & 0xC0 != 0x80:
                place = end
                break
        if place > start:
            state = self.machine.run(data, start, place, state)[0].state
        return place, inside or place > piece, state

    def tokens(self, text: bytes, starts: list[int], end: int, part: bool) -> Tokens:
        """Tokens of the pieces that start at ``starts``, the last of them ending at ``end``. Of the
        first, ``part``: it is the right part of a piece, from a settled place on."""
        first = starts[0]
        # One state for all: nothing merges across a barrier, and a whole word stands for itself.
        symbols = np.frombuffer(text, dtype=np.uint8)[first:end].astype(np.int32)
        symbols = np.insert(symbols, np.array(starts[1:], dtype=np.int64) - first, -1)
        wholes: list[tuple[int, int]] = []
        if self.longest_whole:
            kept = np.ones(len(symbols), dtype=np.bool_)
            for i, (low, high) in enumerate(pairwise((*starts, end))):
                whole = None
                if high - low <= self.longest_whole and not (part and i == 0):
                    whole = self.tables.whole.get(text[low:high])
                if whole is not None:
                    at = low - first + i
                    symbols[at] = -2 - len(wholes)
                    kept[at + 1 : at + high - low] = False
                    wholes.append((whole, high - low))
            symbols = symbols[kept]
        state = State(self.tables)
        state.extend(symbols)
        nodes = state.theta[state.boundaries(state.length)[1:]]
        nodes = nodes[nodes != -1]
        ids = self.tables.ids[np.maximum(nodes, 0)]
        lengths = self.tables.size[np.maximum(nodes, 0)].astype(np.uint32)
        for k, at in enumerate(np.flatnonzero(nodes < 0).tolist()):
            ids[at], lengths[at] = wholes[k]
        return Tokens(ids, lengths)


_kits: WeakKeyDictionary[FastEncoder, Kit | None] = WeakKeyDictionary()
_lock = threading.Lock()


def kit_of(encoder: FastEncoder) -> Kit | None:
    """Made when first asked for: its tables are read or built. None where there is none."""
    with _lock:
        if encoder not in _kits:
            try:
                _kits[encoder] = Kit(encoder)
            except ValueError:
                _kits[encoder] = None
            except ToktierError as error:
                if error.code is not Code.TOKENIZER_UNSUPPORTED:
                    raise
                _kits[encoder] = None
        return _kits[encoder]


def look(old: Stored, encoder: FastEncoder) -> Marks:
    """The mark of a session whose end has no cut within ``GIANT`` bytes; O(that run)."""
    size, window = old.bytes, GIANT
    if size < GIANT:
        return ()
    while True:
        text = from_character(old.slice(max(0, size - window), size))
        low = size - len(text)
        cut = encoder.last_cut(text, encoder.literal_reach if low else 1, len(text) - 1)
        if cut >= 0 or low == 0:
            break
        window *= 8
    begin = low + max(cut, 0)
    text = text[max(cut, 0) :]
    if len(text) < GIANT:
        return ()
    kit = kit_of(encoder)
    if kit is None or not kit.plain(text):
        return ()
    start, end, token = kit.segments(text)[-1].tolist()
    stop = character(text, len(text) - kit.margin - _SPAN * encoder.longest_token)
    if token >= 0 or end - start < GIANT or stop <= start:
        return ()
    place, inside, state = kit.settle(text, start, stop, 0, inside=False)
    view = old.view(begin, size)
    before = int(kernels.boundary_index(view.lengths, begin + place - view.byte))
    if before < 0:
        return ()
    mark = Mark(
        begin + place, view.token + before, begin + stop + kit.margin, inside, state,
        kit.machine.check,
    )  # fmt: skip
    return (mark,)


def near(marks: Marks, start: int, size: int) -> Marks:
    """The marks that stay after an edit from byte ``start`` on that did without them, in a text of
    now ``size`` bytes; those far from its end are of no use."""
    low = size - 4 * GIANT
    for mark in marks:
        if mark.since > start or mark.size < low:
            return tuple(m for m in marks if m.since <= start and m.size >= low)
    return marks


def edit(
    old: Stored, encoder: FastEncoder, marks: Marks, start: int, end: int, text: bytes
) -> tuple[Splice, Marks | None]:
    """The splice of one edit, from a mark where the first windows find no cuts; and the marks of
    the new text, None where its end is to be looked at."""
    if not marks:
        found = splice(old, encoder, start, end, text)
        return found, None if found.route is Route.CPU or len(text) >= GIANT else ()
    grown: list[tuple[Splice, Marks | None]] = []

    def instead() -> Splice | None:
        found = grow(old, encoder, marks, start, text)
        if found is None:
            return None
        grown.append(found)
        return found[0]

    at_end = end == old.bytes
    found = splice(old, encoder, start, end, text, instead if at_end else None)
    if grown:
        return grown[0]
    if found.route is Route.CPU or len(text) >= GIANT:
        return found, None
    return found, near(marks, start, old.bytes - (end - start) + len(text))


def grow(
    old: Stored, encoder: FastEncoder, marks: Marks, start: int, text: bytes
) -> tuple[Splice, Marks | None] | None:
    """The splice after all from byte ``start`` on was replaced by ``text``, from a mark; and the
    marks of the new text (None: its end is to be looked at). None: no mark serves."""
    kit = kit_of(encoder) if marks else None
    if kit is None:
        return None
    valid = tuple(m for m in marks if m.since <= start and m.check == kit.machine.check)
    far = [m for m in valid if start - m.size >= 2 * encoder.longest_token]
    for tries, mark in enumerate(reversed(far)):
        found = _from_mark(old, encoder, kit, mark, start, text, tries)
        if found is not None:
            done, new = found
            if new is None:
                return done, None
            older = (m for m in valid if m.size < new.size)
            return done, thin((*older, new), start + len(text))
    return None


def _from_mark(
    old: Stored, encoder: FastEncoder, kit: Kit, mark: Mark, start: int, text: bytes, tries: int
) -> tuple[Splice, Mark | None] | None:
    before = old.view(mark.size, start)
    at = mark.size - before.byte
    anchor = mark.tokens - before.token
    if not 0 <= anchor <= len(before.ids) or int(before.lengths[:anchor].sum()) != at:
        return None
    window = before.text[at : start - before.byte] + text
    fresh, edge = _encode(encoder, kit, mark, window)
    if fresh is None:
        return None
    count, size = kernels.run_right(
        before.ids, before.lengths, anchor, fresh.ids, fresh.lengths, 0, start - mark.size
    )
    chars = kernels.characters(window[:size])
    if count < 2 or chars <= encoder.longest_token:
        return None
    new: Mark | None = None
    stop = character(window, len(window) - kit.margin - _SPAN * encoder.longest_token)
    if edge == len(window):
        new = mark
        if stop > 0:
            place, inside, state = kit.settle(window, 0, stop, mark.state, mark.inside)
            settled = int(kernels.boundary_index(fresh.lengths, place))
            if settled < 0:
                return None
            since = max(mark.since, mark.size + stop + kit.margin)
            new = Mark(mark.size + place, mark.tokens + settled, since, inside, state, mark.check)
    found = Splice(
        keep=mark.tokens + count,
        ids=fresh.ids[count:],
        lengths=fresh.lengths[count:],
        tail=0,
        begin=mark.size + size,
        stop=old.bytes,
        text=window[size:],
        route=Route.SPLICE,
        evidence=Evidence(
            window_chars=kernels.characters(window[: len(window) - len(text)]),
            widenings=tries,
            boundary_byte=mark.size,
            run_tokens=count,
            run_chars=chars,
            chars_encoded=kernels.characters(window),
            engine=encoder.engine,
        ),
    )
    return found, new


def _encode(encoder: FastEncoder, kit: Kit, mark: Mark, window: bytes) -> tuple[Tokens | None, int]:
    """The tokens of the text from a mark on, and where the run without cuts ends in it. None where
    normalization may have a say."""
    _, end, token = kit.segments(window)[0].tolist()
    if token >= 0 or (kit.wide and not kit.plain(window)):
        return None, 0
    cut = encoder.first_cut(window, 1, end - 1) if end > 1 else -1
    edge = end if cut < 0 else cut
    behind = edge + 1
    while behind < len(window) and window[behind] & 0xC0 == 0x80:
        behind += 1
    if not kit.plain(window[:behind]):
        return None, 0
    data = np.frombuffer(window, dtype=np.uint8)
    _, found = kit.machine.run(data, 0, end, mark.state, ends=True, beyond=None if cut < 0 else cut)
    starts = found.tolist()
    if cut >= 0:
        if cut not in starts:
            return None, 0
        starts = starts[: starts.index(cut)]
    part = mark.inside and 0 not in starts
    if 0 not in starts:
        starts.insert(0, 0)
    fresh = kit.tokens(window, starts, edge, part)
    if edge < len(window):
        rest = encoder.encode(window[edge:])
        fresh = Tokens(
            np.concatenate((fresh.ids, rest.ids)), np.concatenate((fresh.lengths, rest.lengths))
        )
    return fresh, edge


def character(text: bytes, at: int) -> int:
    """The start of the character that byte ``at`` belongs to; 0 if that is left of the text."""
    at = max(at, 0)
    while at > 0 and text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def from_character(text: bytes) -> bytes:
    """``text`` without a character that is cut off at its start."""
    first = 0
    while first < len(text) and text[first] & 0xC0 == 0x80:
        first += 1
    return text[first:]
