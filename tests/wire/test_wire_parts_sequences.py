"""Joining any sequence of parts, held to a twin that looks ahead, and replayed from the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from parts_harness import feed, joiner

from toktier_stream.wire.messages import AppendEvent, Edit, Reset
from toktier_stream.wire.parts import Step

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
