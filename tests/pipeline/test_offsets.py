"""Answered offsets survive a restart: what is committed says exactly what was answered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.broker.port import Committed
from toktier_stream.pipeline.offsets import AnsweredOffsets

steps = st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=80)


@given(answered=st.sets(st.integers(0, 80)), start=st.integers(0, 20), open_at=st.integers(0, 90))
def test_a_restart_knows_exactly_what_was_answered(answered, start, open_at):
    """Encoding into the commit's metadata and back loses and invents nothing."""
    offsets = AnsweredOffsets(Committed(start))
    for offset in sorted(answered, key=lambda o: (o * 7919) % 83):
        offsets.add(offset)
    committed = offsets.position(max(answered, default=0) + 1, open_at)
    again = AnsweredOffsets(committed)
    for offset in range(100):
        expected = offset < committed.offset or offset in answered
        assert (offset in again) == expected == (offset in offsets)


def test_without_open_parts_nothing_but_the_offset_is_committed():
    """The usual commit is a plain offset."""
    offsets = AnsweredOffsets(None)
    for offset in (0, 1, 3, 7):  # 2 and 4 to 6 are transaction markers
        offsets.add(offset)
    assert offsets.position(8, None) == Committed(8)


def test_metadata_of_another_application_is_refused():
    """A foreign commit is not taken for ours."""
    with pytest.raises(ValueError, match="another application"):
        AnsweredOffsets(Committed(4, "something else"))


def test_scattered_answers_become_crowded_before_kafka_refuses_the_metadata():
    """Kafka keeps 4096 bytes of metadata; the caller is warned well before."""
    offsets = AnsweredOffsets(Committed(0))
    count = 0
    while not offsets.crowded:
        offsets.add(count * 1000)
        count += 1
    assert 500 < count < 2000
    assert len(offsets.position(count * 1000, 0).metadata) < 4096


@given(ranges=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 12)), max_size=20))
def test_ranges_equal_their_offsets_one_by_one(ranges):
    """A range is its offsets, whatever it overlaps or touches."""
    fast, slow = AnsweredOffsets(Committed(5)), AnsweredOffsets(Committed(5))
    for start, length in ranges:
        fast.add_range(start, start + length)
        for offset in range(start, start + length):
            slow.add(offset)
    assert [o in fast for o in range(100)] == [o in slow for o in range(100)]
    assert fast.position(0, None) == slow.position(0, None)
