"""Splitting and joining: what is cut comes back whole, and everything else fails by rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import I64, edits, events, texts, updates

from toktier_stream.errors import Code
from toktier_stream.wire.answers import encode_update
from toktier_stream.wire.codec import MAX_PARTS, encode_event
from toktier_stream.wire.headers import JSON
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Reset, Status, TokenUpdate
from toktier_stream.wire.parts import EventJoiner, Failure, Step, UpdateJoiner
from toktier_stream.wire.refusal import WireError
from toktier_stream.wire.split import ENVELOPE_BYTES, split_event, split_update

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


# Splitting.


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


# Joining: single rules.


@given(edits() | texts.map(Reset), st.data())
def test_texts_may_be_cut_at_any_byte(op: Edit | Reset, data: st.DataObject) -> None:
    """A sender may cut inside characters and send empty parts."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(op.text)), min_size=1, max_size=6)))
    bounds = [0, *cuts, len(op.text)]
    pieces = [op.text[a:b] for a, b in pairwise(bounds)]
    messages = [
        AppendEvent(
            "s",
            1,
            replace(op, text=text),
            request_id="r" if number == 0 else "",
            part=number,
            parts=len(pieces),
        )
        for number, text in enumerate(pieces)
    ]
    assert feed(joiner(), messages)[-1].ready == AppendEvent("s", 1, op, request_id="r")


def test_joined_text_must_be_utf8() -> None:
    """Checked when the last part is there; the failure is answered with part 0's names."""
    first = AppendEvent("s", 4, Reset(b"\xc3"), "request", "tokenizer", part=0, parts=2)
    steps = feed(joiner(), [first, part(1, 2, b"\xc3", revision=4)])
    assert steps[1].ready is None
    (failure,) = steps[1].failed
    assert failure == Failure("s", 4, "request", "tokenizer", Code.INVALID_UTF8, "", 0)
    assert "UTF-8" in failure.message


def test_sessions_do_not_disturb_each_other() -> None:
    """Parts of several sessions may be interleaved; the oldest open set is known."""
    into = joiner()
    order = [("a", 0), ("b", 0), ("a", 1), ("c", 0), ("a", 2), ("b", 1), ("b", 2), ("c", 1)]
    oldest = []
    for tag, (session, number) in enumerate(order):
        step = into.add(part(number, 3, session=session), tag, 0.0)
        assert not step.failed
        oldest.append(into.oldest_tag())
        assert into.open_revision(session) == (0 if step.ready else 1)
    assert oldest == [0, 0, 0, 0, 1, 1, 3, 3]
    assert into.open_sets == 1


@pytest.mark.parametrize(
    "foreign",
    [
        AppendEvent("s", 2, Edit(b"y")),
        AppendEvent("s", 2, Close()),
        AppendEvent("s", 2, Reset(b"y"), part=0, parts=2),
    ],
    ids=["whole", "close", "parts"],
)
def test_something_in_between_fails_the_revision_only(foreign: AppendEvent) -> None:
    """The interrupted revision fails; what interrupted it goes on; the rest is passed over."""
    into = joiner()
    steps = feed(into, [part(0, 3), foreign, part(1, 3), part(2, 3)])
    assert codes(steps[1].failed) == [(1, Code.PARTS_INCOMPLETE)]
    assert steps[1].failed[0].first_tag == 0
    if foreign.parts == 1:
        assert steps[1].ready == foreign
        assert [step.failed for step in steps[2:]] == [(), ()]
    else:
        # Revision 1's late part interrupts revision 2 in its turn, and is not reported again.
        assert steps[1].ready is None
        assert codes(steps[2].failed) == [(2, Code.PARTS_INCOMPLETE)]
    assert all(step.ready is None for step in steps[2:])


@pytest.mark.parametrize(
    "wrong",
    [
        part(2, 4),
        part(1, 3),
        AppendEvent("s", 1, Edit(b"x"), part=1, parts=4),
    ],
    ids=["number", "total", "operation"],
)
def test_a_wrong_part_fails_the_revision_once(wrong: AppendEvent) -> None:
    """BAD_PART is reported once, however many parts follow."""
    into = joiner()
    steps = feed(into, [part(0, 4), wrong, part(2, 4), part(3, 4), part(1, 4)])
    assert [codes(step.failed) for step in steps] == [[], [(1, Code.BAD_PART)], [], [], []]
    assert (into.open_sets, into.held_bytes, into.oldest_tag()) == (0, 0, None)


def test_the_offsets_of_an_edit_are_repeated() -> None:
    """A part whose offsets differ from part 0's is of another edit."""
    a = AppendEvent("s", 1, Edit(b"a", 3, 9), part=0, parts=2)
    assert feed(joiner(), [a, replace(a, part=1)])[1].ready == AppendEvent(
        "s", 1, Edit(b"aa", 3, 9)
    )
    b = AppendEvent("s", 1, Edit(b"b", 3, 8), part=1, parts=2)
    assert codes(feed(joiner(), [a, b])[1].failed) == [(1, Code.BAD_PART)]


def test_parts_of_another_update_do_not_fit() -> None:
    """An answer's parts have one status; total and number are held to as for events."""
    into: UpdateJoiner[int] = UpdateJoiner(max_bytes=99, memory_bytes=9999, deadline_s=60)
    first = TokenUpdate("s", 1, Status.OK, token_ids=b"abcd", part=0, parts=2)
    other = TokenUpdate("s", 1, Status.DUPLICATE, token_ids=b"efgh", part=1, parts=2)
    assert into.add(first, 0, 0.0).ready is None
    (failure,) = into.add(other, 1, 0.0).failed
    assert failure.code is Code.BAD_PART


def test_an_orphan_is_reported_once() -> None:
    """Parts whose beginning never came fail their revision at the first of them."""
    steps = feed(joiner(), [part(1, 4), part(2, 4), part(3, 4), part(1, 2, revision=2)])
    assert [codes(step.failed) for step in steps] == [
        [(1, Code.BAD_PART)],
        [],
        [],
        [(2, Code.BAD_PART)],
    ]


@pytest.mark.parametrize("again", [2, 3])
def test_a_revision_can_be_sent_again(again: int) -> None:
    """After a failure, and also while its parts are still open: the new attempt replaces it."""
    attempt = [part(0, 3), part(1, 3), part(2, 3)]
    whole = AppendEvent("s", 1, Reset(b"xxx"))
    into = joiner()
    steps = feed(into, [*attempt[:again], *([part(1, 3)] if again == 3 else []), *attempt])
    assert steps[-1].ready == whole
    assert into.held_bytes == 0
    direct = joiner()
    assert feed(direct, [*attempt[:2], whole])[-1] == Step(whole, (), 2)
    assert direct.open_sets == 0


def test_two_failures_in_one_step_come_in_order() -> None:
    """A foreign late part fails the open set and its own revision."""
    steps = feed(joiner(), [part(0, 3), part(1, 3, revision=2)])
    assert codes(steps[1].failed) == [(1, Code.PARTS_INCOMPLETE), (2, Code.BAD_PART)]


def test_a_revision_may_not_exceed_its_limit() -> None:
    """The part that goes beyond fails the revision, at once and once."""
    into = joiner(max_bytes=10)
    assert feed(into, [part(0, 2, b"x" * 5), part(1, 2, b"x" * 5)])[1].ready
    steps = feed(into, [part(0, 3, b"x" * 8), part(1, 3, b"x" * 3), part(2, 3, b"x")])
    assert [codes(step.failed) for step in steps] == [[], [(1, Code.PARTS_TOO_LARGE)], []]
    assert codes(feed(into, [part(0, 2, b"x" * 11)])[0].failed) == [(1, Code.PARTS_TOO_LARGE)]


def test_all_sets_together_may_not_exceed_memory() -> None:
    """The set that grows beyond the limit fails, the others go on; nothing is left over."""
    into = joiner(memory_bytes=16_000)
    sessions = [f"s{n}" for n in range(5)]
    first = [into.add(part(0, 2, b"x" * 2000, session=s), n, 0.0) for n, s in enumerate(sessions)]
    failed = [f.session_id for step in first for f in step.failed]
    assert failed == ["s3", "s4"]
    assert all(f.code is Code.PARTS_TOO_LARGE for step in first for f in step.failed)
    last = [into.add(part(1, 2, session=s), 9, 0.0) for s in sessions]
    assert [step.ready is not None for step in last] == [True, True, True, False, False]
    assert (into.held_bytes, into.open_sets) == (0, 0)


def test_what_stalls_expires() -> None:
    """Sets fail by the age of their first part, the oldest first; later ones are untouched."""
    into = joiner(deadline_s=10)
    for tag, (session, now) in enumerate([("a", 0.0), ("b", 1.0), ("c", 5.0)]):
        into.add(part(0, 3, session=session), tag, now)
    into.add(part(1, 3, session="a"), 3, 9.0)
    assert into.expire(9.9) == ()
    gone = into.expire(11.0)
    assert [(f.session_id, f.code, f.first_tag) for f in gone] == [
        ("a", Code.PARTS_INCOMPLETE, 0),
        ("b", Code.PARTS_INCOMPLETE, 1),
    ]
    assert into.oldest_tag() == 2
    assert into.add(part(2, 3, session="a"), 4, 12.0) == Step(None, (), 4)
    assert [f.session_id for f in into.expire(15.0)] == ["c"]
    assert into.expire(99.0) == ()


# Joining: records that were not accepted.


def refused(revision: int, number: int = 0, parts: int = 1) -> WireError:
    """An event that is answered REJECTED."""
    return WireError(
        Code.MISSING_OP,
        session_id="s",
        revision=revision,
        request_id="q",
        tokenizer="t",
        part=number,
        parts=parts,
    )


def test_a_refused_event_is_answered_and_interrupts() -> None:
    """The open set fails, then the refused event itself."""
    into = joiner()
    feed(into, [part(0, 3), part(1, 3)])
    failed = into.refuse(refused(2), 7)
    assert codes(failed) == [(1, Code.PARTS_INCOMPLETE), (2, Code.MISSING_OP)]
    assert failed[1] == Failure("s", 2, "q", "t", Code.MISSING_OP, "", 7)
    assert into.refuse(refused(3), 8) == (replace(failed[1], revision=3, first_tag=8),)


def test_a_refused_part_speaks_for_its_revision() -> None:
    """One answer for the revision: the part's own code, tagged with the revision's first record."""
    into = joiner()
    into.add(part(0, 4), 5, 0.0)
    failed = into.refuse(refused(1, 1, 4), 6)
    assert [(f.revision, f.code, f.first_tag) for f in failed] == [(1, Code.MISSING_OP, 5)]
    assert into.add(part(2, 4), 7, 0.0) == Step(None, (), 7)
    assert into.refuse(refused(1, 3, 4), 8) == ()
    # Part 0, or the event whole, is a new attempt and is answered anew.
    assert codes(into.refuse(refused(1, 0, 4), 9)) == [(1, Code.MISSING_OP)]
    assert codes(into.refuse(refused(1), 10)) == [(1, Code.MISSING_OP)]


def test_an_unreadable_record_fails_the_open_set_of_its_session() -> None:
    """It is not answered itself; where its session is not known for sure nothing happens."""
    into = joiner()
    into.add(part(0, 3), 0, 0.0)
    assert into.refuse(WireError(Code.KEY_MISMATCH, session_id="s"), 1) == ()
    assert into.refuse(WireError(Code.UNDECODABLE), 2) == ()
    assert into.refuse(WireError(Code.UNDECODABLE, session_id="other"), 3) == ()
    assert codes(into.refuse(WireError(Code.UNDECODABLE, session_id="s"), 4)) == [
        (1, Code.PARTS_INCOMPLETE)
    ]
    assert into.add(part(1, 3), 5, 0.0) == Step(None, (), 5)


def test_memory_of_failures_is_bounded() -> None:
    """The longest forgotten failure may be reported again, once; memory does not grow."""
    into = joiner()
    for n in range(4097):
        assert into.add(part(1, 3, session=f"s{n}"), n, 0.0).failed
    assert not into.add(part(2, 3, session="s1"), 9, 0.0).failed
    assert into.add(part(2, 3, session="s0"), 9, 0.0).failed


# Joining: any sequence, against a twin that looks ahead.

messages = st.builds(
    lambda session, revision, number, parts, kind: AppendEvent(
        session,
        revision,
        Reset(b"x") if kind else Edit(b"y"),
        part=min(number, parts - 1),
        parts=parts,
    ),
    st.sampled_from("ab"),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([1, 2, 2, 3, 3, 4]),
    st.sampled_from([True, True, True, False]),
)


@st.composite
def sequences(draw: st.DrawFn) -> list[AppendEvent]:
    """Mostly orderly runs of parts, with records lost, doubled, swapped in and out of place."""
    out: list[AppendEvent] = []
    for _ in range(draw(st.integers(0, 8))):
        start = draw(messages)
        run = [replace(start, part=number) for number in range(start.parts)]
        if draw(st.booleans()):
            del run[draw(st.integers(0, len(run) - 1))]
        out += run
    for _ in range(draw(st.integers(0, 6))):
        out.insert(draw(st.integers(0, len(out))), draw(messages))
    if len(out) > 1 and draw(st.booleans()):
        i = draw(st.integers(0, len(out) - 2))
        out[i], out[i + 1] = out[i + 1], out[i]
    return out


Outcome = tuple[int, str, int, int, str]
"""Tag of the deciding record, session, revision, tag of the first record, code or "ready"."""


def twin(sequence: Sequence[AppendEvent]) -> tuple[set[Outcome], set[str]]:
    """The rules for one session at a time, by looking ahead: outcomes, and sessions left open."""
    outcomes: set[Outcome] = set()
    left_open: set[str] = set()
    for session in {m.session_id for m in sequence}:
        records = [(tag, m) for tag, m in enumerate(sequence) if m.session_id == session]
        failed: set[int] = set()
        at = 0
        while at < len(records):
            tag, m = records[at]
            if m.part > 0:
                if m.revision not in failed:
                    outcomes.add((tag, session, m.revision, tag, "BAD_PART"))
                    failed.add(m.revision)
                at += 1
                continue
            failed.discard(m.revision)
            whole = [replace(m, part=number) for number in range(m.parts)]
            count = 0
            while count < m.parts and [r for _, r in records[at + count : at + count + 1]] == [
                whole[count]
            ]:
                count += 1
            if count == m.parts:
                outcomes.add((records[at + count - 1][0], session, m.revision, tag, "ready"))
            elif at + count == len(records):
                left_open.add(session)
            else:
                next_tag, following = records[at + count]
                if following.revision != m.revision:
                    outcomes.add((next_tag, session, m.revision, tag, "PARTS_INCOMPLETE"))
                    failed.add(m.revision)
                elif following.part > 0:
                    outcomes.add((next_tag, session, m.revision, tag, "BAD_PART"))
                    failed.add(m.revision)
                    count += 1
            at += count
    return outcomes, left_open


def outcomes_of(steps: Sequence[Step[AppendEvent, int]], begin: int = 0) -> set[Outcome]:
    """What a joiner said, in the twin's words."""
    found: set[Outcome] = set()
    for tag, step in enumerate(steps, begin):
        for f in step.failed:
            found.add((tag, f.session_id, f.revision, f.first_tag, f.code.value))
        if step.ready is not None:
            r = step.ready
            assert (r.part, r.parts) == (0, 1)
            found.add((tag, r.session_id, r.revision, step.first_tag, "ready"))
    return found


@settings(max_examples=400)
@given(sequences())
def test_any_sequence_is_judged_as_the_twin_does(sequence: list[AppendEvent]) -> None:
    """Same outcomes at the same records, same sets left open, and memory that adds up."""
    into = joiner()
    steps = feed(into, sequence)
    expected, left_open = twin(sequence)
    assert outcomes_of(steps) == expected
    assert into.open_sets == len(left_open)
    assert {f.session_id for f in into.expire(1e9)} == left_open
    assert into.held_bytes == 0


@settings(max_examples=300)
@given(sequences(), st.data())
def test_a_replay_from_the_oldest_tag_rebuilds_the_state(
    sequence: list[AppendEvent], data: st.DataObject
) -> None:
    """A worker that starts at the oldest open set completes the same events at the same records."""
    stop = data.draw(st.integers(0, len(sequence)))
    before = joiner()
    feed(before, sequence[:stop])
    oldest = before.oldest_tag()
    begin = stop if oldest is None else oldest
    after = joiner()
    steps = [after.add(m, tag, 0.0) for tag, m in enumerate(sequence[begin:], begin)]
    whole = outcomes_of(feed(joiner(), sequence))
    replayed = outcomes_of(steps, begin)
    assert {o for o in replayed if o[-1] == "ready"} == {
        o for o in whole if o[-1] == "ready" and o[0] >= begin and o[3] >= begin
    }
    # Leaving out the records that were answered before rebuilds the open sets as well.
    alone = joiner()
    for tag, m in enumerate(sequence[begin:stop], begin):
        if before.open_revision(m.session_id) == m.revision:
            alone.add(m, tag, 0.0)
    assert [alone.open_revision(s) for s in "ab"] == [before.open_revision(s) for s in "ab"]
    # Failures too; a late part of a revision answered before the stop may be passed over.
    answered = {(o[1], o[2]) for o in whole if o[0] < stop}
    missing = {o for o in whole if o[0] >= stop} - replayed
    assert all((o[1], o[2]) in answered and o[4] == "BAD_PART" for o in missing)


@settings(max_examples=200)
@given(sequences(), st.integers(2048, 9000), st.integers(1, 4))
def test_limits_hold_at_every_step(
    sequence: list[AppendEvent], memory_bytes: int, max_bytes: int
) -> None:
    """Whatever comes, the open sets never hold more than the limit."""
    into = joiner(memory_bytes=memory_bytes, max_bytes=max_bytes)
    for tag, m in enumerate(sequence):
        step = into.add(m, tag, 0.0)
        assert into.held_bytes <= memory_bytes
        if step.ready is not None and m.parts > 1:
            assert len(step.ready.op.text) <= max_bytes  # type: ignore[union-attr]
