"""Order within a session, freedom between sessions, and offsets that stay open until answered."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.pipeline.batcher import Miss
from toktier_stream.pipeline.lanes import Lanes, Step
from toktier_stream.pipeline.offsets import AnsweredOffsets
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import AppendEvent, Reset

ENCODER = open_tokenizer(shipped_path()).encoder

# A session, and whether its text would be encoded elsewhere.
_STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40)


def _lanes(answered: AnsweredOffsets) -> tuple[Lanes[list[int]], list[Miss]]:
    """Lanes whose deferred texts gather in a list; the work is the offsets run."""
    away: list[Miss] = []

    def defer(_work: list[int], step: Step[list[int]]) -> Miss | None:
        if step.event is None:
            return None
        miss = Miss(0, ENCODER, b"text", lambda _: None)
        away.append(miss)
        return miss

    return Lanes(answered, defer), away


def _step(offset: int, session: str, slow: bool) -> Step[list[int]]:
    def run(work: list[int], _miss: Miss | None, _prepared: object) -> None:
        work.append(offset)

    event = AppendEvent(session, offset + 1, Reset(b"text")) if slow else None
    return Step(session, (offset,), 10, run, event)


@given(steps=_STEPS, data=st.data())
def test_any_order_of_return(steps: list[tuple[str, bool]], data: st.DataObject) -> None:
    """Whatever comes back first: each session's steps run in order, each once, and the mark is
    where the first unanswered record is."""
    answered = AnsweredOffsets(None)
    lanes, away = _lanes(answered)
    sessions = {i: session for i, (session, _) in enumerate(steps)}
    holders: dict[Miss, str] = {}
    ran: list[int] = []

    def settle() -> None:
        open_now = [i for i in range(taken) if i not in ran]
        assert len(lanes) == len(open_now)
        assert lanes.bytes == 10 * len(open_now)
        assert lanes.oldest() == min(open_now, default=None)
        assert all((i in answered) == (i in ran) for i in range(taken))

    def come_back() -> None:
        miss = away.pop(data.draw(st.integers(0, len(away) - 1)))
        lanes.ready(ran, holders[miss], miss)
        name()

    def name() -> None:
        for miss in away:
            if miss not in holders:
                holders[miss] = next(s for s, line in lanes._lines.items() if line[0].miss is miss)

    taken = 0
    for session, slow in steps:
        offset, waited = taken, session in lanes
        lanes.take(ran, _step(offset, session, slow))
        taken = offset + 1
        name()
        assert (offset in ran) == (not slow and not waited), "others' texts keep nobody waiting"
        settle()
        while away and data.draw(st.booleans()):
            come_back()
            settle()
    while away:
        come_back()
        settle()
    assert sorted(ran) == list(range(len(steps)))
    by_session = defaultdict(list)
    for offset in ran:
        by_session[sessions[offset]].append(offset)
    assert all(offsets == sorted(offsets) for offsets in by_session.values())
    assert answered.position(len(steps), lanes.oldest()).offset == len(steps)


def test_the_oldest_is_run_without_its_text() -> None:
    """Whoever cannot wait runs it in place; what comes back later for it is ignored."""
    lanes, away = _lanes(AnsweredOffsets(None))
    ran: list[int] = []
    take = partial(lanes.take, ran)
    take(_step(0, "a", slow=True))
    take(_step(1, "b", slow=True))
    take(_step(2, "a", slow=False))
    lanes.finish_oldest(ran)
    assert ran == [0, 2]
    lanes.ready(ran, "a", away[0])
    assert ran == [0, 2]
    lanes.ready(ran, "b", away[1])
    assert ran == [0, 2, 1]


def test_what_nobody_foresaw_is_raised_where_it_is_waited_for() -> None:
    """Not lost in a thread of the batcher."""
    lanes, away = _lanes(AnsweredOffsets(None))
    lanes.take([], _step(0, "a", slow=True))
    away[0].error = MemoryError("made for the test")
    with pytest.raises(MemoryError):
        lanes.ready([], "a", away[0])
