"""Every message comes back from its bytes as it was, in both forms, and headers say which."""

from __future__ import annotations

import base64
import json
from dataclasses import fields, replace

import pytest
from bad_inputs import SECRET
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import checks, events, rejects, updates

from toktier_stream.errors import Code
from toktier_stream.wire import toktier_pb2 as pb
from toktier_stream.wire.answers import (
    decode_check,
    decode_reject,
    decode_update,
    encode_check,
    encode_reject,
    encode_update,
)
from toktier_stream.wire.codec import decode_event, encode_event
from toktier_stream.wire.headers import JSON, PROTOBUF, Headers, trace_context
from toktier_stream.wire.messages import (
    AppendEvent,
    CheckRecord,
    Close,
    Edit,
    Reject,
    Reset,
    Route,
    Status,
    TokenUpdate,
    Verdict,
)
from toktier_stream.wire.refusal import WireError

LIMIT = 1 << 20
TRACE: Headers = (("traceparent", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"),)


@given(events, st.sampled_from([PROTOBUF, JSON]))
def test_events(event: AppendEvent, form: bytes) -> None:
    """An event in protobuf and in JSON."""
    record = encode_event(event, content_type=form, trace=TRACE)
    assert record.key == event.session_id.encode()
    assert record.headers == (("content-type", form), ("schema-version", b"1"), *TRACE)
    assert decode_event(*record, max_event_bytes=LIMIT) == event


@given(events)
def test_both_forms_say_the_same(event: AppendEvent) -> None:
    """Protobuf's own JSON reader, given our JSON with the text as base64, sees our protobuf."""
    body = json.loads(encode_event(event, content_type=JSON).value or b"")
    for op in ("reset", "edit"):
        if op in body:
            body[op]["text"] = base64.b64encode(body[op]["text"].encode()).decode()
    theirs = json_format.Parse(json.dumps(body), pb.AppendEvent())
    assert theirs == pb.AppendEvent.FromString(encode_event(event).value or b"")


@given(updates)
def test_updates(update: TokenUpdate) -> None:
    """An update, with and without evidence, timings and code."""
    record = encode_update(update, trace=TRACE)
    assert record.headers == (("content-type", PROTOBUF), ("schema-version", b"1"), *TRACE)
    assert decode_update(*record) == update


@given(checks)
def test_checks(check: CheckRecord) -> None:
    """A check record."""
    assert decode_check(*encode_check(check)) == check


@given(rejects)
def test_rejects(reject: Reject) -> None:
    """A reject, also of a record that has no key or value, or is itself a reject sent again."""
    record = encode_reject(reject)
    assert decode_reject(*record) == reject
    again = encode_reject(
        replace(reject, key=record.key, value=record.value, headers=record.headers)
    )
    assert decode_reject(*again).headers == record.headers


def test_a_reject_is_the_original_record_and_five_headers() -> None:
    """What operators read with any Kafka tool."""
    headers: Headers = (("content-type", b"text/plain"),)
    record = encode_reject(Reject(Code.CONTENT_TYPE, "why", "t", 3, 17, b"k", b"v", headers))
    assert (record.key, record.value) == (b"k", b"v")
    assert record.headers == (
        ("content-type", b"text/plain"),
        ("error.code", b"CONTENT_TYPE"),
        ("error.message", b"why"),
        ("source.topic", b"t"),
        ("source.partition", b"3"),
        ("source.offset", b"17"),
    )


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/json",
        b"Application/JSON",
        b"application/json; charset=utf-8",
        b'application/json;charset="UTF-8"',
    ],
)
def test_content_types_are_read_as_people_write_them(content_type: bytes) -> None:
    """Case, and a charset that says what is so anyway, do not matter."""
    event = AppendEvent("s", 1, Close())
    value = encode_event(event, content_type=JSON).value
    headers: Headers = (("content-type", content_type),)
    assert decode_event(b"s", value, headers, max_event_bytes=LIMIT) == event


def test_records_without_headers_are_protobuf_of_version_1() -> None:
    """The default, for producers that set none."""
    event = AppendEvent("s", 1, Edit(b"x"))
    assert decode_event(b"s", encode_event(event).value, (), max_event_bytes=LIMIT) == event


def test_the_last_of_repeated_headers_counts() -> None:
    """As in Kafka's own clients."""
    event = AppendEvent("s", 1, Close())
    headers: Headers = (("content-type", b"text/plain"), ("content-type", PROTOBUF))
    assert decode_event(b"s", encode_event(event).value, headers, max_event_bytes=LIMIT) == event


def test_unknown_fields_of_protobuf_are_passed_over() -> None:
    """A newer producer's additional field does not disturb an older worker."""
    event = AppendEvent("s", 1, Edit(b"x"))
    value = (encode_event(event).value or b"") + b"\xf2\x3f\x03new"
    assert decode_event(b"s", value, (), max_event_bytes=LIMIT) == event


def test_json_numbers_may_be_decimal_strings_and_null_is_absent() -> None:
    """What JavaScript and Java libraries make of 64-bit numbers and of missing values."""
    value = (
        b'{"session_id":"s","revision":"9007199254740993","request_id":null,"reset":null,'
        b'"edit":{"text":"x","start_byte":"2","end_byte":3},"expect_digest":"2305843009213693950",'
        b'"expect_bytes":null,"want_full":null,"part":null,"parts":null,"sent_at_us":null}'
    )
    assert decode_event(
        b"s", value, (("content-type", JSON),), max_event_bytes=LIMIT
    ) == AppendEvent("s", 9007199254740993, Edit(b"x", 2, 3), expect_digest=(1 << 61) - 2)


def test_a_part_may_be_cut_inside_a_character() -> None:
    """Its text is checked once it is whole, not before."""
    part = AppendEvent("s", 1, Reset("é".encode()[:1]), part=0, parts=2)
    assert decode_event(*encode_event(part), max_event_bytes=LIMIT) == part
    with pytest.raises(WireError) as caught:
        encode_event(part, content_type=JSON)
    assert caught.value.code is Code.INVALID_UTF8


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (AppendEvent("", 1, Close()), Code.MISSING_SESSION),
        (AppendEvent("x" * 481, 1, Close()), Code.SESSION_ID_TOO_LONG),
        (AppendEvent("s", 0, Close()), Code.BAD_REVISION),
        (AppendEvent("s", 1 << 63, Close()), Code.BAD_REVISION),
        (AppendEvent("s", 1, Edit(b"x", 2)), Code.EDIT_OFFSETS),
        (AppendEvent("s", 1, Edit(b"x", 2, 1 << 63)), Code.EDIT_OFFSETS),
        (AppendEvent("s", 1, Reset(SECRET.encode() + b"\xff")), Code.INVALID_UTF8),
        (AppendEvent("s", 1, Close(), part=1, parts=2), Code.BAD_PART),
        (AppendEvent("s", 1, Close(), tokenizer="x" * 481), Code.FIELD_TOO_LONG),
        (AppendEvent("\ud800", 1, Close()), Code.UNDECODABLE),
        (AppendEvent("s", 1, Close(), request_id="\ud800"), Code.UNDECODABLE),
        (AppendEvent("s", 1, Close(), expect_digest=-1), Code.UNDECODABLE),
        (AppendEvent("s", 1, Close(), sent_at_us=1 << 63), Code.UNDECODABLE),
    ],
)
def test_producers_meet_the_workers_errors_early(event: AppendEvent, code: Code) -> None:
    """Encoding refuses what decoding would refuse, with the same code."""
    for form in (PROTOBUF, JSON):
        with pytest.raises(WireError) as caught:
            encode_event(event, content_type=form)
        assert caught.value.code is code
        assert SECRET not in str(caught.value)


def test_producers_cannot_choose_an_unknown_form() -> None:
    """A content type nobody reads is refused before it is sent."""
    with pytest.raises(WireError) as caught:
        encode_event(AppendEvent("s", 1, Close()), content_type=b"text/plain")
    assert caught.value.code is Code.CONTENT_TYPE


def test_bad_answers_are_refused() -> None:
    """A consumer gets a coded error for what is no answer of this release."""
    update = TokenUpdate("s", 1, Status.OK, token_ids=b"abcd")
    key, value, headers = encode_update(update)
    broken = [
        (key, None, headers, Code.NULL_VALUE),
        (key, b"\xff", headers, Code.UNDECODABLE),
        (key, value, (("content-type", JSON),), Code.CONTENT_TYPE),
        (key, value, (("schema-version", b"2"),), Code.SCHEMA_VERSION),
        (b"t", value, headers, Code.KEY_MISMATCH),
        (key, b"", headers, Code.MISSING_SESSION),
        (key, pb.TokenUpdate(session_id="s", revision=1).SerializeToString(), (), Code.UNDECODABLE),
    ]
    for fields_ in (
        {"status": 9},
        {"token_ids": b"abc"},
        {"revision": 0},
        {"keep_tokens": -1},
        {"tail_tokens": -1},
        {"total_tokens": -1},
        {"part": 2, "parts": 2},
        {"part": -1},
    ):
        m = pb.TokenUpdate.FromString(value or b"")
        for name, number in fields_.items():
            setattr(m, name, number)
        broken.append((key, m.SerializeToString(), (), Code.UNDECODABLE))
    for k, v, h, code in broken:
        with pytest.raises(WireError) as caught:
            decode_update(k, v, h)
        assert caught.value.code is code
        assert caught.value.unreadable
    m2 = pb.CheckRecord(session_id="s")
    with pytest.raises(WireError, match="verdict"):
        decode_check(b"s", m2.SerializeToString(), ())


def test_bad_rejects_are_refused() -> None:
    """Whatever lies on the rejects topic without a reject's headers is told apart."""
    sound = encode_reject(decode_reject(b"k", b"v", _reject_headers())).headers
    for index, value in ((0, b"NOT_A_CODE"), (3, b"-1"), (4, b"x")):
        headers = list(sound)
        headers[index] = (headers[index][0], value)
        with pytest.raises(WireError):
            decode_reject(b"k", b"v", tuple(headers))
    with pytest.raises(WireError):
        decode_reject(b"k", b"v", sound[1:])


def _reject_headers() -> Headers:
    return (
        ("error.code", b"NULL_VALUE"),
        ("error.message", b"m"),
        ("source.topic", b"t"),
        ("source.partition", b"0"),
        ("source.offset", b"0"),
    )


def test_newer_workers_codes_and_routes_do_not_stop_older_consumers() -> None:
    """An unknown code leads the message, an unknown route is none."""
    m = pb.TokenUpdate(
        session_id="s", revision=1, status=pb.STATUS_REJECTED, code="BRAND_NEW", message="why"
    )
    m.route = 17  # type: ignore[assignment]
    update = decode_update(b"s", m.SerializeToString(), ())
    assert (update.code, update.message, update.route) == (None, "BRAND_NEW: why", Route.NONE)


def test_enumerations_cover_the_proto() -> None:
    """Each value of the proto's enumerations has its twin here, by name."""
    for proto, ours, absent in (
        (pb.Status, Status, "STATUS_UNSPECIFIED"),
        (pb.Verdict, Verdict, "VERDICT_UNSPECIFIED"),
        (pb.Route, Route, "ROUTE_UNSPECIFIED"),
    ):
        prefix = absent.removesuffix("UNSPECIFIED")
        mine = {prefix + member.name for member in ours if member is not Route.NONE}
        assert {name for name in proto.keys() if name != absent} == mine  # noqa: SIM118


def test_trace_context_is_passed_on_and_nothing_else() -> None:
    """W3C headers in their order; oversized ones would grow the answer and are left out."""
    headers: Headers = (
        ("tracestate", b"a=b"),
        ("content-type", b"x"),
        ("traceparent", b"00-1"),
        ("baggage", b"b"),
    )
    assert trace_context(headers) == (("tracestate", b"a=b"), ("traceparent", b"00-1"))
    assert trace_context((("tracestate", b"x" * 513),)) == ()


def test_every_field_of_the_messages_travels() -> None:
    """No field of a value is forgotten by the proto."""
    renamed = {"keep": "keep_tokens", "tail": "tail_tokens", "start": "start_byte"}
    renamed |= {"end": "end_byte", "settled": "settled_tokens"}
    for value, message in (
        (AppendEvent, pb.AppendEvent),
        (TokenUpdate, pb.TokenUpdate),
        (CheckRecord, pb.CheckRecord),
        (Edit, pb.Edit),
        (Reset, pb.Reset),
    ):
        ours = {renamed.get(field.name, field.name) for field in fields(value)} - {"op"}
        theirs = {field.name for field in message.DESCRIPTOR.fields}
        assert theirs - ours == ({"reset", "edit", "close"} if value is AppendEvent else set())
        assert ours <= theirs
