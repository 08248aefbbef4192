"""Storing the usual append in one compiled pass: pages are cut at the end of the text, their lines
entered in the header, the last page and the sums on the way to it put in place.

A stored session's header holds all of that way (:class:`Trail`), so the next header is made from
the last one, and no tree is needed. Where an index node is full, or anything else is unusual,
nothing is done here: paged.py and tree.py give the same records.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import end as ends
from toktier_stream.session import page, tree
from toktier_stream.session.header import (
    BYTES_AT,
    CRC,
    LINES_SIZE_AT,
    NEXT_NUMBER_AT,
    STEP,
    STEPS_AT,
    STEPS_COUNT_AT,
    TAIL_SIZE_AT,
    TOKENS_AT,
    VERSION,
)
from toktier_stream.session.kernels import count_characters, extend_kernel, kernel
from toktier_stream.session.node import LINE, Node, Spine, from_spine, node_record
from toktier_stream.session.packing import cuts_of, place_of, write_page
from toktier_stream.session.page import Utf8
from toktier_stream.session.splice import View

_SCRATCH: Final = 1 << 16
_PAGES: Final = 8
"""Pages that may be closed at once."""
_SPILLED: Final = _SCRATCH - _PAGES * LINE
_CRC_BYTES: Final = CRC.size
_STEP_BYTES: Final = STEP.size
_CRC_AT: Final = 4
"""Where a line has its checksum."""
_WIDEST: Final = 4
"""Bytes of a character at most."""
_SIZES: Final = Struct("<IH")
_NUMBER: Final = Struct("<I")


class Trail(NamedTuple):
    """The way to the last page of a stored session, as its header's record has it, with that page.

    ``lines`` and ``tail``: where in the record the lines and the last page begin; ``byte``,
    ``token``: what stands left of that page; ``listed``: lines of the node above it, in its record
    and in the header (-1: not known); ``read``: what each node's record lists, where that is known;
    ``known``: about how many bytes of memory that takes.
    """

    record: bytes
    lines: int
    tail: int
    byte: int
    token: int
    number: int
    listed: int
    read: tuple[tree.Lines | None, ...]
    known: int

    @classmethod
    def of(cls, record: bytes, path: Sequence[Node], last: page.Page) -> Trail:
        """From the header's record and the tree's way to the last page, which only the header
        has."""
        tail_size, lines_size = _SIZES.unpack_from(record, TAIL_SIZE_AT)
        tail = len(record) - _CRC_BYTES - tail_size
        read = tuple([node.listed for node in path])
        listed = -1 if read[-1] is None else (len(read[-1]) + lines_size) // LINE
        root = path[0]
        return cls(
            record, tail - lines_size, tail, root.bytes - last.bytes, root.tokens - last.tokens,
            last.number, listed, read, _held(read),
        )  # fmt: skip

    @property
    def steps(self) -> bytes:
        """The spine as it is in the record."""
        return self.record[STEPS_AT : STEPS_AT + _STEP_BYTES * self.record[STEPS_COUNT_AT]]

    @property
    def more(self) -> tree.Lines:
        """The lines in the header."""
        return self.record[self.lines : self.tail]

    def root(self) -> Node:
        """The tree; nothing is read."""
        spine = [Spine(*step) for step in STEP.iter_unpack(self.steps)]
        tail = self.record[self.tail : -_CRC_BYTES]
        at = from_spine(spine, len(spine) - 2, tail, self.more)
        if not isinstance(at, Node):
            raise ToktierError(Code.STORE_CORRUPT, "a session header has a broken path")
        node = at
        for listed in self.read:
            node.knows(listed)
            if isinstance(node.last, Node):
                node = node.last
        return at

    @property
    def held(self) -> int:
        """About how many bytes of memory it takes."""
        return 400 + len(self.record) + self.known


def _held(read: Sequence[tree.Lines | None]) -> int:
    return sum([40 + len(lines) for lines in read if lines])


class Scratch:
    """Room to write records in: for one thread at a time."""

    __slots__ = ("ends", "out", "stops", "view")

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_SCRATCH))
        self.out = np.frombuffer(self.view, dtype=np.uint8)
        # Where closed pages' records end; small numbers are read faster out of the second.
        self.stops = np.empty(_PAGES, dtype=np.int64)
        self.ends = memoryview(self.stops.data).cast("B").cast("q")


def fits(record: bytes) -> bool:
    """Whether a header's record is one that another is made from."""
    return record[0] == VERSION


def seal(
    trail: Trail, front: bytes, end: View, byte: int, number: int, scratch: Scratch,
    put: Callable[[int, Utf8 | None], None],
) -> tuple[Trail, View] | None:  # fmt: skip
    """Bring the pages of a stored session to an end of its text, of which they have all up to
    ``byte``. ``front`` is that of the header to be (header.py), with the way and the lines that it
    has now; pages are numbered from ``number`` on where one is closed. Closed pages' records are
    handed to ``put``. Returns the way then, and the part of the end to go on with; None, and
    nothing was done, where it is not as simple as that.
    """
    start, first = trail.byte, trail.token
    if not end.byte <= start <= byte or first < end.token or start >= end.byte + len(end.text):
        return None
    size = len(front)
    view = scratch.view
    if size > _SCRATCH // 4:
        return None
    view[:size] = front
    listed, last, read, known = trail.listed, trail.number, trail.read, trail.known
    lines = trail.tail - trail.lines
    most = min(tree.FAN - 1 - listed, _PAGES) if listed >= 0 else 0
    closed, spills, tail, stop, first, start, token, left = _seal(
        end.ids, end.lengths, np.frombuffer(end.text, np.uint8), first - end.token,
        start - end.byte, page.ROOM, ends.LEAST, most, tree.KEPT, number, size, scratch.out,
        scratch.stops,
    )  # fmt: skip
    if closed < 0:
        return None
    lines = size - lines
    if closed:
        at = _SPILLED if spills else tail - closed * LINE
        low = stop + _CRC_BYTES
        for high in scratch.ends[:closed]:
            record = bytes(view[low:high])
            put(number, record)
            CRC.pack_into(view, at + _CRC_AT, zlib.crc32(record))
            at += LINE
            low = high
            number += 1
        listed += closed
        last = number
        if spills:
            whole = b"".join((read[-1] or b"", trail.more, view[_SPILLED:at]))
            step = STEPS_AT + _STEP_BYTES * (len(read) - 1)
            record = node_record(0, whole)
            put(_NUMBER.unpack_from(view, step)[0], record)
            CRC.pack_into(view, step + _CRC_AT, zlib.crc32(record))
            read = (*read[:-1], whole)
            known = _held(read)
    CRC.pack_into(view, stop, zlib.crc32(view[:stop]))
    after = Trail(
        bytes(view[: stop + _CRC_BYTES]), lines, tail, end.byte + start, end.token + first, last,
        listed, read, known,
    )  # fmt: skip
    return after, ends.shortened(end, token, left)


@kernel
def _seal(
    ids: Any, lengths: Any, text: Any, token: Any, byte: Any, room: Any, least: Any, most: Any,
    keep: Any, number: Any, size: Any, out: Any, stops: Any,
) -> Any:  # fmt: skip
    """``out`` begins with the ``size`` bytes of the header's front. Lines for the pages that are
    closed, ``most`` of them, and the last page are written behind it, then the others' records:
    ``stops`` says where they end. Where the header would have more than ``keep`` lines, the new
    ones are written to ``_SPILLED``, and it has none. Checksums are left out.

    Returns how many pages were closed (-1: not the usual case), whether lines were spilled, where
    in ``out`` the last page begins and ends, the tokens and bytes left of it, and from which token
    and byte on there are ``least``.
    """
    none = (-1, False, 0, 0, 0, 0, 0, 0)
    cuts = cuts_of(ids[token:], lengths[token:], text.shape[0] - byte, room)
    closed = cuts.shape[0] - 1
    if closed < 0 or closed > most:
        return none
    steps = np.int64(out[STEPS_COUNT_AT])
    tip = STEPS_AT + _STEP_BYTES * (steps - 1)
    grown = -_number(out, tip + 8, 4), -_number(out, tip + 12, 4), -_number(out, tip + 16, 4)

    # The last page first: it belongs to the header, which the others are written behind.
    first, start = token, byte
    if closed > 0:
        first, start = token + cuts[closed - 1, 0], byte + cuts[closed - 1, 1]
    had = _number(out, LINES_SIZE_AT, 2) // LINE
    lines, tail = size, size + LINE * closed
    spills = closed > 0 and had + closed > keep
    if spills:
        lines, tail = _SPILLED, size - LINE * had
        had = -closed
    stop = write_page(ids[first:], lengths[first:], text[start:], room, out, tail)
    if stop < 0:
        return none
    chars = count_characters(text[start:])
    tokens, length = ids.shape[0] - first, text.shape[0] - start
    grown = grown[0] + tokens, grown[1] + length, grown[2] + chars
    _store(out, TAIL_SIZE_AT, 4, stop - tail)
    _store(out, LINES_SIZE_AT, 2, LINE * (had + closed))
    if closed > 0:
        _store(out, NEXT_NUMBER_AT, 4, number + closed + 1)
        _store(out, tip, 4, number + closed)
    _store(out, tip + 4, 4, 0)
    _store(out, tip + 8, 4, tokens)
    _store(out, tip + 12, 4, length)
    _store(out, tip + 16, 4, chars)

    at = stop + _CRC_BYTES
    low, low_byte = token, byte
    for k in range(closed):
        high, high_byte = token + cuts[k, 0], byte + cuts[k, 1]
        part = text[low_byte:high_byte]
        after = write_page(ids[low:high], lengths[low:high], part, room, out, at)
        if after < 0 or after > _SPILLED:
            return none
        chars = count_characters(part)
        line = lines + LINE * k
        _store(out, line, 4, number + k)
        _store(out, line + 8, 4, high - low)
        _store(out, line + 12, 4, high_byte - low_byte)
        _store(out, line + 16, 4, chars)
        _store(out, line + 20, 8, extend_kernel(np.uint64(0), ids[low:high]))
        grown = grown[0] + high - low, grown[1] + high_byte - low_byte, grown[2] + chars
        stops[k] = at = after
        low, low_byte = high, high_byte
    for i in range(steps - 1):
        step = STEPS_AT + _STEP_BYTES * i
        for k in range(3):
            _store(out, step + 8 + 4 * k, 4, _number(out, step + 8 + 4 * k, 4) + grown[k])
    whole = _number(out, STEPS_AT + 8, 4), _number(out, STEPS_AT + 12, 4)
    if whole != (_number(out, TOKENS_AT, 8), _number(out, BYTES_AT, 8)):
        return none
    if count_characters(text[max(0, text.shape[0] - least) :]) < min(least, text.shape[0]):
        least *= _WIDEST
    kept, left = place_of(lengths, first, start, length, least)
    return closed, spills, tail, stop, first, start, kept, left


@kernel
def _number(data: Any, at: Any, size: Any) -> Any:
    """A little-endian number."""
    value: Any = 0
    for i in range(size):
        value |= np.int64(data[at + i]) << 8 * i
    return value


@kernel
def _store(data: Any, at: Any, size: Any, value: Any) -> Any:
    """The inverse of :func:`_number`."""
    rest = np.uint64(value)
    for i in range(size):
        data[at + i] = rest & np.uint64(0xFF)
        rest >>= np.uint64(8)
