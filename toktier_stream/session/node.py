"""Nodes of the page index, and the numbers that records of a session have.

A node's record lists its children with what they hold (tokens, bytes, characters, digest) and the
checksum of their records: a read is verified against the very version that is meant.

Record (little-endian): ``kind u8 = 2 | level u8 | children u16``, then per child
``number u32 | crc u32 | tokens u32 | bytes u32 | characters u32 | digest u64``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import kernels
from toktier_stream.session.page import Page, Reader

__all__ = [
    "Lines",
    "Node",
    "Numbers",
    "Spine",
    "closed",
    "fold",
    "from_spine",
    "line",
    "node_record",
]

NODE_KIND: Final = 2
_HEAD: Final = struct.Struct("<BBH")
_ROW: Final = struct.Struct("<IIIIIQ")
_COLUMNS: Final = np.dtype(
    [(name, "<u4") for name in ("number", "crc", "tokens", "bytes", "chars")] + [("digest", "<u8")]
)
LINE: Final = _ROW.size
"""Bytes of what a record says of one child."""

Lines = bytes
"""What is said of some children, one behind the other."""


class Spine(NamedTuple):
    """One step of the path from the root to the last page, as the header keeps it.

    ``crc`` 0: the node has no record because it has no child that the header does not tell of.
    """

    number: int
    crc: int
    tokens: int
    bytes: int
    chars: int


class Numbers:
    """Record numbers of one session: which are free, which were stored and need a tombstone.

    Numbers that were never used begin at ``floor`` at least: so what several sessions write at one
    time has numbers near each other (store.py).
    """

    __slots__ = ("_floor", "_free", "next", "stored_below")

    def __init__(self, next_number: int, free: Sequence[int] = (), floor: int = 0) -> None:
        self.next = next_number
        self.stored_below = next_number
        self._free = sorted(free, reverse=True) if free else []
        self._floor = floor

    @property
    def first(self) -> int:
        """The first number that was never used and may be."""
        return max(self.next, self._floor)

    def take(self) -> int:
        """A free number, the smallest freed one first."""
        if self._free:
            return self._free.pop()
        self.next = self.first + 1
        return self.next - 1

    def free(self, number: int) -> None:
        """Give a number back."""
        self._free.append(number)

    def tombstones(self) -> list[int]:
        """Freed numbers under which the store still has a record."""
        return sorted(n for n in self._free if n < self.stored_below)

    @property
    def clean(self) -> bool:
        """Whether nothing was freed."""
        return not self._free

    def copy(self) -> Numbers:
        """The same state, to change independently."""
        other = Numbers(self.next, floor=self._floor)
        other.stored_below = self.stored_below
        other._free = self._free.copy()
        return other

    def fork(self, floor: int = 0) -> Numbers:
        """What is left of this state once everything so far is in the store."""
        moved = max(floor, self._floor) > self.next
        if self.stored_below == self.next and not self._free and not moved:
            return self  # copied before it is changed
        return Numbers(self.next, floor=floor)


class Node:
    """An inner node. Its children are read on demand; apart from that it never changes.

    ``crc`` and ``stored`` are of its record; ``open`` says whether that record leaves out the last
    child, which is then in memory. So may be the lines for the others, and all children. An open
    node's record may lack the lines of the last children before that one too: the header has these
    (``more``). ``spare`` counts them; -1: whatever record there is, it does not fit any more.
    """

    __slots__ = (
        "_digest", "_kids", "_last", "_lines", "bytes", "chars", "crc", "level", "more", "number",
        "open", "row", "spare", "stored", "tokens",
    )  # fmt: skip

    def __init__(self, level: int, number: int, kids: list[Page | Node] | None) -> None:
        self.level = level
        self.number = number
        self.crc = 0
        self.row = b""
        self.stored = False
        self.open = False
        self.more = b""
        self.spare = -1
        self._digest: int | None = None
        self._last: Page | Node | None = None
        self._lines: bytes | None = None
        self._kids = kids
        self.tokens = self.bytes = self.chars = 0
        for kid in kids or ():
            self.tokens += kid.tokens
            self.bytes += kid.bytes
            self.chars += kid.chars

    def kids(self, reader: Reader) -> list[Page | Node]:
        """The children, left to right, not to be changed; they stay in memory.

        Raises ``STORE_CORRUPT``.
        """
        if self._kids is None:
            self._kids = self.peek(reader)
        return self._kids

    def peek(self, reader: Reader) -> list[Page | Node]:
        """The children, without keeping them: for passes over a whole session."""
        if self._kids is not None:
            return self._kids
        kids = _decode(self.lines(reader), self.level)
        if self._last is not None:
            kids.append(self._last)
        if sum(k.bytes for k in kids) != self.bytes or sum(k.tokens for k in kids) != self.tokens:
            raise ToktierError(Code.STORE_CORRUPT, f"index record {self.number} has other sums")
        return kids

    def lines(self, reader: Reader) -> bytes:
        """What the node's record, and the header beside it, say of the children. Raises
        ``STORE_CORRUPT``."""
        if self._lines is not None:
            return self._lines
        lines = b""
        if self.crc:
            lines = _checked(reader.read(self.number, self.crc), self.level, self.number)
        lines += self.more
        if self.open:
            self._lines = lines
        return lines

    def digest(self, reader: Reader) -> int:
        """The digest of the ids under this node."""
        if self._digest is None:
            self._digest = fold(self.kids(reader), reader)
        return self._digest

    @property
    def last(self) -> Page | Node | None:
        """The last child, if it is in memory."""
        if self._kids:
            return self._kids[-1]
        return self._last

    @property
    def loaded(self) -> Sequence[Page | Node]:
        """The children if they are in memory, else nothing."""
        return self._kids or ()

    @property
    def listed(self) -> bytes | None:
        """The lines in an open node's record, if they were read."""
        if self._lines is None:
            return None if self.crc else b""
        return self._lines[: len(self._lines) - len(self.more)]

    def knows(self, listed: bytes | None) -> None:
        """The lines in this open node's record were read before."""
        self._lines = None if listed is None else listed + self.more

    @property
    def held(self) -> int:
        """About how many bytes of memory the node takes, its children's contents not counted."""
        size = 200
        if self._lines is not None:
            size += 40 + len(self._lines)
        if self._kids is not None:
            size += (260 if self.level == 0 else 200) * len(self._kids)
        return size

    def unload(self) -> None:
        """Forget the children of a stored node, an open one's last child apart; they can be read
        again."""
        if self.stored:
            self._kids = None

    def with_last(self, last: Sequence[Page | Node], reader: Reader) -> Node:
        """This node with others in the place of the last child; if it is one, an open node's
        record stays the same."""
        node = Node(self.level, self.number, None)
        if self.open and self.stored and len(last) == 1 and self._last is not None:
            before = self._last
            node.crc, node.stored, node.open = self.crc, True, True
            node.more, node.spare = self.more, self.spare
            node._lines, node._last = self._lines, last[0]
        else:
            kids = self.kids(reader).copy()
            before = kids.pop()
            kids.extend(last)
            node._kids = kids
            if self.open and len(last) == 1:
                node.crc, node.stored, node.open = self.crc, self.stored, True
                node.more, node.spare = self.more, self.spare
                node._lines, node._last = self._lines, last[0]
            elif self.open and self.spare >= 0 and last:
                # What the record lists is listed as before.
                node.crc, node.open, node.spare = self.crc, True, self.spare + len(last) - 1
        node.tokens = self.tokens - before.tokens
        node.bytes = self.bytes - before.bytes
        node.chars = self.chars - before.chars
        for kid in last:
            node.tokens += kid.tokens
            node.bytes += kid.bytes
            node.chars += kid.chars
        return node

    def followed(self, last: Page | Node, tokens: int, size: int, chars: int) -> Node:
        """This open stored node with another last child, which holds so much more."""
        node = object.__new__(Node)
        node.level = self.level
        node.number = self.number
        node.crc = self.crc
        node.row = b""
        node.open = node.stored = True
        node.more, node.spare = self.more, self.spare
        node._digest = node._kids = None
        node._lines = self._lines
        node._last = last
        node.tokens = self.tokens + tokens
        node.bytes = self.bytes + size
        node.chars = self.chars + chars
        return node

    @classmethod
    def begun(
        cls, level: int, number: int, lines: Lines, last: Page | Node, keep: int
    ) -> tuple[Node, bytes | None]:
        """A new open node that lists these children before its last one; and its record, as
        :meth:`listing` says."""
        node = cls(level, number, [last])
        node._kids, node._last = None, last
        node.open = node.stored = True
        node.spare = 0
        table = np.frombuffer(lines, dtype=_COLUMNS)
        node.tokens += int(table["tokens"].sum())
        node.bytes += int(table["bytes"].sum())
        node.chars += int(table["chars"].sum())
        return node, node.listing(lines, len(table), keep)

    def listing(self, lines: bytes, count: int, keep: int) -> bytes | None:
        """Have this new open node list these children before its last one, ``count`` of them more
        than it did; returns its record, None if that stays as it is: the header takes up to
        ``keep`` of the lines."""
        self._lines = lines
        spare = self.spare + count
        if spare <= keep:
            self.spare, self.more = spare, lines[len(lines) - spare * LINE :]
            return None
        self.spare, self.more = 0, b""
        data = node_record(self.level, lines)
        self.crc = zlib.crc32(data)
        return data

    def rows(self, reader: Reader, *, is_open: bool, keep: int) -> tuple[bool, bytes | None]:
        """The node's record in one of its forms, and whether it is to be written, or removed if it
        is None; sets ``crc`` and ``open``. An open node leaves up to ``keep`` lines to the header.
        """
        kids = self.kids(reader)
        listed = kids[:-1] if is_open else kids
        lines = b"".join([k.row or _row(k, reader) for k in listed])
        self.row = b""
        self.open = is_open
        self._last = kids[-1] if is_open else None
        self._lines = lines if is_open else None
        fits = is_open and self.spare >= 0
        spare = self.spare if fits else len(listed)
        if is_open and spare <= keep:
            self.spare, self.more = spare, lines[len(lines) - spare * LINE :]
            if not fits:
                self.crc = 0
            return not fits, None
        self.spare, self.more = 0, b""
        data = node_record(self.level, lines)
        self.crc = zlib.crc32(data)
        return True, data

    def replaced_last(self, last: Page | Node) -> None:
        """The same last child, by another object: it has a record now."""
        self._last = last
        if self._kids is not None:
            self._kids[-1] = last


def line(number: int, crc: int, tokens: int, size: int, chars: int, digest: int) -> bytes:
    """What a node's record says of a child."""
    return _ROW.pack(number, crc, tokens, size, chars, digest)


def closed(level: int, number: int, lines: Lines) -> tuple[Lines, bytes]:
    """A node that lists all its children: its own line, and its record."""
    data = node_record(level, lines)
    table = np.frombuffer(lines, dtype=_COLUMNS)
    tokens, size, chars = (int(table[name].sum()) for name in ("tokens", "bytes", "chars"))
    digest = kernels.fold(table["tokens"].astype(np.int64), table["digest"].astype(np.uint64))
    return line(number, zlib.crc32(data), tokens, size, chars, digest), data


def node_record(level: int, lines: bytes) -> bytes:
    """A node's record, from what it says of the children."""
    return _HEAD.pack(NODE_KIND, level, len(lines) // _ROW.size) + lines


def _checked(data: bytes, level: int, number: int) -> bytes:
    """The lines of a record."""
    if len(data) < _HEAD.size:
        raise ToktierError(Code.STORE_CORRUPT, f"index record {number} is cut short")
    kind, stored_level, count = _HEAD.unpack_from(data)
    if kind != NODE_KIND or stored_level != level or len(data) != _HEAD.size + count * _ROW.size:
        raise ToktierError(Code.STORE_CORRUPT, f"index record {number} has another shape")
    return data[_HEAD.size :]


def _row(kid: Page | Node, reader: Reader) -> bytes:
    kid.row = line(kid.number, kid.crc, kid.tokens, kid.bytes, kid.chars, kid.digest(reader))
    return kid.row


def _decode(lines: bytes, level: int) -> list[Page | Node]:
    kids: list[Page | Node] = []
    for child, crc, tokens, size, chars, digest in _ROW.iter_unpack(lines):
        if level == 0:
            kids.append(Page(child, tokens, size, chars, crc=crc, digest=digest))
        else:
            kids.append(_stub(level - 1, child, crc, tokens, size, chars, digest))
    return kids


def _stub(
    level: int, number: int, crc: int, tokens: int, size: int, chars: int, digest: int | None
) -> Node:
    node = Node(level, number, None)
    node.crc, node.stored = crc, True
    node.tokens, node.bytes, node.chars, node._digest = tokens, size, chars, digest
    return node


def from_spine(
    spine: Sequence[Spine], level: int, tail: bytes = b"", lines: Lines = b""
) -> Page | Node:
    """The subtree that ends in the last page, from the header's path; nothing is read yet.
    ``tail``: the last page's record where the header has it; ``lines``: what the header says of
    pages before that."""
    head = spine[0]
    if level < 0:
        record = tail or None
        return Page(head.number, head.tokens, head.bytes, head.chars, crc=head.crc, record=record)
    node = _stub(level, head.number, head.crc, head.tokens, head.bytes, head.chars, None)
    node.open = True
    node.spare = 0
    if level == 0:
        node.more, node.spare = lines, len(lines) // LINE
    node._last = from_spine(spine[1:], level - 1, tail, lines)
    return node


def fold(parts: Sequence[Page | Node], reader: Reader) -> int:
    """The digest of consecutive subtrees."""
    tokens = np.array([p.tokens for p in parts], dtype=np.int64)
    digests = np.array([p.digest(reader) for p in parts], dtype=np.uint64)
    return kernels.fold(tokens, digests)
