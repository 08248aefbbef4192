"""Splitting: each part is within its limit, and joining gives back what was split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts_harness import feed, joiner
from wire_strategies import I64, events, updates

from toktier_stream.errors import Code
from toktier_stream.wire.answers import encode_update
from toktier_stream.wire.codec import MAX_PARTS, encode_event
from toktier_stream.wire.headers import JSON
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Reset, Status, TokenUpdate
from toktier_stream.wire.parts import UpdateJoiner
from toktier_stream.wire.refusal import WireError
from toktier_stream.wire.split import ENVELOPE_BYTES, split_event, split_update


@given(events, st.integers(1, 60))
def test_split_events_join_to_themselves(event: AppendEvent, part_bytes: int) -> None:
    """Whatever the size of the parts, joining gives the event back; each part is small."""
    parts = split_event(event, part_bytes)
    assert [p.part for p in parts] == list(range(len(parts)))
    for p in parts:
        assert len(getattr(p.op, "text", b"")) <= part_bytes
        assert len(encode_event(p).value or b"") <= part_bytes + ENVELOPE_BYTES
    steps = feed(joiner(), parts)
    assert [step.ready for step in steps] == [None] * (len(parts) - 1) + [event]
    assert all(step.first_tag == 0 and not step.failed for step in steps)


@given(updates, st.integers(1, 60))
def test_split_updates_join_to_themselves(update: TokenUpdate, part_bytes: int) -> None:
    """The same for updates, which are cut between tokens."""
    parts = split_update(update, part_bytes)
    joined: UpdateJoiner[int] = UpdateJoiner(max_bytes=1 << 20, memory_bytes=1 << 24, deadline_s=60)
    for p in parts:
        assert len(p.token_ids) % 4 == 0
        assert len(p.token_ids) <= max(part_bytes, 4)
        assert len(encode_update(p).value or b"") <= max(part_bytes, 4) + ENVELOPE_BYTES
    ready = [joined.add(p, tag, 0.0).ready for tag, p in enumerate(parts)]
    assert ready == [None] * (len(parts) - 1) + [update]


@given(st.text(min_size=1, max_size=100), st.integers(4, 20))
def test_parts_hold_whole_characters_where_they_can(text: str, part_bytes: int) -> None:
    """So that parts can be sent in JSON form too."""
    for p in split_event(AppendEvent("s", 1, Reset(text.encode())), part_bytes):
        encode_event(p, content_type=JSON)


@given(st.binary(max_size=60), st.integers(1, 9))
def test_any_bytes_can_be_split(text: bytes, part_bytes: int) -> None:
    """Text that is not UTF-8 is cut as well; refusing it is the joiner's part."""
    parts = split_event(AppendEvent("s", 1, Edit(text)), part_bytes)
    assert b"".join(p.op.text for p in parts if not isinstance(p.op, Close)) == text
    assert all(len(p.op.text) <= part_bytes for p in parts if not isinstance(p.op, Close))


def test_envelopes_fit_their_bound() -> None:
    """The largest names there can be leave the envelope below its limit."""
    name = "\U0001f600" * 120
    big = Edit(b"x" * 9000, I64 - 1, I64)
    event = AppendEvent(name, I64, big, name, name, -1, (1 << 64) - 1, -1, True)
    for p in split_event(event, 4000):
        assert len(encode_event(p).value or b"") <= 4000 + ENVELOPE_BYTES
    assert len(split_event(event, 4000)) == 3
    update = TokenUpdate(name, I64, Status.OK, name, name, message=name * 2, token_ids=b"ids!" * 9)
    for q in split_update(update, 8):
        assert len(encode_update(q).value or b"") <= 8 + ENVELOPE_BYTES


def test_too_many_parts_are_refused() -> None:
    """A part size that does not go with the text is an error, not a flood."""
    with pytest.raises(WireError) as caught:
        split_event(AppendEvent("s", 7, Reset(b"x" * (MAX_PARTS + 1))), 1)
    assert (caught.value.code, caught.value.revision) == (Code.PARTS_TOO_LARGE, 7)
    assert len(split_event(AppendEvent("s", 7, Reset(b"x" * MAX_PARTS)), 1)) == MAX_PARTS
    with pytest.raises(WireError):
        split_update(TokenUpdate("s", 7, Status.OK, token_ids=b"x" * 4 * (MAX_PARTS + 1)), 4)
