"""Topics are checked, and made where that is allowed."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import Bench, unique

from toktier_stream.broker.port import TopicSpec
from toktier_stream.errors import Code, ToktierError


async def refused_with(bench: Bench, spec: TopicSpec, *, create: bool) -> Code:
    with pytest.raises(ToktierError) as refused:
        await bench.broker.ensure_topics([spec], create=create)
    assert spec.name in refused.value.detail
    return refused.value.code


async def test_topics_are_made_and_found_again(bench: Bench) -> None:
    """Created topics have the partitions asked for, and ensuring them again changes nothing."""
    specs = [
        TopicSpec(unique("a"), 3, max_record_bytes=5 << 20),
        TopicSpec(unique("b"), 1, compacted=True),
    ]
    for create in (True, True, False):
        await bench.broker.ensure_topics(specs, create=create)
        assert [await bench.broker.partitions(s.name) for s in specs] == [3, 1]


async def test_a_missing_topic_is_an_error_unless_it_may_be_made(bench: Bench) -> None:
    """Without create nothing is made, and the partition count of a missing topic is an error."""
    spec = TopicSpec(unique("topic"), 1)
    assert await refused_with(bench, spec, create=False) is Code.TOPIC_MISSING
    with pytest.raises(ToktierError) as refused:
        await bench.broker.partitions(spec.name)
    assert refused.value.code is Code.TOPIC_MISSING


async def test_another_partition_count_is_an_error(bench: Bench) -> None:
    """An existing topic is never changed to fit, not even when topics may be made."""
    name = await bench.topic(2)
    for partitions in (1, 3):
        for create in (True, False):
            spec = TopicSpec(name, partitions)
            assert await refused_with(bench, spec, create=create) is Code.TOPIC_MISSING


async def test_a_topic_must_admit_the_record_size(bench: Bench) -> None:
    """A topic with a smaller limit than configured stops the start."""
    name = await bench.topic(max_record_bytes=2 << 20)
    await bench.broker.ensure_topics([TopicSpec(name, 1, max_record_bytes=2 << 20)], create=False)
    spec = TopicSpec(name, 1, max_record_bytes=4 << 20)
    assert await refused_with(bench, spec, create=True) is Code.TOPIC_LIMIT


async def test_a_changelog_must_be_compacted(bench: Bench) -> None:
    """A topic that deletes old records cannot hold state."""
    name = await bench.topic()
    spec = TopicSpec(name, 1, compacted=True)
    assert await refused_with(bench, spec, create=True) is Code.CONFIG_INVALID


async def test_two_may_make_the_same_topic_at_once(bench: Bench) -> None:
    """Workers that start together do not fail over who creates the topics."""
    spec = TopicSpec(unique("topic"), 2)
    others = [bench.broker, *[await bench.another_broker() for _ in range(3)]]
    await asyncio.gather(*[b.ensure_topics([spec], create=True) for b in others])
    assert await bench.broker.partitions(spec.name) == 2
