"""A page: a bounded run of a session's tokens with their byte lengths and their text, as a value.

Record (little-endian)::

    kind u8 = 1 | id width u8 | tokens u16 | escapes u16 | text bytes u32
    ids, ``width`` bytes each | lengths u8 each, 255 = escaped | escapes u32 each | text (UTF-8)

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
from toktier_stream.session import kernels
from toktier_stream.tokenizer.face import Ids

Utf8 = bytes
"""Text; by another name, since sessions have an attribute ``bytes``."""

PAGE_BYTES: Final = 4080
"""Encoded size of a full page: what one LMDB overflow page (4096 bytes) holds without waste."""

PAGE_KIND: Final = 1
_HEAD: Final = struct.Struct("<BBHHI")
_ROOM: Final = PAGE_BYTES - _HEAD.size
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


class Page:
    """A page of a session. Its content is read on demand; apart from that it never changes.

    ``crc`` is of its record and 0 until there is one; ``stored``: the record is in the store. A
    page that is not stored has its content or its record in memory.
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
        """Forget the content of a stored page; it can be read again."""
        if self.stored:
            self._content = self._record = None

    def record(self) -> bytes:
        """The page's record; sets ``crc``. Only for a page that is in memory."""
        if self._record is not None:
            return self._record
        if self._content is None:
            raise ValueError("the page's content is not in memory")
        data = encode(self._content)
        self.crc = zlib.crc32(data)
        return data


def full_pages(ids: Ids, lengths: Ids, text: bytes, numbers: Iterator[int]) -> list[Page] | None:
    """Pages for the end of a text, their records made at once; None where some token covers more
    text than goes into a page by itself, or the lengths do not sum to the text's length (then
    :func:`cut` says so)."""
    n = len(ids)
    rough = 2 * (5 * n + len(text)) // _ROOM + 2
    out = np.empty(9 * n + len(text) + 16 * rough, dtype=np.uint8)
    table = np.empty((rough, 6), dtype=np.uint64)
    count = kernels.paginate(ids, lengths, np.frombuffer(text, np.uint8), _ROOM, out, table)
    if count < 0:
        return None
    pages = []
    for tokens, size, chars, digest, start, end in table[:count].tolist():
        record = out[start:end].tobytes()
        crc = zlib.crc32(record)
        pages.append(
            Page(next(numbers), tokens, size, chars, crc=crc, digest=digest, record=record)
        )
    return pages


def cost(tokens: int, size: int) -> int:
    """About how many bytes a page of so many tokens and text bytes takes."""
    return _HEAD.size + 4 * tokens + size


def encode(content: Content) -> bytes:
    """The record of a page."""
    ids, lengths, text = content
    body = np.empty(9 * len(ids), dtype=np.uint8)
    size, width, escapes = kernels.pack(ids, lengths, body)
    head = _HEAD.pack(PAGE_KIND, width, len(ids), escapes, len(text))
    return b"".join((head, body[:size].tobytes(), text))


def decode(data: bytes) -> Content:
    """The inverse of :func:`encode`. Raises ``STORE_CORRUPT``."""
    if len(data) < _HEAD.size:
        raise ToktierError(Code.STORE_CORRUPT, "a page record is cut short")
    kind, width, n, escaped, size = _HEAD.unpack_from(data)
    lengths_at = _HEAD.size + n * width
    escapes_at = lengths_at + n
    text_at = escapes_at + 4 * escaped
    if kind != PAGE_KIND or width not in (3, 4) or len(data) != text_at + size:
        raise ToktierError(Code.STORE_CORRUPT, "a page record has another shape")
    raw = np.frombuffer(data, dtype=np.uint8)
    ids = np.empty(n, dtype=np.uint32)
    lengths = np.empty(n, dtype=np.uint32)
    kernels.unpack_ids(raw[_HEAD.size : lengths_at], width, ids)
    escapes = np.frombuffer(data, dtype="<u4", count=escaped, offset=escapes_at)
    total = kernels.unpack_lengths(raw[lengths_at:escapes_at], escapes, lengths)
    if n and total != size:
        raise ToktierError(Code.STORE_CORRUPT, "a page record has lengths that do not fit its text")
    return Content(ids, lengths, data[text_at:])


def cut(ids: Ids, lengths: Ids, text: bytes, *, even: bool) -> Iterator[Content]:
    """Cut tokens and their text into contents of pages.

    ``even`` makes pages of about one size (for the middle of a session, where room is useful);
    otherwise all but the last are full (for the end). Raises ``ValueError`` for lengths that do not
    sum to the text's length.
    """
    n = len(ids)
    if n == 0:
        yield from _bare(text)
        return
    total, longest, largest = kernels.measure(ids, lengths)
    if total != len(text):
        raise ValueError(f"lengths sum to {total}, not to {len(text)}")
    per_token = 4 if largest < 1 << 24 else 5
    size = n * per_token + total
    if size <= _ROOM and longest < 255:
        yield Content(ids, lengths, text)
        return
    target = min(_ROOM, size // -(-size // _ROOM) + per_token) if even else _ROOM
    first = 0
    at = 0
    for last, end in kernels.page_cuts(lengths, per_token, target, _ROOM).tolist():
        page_lengths = lengths[first:last].copy()
        if last - first < 64 and end - at > _ROOM // 2:
            # Maybe one token with more text than a page holds.
            escapes = int((page_lengths >= 255).sum())
            excess = end - at - (_ROOM - (last - first) * per_token - 4 * escapes)
            widest = int(page_lengths.argmax())
            if excess > 0 and page_lengths[widest] > excess and not page_lengths[:widest].any():
                yield from _bare(text[at : at + excess])
                page_lengths[widest] -= excess
                at += excess
        yield Content(ids[first:last].copy(), page_lengths, text[at:end])
        first, at = last, end


def _bare(text: bytes) -> Iterator[Content]:
    for at in range(0, len(text), _ROOM):
        yield Content(_NONE, _NONE, text[at : at + _ROOM])
