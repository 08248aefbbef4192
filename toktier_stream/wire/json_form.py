"""The JSON form of AppendEvent: the same fields under the same names, read strictly.

Differences to protobuf: ``text`` is a string and must be there, 64-bit numbers may be decimal
strings (not every JSON library keeps 64 bits), null means absent, and an unknown, repeated or
mistyped field is an error that names the field and never its value.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from toktier_stream.errors import Code
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Operation, Reset


class Malformed(Exception):
    """The bytes are no event in JSON form; the message names a field or a position."""


class JsonEvent(NamedTuple):
    """What the JSON says, before the checks that both forms share."""

    session_id: str
    revision: int
    request_id: str
    tokenizer: str
    op: Operation | None
    expect_bytes: int | None
    expect_digest: int | None
    sent_at_us: int
    want_full: bool
    part: int
    parts: int
    problem: Code | None
    """What is wrong with the text, where the event around it can be read."""


@dataclass(frozen=True, slots=True)
class _Integer:
    low: int
    high: int


_I32: Final = _Integer(-(1 << 31), (1 << 31) - 1)
_I64: Final = _Integer(-(1 << 63), (1 << 63) - 1)
_U64: Final = _Integer(0, (1 << 64) - 1)

FIELDS: Final = frozenset(
    {
        "session_id",
        "revision",
        "request_id",
        "tokenizer",
        "reset",
        "edit",
        "close",
        "expect_bytes",
        "expect_digest",
        "sent_at_us",
        "want_full",
        "part",
        "parts",
    }
)
OP_FIELDS: Final = {
    "reset": frozenset({"text"}),
    "edit": frozenset({"text", "start_byte", "end_byte"}),
    "close": frozenset[str](),
}

_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,19}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


def decode(value: bytes) -> JsonEvent:
    """Read one event. Raises :class:`Malformed`, with no trace of the value on the exception."""
    problem: Code | None = None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        # Readable if only the text in it is not UTF-8: then the event can be answered.
        problem = Code.INVALID_UTF8
        text = value.decode(errors="surrogateescape")
    found, flaw = _parse(text)
    if flaw:
        raise Malformed(flaw)
    if type(found) is not dict:
        raise Malformed("not an object")
    _only(found, FIELDS, "")
    op, bad_text = _operation(found)
    return JsonEvent(
        session_id=_string(found, "session_id"),
        revision=_integer(found, "revision", _I64) or 0,
        request_id=_string(found, "request_id"),
        tokenizer=_string(found, "tokenizer"),
        op=op,
        expect_bytes=_integer(found, "expect_bytes", _I64),
        expect_digest=_integer(found, "expect_digest", _U64),
        sent_at_us=_integer(found, "sent_at_us", _I64) or 0,
        want_full=_boolean(found, "want_full"),
        part=_integer(found, "part", _I32) or 0,
        parts=_integer(found, "parts", _I32) or 0,
        problem=problem or bad_text,
    )


def encode(event: AppendEvent) -> bytes:
    """Write one event whose text is valid UTF-8. Absent and default fields are left out."""
    out: dict[str, object] = {"session_id": event.session_id, "revision": event.revision}
    for name in ("request_id", "tokenizer", "sent_at_us", "want_full"):
        if value := getattr(event, name):
            out[name] = value
    if event.expect_bytes is not None:
        out["expect_bytes"] = event.expect_bytes
    if event.expect_digest is not None:
        # A digest has 61 bits, more than a double holds.
        out["expect_digest"] = str(event.expect_digest)
    if event.parts != 1:
        out["part"], out["parts"] = event.part, event.parts
    op = event.op
    if isinstance(op, Reset):
        out["reset"] = {"text": op.text.decode()}
    elif isinstance(op, Edit):
        edit: dict[str, object] = {"text": op.text.decode()}
        if op.start is not None:
            edit["start_byte"] = op.start
        if op.end is not None:
            edit["end_byte"] = op.end
        out["edit"] = edit
    else:
        out["close"] = {}
    return json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise Malformed(f"{_named(name)}: given twice")
            seen.add(name)
    return found


def _no_number(_: str) -> NoReturn:
    raise Malformed("a number that is not an integer")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_no_number, parse_constant=_no_number
)


def _parse(text: str) -> tuple[object, str]:
    """The JSON value, or what is wrong with it: returned, because the library's exceptions hold
    the document."""
    try:
        return _DECODER.decode(text), ""
    except Malformed as error:
        return None, str(error)
    except json.JSONDecodeError as error:
        return None, f"not JSON at character {error.pos}"
    except (ValueError, RecursionError):
        return None, "a number or a nesting beyond any limit"


def _named(name: str) -> str:
    """A field's name for a message; what does not look like a name may be misplaced text."""
    return name if _NAME.fullmatch(name) else "a field"


def _only(found: dict[str, object], known: frozenset[str], prefix: str) -> None:
    for name in found:
        if name not in known:
            raise Malformed(f"{prefix}{_named(name)}: unknown field")


def _string(found: dict[str, object], name: str) -> str:
    value = found.get(name)
    if value is None:
        return ""
    if type(value) is not str:
        raise Malformed(f"{name}: not a string")
    if _utf8(value) is None:
        raise Malformed(f"{name}: not valid Unicode")
    return value


def _integer(found: dict[str, object], name: str, kind: _Integer, prefix: str = "") -> int | None:
    value = found.get(name)
    if value is None:
        return None
    # Not isinstance: True is an int.
    if type(value) is str and _DECIMAL.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise Malformed(f"{prefix}{name}: not an integer")
    if not kind.low <= value <= kind.high:
        raise Malformed(f"{prefix}{name}: out of range")
    return value


def _boolean(found: dict[str, object], name: str) -> bool:
    value = found.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise Malformed(f"{name}: not a boolean")
    return value


def _operation(found: dict[str, object]) -> tuple[Operation | None, Code | None]:
    given = [name for name in OP_FIELDS if found.get(name) is not None]
    if not given:
        return None, None
    if len(given) > 1:
        raise Malformed(f"{' and '.join(given)}: more than one operation")
    name = given[0]
    body = found[name]
    if type(body) is not dict:
        raise Malformed(f"{name}: not an object")
    _only(body, OP_FIELDS[name], f"{name}.")
    if name == "close":
        return Close(), None
    text = body.get("text")
    # Absent text would be an empty one: too easy to send by mistake, and it would be obeyed.
    if type(text) is not str:
        raise Malformed(f"{name}.text: {'missing' if text is None else 'not a string'}")
    encoded = _utf8(text)
    problem = Code.LONE_SURROGATE if encoded is None else None
    if name == "reset":
        return Reset(encoded or b""), problem
    start = _integer(body, "start_byte", _I64, "edit.")
    end = _integer(body, "end_byte", _I64, "edit.")
    return Edit(encoded or b"", start, end), problem


def _utf8(text: str) -> bytes | None:
    """The text as UTF-8; None where it holds half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None
