"""The JSON Schema accepts what decoding accepts and refuses what it refuses, as far as it can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bad_inputs import BAD_INPUTS, JSON, BadInput
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import events

from toktier_stream.wire import json_form
from toktier_stream.wire.codec import decode_event, encode_event
from toktier_stream.wire.headers import JSON as JSON_TYPE
from toktier_stream.wire.messages import AppendEvent
from toktier_stream.wire.refusal import WireError

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "schemas" / "append_event.schema.json").read_text()
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

BEYOND_THE_SCHEMA = {
    "json-wrong-key": "the key is not in the value",
    "json-long-session": "lengths count in bytes, a schema counts characters",
    "json-op-twice": "a JSON parser has kept one of the two",
    "json-text-twice": "a JSON parser has kept one of the two",
    "json-session-surrogate": "half of a surrogate pair is a string to a schema",
    "json-lone-surrogate": "half of a surrogate pair is a string to a schema",
    "json-surrogate-order": "half of a surrogate pair is a string to a schema",
    "json-revision-point-zero": "1.0 is an integer to a schema",
    "json-revision-newline": "Python's $ matches before a last newline, ECMAScript's does not",
    "json-revision-text-beyond": "a pattern counts digits, it does not compare",
    "json-end-before-start": "a schema does not compare two fields",
    "json-part-beyond": "a schema does not compare two fields",
}


def parsed(row: BadInput) -> list[Any]:
    """The row's JSON value in a list; nothing if it is not JSON, which a schema never sees."""
    try:
        return [json.loads((row.value or b"").decode())]
    except (ValueError, RecursionError):
        return []


JSON_ROWS = [row for row in BAD_INPUTS if row.headers == JSON and parsed(row)]


def accepted(value: Any) -> bool:
    """Whether decoding accepts the value under a fitting key."""
    session = value.get("session_id") if isinstance(value, dict) else None
    key = session.encode(errors="replace") if isinstance(session, str) else b""
    try:
        decode_event(key, json.dumps(value).encode(), JSON, max_event_bytes=1 << 20)
    except WireError:
        return False
    return True


def test_the_schema_is_a_schema() -> None:
    """It is valid under its own dialect."""
    VALIDATOR.check_schema(SCHEMA)


@pytest.mark.parametrize("row", JSON_ROWS, ids=lambda row: row.name)
def test_bad_inputs(row: BadInput) -> None:
    """The schema refuses each bad input, but for those listed with their reason."""
    assert VALIDATOR.is_valid(parsed(row)[0]) is (row.name in BEYOND_THE_SCHEMA)


def test_the_exceptions_are_rows_of_the_table() -> None:
    """No exception outlives its row."""
    assert set(BEYOND_THE_SCHEMA) <= {row.name for row in JSON_ROWS}


@given(events)
def test_what_we_send_is_valid(event: AppendEvent) -> None:
    """Every event in JSON form follows the schema."""
    VALIDATOR.validate(json.loads(encode_event(event, content_type=JSON_TYPE).value or b""))


TEXT_LIKE: list[Any] = ["", "x", "é", None, 7, True, [], {}]
NUMBERS: list[Any] = [0, 1, -1, 2, "0", "1", "-1", "-0", "01", "+1", " 1", "1.5", "", 1.5, None]
NUMBERS += [True, [], (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, (1 << 64) - 1, 1 << 64]
NUMBERS += [65_535, 65_536, 65_537, "9", "١"]
OPS: list[Any] = [
    {"text": "x"},
    {"text": ""},
    {},
    None,
    "x",
    {"text": None},
    {"text": "x", "start_byte": 0},
    {"text": "x", "end_byte": 0, "start_byte": None},
    {"text": "x", "start_byte": 0, "end_byte": "3"},
    {"text": "x", "start_byte": None, "end_byte": None},
    {"text": "x", "start_byte": -1, "end_byte": 3},
    {"text": "x", "extra": 1},
]
FIELDS: dict[str, list[Any]] = {
    "session_id": ["s", *TEXT_LIKE],
    "revision": NUMBERS,
    "request_id": TEXT_LIKE,
    "tokenizer": TEXT_LIKE,
    "reset": OPS,
    "edit": OPS,
    "close": [{}, *OPS],
    "expect_bytes": NUMBERS,
    "expect_digest": NUMBERS,
    "sent_at_us": NUMBERS,
    "want_full": [True, False, *TEXT_LIKE],
    "unknown": [None, 1],
}

IDENTITY = {"session_id", "revision"}


@settings(max_examples=1500)
@given(
    st.fixed_dictionaries(
        {"session_id": st.just("s"), "revision": st.just(1)},
        optional={n: st.sampled_from(FIELDS[n]) for n in sorted(FIELDS.keys() - IDENTITY)},
    ),
    st.sampled_from(["", "", "reset", "edit", "close"]),
    st.dictionaries(st.sampled_from(["part", "parts"]), st.sampled_from(NUMBERS)),
)
def test_any_fields(value: dict[str, Any], only: str, parts: dict[str, Any]) -> None:
    """Schema and decoding agree on any combination of fields, sound and unsound."""
    if only:
        value = {n: v for n, v in value.items() if n not in ("reset", "edit", "close")}
        value[only] = {} if only == "close" else {"text": "x"}
    value |= parts
    valid = VALIDATOR.is_valid(value)
    if _compares(value):
        assert valid or not accepted(value)
    else:
        assert valid is accepted(value)


def _compares(value: dict[str, Any]) -> bool:
    """Whether the value needs a comparison of two fields (BEYOND_THE_SCHEMA)."""

    def number(name: str) -> int:
        found = value.get(name)
        return int(found) if type(found) is int or (found and str(found).isdecimal()) else 0

    return number("part") >= (number("parts") or 1) and number("part") > 0


@pytest.mark.parametrize("name", sorted(FIELDS))
@pytest.mark.parametrize("op", ["reset", "edit", "close"])
def test_each_value_of_each_field(name: str, op: str) -> None:
    """One field at a time, all of its values."""
    for value in FIELDS[name]:
        body = {"session_id": "s", "revision": 1, op: {} if op == "close" else {"text": "x"}}
        body[name] = value
        assert VALIDATOR.is_valid(body) is accepted(body), body


def test_fields_are_those_of_the_decoder() -> None:
    """Same names, at the top and within each operation."""
    properties = SCHEMA["properties"]
    assert set(properties) == json_form.FIELDS
    for op, names in json_form.OP_FIELDS.items():
        assert set(properties[op].get("properties", {})) == names
