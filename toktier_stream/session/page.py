"""A page: a bounded run of a session's tokens with their byte lengths and their text, as a value.

Record (little-endian)::

    kind u8 = 3 | bits u8 | tokens u16 | escapes u16 | text bytes u32
    tokens: id in ``bits`` bits, then length in 4, 15 = escaped; lowest bits first, without gaps
    escaped lengths u32 each | text (UTF-8)

A page is cut where a token ends, so its text may end inside a character when a character makes
several tokens. One token can cover more text than a page may hold (a normalizer can drop a
megabyte): then pages without tokens carry the first part of its text, and ``lengths`` counts only
the bytes in the token's own page. Such a token matches no fresh one, so it costs work, not ids.
Apart from these, ``lengths`` sum to the text's length in every page.

There is no checksum inside: whoever refers to a page (index or header) holds the CRC-32 of the
record it means. So a page is told from a damaged one, and from an older or newer one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np

from toktier_stream.errors import Code, ToktierError
from toktier_stream.session import kernels, packing
from toktier_stream.tokenizer.face import Ids

Utf8 = bytes
"""Text; by another name, since sessions have an attribute ``bytes``."""

PAGE_BYTES: Final = 4080
"""Encoded size of a full page: what one LMDB overflow page (4096 bytes) holds without waste."""

PAGE_KIND: Final = 3
_HEAD: Final = struct.Struct("<BBHHI")
ROOM: Final = PAGE_BYTES - _HEAD.size
_NONE: Final = np.zeros(0, dtype=np.uint32)


class Reader(Protocol):
    """Reads the records of one session."""

    def read(self, number: int, crc: int) -> bytes:
        """The record with this number and checksum. Raises ``STORE_CORRUPT``."""
        ...


class Content(NamedTuple):
    """What a page holds: ids and lengths (uint32[n]) and the text under them (bytes)."""

    ids: Ids
    lengths: Ids
    text: bytes


Written = tuple[int, int, int, int, bytes]
"""A page as it was written: its tokens, bytes, characters, digest (0: not known), and record."""


class Page:
    """A page of a session. Its content is read on demand; apart from that it never changes.

    ``crc`` is of its record and 0 until there is one; ``stored``: the record is in the store. A
    page that is not stored has its content or its record in memory; so has a text's last page,
    whose record is a part of the header.
    """

    __slots__ = (
        "_content", "_digest", "_record", "bytes", "chars", "crc", "number", "row", "stored",
        "tokens",
    )  # fmt: skip

    level = -1
    open = False

    def __init__(
        self,
        number: int,
        tokens: int,
        size: int,
        chars: int,
        *,
        crc: int = 0,
        digest: int | None = None,
        content: Content | None = None,
        record: bytes | None = None,
    ) -> None:
        self.number = number
        self.tokens = tokens
        self.bytes = size
        self.chars = chars
        self.crc = crc
        self.row = b""  # this page's line in the index, once it is known
        self.stored = content is None and record is None
        self._digest = digest
        self._content = content
        self._record = record

    @classmethod
    def of(cls, number: int, ids: Ids, lengths: Ids, text: bytes) -> Page:
        """A new page."""
        content = Content(ids, lengths, text)
        return cls(number, len(ids), len(text), kernels.characters(text), content=content)

    @classmethod
    def written(cls, number: int, one: Written) -> Page:
        """A new page that has its record."""
        page = cls.__new__(cls)
        page.number = number
        page.tokens, page.bytes, page.chars, page._digest, page._record = one
        page._digest = page._digest or None
        page._content = None
        page.crc = 0
        page.row = b""
        page.stored = False
        return page

    def content(self, reader: Reader) -> Content:
        """What the page holds; it stays in memory. Raises ``STORE_CORRUPT``."""
        if self._content is None:
            self._content = self.peek(reader)
        return self._content

    def peek(self, reader: Reader) -> Content:
        """What the page holds, without keeping it: for passes over a whole session."""
        if self._content is not None:
            return self._content
        content = decode(self._record or reader.read(self.number, self.crc))
        if len(content.ids) != self.tokens or len(content.text) != self.bytes:
            raise ToktierError(Code.STORE_CORRUPT, f"page {self.number} has another size")
        return content

    def digest(self, reader: Reader) -> int:
        """The digest of the page's own ids."""
        if self._digest is None:
            self._digest = kernels.extend(0, self.content(reader).ids)
        return self._digest

    @property
    def loaded(self) -> bool:
        """Whether the content can be had without a read."""
        return self._content is not None or self._record is not None

    def unload(self) -> None:
        """Forget what can be had again from the record or the store."""
        if self.stored:
            self._content = self._record = None
        elif self._record is not None:
            self._content = None

    @property
    def held(self) -> int:
        """About how many bytes of memory the content and the record take."""
        size = 150
        if self._record is not None:
            size += 40 + len(self._record)
        if self._content is not None:
            size += 300 + 8 * self.tokens + self.bytes
        return size

    def record(self) -> bytes:
        """The page's record; sets ``crc``. Only for a page that is in memory."""
        if self._record is None:
            if self._content is None:
                raise ValueError("the page's content is not in memory")
            self._record = encode(self._content)
        if not self.crc:
            self.crc = zlib.crc32(self._record)
        return self._record


def write_end(
    ids: Ids, lengths: Ids, text: bytes, token: int = 0, byte: int = 0, least: int = 0
) -> tuple[list[Written], int, int] | None:
    """The end of a text, from that token and byte on, as records of pages; and from which token and
    byte on there are ``least`` bytes (or all) and the last page.

    None where some token covers more text than goes into a page by itself, or the lengths do not
    sum to the text's length (then :func:`cut` says so)."""
    n, size = len(ids) - token, len(text) - byte
    rough = 2 * (5 * n + size) // ROOM + 4
    out = np.empty(9 * n + size + 16 * rough, dtype=np.uint8)
    table = np.empty((rough, 6), dtype=np.uint64)
    count = packing.paginate(
        ids, lengths, np.frombuffer(text, np.uint8), token, byte, ROOM, least, out, table
    )
    if count < 0:
        return None
    rows = table[: count + 1].tolist()
    place = rows.pop()
    found = [
        (tokens, size, chars, digest, out[start:end].tobytes())
        for tokens, size, chars, digest, start, end in rows
    ]
    return found, place[0], place[1]


def cost(tokens: int, size: int) -> int:
    """About how many bytes a page of so many tokens and text bytes takes."""
    return _HEAD.size + 11 * tokens // 4 + size


def encode(content: Content) -> bytes:
    """The record of a page."""
    ids, lengths, text = content
    body = np.empty(9 * len(ids), dtype=np.uint8)
    size, bits, escapes = packing.pack(ids, lengths, body)
    head = _HEAD.pack(PAGE_KIND, bits, len(ids), escapes, len(text))
    return b"".join((head, body[:size].tobytes(), text))


def decode(data: bytes) -> Content:
    """The inverse of :func:`encode`. Raises ``STORE_CORRUPT``."""
    if len(data) < _HEAD.size:
        raise ToktierError(Code.STORE_CORRUPT, "a page record is cut short")
    kind, bits, n, escaped, size = _HEAD.unpack_from(data)
    text_at = _HEAD.size + (n * (bits + packing.LENGTH_BITS) + 7) // 8 + 4 * escaped
    if kind != PAGE_KIND or not 0 < bits <= 32 or len(data) != text_at + size:
        raise ToktierError(Code.STORE_CORRUPT, "a page record has another shape")
    raw = np.frombuffer(data, dtype=np.uint8)[_HEAD.size : text_at]
    ids = np.empty(n, dtype=np.uint32)
    lengths = np.empty(n, dtype=np.uint32)
    total = packing.unpack(raw, bits, escaped, ids, lengths)
    if total < 0 or (n and total != size):
        raise ToktierError(Code.STORE_CORRUPT, "a page record has lengths that do not fit its text")
    return Content(ids, lengths, data[text_at:])


def cut(ids: Ids, lengths: Ids, text: bytes, *, even: bool) -> Iterator[Content]:
    """Cut tokens and their text into contents of pages.

    ``even`` makes pages of about one size (for the middle of a session, where room is useful);
    otherwise they are full, and the last is small (for the end). Raises ``ValueError`` for lengths
    that do not sum to the text's length.
    """
    n = len(ids)
    if n == 0:
        yield from _bare(text)
        return
    total, longest, bits = packing.measure(ids, lengths)
    if total != len(text):
        raise ValueError(f"lengths sum to {total}, not to {len(text)}")
    per_token, room = bits + packing.LENGTH_BITS, 8 * ROOM
    size = n * per_token + 8 * total
    if even and size <= room and longest < packing.LONG:
        yield Content(ids, lengths, text)
        return
    if even:
        target = min(room, size // -(-size // room) + per_token)
        cuts = packing.page_cuts(lengths, per_token, target, room)
    else:
        cuts = packing.end_cuts(lengths, per_token, room)
    first = 0
    at = 0
    for last, end in cuts.tolist():
        page_lengths = lengths[first:last].copy()
        if last - first < 64 and end - at > ROOM // 2:
            # Maybe one token with more text than a page holds.
            escapes = int((page_lengths >= packing.LONG).sum())
            excess = end - at - (ROOM - ((last - first) * per_token + 7) // 8 - 4 * escapes)
            widest = int(page_lengths.argmax())
            if excess > 0 and page_lengths[widest] > excess and not page_lengths[:widest].any():
                yield from _bare(text[at : at + excess])
                page_lengths[widest] -= excess
                at += excess
        yield Content(ids[first:last].copy(), page_lengths, text[at:end])
        first, at = last, end


def _bare(text: bytes) -> Iterator[Content]:
    for at in range(0, len(text), ROOM):
        yield Content(_NONE, _NONE, text[at : at + ROOM])
