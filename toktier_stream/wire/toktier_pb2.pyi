from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_OK: _ClassVar[Status]
    STATUS_DUPLICATE: _ClassVar[Status]
    STATUS_NEED_RESET: _ClassVar[Status]
    STATUS_CONFLICT: _ClassVar[Status]
    STATUS_REJECTED: _ClassVar[Status]

class Route(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUTE_UNSPECIFIED: _ClassVar[Route]
    ROUTE_SPLICE: _ClassVar[Route]
    ROUTE_GPU: _ClassVar[Route]
    ROUTE_CPU: _ClassVar[Route]
    ROUTE_REFERENCE: _ClassVar[Route]
    ROUTE_STREAM: _ClassVar[Route]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_MATCH: _ClassVar[Verdict]
    VERDICT_MISMATCH: _ClassVar[Verdict]
STATUS_UNSPECIFIED: Status
STATUS_OK: Status
STATUS_DUPLICATE: Status
STATUS_NEED_RESET: Status
STATUS_CONFLICT: Status
STATUS_REJECTED: Status
ROUTE_UNSPECIFIED: Route
ROUTE_SPLICE: Route
ROUTE_GPU: Route
ROUTE_CPU: Route
ROUTE_REFERENCE: Route
ROUTE_STREAM: Route
VERDICT_UNSPECIFIED: Verdict
VERDICT_MATCH: Verdict
VERDICT_MISMATCH: Verdict

class AppendEvent(_message.Message):
    __slots__ = ("session_id", "revision", "request_id", "tokenizer", "reset", "edit", "close", "expect_bytes", "expect_digest", "sent_at_us", "want_full", "part", "parts")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    EDIT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    EXPECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPECT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_US_FIELD_NUMBER: _ClassVar[int]
    WANT_FULL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    revision: int
    request_id: str
    tokenizer: str
    reset: Reset
    edit: Edit
    close: Close
    expect_bytes: int
    expect_digest: int
    sent_at_us: int
    want_full: bool
    part: int
    parts: int
    def __init__(self, session_id: _Optional[str] = ..., revision: _Optional[int] = ..., request_id: _Optional[str] = ..., tokenizer: _Optional[str] = ..., reset: _Optional[_Union[Reset, _Mapping]] = ..., edit: _Optional[_Union[Edit, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., expect_bytes: _Optional[int] = ..., expect_digest: _Optional[int] = ..., sent_at_us: _Optional[int] = ..., want_full: bool = ..., part: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class Edit(_message.Message):
    __slots__ = ("text", "start_byte", "end_byte")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_BYTE_FIELD_NUMBER: _ClassVar[int]
    END_BYTE_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    start_byte: int
    end_byte: int
    def __init__(self, text: _Optional[bytes] = ..., start_byte: _Optional[int] = ..., end_byte: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TokenUpdate(_message.Message):
    __slots__ = ("session_id", "revision", "status", "keep_tokens", "token_ids", "tail_tokens", "total_tokens", "total_bytes", "digest", "session_revision", "route", "request_id", "tokenizer", "code", "message", "evidence", "timings", "closed", "part", "parts", "source_offset", "settled_tokens")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KEEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SESSION_REVISION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SETTLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    revision: int
    status: Status
    keep_tokens: int
    token_ids: bytes
    tail_tokens: int
    total_tokens: int
    total_bytes: int
    digest: int
    session_revision: int
    route: Route
    request_id: str
    tokenizer: str
    code: str
    message: str
    evidence: Evidence
    timings: Timings
    closed: bool
    part: int
    parts: int
    source_offset: int
    settled_tokens: int
    def __init__(self, session_id: _Optional[str] = ..., revision: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., keep_tokens: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., tail_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., total_bytes: _Optional[int] = ..., digest: _Optional[int] = ..., session_revision: _Optional[int] = ..., route: _Optional[_Union[Route, str]] = ..., request_id: _Optional[str] = ..., tokenizer: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., evidence: _Optional[_Union[Evidence, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., closed: bool = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., source_offset: _Optional[int] = ..., settled_tokens: _Optional[int] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("window_chars", "widenings", "fallback", "boundary_byte", "run_tokens", "run_chars", "right_boundary_byte", "right_run_tokens", "chars_encoded", "engine")
    WINDOW_CHARS_FIELD_NUMBER: _ClassVar[int]
    WIDENINGS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_BYTE_FIELD_NUMBER: _ClassVar[int]
    RUN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUN_CHARS_FIELD_NUMBER: _ClassVar[int]
    RIGHT_BOUNDARY_BYTE_FIELD_NUMBER: _ClassVar[int]
    RIGHT_RUN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHARS_ENCODED_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    window_chars: int
    widenings: int
    fallback: bool
    boundary_byte: int
    run_tokens: int
    run_chars: int
    right_boundary_byte: int
    right_run_tokens: int
    chars_encoded: int
    engine: str
    def __init__(self, window_chars: _Optional[int] = ..., widenings: _Optional[int] = ..., fallback: bool = ..., boundary_byte: _Optional[int] = ..., run_tokens: _Optional[int] = ..., run_chars: _Optional[int] = ..., right_boundary_byte: _Optional[int] = ..., right_run_tokens: _Optional[int] = ..., chars_encoded: _Optional[int] = ..., engine: _Optional[str] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queued_us", "encode_us", "total_us")
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    ENCODE_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    queued_us: int
    encode_us: int
    total_us: int
    def __init__(self, queued_us: _Optional[int] = ..., encode_us: _Optional[int] = ..., total_us: _Optional[int] = ...) -> None: ...

class CheckRecord(_message.Message):
    __slots__ = ("session_id", "revision", "tokenizer", "verdict", "route", "text_sha256", "text_bytes", "tokens_emitted", "tokens_reference", "first_difference", "reference_version", "engine", "checked_at_us")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TEXT_SHA256_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_EMITTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    CHECKED_AT_US_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    revision: int
    tokenizer: str
    verdict: Verdict
    route: Route
    text_sha256: str
    text_bytes: int
    tokens_emitted: int
    tokens_reference: int
    first_difference: int
    reference_version: str
    engine: str
    checked_at_us: int
    def __init__(self, session_id: _Optional[str] = ..., revision: _Optional[int] = ..., tokenizer: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., route: _Optional[_Union[Route, str]] = ..., text_sha256: _Optional[str] = ..., text_bytes: _Optional[int] = ..., tokens_emitted: _Optional[int] = ..., tokens_reference: _Optional[int] = ..., first_difference: _Optional[int] = ..., reference_version: _Optional[str] = ..., engine: _Optional[str] = ..., checked_at_us: _Optional[int] = ...) -> None: ...
