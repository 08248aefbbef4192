"""The messages as immutable values. How they become bytes is codec.py's job."""

from __future__ import annotations

from enum import StrEnum

from toktier_stream.errors import Code
from toktier_stream.values import value

MAX_SESSION_ID_BYTES = 480


@value
class Reset:
    """The full text of a session, as UTF-8 bytes."""

    text: bytes


@value
class Edit:
    """Replace the bytes ``[start, end)`` by ``text``; both None: append at the end."""

    text: bytes
    start: int | None = None
    end: int | None = None


@value
class Close:
    """End the session and drop its state."""


Operation = Reset | Edit | Close


@value
class AppendEvent:
    """One event of a session. ``revision`` is consecutive; a reset may jump forward."""

    session_id: str
    revision: int
    op: Operation
    request_id: str = ""
    tokenizer: str = ""
    expect_bytes: int | None = None
    expect_digest: int | None = None
    sent_at_us: int = 0
    want_full: bool = False
    part: int = 0
    parts: int = 1


class Status(StrEnum):
    """What became of an event."""

    OK = "OK"
    DUPLICATE = "DUPLICATE"
    NEED_RESET = "NEED_RESET"
    CONFLICT = "CONFLICT"
    REJECTED = "REJECTED"


class Route(StrEnum):
    """How the ids of an answer were computed."""

    NONE = ""
    SPLICE = "splice"
    GPU = "gpu"
    CPU = "cpu"
    REFERENCE = "reference"
    STREAM = "stream"


@value
class Evidence:
    """Why a splice is exact (units: characters and bytes of the new text).

    ``boundary_byte`` is the certified boundary's position in the new text, ``run_tokens`` and
    ``run_chars`` the matched run around it; ``right_*`` is the second certificate of an edit in
    the middle. -1 where there is none (full encodes).
    """

    window_chars: int = 0
    widenings: int = 0
    fallback: bool = False
    boundary_byte: int = -1
    run_tokens: int = 0
    run_chars: int = 0
    right_boundary_byte: int = -1
    right_run_tokens: int = 0
    chars_encoded: int = 0
    engine: str = ""


@value
class Timings:
    """Microseconds by stage; ``queued`` is from the record's timestamp to its decode."""

    queued_us: int = 0
    encode_us: int = 0
    total_us: int = 0


@value
class TokenUpdate:
    """The answer to one event: keep the first ``keep`` tokens, then ``ids``, then the last
    ``tail`` tokens of the old stream. ``token_ids`` is little-endian u32. ``source_offset`` is the
    answered record's place in its input partition; -1 where it is not known. The first ``settled``
    tokens are changed by no later append."""

    session_id: str
    revision: int
    status: Status
    request_id: str = ""
    tokenizer: str = ""
    code: Code | None = None
    message: str = ""
    keep: int = 0
    token_ids: bytes = b""
    tail: int = 0
    total_tokens: int = 0
    total_bytes: int = 0
    digest: int = 0
    session_revision: int = 0
    route: Route = Route.NONE
    evidence: Evidence | None = None
    timings: Timings | None = None
    closed: bool = False
    part: int = 0
    parts: int = 1
    source_offset: int = -1
    settled: int = 0


class Verdict(StrEnum):
    """What the shadow verifier found."""

    MATCH = "match"
    MISMATCH = "mismatch"


@value
class CheckRecord:
    """One verified sample: hashes and positions, never text."""

    session_id: str
    revision: int
    tokenizer: str
    verdict: Verdict
    route: Route
    text_sha256: str
    text_bytes: int
    tokens_emitted: int
    tokens_reference: int
    first_difference: int = -1
    reference_version: str = ""
    engine: str = ""
    checked_at_us: int = 0


@value
class Reject:
    """A refused event with its original key, value and headers, and where it stood."""

    code: Code
    message: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
