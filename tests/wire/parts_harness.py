"""A joiner with room, parts to feed it, and short forms of what it says."""

from __future__ import annotations

from collections.abc import Sequence

from toktier_stream.errors import Code
from toktier_stream.wire.messages import AppendEvent, Reset
from toktier_stream.wire.parts import EventJoiner, Failure, Step

ROOMY = {"max_bytes": 1 << 20, "memory_bytes": 1 << 24, "deadline_s": 60.0}


def joiner(**limits: float) -> EventJoiner[int]:
    """A joiner with room for everything, but for the given limits."""
    return EventJoiner(**{**ROOMY, **limits})  # type: ignore[arg-type]


def feed(into: EventJoiner[int], messages: Sequence[AppendEvent]) -> list[Step[AppendEvent, int]]:
    """Add messages with their index as tag and as time in milliseconds."""
    return [into.add(message, tag, tag / 1000) for tag, message in enumerate(messages)]


def part(
    number: int, parts: int, text: bytes = b"x", *, session: str = "s", revision: int = 1
) -> AppendEvent:
    """One part of a reset."""
    return AppendEvent(session, revision, Reset(text), part=number, parts=parts)


def codes(failed: Sequence[Failure[int]]) -> list[tuple[int, Code]]:
    """Which revisions failed, and how."""
    return [(failure.revision, failure.code) for failure in failed]
