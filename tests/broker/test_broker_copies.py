"""Copies of partitions' state: who keeps which, and who takes a partition over."""

from __future__ import annotations

import random

import pytest
from broker_harness import Bench, Member, unique

from toktier_stream.broker.port import Copies
from toktier_stream.broker.shares import share_out, stand_by


@pytest.mark.parametrize("seed", range(50))
def test_shares_and_copies_are_even_and_stay_where_they_are(seed: int) -> None:
    """Over a history of members that come and go: shares differ by one at most, each partition has
    its copies at other members, what moves goes to a copy where sizes admit it, and without a
    change nothing moves."""
    random_ = random.Random(seed)
    partitions, copies = random_.randrange(1, 12), random_.randrange(3)
    held: dict[str, frozenset[int]] = {"m0": frozenset()}
    warm: dict[str, frozenset[int]] = {"m0": frozenset()}
    for step in range(12):
        if random_.random() < 0.5:
            held[f"m{step + 1}"] = warm[f"m{step + 1}"] = frozenset()
        elif len(held) > 1:
            gone = random_.choice(sorted(held))
            del held[gone], warm[gone]
        names = sorted(held)
        for repeat in range(2):
            before = [held[n] for n in names]
            shares = share_out(before, partitions, [warm[n] for n in names])
            standing = stand_by(shares, copies, [warm[n] for n in names])
            assert sorted(p for s in shares for p in s) == list(range(partitions))
            sizes = [len(s) for s in shares]
            assert max(sizes) - min(sizes) <= 1
            wanted = min(copies, len(names) - 1)
            assert all(sum(p in s for s in standing) == wanted for p in range(partitions))
            assert not any(s & share for s, share in zip(standing, shares, strict=True))
            loads = [len(s) for s in standing]
            assert max(loads) <= -(-wanted * partitions // len(names)) + wanted
            if repeat:
                assert shares == before
                assert standing == [warm[n] - held[n] for n in names]
            held = dict(zip(names, shares, strict=True))
            warm = {n: a | b for n, a, b in zip(names, shares, standing, strict=True)}


def test_what_moves_goes_to_a_copy() -> None:
    """One of three members leaves: each of the others takes what it has copies of."""
    held = [frozenset({0, 1}), frozenset({2, 3})]
    warm = [frozenset({0, 1, 5}), frozenset({2, 3, 4})]
    assert share_out(held, 6, warm) == [frozenset({0, 1, 5}), frozenset({2, 3, 4})]
    assert share_out(held, 6) == [frozenset({0, 1, 4}), frozenset({2, 3, 5})]


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_topic_made_anew_with_fewer_partitions(partitions: int) -> None:
    """What members held of the old one takes no place: every partition has exactly one owner."""
    held = [frozenset({5}), frozenset({0, 1}), frozenset({3, 4})]
    shares = share_out(held, partitions, held)
    assert sorted(p for s in shares for p in s) == list(range(partitions))
    assert max(map(len, shares)) <= 1


async def test_a_group_tells_its_copies_and_takes_them_over(bench: Bench) -> None:
    """Three members with one copy each of six partitions. One leaves: its partitions go to those
    that had the copies, and every partition has a copy again."""
    topic, group = await bench.topic(6), unique("group")
    members: list[Member] = []
    for _ in range(3):
        members.append(await keeper(bench, topic, group))
        await settled(members)
    assert [len(m.held) for m in members] == [2, 2, 2]
    assert all(m.consumer.standby.isdisjoint(m.held) for m in members)
    copies = sorted(p for m in members for p in m.consumer.standby)
    assert copies == list(range(6))
    gone = members.pop(0)
    lost, had = gone.held, [m.consumer.standby for m in members]
    await gone.consumer.stop()
    await settled(members)
    # Each has room for one more: it is one that it has a copy of, if it has any.
    for member, before in zip(members, had, strict=True):
        assert len(member.held) == 3
        assert not lost & before or member.held & lost & before
    assert sorted(p for m in members for p in m.consumer.standby) == list(range(6))


async def keeper(bench: Bench, topic: str, group: str) -> Member:
    """A member with one copy of each partition elsewhere, that has state of what it was given."""

    def on_assigned(partitions: frozenset[int]) -> None:
        member.assigned.append(partitions)

    def warm() -> frozenset[int]:
        return member.held | member.consumer.standby if member.assigned else frozenset()

    consumer = bench.broker.group_consumer(
        topic, group, on_assigned=on_assigned, on_revoked=lambda _: None, copies=Copies(1, warm)
    )
    member = Member(consumer)
    await consumer.start()
    bench._open.append(consumer)
    return member


async def settled(members: list[Member]) -> None:
    """Poll all members until their shares cover the topic once."""

    def covered() -> bool:
        held = sorted(p for m in members for p in m.held)
        copied = sum(len(m.consumer.standby) for m in members)
        return held == list(range(6)) and copied == (6 if len(members) > 1 else 0)

    for _ in range(300):
        if covered():
            return
        for member in members:
            await member.consumer.poll(0.05, 100)
    raise AssertionError([m.held for m in members])
