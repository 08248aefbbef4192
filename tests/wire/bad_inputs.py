"""Bad records of the input topic with the code each must get: one table for every layer.

The codec's tests decode these rows, the schema's tests hold the JSON Schema to them, and the
pipeline's tests send them through a broker. Each row has a session of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from toktier_stream.errors import Code
from toktier_stream.wire import toktier_pb2 as pb

MAX_EVENT_BYTES = 64 << 10
"""The limit the table is made for: configure a worker with it."""

Headers = tuple[tuple[str, bytes], ...]

PROTOBUF: Headers = (("content-type", b"application/x-protobuf"), ("schema-version", b"1"))
JSON: Headers = (("content-type", b"application/json"), ("schema-version", b"1"))


@dataclass(frozen=True)
class BadInput:
    """One record and what must become of it.

    ``unreadable``: it goes to the rejects topic only; otherwise it is answered ``REJECTED`` too,
    under session ``bad-<name>``, revision 1 and request id ``request``.
    """

    name: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    code: Code
    unreadable: bool


SECRET = "zebra-in-the-transcript"
"""Stands in every text of the table, and must never stand in an error."""


def _session(name: str) -> str:
    return f"bad-{name}"


def _event(name: str, **fields: object) -> pb.AppendEvent:
    base = {"session_id": _session(name), "revision": 1, "request_id": "request"}
    return pb.AppendEvent(**{**base, **fields})  # type: ignore[arg-type]


def _edit(text: bytes = SECRET.encode(), **offsets: int) -> pb.Edit:
    return pb.Edit(text=text, **offsets)  # type: ignore[arg-type]


def _protobuf(
    name: str,
    code: Code,
    unreadable: bool,
    /,
    event: pb.AppendEvent | None = None,
    **fields: object,
) -> BadInput:
    made = event if event is not None else _event(name, **fields)
    return BadInput(
        name, _session(name).encode(), made.SerializeToString(), PROTOBUF, code, unreadable
    )


def _raw(
    name: str,
    code: Code,
    value: bytes | None,
    headers: Headers = PROTOBUF,
    key: bytes | None = b"",
) -> BadInput:
    return BadInput(
        name, _session(name).encode() if key == b"" else key, value, headers, code, True
    )


def _good(name: str) -> bytes:
    return _event(name, edit=_edit()).SerializeToString()


def _body(name: str, **fields: object) -> dict[str, object]:
    """A sound JSON event, with ``fields`` over it; the value ... removes a field."""
    body: dict[str, object] = {
        "session_id": _session(name),
        "revision": 1,
        "request_id": "request",
        "edit": {"text": SECRET},
    }
    body.update(fields)
    return {key: value for key, value in body.items() if value is not ...}


def _json(name: str, code: Code, unreadable: bool = True, /, **fields: object) -> BadInput:
    value = json.dumps(_body(name, **fields)).encode()
    return BadInput(name, _session(name).encode(), value, JSON, code, unreadable)


def _json_text(name: str, code: Code, text: str | bytes, unreadable: bool = True) -> BadInput:
    """A row whose JSON is written out; ``%s`` stands for the session."""
    raw = text.encode() if isinstance(text, str) else text
    value = raw.replace(b"%s", _session(name).encode())
    return BadInput(name, _session(name).encode(), value, JSON, code, unreadable)


def _extra(headers: Headers, name: str, value: bytes) -> Headers:
    return (*headers, (name, value))


_LONG = "é" * 241  # 241 characters, 482 bytes
_HEAD = '{"session_id":"%s","revision":1,"request_id":"request",'

BAD_INPUTS: tuple[BadInput, ...] = (
    # The record around the event.
    _raw("null-value", Code.NULL_VALUE, None),
    _raw("empty-protobuf", Code.MISSING_SESSION, b""),
    _raw("unknown-content-type", Code.CONTENT_TYPE, _good("unknown-content-type"),
         (("content-type", b"application/avro"), ("schema-version", b"1"))),
    _raw("empty-content-type", Code.CONTENT_TYPE, _good("empty-content-type"),
         (("content-type", b""),)),
    _raw("other-charset", Code.CONTENT_TYPE, b"{}",
         (("content-type", b"application/json; charset=utf-16"),)),
    _raw("second-content-type", Code.CONTENT_TYPE, _good("second-content-type"),
         _extra(PROTOBUF, "content-type", b"text/plain")),
    _raw("newer-schema", Code.SCHEMA_VERSION, _good("newer-schema"),
         (("content-type", b"application/x-protobuf"), ("schema-version", b"2"))),
    _raw("garbled-schema", Code.SCHEMA_VERSION, _good("garbled-schema"),
         (("schema-version", b"one"),)),
    _raw("oversized", Code.EVENT_TOO_LARGE,
         _event("oversized", reset=pb.Reset(text=b"x" * MAX_EVENT_BYTES)).SerializeToString()),
    _raw("wrong-key", Code.KEY_MISMATCH, _good("wrong-key"), key=b"bad-another"),
    _raw("no-key", Code.KEY_MISMATCH, _good("no-key"), key=None),
    _raw("key-not-utf8", Code.KEY_MISMATCH, _good("key-not-utf8"), key=b"bad-\xff"),
    # Protobuf that does not parse.
    _raw("random-bytes", Code.UNDECODABLE, b"\xff\xfe\xfd" * 9),
    _raw("cut-short", Code.UNDECODABLE, _good("cut-short")[:-4]),
    _raw("trailing-garbage", Code.UNDECODABLE, _good("trailing-garbage") + b"\x0b"),
    _raw("json-called-protobuf", Code.UNDECODABLE,
         json.dumps(_body("json-called-protobuf")).encode()),
    _raw("session-not-utf8", Code.UNDECODABLE, b"\x0a\x02\xff\xfe\x10\x01"),
    _raw("session-surrogate", Code.UNDECODABLE, b"\x0a\x03\xed\xa0\x80\x10\x01"),
    # Protobuf whose identity is wrong.
    _protobuf("no-session", Code.MISSING_SESSION, True, session_id="", edit=_edit()),
    _protobuf("long-session", Code.SESSION_ID_TOO_LONG, True, session_id=_LONG, edit=_edit()),
    _protobuf("revision-zero", Code.BAD_REVISION, True, revision=0, edit=_edit()),
    _protobuf("revision-negative", Code.BAD_REVISION, True, revision=-1, edit=_edit()),
    # Protobuf that is read and refused.
    _protobuf("no-op", Code.MISSING_OP, False),
    _protobuf("invalid-utf8-reset", Code.INVALID_UTF8, False,
              reset=pb.Reset(text=SECRET.encode() + b"\xc3")),
    _protobuf("invalid-utf8-edit", Code.INVALID_UTF8, False, edit=_edit(b"\xff\xfe")),
    _protobuf("overlong-utf8", Code.INVALID_UTF8, False, edit=_edit(b"\xc0\xaf")),
    _protobuf("surrogate-utf8", Code.INVALID_UTF8, False, edit=_edit(b"\xed\xa0\xbd\xed\xb8\x80")),
    _protobuf("start-alone", Code.EDIT_OFFSETS, False, edit=_edit(start_byte=3)),
    _protobuf("end-alone", Code.EDIT_OFFSETS, False, edit=_edit(end_byte=3)),
    _protobuf("end-before-start", Code.EDIT_OFFSETS, False, edit=_edit(start_byte=5, end_byte=4)),
    _protobuf("negative-start", Code.EDIT_OFFSETS, False, edit=_edit(start_byte=-1, end_byte=4)),
    _protobuf("part-beyond", Code.BAD_PART, False, edit=_edit(), part=2, parts=2),
    _protobuf("part-without-parts", Code.BAD_PART, False, edit=_edit(), part=1),
    _protobuf("part-negative", Code.BAD_PART, False, edit=_edit(), part=-1, parts=2),
    _protobuf("parts-negative", Code.BAD_PART, False, edit=_edit(), parts=-2),
    _protobuf("parts-beyond-limit", Code.BAD_PART, False, edit=_edit(), parts=65_537),
    _protobuf("close-in-parts", Code.BAD_PART, False, close=pb.Close(), part=0, parts=2),
    _protobuf("long-tokenizer", Code.FIELD_TOO_LONG, False, edit=_edit(), tokenizer=_LONG),
    # JSON that does not parse, or is not an event.
    _json_text("empty-json", Code.UNDECODABLE, ""),
    _json_text("broken-json", Code.UNDECODABLE, _HEAD + '"edit":{"text":"' + SECRET),
    _json_text("json-garbage-after", Code.UNDECODABLE, _HEAD + '"close":{}} ' + SECRET),
    _json_text("json-bom", Code.UNDECODABLE, "\ufeff" + _HEAD + '"close":{}}'),
    _json_text("json-utf16", Code.UNDECODABLE,
               '{"session_id":"bad-json-utf16","revision":1,"close":{}}'.encode("utf-16")),
    _json_text("json-nested", Code.UNDECODABLE, '{"session_id":' + "[" * 30_000),
    _json_text("json-array", Code.UNDECODABLE, "[]"),
    _json_text("json-null", Code.UNDECODABLE, "null"),
    _json_text("json-nan", Code.UNDECODABLE, _HEAD + '"edit":{"text":"a"},"expect_bytes":NaN}'),
    _json_text("json-infinity", Code.UNDECODABLE, _HEAD + '"close":{},"sent_at_us":-Infinity}'),
    _json_text("json-huge-number", Code.UNDECODABLE,
               _HEAD + '"close":{},"sent_at_us":' + "9" * 5000 + "}"),
    _json_text("json-two-ops", Code.UNDECODABLE, _HEAD + '"reset":{"text":"a"},"close":{}}'),
    _json_text("json-op-twice", Code.UNDECODABLE,
               _HEAD + '"edit":{"text":"a"},"edit":{"text":"b"}}'),
    _json_text("json-text-twice", Code.UNDECODABLE, _HEAD + '"edit":{"text":"a","text":"b"}}'),
    _json("json-unknown-field", Code.UNDECODABLE, revison=1),
    _json("json-camel-case", Code.UNDECODABLE, expectBytes=1),
    _json("json-unknown-in-op", Code.UNDECODABLE, edit={"text": SECRET, "start": 1}),
    _json("json-op-is-text", Code.UNDECODABLE, edit=SECRET),
    _json("json-close-is-true", Code.UNDECODABLE, edit=..., close=True),
    _json("json-text-is-number", Code.UNDECODABLE, edit={"text": 7}),
    _json("json-text-is-null", Code.UNDECODABLE, edit={"text": None}),
    _json("json-no-text", Code.UNDECODABLE, edit={"start_byte": 0, "end_byte": 0}),
    _json("json-session-is-number", Code.UNDECODABLE, session_id=7),
    _json("json-session-surrogate", Code.UNDECODABLE, session_id="\ud800"),
    _json("json-revision-is-word", Code.UNDECODABLE, revision="one"),
    _json("json-revision-is-true", Code.UNDECODABLE, revision=True),
    _json("json-revision-is-float", Code.UNDECODABLE, revision=1.5),
    _json("json-revision-point-zero", Code.UNDECODABLE, revision=1.0),
    _json("json-revision-spaced", Code.UNDECODABLE, revision=" 1"),
    _json("json-revision-newline", Code.UNDECODABLE, revision="1\n"),
    _json("json-revision-other-digits", Code.UNDECODABLE, revision="١"),
    _json("json-revision-beyond", Code.UNDECODABLE, revision=1 << 63),
    _json("json-revision-text-beyond", Code.UNDECODABLE, revision=str(1 << 63)),
    _json("json-digest-negative", Code.UNDECODABLE, expect_digest=-1),
    _json("json-parts-beyond", Code.UNDECODABLE, parts=1 << 31),
    _json("json-want-full-is-one", Code.UNDECODABLE, want_full=1),
    # JSON whose identity is wrong.
    _json("json-no-session", Code.MISSING_SESSION, session_id=...),
    _json("json-session-null", Code.MISSING_SESSION, session_id=None),
    _json("json-long-session", Code.SESSION_ID_TOO_LONG, session_id=_LONG),
    _json("json-wrong-key", Code.KEY_MISMATCH, session_id="bad-another"),
    _json("json-no-revision", Code.BAD_REVISION, revision=...),
    _json("json-revision-zero", Code.BAD_REVISION, revision=0),
    _json("json-revision-negative", Code.BAD_REVISION, revision="-3"),
    # JSON that is read and refused.
    _json("json-no-op", Code.MISSING_OP, False, edit=...),
    _json("json-op-null", Code.MISSING_OP, False, edit=None),
    _json("json-lone-surrogate", Code.LONE_SURROGATE, False, edit={"text": SECRET + "\ud83d"}),
    _json("json-surrogate-order", Code.LONE_SURROGATE, False,
          edit=..., reset={"text": "\ude00\ud83d"}),
    _json_text("json-text-not-utf8", Code.INVALID_UTF8,
               _HEAD.encode() + b'"edit":{"text":"zebra-in-the-transcript \xff"}}', False),
    _json("json-start-alone", Code.EDIT_OFFSETS, False, edit={"text": SECRET, "start_byte": 1}),
    _json("json-end-before-start", Code.EDIT_OFFSETS, False,
          edit={"text": SECRET, "start_byte": 5, "end_byte": "4"}),
    _json("json-negative-start", Code.EDIT_OFFSETS, False,
          edit={"text": SECRET, "start_byte": -1, "end_byte": 4}),
    _json("json-part-beyond", Code.BAD_PART, False, part=3, parts=3),
    _json("json-part-negative", Code.BAD_PART, False, part=-1, parts=3),
    _json("json-close-in-parts", Code.BAD_PART, False, edit=..., close={}, part=1, parts=3),
    _json("json-long-tokenizer", Code.FIELD_TOO_LONG, False, tokenizer="x" * 481),
)  # fmt: skip
