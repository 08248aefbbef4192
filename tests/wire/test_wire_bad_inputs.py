"""Each kind of bad input gets its own code, says who can be answered, and never leaks text."""

from __future__ import annotations

import traceback

import pytest
from bad_inputs import BAD_INPUTS, MAX_EVENT_BYTES, SECRET, BadInput
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier_stream.errors import Code
from toktier_stream.wire.codec import decode_event
from toktier_stream.wire.headers import JSON_HEADERS, PROTOBUF_HEADERS, Headers
from toktier_stream.wire.messages import AppendEvent
from toktier_stream.wire.refusal import UNREADABLE, WireError


def refusal(row: BadInput) -> WireError:
    """The error of a row."""
    with pytest.raises(WireError) as caught:
        decode_event(row.key, row.value, row.headers, max_event_bytes=MAX_EVENT_BYTES)
    return caught.value


@pytest.mark.parametrize("row", BAD_INPUTS, ids=lambda row: row.name)
def test_each_row_gets_its_code(row: BadInput) -> None:
    """The table's code and readability are what decoding says."""
    error = refusal(row)
    assert (error.code, error.unreadable) == (row.code, row.unreadable)


@pytest.mark.parametrize(
    "row", [row for row in BAD_INPUTS if not row.unreadable], ids=lambda row: row.name
)
def test_refused_events_can_be_answered(row: BadInput) -> None:
    """A refused event's error carries what its REJECTED answer needs."""
    error = refusal(row)
    assert error.session_id == f"bad-{row.name}"
    assert (error.revision, error.request_id) == (1, "request")
    assert error.tokenizer == ""
    assert not error.quarantines


@pytest.mark.parametrize("row", BAD_INPUTS, ids=lambda row: row.name)
def test_errors_hold_no_text(row: BadInput) -> None:
    """Neither the message, nor the arguments, nor a chained exception repeats the transcript."""
    error = refusal(row)
    assert error.__cause__ is None
    assert error.__context__ is None
    told = "".join(traceback.format_exception(error)) + repr(error.args) + repr(vars(error))
    assert SECRET not in told
    assert "zebra" not in told


@pytest.mark.parametrize("row", BAD_INPUTS, ids=lambda row: row.name)
def test_only_the_session_of_the_key_is_set_aside(row: BadInput) -> None:
    """A record that cannot be read quarantines its key's session, unless it is not known to be
    that session's."""
    error = refusal(row)
    nobody = {Code.MISSING_SESSION, Code.SESSION_ID_TOO_LONG, Code.KEY_MISMATCH}
    assert error.quarantines == (row.unreadable and row.code not in nobody)
    if error.quarantines:
        assert row.key == error.session_id.encode()


def test_every_wire_code_is_in_the_table() -> None:
    """No code that decoding can raise is without a row."""
    readable = {
        Code.MISSING_OP,
        Code.INVALID_UTF8,
        Code.LONE_SURROGATE,
        Code.FIELD_TOO_LONG,
        Code.EDIT_OFFSETS,
        Code.BAD_PART,
    }
    assert {row.code for row in BAD_INPUTS if row.unreadable} == UNREADABLE
    assert {row.code for row in BAD_INPUTS if not row.unreadable} == readable


def test_names_are_unique() -> None:
    """Each row has its own session, so rows can be sent together."""
    assert len({row.name for row in BAD_INPUTS}) == len(BAD_INPUTS) >= 30


def test_field_names_are_told_and_odd_ones_are_not() -> None:
    """A mistyped field is named; a key that cannot be a field's name may be text and is not."""
    for name, told in (("revison", True), ("zebra crossing", False), ("z" * 50, False)):
        value = b'{"session_id":"s","' + name.encode() + b'":1}'
        with pytest.raises(WireError) as caught:
            decode_event(b"s", value, JSON_HEADERS, max_event_bytes=MAX_EVENT_BYTES)
        assert (name in str(caught.value)) is told


def test_what_is_too_long_is_not_echoed() -> None:
    """An overlong request id is left out of the answer, so that the answer stays small."""
    value = b'{"session_id":"s","revision":1,"request_id":"' + b"r" * 481 + b'","close":{}}'
    with pytest.raises(WireError) as caught:
        decode_event(b"s", value, JSON_HEADERS, max_event_bytes=MAX_EVENT_BYTES)
    assert (caught.value.code, caught.value.request_id) == (Code.FIELD_TOO_LONG, "")


def outcome(key: bytes | None, value: bytes | None, headers: Headers) -> WireError | AppendEvent:
    """The event, or the error that refused it; anything else that is raised fails the test."""
    try:
        return decode_event(key, value, headers, max_event_bytes=MAX_EVENT_BYTES)
    except WireError as error:
        return error


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from([PROTOBUF_HEADERS, JSON_HEADERS, ()]))
def test_any_bytes_are_an_event_or_a_wire_error(value: bytes, headers: Headers) -> None:
    """Nothing but WireError comes out of decoding, whatever goes in."""
    found = outcome(b"s", value, headers)
    assert isinstance(found, AppendEvent) or found.unreadable == (found.code in UNREADABLE)


@settings(max_examples=300)
@given(st.sampled_from([row for row in BAD_INPUTS if row.value]), st.data())
def test_damaged_rows_never_crash(row: BadInput, data: st.DataObject) -> None:
    """A byte changed, added or lost in any row still gives an event or a WireError."""
    value = bytearray(row.value[:300] if row.value else b"")
    position = data.draw(st.integers(0, len(value) - 1))
    value[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    found = outcome(row.key, bytes(value), row.headers)
    assert isinstance(found, AppendEvent) or "zebra" not in str(found)
