"""What is stored of a session besides its pages: one small record, written with every change.

Record (little-endian): a fixed part, then the path to the last page, the remembered revisions, the
marks, the strings, index lines of pages before the last (node.py), the last page's record
(page.py), and a CRC-32 of all of it. Its size grows with the logarithm of the session's.

Version 4 had no index lines: all were in the nodes' records. It is read as well.
"""

from __future__ import annotations

import struct
import zlib
from itertools import chain
from typing import Final, NamedTuple

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.change import Settled
from toktier_stream.session.giant import Mark
from toktier_stream.session.page import Utf8
from toktier_stream.session.tree import Lines, Spine

VERSION: Final = 5
_WITHOUT_LINES: Final = 4
_QUARANTINED: Final = 1
_CLOSED: Final = 2
# version, flags, path steps, remembered revisions | revision, tokens, bytes, chars, digest,
# touched | next number | lengths of fingerprint, tokenizer and session id | marks
# and those of giant pieces | settled | bytes of the last page | since version 5: of the lines
_FIXED_4: Final = struct.Struct("<BBBBQQQQQqIHHHBBQI")
_FIXED: Final = struct.Struct("<BBBBQQQQQqIHHHBBQIH")
STEP: Final = struct.Struct("<IIIII")
_RECENT: Final = struct.Struct("<QQQ")
_MARK: Final = struct.Struct("<QQ?Q")
_OPEN: Final = struct.Struct("<QQQ?HI")
CRC: Final = struct.Struct("<I")
_TOUCHED_AT: Final = 4 + 5 * 8

# What sealing.py changes in a record: where it stands.
STEPS_COUNT_AT: Final = 2
TOKENS_AT: Final = 12
BYTES_AT: Final = 20
NEXT_NUMBER_AT: Final = 52
TAIL_SIZE_AT: Final = 72
LINES_SIZE_AT: Final = 76
STEPS_AT: Final = _FIXED.size


class Header(NamedTuple):
    """A session's header. Units: tokens, bytes and characters of its text; milliseconds since the
    epoch. ``recent`` holds (revision, content hash, digest) of the last applied events; ``marks``
    are those of growing.py, for families without cuts; ``open`` those of giant.py; ``settled``
    counts tokens that no append changes (settled.py); ``lines`` are of the index (tree.py);
    ``tail`` is the last page's record, empty where the store has that page by itself."""

    session_id: bytes
    fingerprint: str = ""
    tokenizer: str = ""
    revision: int = 0
    tokens: int = 0
    bytes: int = 0
    chars: int = 0
    digest: int = 0
    touched_ms: int = 0
    quarantined: bool = False
    closed: bool = False
    recent: tuple[tuple[int, int, int], ...] = ()
    next_number: int = 0
    spine: tuple[Spine, ...] = ()
    marks: tuple[Settled, ...] = ()
    open: tuple[Mark, ...] = ()
    settled: int = 0
    lines: Lines = b""
    tail: Utf8 = b""


def encode(header: Header) -> bytes:
    """The header's record."""
    (
        session_id, fingerprint, tokenizer, revision, tokens, size, chars, digest, touched,
        quarantined, closed, recent, next_number, spine, marks, opened, settled, lines, tail,
    ) = header  # fmt: skip
    # A table in one call; the module has the last formats ready.
    steps = struct.pack(f"<{5 * len(spine)}I", *chain.from_iterable(spine))
    data = front(
        session_id, fingerprint, tokenizer, revision, tokens, size, chars, digest, touched,
        quarantined, closed, recent, next_number, steps, marks, opened, settled, lines, len(tail),
    ) + tail  # fmt: skip
    return data + CRC.pack(zlib.crc32(data))


def front(
    session_id: bytes, fingerprint: str, tokenizer: str, revision: int, tokens: int, size: int,
    chars: int, digest: int, touched: int, quarantined: bool, closed: bool,
    recent: tuple[tuple[int, int, int], ...], next_number: int, steps: bytes,
    marks: tuple[Settled, ...], opened: tuple[Mark, ...], settled: int, lines: Lines,
    tail_size: int,
) -> bytes:  # fmt: skip
    """What a header's record has before the last page's. As in :class:`Header`; ``steps``: the
    spine as it is in the record, ``tail_size``: bytes of the last page's record."""
    names = (fingerprint.encode(), tokenizer.encode(), session_id)
    parts = [
        _FIXED.pack(
            VERSION, _QUARANTINED * quarantined | _CLOSED * closed, len(steps) // STEP.size,
            len(recent), revision, tokens, size, chars, digest, touched, next_number,
            len(names[0]), len(names[1]), len(session_id), len(marks), len(opened), settled,
            tail_size, len(lines),
        ),
        steps,
    ]  # fmt: skip
    if recent:
        parts.append(struct.pack(f"<{3 * len(recent)}Q", *chain.from_iterable(recent)))
    if marks or opened:
        parts += [_MARK.pack(m.size, m.tokens, m.inside, m.since) for m in marks]
        parts += [_OPEN.pack(*mark) for mark in opened]
    parts += names
    parts.append(lines)
    return b"".join(parts)


def decode(data: bytes, session_id: bytes) -> Header:
    """The inverse of :func:`encode`. Raises ``STORE_CORRUPT``, also for another id's header."""
    body = data[: -CRC.size]
    if len(body) < _FIXED_4.size or CRC.pack(zlib.crc32(body)) != data[-CRC.size :]:
        raise ToktierError(Code.STORE_CORRUPT, "a session header fails its checksum")
    (
        version, flags, steps, remembered, revision, tokens, size, chars, digest, touched_ms,
        next_number, fingerprint_size, tokenizer_size, id_size, marks, opened, settled, tail, lines,
    ) = _FIXED.unpack_from(data)  # fmt: skip
    at = _FIXED.size
    if version == _WITHOUT_LINES:
        at, lines = _FIXED_4.size, 0
    elif version != VERSION:
        raise ToktierError(Code.STORE_CORRUPT, f"a session header of format {version}")
    recent_at = at + steps * STEP.size
    marks_at = recent_at + remembered * _RECENT.size
    open_at = marks_at + marks * _MARK.size
    strings_at = open_at + opened * _OPEN.size
    tokenizer_at = strings_at + fingerprint_size
    id_at = tokenizer_at + tokenizer_size
    lines_at = id_at + id_size
    tail_at = lines_at + lines
    if len(body) != tail_at + tail or body[id_at:lines_at] != session_id:
        raise ToktierError(Code.STORE_CORRUPT, "a session header has another shape")
    return Header(
        session_id=session_id,
        fingerprint=body[strings_at:tokenizer_at].decode(),
        tokenizer=body[tokenizer_at:id_at].decode(),
        revision=revision,
        tokens=tokens,
        bytes=size,
        chars=chars,
        digest=digest,
        touched_ms=touched_ms,
        quarantined=bool(flags & _QUARANTINED),
        closed=bool(flags & _CLOSED),
        recent=tuple(_RECENT.iter_unpack(body[recent_at:marks_at])),
        next_number=next_number,
        spine=tuple(Spine(*step) for step in STEP.iter_unpack(body[at:recent_at])),
        marks=tuple(Settled(*mark) for mark in _MARK.iter_unpack(body[marks_at:open_at])),
        open=tuple(Mark(*mark) for mark in _OPEN.iter_unpack(body[open_at:strings_at])),
        settled=settled,
        lines=body[lines_at:tail_at],
        tail=body[tail_at:],
    )


def touched_ms(data: bytes) -> int:
    """When the session of this record was last touched, without decoding the rest; long ago if it
    is no header."""
    if len(data) < _FIXED_4.size:
        return 0
    value: int = struct.unpack_from("<q", data, _TOUCHED_AT)[0]
    return value
