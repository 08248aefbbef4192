"""The error of a record that is not accepted: what is known of it, and who is answered."""

from __future__ import annotations

from typing import Final

from toktier_stream.errors import Code, ToktierError
from toktier_stream.wire.messages import Status

UNREADABLE: Final = frozenset(
    {
        Code.UNDECODABLE,
        Code.CONTENT_TYPE,
        Code.SCHEMA_VERSION,
        Code.NULL_VALUE,
        Code.MISSING_SESSION,
        Code.SESSION_ID_TOO_LONG,
        Code.KEY_MISMATCH,
        Code.BAD_REVISION,
        Code.EVENT_TOO_LARGE,
    }
)
"""Codes of records that go to the rejects topic only: there is no revision to answer."""

ANSWERED: Final = {
    Status.REJECTED: frozenset(
        {
            Code.MISSING_OP,
            Code.INVALID_UTF8,
            Code.LONE_SURROGATE,
            Code.FIELD_TOO_LONG,
            Code.EDIT_OFFSETS,
            Code.OFFSET_RANGE,
            Code.OFFSET_IN_CHARACTER,
            Code.SESSION_TOO_LARGE,
            Code.MISSING_TOKENIZER,
            Code.UNKNOWN_TOKENIZER,
            Code.TOKENIZER_CHANGED,
            Code.TOKENIZER_LOAD,
            Code.REFERENCE_GAVE_UP,
            Code.STALE_REVISION,
            Code.REVISION_REUSED,
            Code.BAD_PART,
            Code.PARTS_INCOMPLETE,
            Code.PARTS_TOO_LARGE,
        }
    ),
    Status.NEED_RESET: frozenset(
        {Code.STATE_MISS, Code.REVISION_GAP, Code.QUARANTINED, Code.SESSION_CLOSED}
    ),
    Status.CONFLICT: frozenset({Code.EXPECT_BYTES, Code.EXPECT_DIGEST}),
}
"""Codes of answers, by the status they come with; the other statuses have none. Part of the
contract (schemas/asyncapi.yaml): who adds a refusal adds its code here."""

# These say that the record belongs to no session for sure, so none is set aside for it.
_OF_NO_SESSION = frozenset({Code.MISSING_SESSION, Code.SESSION_ID_TOO_LONG, Code.KEY_MISMATCH})


class WireError(ToktierError):
    """A record that cannot be read, or an event that is read and refused.

    ``unreadable`` tells the two apart. A refused event (not unreadable) is answered ``REJECTED``
    under its ``session_id``, ``revision``, ``request_id`` and ``tokenizer``; ``part`` and
    ``parts`` are those it declared. Of an unreadable record only ``session_id`` may be known: the
    session that its key names, empty where there is none to set aside (see ``quarantines``).

    Neither the message nor anything that hangs on the exception holds text of the record.
    """

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        session_id: str = "",
        revision: int = 0,
        request_id: str = "",
        tokenizer: str = "",
        part: int = 0,
        parts: int = 1,
    ) -> None:
        super().__init__(code, detail)
        self.unreadable = code in UNREADABLE
        self.session_id = session_id
        self.revision = revision
        self.request_id = request_id
        self.tokenizer = tokenizer
        self.part = part
        self.parts = parts

    @property
    def quarantines(self) -> bool:
        """Whether ``session_id`` must wait for a reset: an event of its log could not be read."""
        return self.unreadable and self.session_id != "" and self.code not in _OF_NO_SESSION
