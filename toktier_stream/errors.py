"""Every error this system can report: a stable code, what happened, what it affects, what to do.

This is the one list. Codes are part of the contract: they travel in answers and rejects, and
they are never renamed. A message is completed with numbers and names, never with transcript text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """Stable error codes, grouped by who meets them."""

    # The event cannot be read (rejects topic; the session named by the key is quarantined).
    UNDECODABLE = "UNDECODABLE"
    CONTENT_TYPE = "CONTENT_TYPE"
    SCHEMA_VERSION = "SCHEMA_VERSION"
    NULL_VALUE = "NULL_VALUE"
    MISSING_SESSION = "MISSING_SESSION"
    SESSION_ID_TOO_LONG = "SESSION_ID_TOO_LONG"
    KEY_MISMATCH = "KEY_MISMATCH"
    BAD_REVISION = "BAD_REVISION"
    EVENT_TOO_LARGE = "EVENT_TOO_LARGE"

    # The event is readable and refused (answered REJECTED, and copied to the rejects topic).
    MISSING_OP = "MISSING_OP"
    INVALID_UTF8 = "INVALID_UTF8"
    LONE_SURROGATE = "LONE_SURROGATE"
    FIELD_TOO_LONG = "FIELD_TOO_LONG"
    EDIT_OFFSETS = "EDIT_OFFSETS"
    OFFSET_RANGE = "OFFSET_RANGE"
    OFFSET_IN_CHARACTER = "OFFSET_IN_CHARACTER"
    SESSION_TOO_LARGE = "SESSION_TOO_LARGE"
    MISSING_TOKENIZER = "MISSING_TOKENIZER"
    UNKNOWN_TOKENIZER = "UNKNOWN_TOKENIZER"
    TOKENIZER_CHANGED = "TOKENIZER_CHANGED"
    STALE_REVISION = "STALE_REVISION"
    REVISION_REUSED = "REVISION_REUSED"
    BAD_PART = "BAD_PART"
    PARTS_INCOMPLETE = "PARTS_INCOMPLETE"
    PARTS_TOO_LARGE = "PARTS_TOO_LARGE"

    # The worker needs the full text (answered NEED_RESET).
    STATE_MISS = "STATE_MISS"
    REVISION_GAP = "REVISION_GAP"
    QUARANTINED = "QUARANTINED"
    SESSION_CLOSED = "SESSION_CLOSED"

    # The producer's belief about the session is wrong (answered CONFLICT).
    EXPECT_BYTES = "EXPECT_BYTES"
    EXPECT_DIGEST = "EXPECT_DIGEST"

    # Met by the people who run or install the system.
    CONFIG_INVALID = "CONFIG_INVALID"
    EXTRA_MISSING = "EXTRA_MISSING"
    CODEC_MISSING = "CODEC_MISSING"
    GPU_UNAVAILABLE = "GPU_UNAVAILABLE"
    TOPIC_LIMIT = "TOPIC_LIMIT"
    TOPIC_MISSING = "TOPIC_MISSING"
    BROKER_UNREACHABLE = "BROKER_UNREACHABLE"
    BROKER_ERROR = "BROKER_ERROR"
    PRODUCER_FENCED = "PRODUCER_FENCED"
    PARTITION_LOST = "PARTITION_LOST"
    TOKENIZER_LOAD = "TOKENIZER_LOAD"
    REFERENCE_GAVE_UP = "REFERENCE_GAVE_UP"
    TOKENIZER_UNSUPPORTED = "TOKENIZER_UNSUPPORTED"
    TOKENIZER_FETCH = "TOKENIZER_FETCH"
    STORE_FORMAT = "STORE_FORMAT"
    STORE_FULL = "STORE_FULL"
    STORE_CORRUPT = "STORE_CORRUPT"
    STORE_DAMAGED = "STORE_DAMAGED"
    STORE_BUSY = "STORE_BUSY"
    RESTORE_DEADLINE = "RESTORE_DEADLINE"
    REJECT_RATIO = "REJECT_RATIO"
    TRANSCRIPT_FORMAT = "TRANSCRIPT_FORMAT"
    TEMPLATE = "TEMPLATE"

    # Met by the client libraries.
    DIGEST_MISMATCH = "DIGEST_MISMATCH"
    ANSWER_TIMEOUT = "ANSWER_TIMEOUT"
    CLIENT_CLOSED = "CLIENT_CLOSED"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a code means, in one sentence each."""

    happened: str
    affects: str
    remedy: str


_REJECTED = "nothing was applied to the session"
_QUARANTINE = "the session named by the key waits for a reset; other sessions go on"

EXPLANATIONS: dict[Code, Explanation] = {
    Code.UNDECODABLE: Explanation(
        "the event's bytes are not a valid message of the declared content type",
        _QUARANTINE,
        "fix the producer's serializer, then send a reset with the full text",
    ),
    Code.CONTENT_TYPE: Explanation(
        "the content-type header names a form this worker does not read",
        _QUARANTINE,
        "send application/x-protobuf or application/json",
    ),
    Code.SCHEMA_VERSION: Explanation(
        "the event declares a schema version newer than this worker reads",
        _QUARANTINE,
        "upgrade the workers before the producers",
    ),
    Code.NULL_VALUE: Explanation(
        "the record has no value",
        _QUARANTINE,
        "end a session with a close event; tombstones have no meaning on the input topic",
    ),
    Code.MISSING_SESSION: Explanation(
        "the event names no session", "the event only", "set session_id and use it as the key"
    ),
    Code.SESSION_ID_TOO_LONG: Explanation(
        "the session id is longer than 480 bytes of UTF-8", "the event only", "shorten the id"
    ),
    Code.KEY_MISMATCH: Explanation(
        "the record's key is not the UTF-8 session id",
        "the event only: its order among the session's events is not known",
        "key every record with its session id",
    ),
    Code.BAD_REVISION: Explanation(
        "the revision is not a positive integer", _QUARANTINE, "number events from 1, consecutively"
    ),
    Code.EVENT_TOO_LARGE: Explanation(
        "the event is larger than the limit of one record",
        _QUARANTINE,
        "send the text in numbered parts",
    ),
    Code.MISSING_OP: Explanation(
        "the event has none of reset, edit and close", _REJECTED, "set exactly one operation"
    ),
    Code.INVALID_UTF8: Explanation(
        "the text is not valid UTF-8", _REJECTED, "encode the text as UTF-8 before sending"
    ),
    Code.LONE_SURROGATE: Explanation(
        "the JSON text holds half of a surrogate pair",
        _REJECTED,
        "replace or drop the lone surrogate before sending",
    ),
    Code.FIELD_TOO_LONG: Explanation(
        "request_id or tokenizer is longer than 480 bytes of UTF-8",
        _REJECTED,
        "shorten the named field; it is left out of the answer",
    ),
    Code.EDIT_OFFSETS: Explanation(
        "an edit has only one of start_byte and end_byte, or they are negative or out of order",
        _REJECTED,
        "give both in order, or neither to append",
    ),
    Code.OFFSET_RANGE: Explanation(
        "an edit reaches beyond the session's text",
        _REJECTED,
        "check the session's length, or send a reset",
    ),
    Code.OFFSET_IN_CHARACTER: Explanation(
        "an edit starts or ends inside a UTF-8 character",
        _REJECTED,
        "move the offset to a character boundary",
    ),
    Code.SESSION_TOO_LARGE: Explanation(
        "the session's text would exceed the configured limit",
        _REJECTED,
        "shorten the transcript or raise max_session_bytes",
    ),
    Code.MISSING_TOKENIZER: Explanation(
        "a reset names no tokenizer and the worker has no default",
        _REJECTED,
        "name a tokenizer in the event, or configure a default",
    ),
    Code.UNKNOWN_TOKENIZER: Explanation(
        "no tokenizer of this name or hash is registered on the worker",
        _REJECTED,
        "register the tokenizer.json under this name, or correct the name",
    ),
    Code.TOKENIZER_CHANGED: Explanation(
        "an edit names another tokenizer than the session was made under",
        _REJECTED,
        "send a reset to continue the session under the new tokenizer",
    ),
    Code.STALE_REVISION: Explanation(
        "the revision is older than the session's and no longer remembered",
        _REJECTED,
        "continue from the session's revision, given in the answer",
    ),
    Code.REVISION_REUSED: Explanation(
        "the revision was applied before with other content",
        _REJECTED,
        "use each revision once; continue from the session's revision, given in the answer",
    ),
    Code.BAD_PART: Explanation(
        "a part's number or total does not fit the parts before it",
        "this revision only",
        "send the parts of one revision in order, 0 to parts - 1, with nothing in between",
    ),
    Code.PARTS_INCOMPLETE: Explanation(
        "the parts of a revision were followed by something else, or did not arrive in time",
        "this revision only",
        "send the revision again, whole",
    ),
    Code.PARTS_TOO_LARGE: Explanation(
        "the joined parts exceed the configured limit",
        "this revision only",
        "shorten the text or raise max_session_bytes",
    ),
    Code.STATE_MISS: Explanation(
        "the worker holds no state of this session", "the session", "send a reset"
    ),
    Code.REVISION_GAP: Explanation(
        "one or more revisions before this one did not arrive", "the session", "send a reset"
    ),
    Code.QUARANTINED: Explanation(
        "the session was set aside after an unreadable event, a damaged record or a failed check",
        "the session",
        "send a reset; operators find the cause in the rejects, checks and logs",
    ),
    Code.SESSION_CLOSED: Explanation(
        "the session was closed", "the session", "send a reset to open it again"
    ),
    Code.EXPECT_BYTES: Explanation(
        "the session's length differs from expect_bytes", _REJECTED, "send a reset"
    ),
    Code.EXPECT_DIGEST: Explanation(
        "the session's digest differs from expect_digest", _REJECTED, "send a reset"
    ),
    Code.CONFIG_INVALID: Explanation(
        "the configuration cannot be used", "the process does not start", "correct the named field"
    ),
    Code.EXTRA_MISSING: Explanation(
        "an optional part of the package is not installed",
        "this command only",
        "install the extra that the message names",
    ),
    Code.CODEC_MISSING: Explanation(
        "the compression codec cannot be loaded",
        "the process does not start",
        "install cramjam, or choose gzip or none",
    ),
    Code.GPU_UNAVAILABLE: Explanation(
        "no GPU can be used",
        "this command; a worker with gpu = required does not start, with auto it uses the CPU",
        "see the cause; install toktier-stream[gpu] and the driver, or choose gpu = off",
    ),
    Code.TOPIC_LIMIT: Explanation(
        "a topic's limits do not admit the configured record size",
        "the process does not start",
        "raise the topic's max.message.bytes or lower part_bytes",
    ),
    Code.TOPIC_MISSING: Explanation(
        "a topic does not exist or has another number of partitions than the input topic",
        "the process does not start",
        "create the topics with equal partition counts, or allow create_topics",
    ),
    Code.BROKER_UNREACHABLE: Explanation(
        "no broker answered at the given addresses",
        "the process does not start",
        "check the address, the listener and the credentials",
    ),
    Code.BROKER_ERROR: Explanation(
        "the broker answered with an error",
        "what the message names",
        "act on the broker's error: permissions, quotas and limits are the usual causes",
    ),
    Code.PRODUCER_FENCED: Explanation(
        "another process has taken over this partition's transactional id",
        "this partition, here only",
        "nothing: the newer owner goes on; look for flapping group membership if it repeats",
    ),
    Code.PARTITION_LOST: Explanation(
        "the group has given this partition to another member",
        "this partition, here only: its position was not committed",
        "nothing: the newer owner goes on; look for flapping group membership if it repeats",
    ),
    Code.REFERENCE_GAVE_UP: Explanation(
        "the reference engine has no answer for this text: its pattern matcher gave up",
        _REJECTED,
        "shorten the run of white space or symbols; ten million in a row are beyond it",
    ),
    Code.TOKENIZER_LOAD: Explanation(
        "the tokenizer file cannot be read by the reference engine",
        "sessions of this tokenizer",
        "check the file, and the version range of tokenizers",
    ),
    Code.TOKENIZER_UNSUPPORTED: Explanation(
        "the tokenizer's pipeline is not admitted to this path",
        "speed only: the reference serves it",
        "see toktier-stream inspect for the reason",
    ),
    Code.TOKENIZER_FETCH: Explanation(
        "the tokenizer could not be fetched from any source",
        "this command only",
        "check the name and the network, or give a tokenizer.json file",
    ),
    Code.STORE_FORMAT: Explanation(
        "the state directory was written by another format version or is not a store",
        "the partition does not start",
        "point state_dir elsewhere, or delete it: it is rebuilt from the changelog",
    ),
    Code.STORE_FULL: Explanation(
        "the store's map or disk is full",
        "the partition pauses; nothing is lost",
        "free disk space, raise store_map_bytes, or lower the quota",
    ),
    Code.STORE_CORRUPT: Explanation(
        "a record failed its checksum",
        "the session is rebuilt from the changelog, or waits for a reset",
        "check the disk; run toktier-stream store check",
    ),
    Code.STORE_DAMAGED: Explanation(
        "the store's file is damaged below its records",
        "the worker ends; its next start sets the file aside and restores from the changelog",
        "check the disk; remove damaged-data.mdb once it is of no use",
    ),
    Code.STORE_BUSY: Explanation(
        "another process holds the state directory",
        "the partition does not start",
        "give each worker its own state_dir; stop the worker to look into its store",
    ),
    Code.RESTORE_DEADLINE: Explanation(
        "the changelog could not be replayed in time",
        "the partition's events wait; the replay goes on from where it is, and nothing is lost",
        "keep the disk between restarts, set standby_replicas, or raise restore_deadline_s",
    ),
    Code.REJECT_RATIO: Explanation(
        "more of the records are rejected than reject_ratio_limit allows",
        "the worker stops; what it rejected is in the rejects topic and is not read again",
        "find the common code there and cure its cause: a producer, or a tokenizer not registered",
    ),
    Code.TRANSCRIPT_FORMAT: Explanation(
        "the file is not a transcript of a known format",
        "this file only",
        "give SWE-agent .traj, Claude Code or Codex .jsonl files",
    ),
    Code.TEMPLATE: Explanation(
        "the chat template cannot render these messages",
        "this call only; nothing was sent",
        "check the messages against the model's template",
    ),
    Code.DIGEST_MISMATCH: Explanation(
        "the ids rebuilt by the consumer differ from the worker's digest",
        "the session, in this consumer",
        "ask for a full stream; the consumer does so by itself where it has a producer",
    ),
    Code.ANSWER_TIMEOUT: Explanation(
        "no answer arrived in time", "this call only", "check that a worker runs on this topic"
    ),
    Code.CLIENT_CLOSED: Explanation(
        "the client was closed", "this call only", "use the client inside its async with block"
    ),
}


class ToktierError(Exception):
    """An error with a stable code. ``detail`` adds numbers and names, never transcript text."""

    def __init__(self, code: Code, detail: str = "") -> None:
        self.code = code
        self.detail = detail
        super().__init__(describe(code, detail))


def describe(code: Code, detail: str = "") -> str:
    """One sentence for people: what happened, what it affects, what to do."""
    e = EXPLANATIONS[code]
    happened = f"{e.happened} ({detail})" if detail else e.happened
    return f"{code.value}: {happened}; affects {e.affects}; {e.remedy}."
