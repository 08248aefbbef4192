"""Token updates, check records and rejects to record bytes and back."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError

from toktier_stream.errors import Code
from toktier_stream.wire import toktier_pb2 as pb
from toktier_stream.wire.codec import Encoded
from toktier_stream.wire.headers import (
    ERROR_CODE,
    ERROR_MESSAGE,
    PROTOBUF,
    PROTOBUF_HEADERS,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
    Headers,
    read_form,
)
from toktier_stream.wire.messages import (
    CheckRecord,
    Evidence,
    Reject,
    Route,
    Status,
    Timings,
    TokenUpdate,
    Verdict,
)
from toktier_stream.wire.refusal import WireError

_STATUS: Final = {
    Status.OK: pb.STATUS_OK,
    Status.DUPLICATE: pb.STATUS_DUPLICATE,
    Status.NEED_RESET: pb.STATUS_NEED_RESET,
    Status.CONFLICT: pb.STATUS_CONFLICT,
    Status.REJECTED: pb.STATUS_REJECTED,
}
_ROUTE: Final = {
    Route.NONE: pb.ROUTE_UNSPECIFIED,
    Route.SPLICE: pb.ROUTE_SPLICE,
    Route.GPU: pb.ROUTE_GPU,
    Route.CPU: pb.ROUTE_CPU,
    Route.REFERENCE: pb.ROUTE_REFERENCE,
    Route.STREAM: pb.ROUTE_STREAM,
}
_VERDICT: Final = {Verdict.MATCH: pb.VERDICT_MATCH, Verdict.MISMATCH: pb.VERDICT_MISMATCH}
_STATUS_OF: Final = {number: status for status, number in _STATUS.items()}
_ROUTE_OF: Final = {number: route for route, number in _ROUTE.items()}
_VERDICT_OF: Final = {number: verdict for verdict, number in _VERDICT.items()}
_CODES: Final = {code.value: code for code in Code}

_REJECT_HEADERS = (ERROR_CODE, ERROR_MESSAGE, SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET)


_P = TypeVar("_P", pb.TokenUpdate, pb.CheckRecord)


class Told(NamedTuple):
    """What is known last of an answer: its times, and the place of the record it answers."""

    timings: Timings
    source_offset: int


def encode_update(update: TokenUpdate, *, trace: Headers = (), told: Told | None = None) -> Encoded:
    """A record of the output topic. ``trace`` is appended to the headers; ``told`` takes the place
    of what the update says of the same."""
    return Encoded(
        update.session_id.encode(), encode_update_value(update, told), PROTOBUF_HEADERS + trace
    )


def encode_update_value(update: TokenUpdate, told: Told | None = None) -> bytes:
    """The protobuf bytes of an update; see :func:`encode_update`."""
    t, source_offset = told or (update.timings, update.source_offset)
    # One by one: keywords of the constructor take a quarter longer.
    m = pb.TokenUpdate()
    m.session_id = update.session_id
    m.revision = update.revision
    m.status = _STATUS[update.status]
    m.keep_tokens = update.keep
    m.token_ids = update.token_ids
    m.tail_tokens = update.tail
    m.total_tokens = update.total_tokens
    m.total_bytes = update.total_bytes
    m.digest = update.digest
    m.session_revision = update.session_revision
    m.route = _ROUTE[update.route]
    m.request_id = update.request_id
    m.tokenizer = update.tokenizer
    if update.code is not None:
        m.code = update.code.value
    if update.message:
        m.message = update.message
    if update.closed:
        m.closed = True
    if update.parts != 1:
        m.part, m.parts = update.part, update.parts
    if update.settled:
        m.settled_tokens = update.settled
    if source_offset >= 0:
        m.source_offset = source_offset
    e = update.evidence
    if e is not None:
        out = m.evidence
        out.SetInParent()
        out.window_chars = e.window_chars
        out.widenings = e.widenings
        out.fallback = e.fallback
        out.run_tokens = e.run_tokens
        out.run_chars = e.run_chars
        out.right_run_tokens = e.right_run_tokens
        out.chars_encoded = e.chars_encoded
        out.engine = e.engine
        if e.boundary_byte >= 0:
            out.boundary_byte = e.boundary_byte
        if e.right_boundary_byte >= 0:
            out.right_boundary_byte = e.right_boundary_byte
    if t is not None:
        times = m.timings
        times.SetInParent()
        times.queued_us = t.queued_us
        times.encode_us = t.encode_us
        times.total_us = t.total_us
    return m.SerializeToString()


def decode_update(key: bytes | None, value: bytes | None, headers: Headers) -> TokenUpdate:
    """The update of one record of the output topic.

    Raises :class:`WireError` (always ``unreadable``). A code that this release does not know
    becomes ``None`` and leads the message; an unknown route becomes ``Route.NONE``.
    """
    m = _read(pb.TokenUpdate, key, value, headers)
    status = _STATUS_OF.get(m.status)
    if status is None:
        raise WireError(Code.UNDECODABLE, f"status: unknown number {m.status}")
    parts = m.parts or 1
    if not 0 <= m.part < parts:
        raise WireError(Code.UNDECODABLE, f"part {m.part} of {parts}")
    if m.revision < 1 or m.keep_tokens < 0 or m.tail_tokens < 0 or m.total_tokens < 0:
        raise WireError(Code.UNDECODABLE, "a number is negative or missing")
    ids = m.token_ids
    if len(ids) % 4:
        raise WireError(Code.UNDECODABLE, f"token_ids: {len(ids)} bytes")
    code, message = None, m.message
    if m.code:
        code = _CODES.get(m.code)
        if code is None:
            message = f"{m.code}: {message}"
    return TokenUpdate(
        session_id=m.session_id,
        revision=m.revision,
        status=status,
        request_id=m.request_id,
        tokenizer=m.tokenizer,
        code=code,
        message=message,
        keep=m.keep_tokens,
        token_ids=ids,
        tail=m.tail_tokens,
        total_tokens=m.total_tokens,
        total_bytes=m.total_bytes,
        digest=m.digest,
        session_revision=m.session_revision,
        route=_ROUTE_OF.get(m.route, Route.NONE),
        evidence=_evidence(m.evidence) if m.HasField("evidence") else None,
        timings=_timings(m.timings) if m.HasField("timings") else None,
        closed=m.closed,
        part=m.part,
        parts=parts,
        source_offset=m.source_offset if m.HasField("source_offset") else -1,
        # A promise that cannot be is none.
        settled=m.settled_tokens if 0 <= m.settled_tokens <= m.total_tokens else 0,
    )


def encode_check(check: CheckRecord, *, trace: Headers = ()) -> Encoded:
    """A record of the topic of verified samples."""
    m = pb.CheckRecord(
        session_id=check.session_id,
        revision=check.revision,
        tokenizer=check.tokenizer,
        verdict=_VERDICT[check.verdict],
        route=_ROUTE[check.route],
        text_sha256=check.text_sha256,
        text_bytes=check.text_bytes,
        tokens_emitted=check.tokens_emitted,
        tokens_reference=check.tokens_reference,
        first_difference=check.first_difference if check.first_difference >= 0 else None,
        reference_version=check.reference_version,
        engine=check.engine,
        checked_at_us=check.checked_at_us,
    )
    return Encoded(check.session_id.encode(), m.SerializeToString(), PROTOBUF_HEADERS + trace)


def decode_check(key: bytes | None, value: bytes | None, headers: Headers) -> CheckRecord:
    """The check of one record. Raises :class:`WireError` (always ``unreadable``)."""
    m = _read(pb.CheckRecord, key, value, headers)
    verdict = _VERDICT_OF.get(m.verdict)
    if verdict is None:
        raise WireError(Code.UNDECODABLE, f"verdict: unknown number {m.verdict}")
    return CheckRecord(
        session_id=m.session_id,
        revision=m.revision,
        tokenizer=m.tokenizer,
        verdict=verdict,
        route=_ROUTE_OF.get(m.route, Route.NONE),
        text_sha256=m.text_sha256,
        text_bytes=m.text_bytes,
        tokens_emitted=m.tokens_emitted,
        tokens_reference=m.tokens_reference,
        first_difference=m.first_difference if m.HasField("first_difference") else -1,
        reference_version=m.reference_version,
        engine=m.engine,
        checked_at_us=m.checked_at_us,
    )


def encode_reject(reject: Reject) -> Encoded:
    """A record of the rejects topic: the refused record as it was, and five headers after its own.

    Key, value and headers stay untouched, so that a repaired worker can be fed with them again.
    """
    return Encoded(
        reject.key,
        reject.value,
        (
            *reject.headers,
            (ERROR_CODE, reject.code.value.encode()),
            (ERROR_MESSAGE, reject.message.encode()),
            (SOURCE_TOPIC, reject.topic.encode()),
            (SOURCE_PARTITION, str(reject.partition).encode()),
            (SOURCE_OFFSET, str(reject.offset).encode()),
        ),
    )


def decode_reject(key: bytes | None, value: bytes | None, headers: Headers) -> Reject:
    """The reject of one record. Raises ``UNDECODABLE`` where it is not one of this release."""
    count = len(_REJECT_HEADERS)
    # Only the last five: a reject that was sent in again and refused again carries older ones.
    last = headers[-count:]
    if tuple(name for name, _ in last) != _REJECT_HEADERS:
        raise WireError(Code.UNDECODABLE, "not the headers of a reject")
    code, message, topic, partition, offset = (_text(value) for _, value in last)
    if code not in _CODES or not (partition.isdecimal() and offset.isdecimal()):
        raise WireError(Code.UNDECODABLE, "the headers of a reject, with other values")
    return Reject(
        code=_CODES[code],
        message=message,
        topic=topic,
        partition=int(partition),
        offset=int(offset),
        key=key,
        value=value,
        headers=headers[:-count],
    )


def _read(kind: type[_P], key: bytes | None, value: bytes | None, headers: Headers) -> _P:
    """A protobuf answer whose key is its session id."""
    if value is None:
        raise WireError(Code.NULL_VALUE)
    form, refused, detail = read_form(headers)
    if refused is None and form is not PROTOBUF:
        refused, detail = Code.CONTENT_TYPE, "answers are protobuf"
    if refused is not None:
        raise WireError(refused, detail)
    m = _parse(kind, value)
    if m is None:
        raise WireError(Code.UNDECODABLE, f"not a protobuf {kind.__name__}")
    if not m.session_id:
        raise WireError(Code.MISSING_SESSION)
    if key != m.session_id.encode():
        raise WireError(Code.KEY_MISMATCH)
    return m


def _parse(kind: type[_P], value: bytes) -> _P | None:
    try:
        return kind.FromString(value)
    except (DecodeError, UnicodeDecodeError):
        return None


def _evidence(m: pb.Evidence) -> Evidence:
    return Evidence(
        window_chars=m.window_chars,
        widenings=m.widenings,
        fallback=m.fallback,
        boundary_byte=m.boundary_byte if m.HasField("boundary_byte") else -1,
        run_tokens=m.run_tokens,
        run_chars=m.run_chars,
        right_boundary_byte=m.right_boundary_byte if m.HasField("right_boundary_byte") else -1,
        right_run_tokens=m.right_run_tokens,
        chars_encoded=m.chars_encoded,
        engine=m.engine,
    )


def _timings(m: pb.Timings) -> Timings:
    return Timings(m.queued_us, m.encode_us, m.total_us)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
