"""Joining: what is cut comes back whole, and everything else fails by rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts_harness import codes, feed, joiner, part
from wire_strategies import edits, texts

from toktier_stream.errors import Code
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Reset, Status, TokenUpdate
from toktier_stream.wire.parts import Failure, Step, UpdateJoiner
from toktier_stream.wire.refusal import WireError


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


# Records that were not accepted.


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
