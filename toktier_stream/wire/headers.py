"""The record headers of all topics: names, content types, the schema version, trace context."""

from __future__ import annotations

from typing import Final

from toktier_stream.errors import Code

Headers = tuple[tuple[str, bytes], ...]
"""Record headers in order; a name may repeat, and the last one counts (as in Kafka's clients)."""

CONTENT_TYPE: Final = "content-type"
SCHEMA_VERSION: Final = "schema-version"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

ERROR_CODE: Final = "error.code"
ERROR_MESSAGE: Final = "error.message"
SOURCE_TOPIC: Final = "source.topic"
SOURCE_PARTITION: Final = "source.partition"
SOURCE_OFFSET: Final = "source.offset"

PROTOBUF: Final = b"application/x-protobuf"
JSON: Final = b"application/json"
VERSION: Final = b"1"

PROTOBUF_HEADERS: Final[Headers] = ((CONTENT_TYPE, PROTOBUF), (SCHEMA_VERSION, VERSION))
JSON_HEADERS: Final[Headers] = ((CONTENT_TYPE, JSON), (SCHEMA_VERSION, VERSION))

_TRACE = (TRACEPARENT, TRACESTATE)
# What the W3C trace context asks every hop to carry; longer values are not passed on, so that a
# header can never make an answer larger than its topic admits.
_MAX_TRACE_BYTES = 512


def trace_context(headers: Headers) -> Headers:
    """``traceparent`` and ``tracestate`` of a record, to be passed on with its answer."""
    return tuple([h for h in headers if h[0] in _TRACE and h[1] and len(h[1]) <= _MAX_TRACE_BYTES])


def read_form(headers: Headers) -> tuple[bytes, Code | None, str]:
    """``(PROTOBUF or JSON, None, "")``, or with the code and detail of what cannot be read.

    Without a content type a record is protobuf, without a schema version it is version 1.
    """
    content, version = PROTOBUF, VERSION
    for name, value in headers:
        if name == CONTENT_TYPE:
            content = value
        elif name == SCHEMA_VERSION:
            version = value
    form = content if content is PROTOBUF else _media_type(content)
    if not form:
        return PROTOBUF, Code.CONTENT_TYPE, ""
    if version is not VERSION and version != VERSION:
        return form, Code.SCHEMA_VERSION, "this release reads version 1"
    return form, None, ""


def _media_type(value: bytes | None) -> bytes:
    """``PROTOBUF`` or ``JSON`` (these very objects), however ``value`` spells it, or nothing."""
    if value == PROTOBUF:
        return PROTOBUF
    if value == JSON:
        return JSON
    # A client may deliver a header without value as None, whatever its types say.
    if not value:
        return b""
    kind, *parameters = (part.strip().lower() for part in value.split(b";"))
    # A parameter can only say what is so anyway: UTF-8.
    if any(p not in (b"", b"charset=utf-8", b'charset="utf-8"') for p in parameters):
        return b""
    return PROTOBUF if kind == PROTOBUF else JSON if kind == JSON else b""
