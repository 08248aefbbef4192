"""Events to record bytes and back: the front door of the wire, where every input is checked once.

What leaves :func:`decode_event` is a well-formed event: its key, revision, offsets and part
numbers are sound and its text is valid UTF-8 (unless it is one of several parts; joining checks
that). Nothing behind this door looks at these again. Answers are in ``answers.py``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from toktier_stream.errors import Code
from toktier_stream.wire import json_form
from toktier_stream.wire import toktier_pb2 as pb
from toktier_stream.wire.headers import (
    JSON,
    JSON_HEADERS,
    PROTOBUF,
    PROTOBUF_HEADERS,
    Headers,
    read_form,
)
from toktier_stream.wire.messages import (
    MAX_SESSION_ID_BYTES,
    AppendEvent,
    Close,
    Edit,
    Operation,
    Reset,
)
from toktier_stream.wire.refusal import WireError

MAX_NAME_BYTES: Final = 480
"""Limit of request_id and tokenizer, so that echoing them cannot make an answer too large."""
MAX_PARTS: Final = 1 << 16

_I64_MAX = (1 << 63) - 1
_U64_MAX = (1 << 64) - 1


class Encoded(NamedTuple):
    """A record without its place: what to hand to a broker together with a topic."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def decode_event(
    key: bytes | None, value: bytes | None, headers: Headers, *, max_event_bytes: int
) -> AppendEvent:
    """The event of one record of the input topic.

    Raises :class:`WireError`; its ``unreadable`` says whether there is a revision to answer.
    """
    if value is None:
        raise _unreadable(Code.NULL_VALUE, "", key)
    form, refused, detail = read_form(headers)
    if refused is not None:
        raise _unreadable(refused, detail, key)
    if len(value) > max_event_bytes:
        raise _unreadable(
            Code.EVENT_TOO_LARGE, f"{len(value)} bytes, the limit is {max_event_bytes}", key
        )
    if form is JSON:
        return _from_json(key, value)
    m = _parse(value)
    if m is None:
        raise _unreadable(Code.UNDECODABLE, "not a protobuf AppendEvent", key)
    session_id, revision, request_id, tokenizer = (
        m.session_id,
        m.revision,
        m.request_id,
        m.tokenizer,
    )
    part, parts = m.part, m.parts or 1
    _check_identity(key, session_id, revision)
    kind = m.WhichOneof("op")
    op: Operation | None = None
    if kind == "edit":
        edit = m.edit
        op = Edit(
            edit.text,
            edit.start_byte if edit.HasField("start_byte") else None,
            edit.end_byte if edit.HasField("end_byte") else None,
        )
    elif kind == "reset":
        op = Reset(m.reset.text)
    elif kind == "close":
        op = Close()
    if op is None:
        raise _refused(
            Code.MISSING_OP, "", session_id, revision, request_id, tokenizer, part, parts
        )
    event = AppendEvent(
        session_id,
        revision,
        op,
        request_id,
        tokenizer,
        m.expect_bytes if m.HasField("expect_bytes") else None,
        m.expect_digest if m.HasField("expect_digest") else None,
        m.sent_at_us,
        m.want_full,
        part,
        parts,
    )
    _check_body(event)
    return event


def encode_event(
    event: AppendEvent, *, content_type: bytes = PROTOBUF, trace: Headers = ()
) -> Encoded:
    """A record of the input topic. ``trace`` is appended to the headers.

    The event passes the checks of :func:`decode_event` first, with the same errors: what this
    function returns is accepted by a worker (its size apart). In JSON form each part must hold
    whole characters, as ``split_event`` cuts them where it can.
    """
    key = _check_encodable(event)
    _check_identity(key, event.session_id, event.revision)
    _check_body(event)
    if content_type == JSON:
        op = event.op
        if not isinstance(op, Close) and _is_broken(op.text):
            raise _of(event, Code.INVALID_UTF8, "a part in JSON form holds whole characters")
        return Encoded(key, json_form.encode(event), JSON_HEADERS + trace)
    if content_type != PROTOBUF:
        raise WireError(Code.CONTENT_TYPE)
    return Encoded(key, encode_event_value(event), PROTOBUF_HEADERS + trace)


def encode_event_value(event: AppendEvent) -> bytes:
    """The protobuf bytes of an event, unchecked."""
    op = event.op
    m = pb.AppendEvent(
        session_id=event.session_id,
        revision=event.revision,
        request_id=event.request_id,
        tokenizer=event.tokenizer,
        expect_bytes=event.expect_bytes,
        expect_digest=event.expect_digest,
        sent_at_us=event.sent_at_us,
        want_full=event.want_full,
    )
    if event.parts != 1:
        m.part, m.parts = event.part, event.parts
    if isinstance(op, Edit):
        edit = m.edit
        edit.SetInParent()
        edit.text = op.text
        if op.start is not None:
            edit.start_byte = op.start
        if op.end is not None:
            edit.end_byte = op.end
    elif isinstance(op, Reset):
        m.reset.SetInParent()
        m.reset.text = op.text
    else:
        m.close.SetInParent()
    return m.SerializeToString()


def check_text(event: AppendEvent) -> None:
    """Raise ``INVALID_UTF8`` unless the event's text is UTF-8: for texts joined from parts."""
    op = event.op
    if not isinstance(op, Close) and _is_broken(op.text):
        raise _of(event, Code.INVALID_UTF8)


def _parse(value: bytes) -> pb.AppendEvent | None:
    try:
        return pb.AppendEvent.FromString(value)
    # The pure-Python runtime reports a string that is not UTF-8 by the second error. Both hold
    # bytes of the value, so they end here.
    except (DecodeError, UnicodeDecodeError):
        return None


def _from_json(key: bytes | None, value: bytes) -> AppendEvent:
    found, flaw = _parse_json(value)
    if found is None:
        raise _unreadable(Code.UNDECODABLE, flaw, key)
    _check_identity(key, found.session_id, found.revision)
    if found.op is None or found.problem is not None:
        raise _refused(
            found.problem or Code.MISSING_OP,
            "",
            found.session_id,
            found.revision,
            found.request_id,
            found.tokenizer,
            found.part,
            found.parts or 1,
        )
    event = AppendEvent(
        session_id=found.session_id,
        revision=found.revision,
        op=found.op,
        request_id=found.request_id,
        tokenizer=found.tokenizer,
        expect_bytes=found.expect_bytes,
        expect_digest=found.expect_digest,
        sent_at_us=found.sent_at_us,
        want_full=found.want_full,
        part=found.part,
        parts=found.parts or 1,
    )
    _check_body(event)
    return event


def _parse_json(value: bytes) -> tuple[json_form.JsonEvent | None, str]:
    try:
        return json_form.decode(value), ""
    except json_form.Malformed as error:
        return None, str(error)


def _check_identity(key: bytes | None, session_id: str, revision: int) -> None:
    """Whose event it is, and which: without these there is nobody to answer."""
    if not session_id:
        raise _unreadable(Code.MISSING_SESSION, "", key)
    encoded = session_id.encode()
    if len(encoded) > MAX_SESSION_ID_BYTES:
        raise _unreadable(Code.SESSION_ID_TOO_LONG, f"{len(encoded)} bytes", key)
    if key != encoded:
        raise _unreadable(Code.KEY_MISMATCH, "no key" if key is None else "", key)
    if not 1 <= revision <= _I64_MAX:
        raise _unreadable(Code.BAD_REVISION, "", key)


def _check_encodable(event: AppendEvent) -> bytes:
    """What bytes cannot hold and a Python value can; returns the key."""
    key = _utf8(event.session_id)
    flaw = "session_id: not valid Unicode" if key is None else ""
    for name, text in (("request_id", event.request_id), ("tokenizer", event.tokenizer)):
        if _utf8(text) is None:
            flaw = f"{name}: not valid Unicode"
    for name, number, low, high in (
        ("sent_at_us", event.sent_at_us, -_I64_MAX - 1, _I64_MAX),
        ("expect_bytes", event.expect_bytes, -_I64_MAX - 1, _I64_MAX),
        ("expect_digest", event.expect_digest, 0, _U64_MAX),
    ):
        if number is not None and not low <= number <= high:
            flaw = f"{name}: out of range"
    if key is None or flaw:
        raise WireError(Code.UNDECODABLE, flaw)
    return key


def _check_body(event: AppendEvent) -> None:
    """Everything that is refused with an answer, the text last: it is the longest check."""
    # A character has at most four bytes: short names need no encoding to be sure.
    if max(len(event.request_id), len(event.tokenizer)) > MAX_NAME_BYTES // 4:
        for name, value in (("request_id", event.request_id), ("tokenizer", event.tokenizer)):
            if len(_utf8(value) or b"") > MAX_NAME_BYTES:
                raise _of(event, Code.FIELD_TOO_LONG, name)
    op, part, parts = event.op, event.part, event.parts
    if part or parts != 1:
        if not (0 <= part < parts <= MAX_PARTS):
            raise _of(event, Code.BAD_PART, f"part {part} of {parts}")
        if isinstance(op, Close):
            raise _of(event, Code.BAD_PART, "a close has no parts")
    if isinstance(op, Close):
        return
    if isinstance(op, Edit):
        start, end = op.start, op.end
        if start is None or end is None:
            if start is not None or end is not None:
                missing = "start_byte" if start is None else "end_byte"
                raise _of(event, Code.EDIT_OFFSETS, f"no {missing}")
        elif not 0 <= start <= end <= _I64_MAX:
            raise _of(event, Code.EDIT_OFFSETS, f"{start} to {end}")
    if parts == 1 and _is_broken(op.text):
        raise _of(event, Code.INVALID_UTF8)


def _is_broken(text: bytes) -> bool:
    if text.isascii():
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _unreadable(code: Code, detail: str, key: bytes | None) -> WireError:
    """An error about the session that the key names, as far as a key can name one."""
    session_id = ""
    if key is not None and len(key) <= MAX_SESSION_ID_BYTES and not _is_broken(key):
        session_id = key.decode()
    return WireError(code, detail, session_id=session_id)


def _refused(
    code: Code,
    detail: str,
    session_id: str,
    revision: int,
    request_id: str,
    tokenizer: str,
    part: int = 0,
    parts: int = 1,
) -> WireError:
    # What is too long is not echoed, whatever else is wrong.
    too_long = MAX_NAME_BYTES
    return WireError(
        code,
        detail,
        session_id=session_id,
        revision=revision,
        request_id=request_id if len(_utf8(request_id) or b"") <= too_long else "",
        tokenizer=tokenizer if len(_utf8(tokenizer) or b"") <= too_long else "",
        part=part,
        parts=parts,
    )


def _of(event: AppendEvent, code: Code, detail: str = "") -> WireError:
    return _refused(
        code,
        detail,
        event.session_id,
        event.revision,
        event.request_id,
        event.tokenizer,
        event.part,
        event.parts,
    )
