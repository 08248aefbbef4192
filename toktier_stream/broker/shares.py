"""Who gets which partitions of a topic, and which copies of others' state: pure functions that the
embedded cluster and the group's leader on Kafka share."""

from __future__ import annotations

from collections.abc import Sequence

Sets = Sequence[frozenset[int]]


def share_out(held: Sets, partitions: int, warm: Sets = ()) -> list[frozenset[int]]:
    """Equal shares (sizes differ by one at most) that leave in place as much as they can.

    What has to move goes, as far as the sizes admit it, to a member that is ``warm``: one that
    has a copy of the partition's state. What a member held of a topic that was made anew with fewer
    partitions is no share.
    """
    held = [frozenset(p for p in had if p < partitions) for had in held]
    small, larger = divmod(partitions, len(held))
    # Who holds most keeps a larger share, so that fewest partitions move.
    order = sorted(range(len(held)), key=lambda i: (-len(held[i]), i))
    quota = {i: small + (rank < larger) for rank, i in enumerate(order)}
    shares = [set(sorted(had)[: quota[i]]) for i, had in enumerate(held)]
    free = set(range(partitions)).difference(*shares)
    for partition in sorted(free):
        able = [i for i, w in enumerate(warm) if partition in w and len(shares[i]) < quota[i]]
        if able:
            shares[min(able, key=lambda i: len(shares[i]) - quota[i])].add(partition)
            free.discard(partition)
    left = sorted(free, reverse=True)
    for i, share in enumerate(shares):
        while len(share) < quota[i]:
            share.add(left.pop())
    return [frozenset(share) for share in shares]


def stand_by(shares: Sets, copies: int, warm: Sets) -> list[frozenset[int]]:
    """For each member the partitions of others whose state it keeps a copy of.

    Each partition has ``copies`` of them, or one at every other member if there are fewer. The
    copies are spread evenly, and stay where they are as far as that allows.
    """
    members = range(len(shares))
    owner = {p: i for i in members for p in shares[i]}
    copies = min(copies, len(shares) - 1)
    quota = -(-copies * len(owner) // len(shares))
    standing: list[set[int]] = [set() for _ in members]
    for keep in (True, False):
        for partition in sorted(owner):
            have = sum(partition in s for s in standing)
            able = [
                i for i in members
                if i != owner[partition] and partition not in standing[i]
                and (not keep or (partition in warm[i] and len(standing[i]) < quota))
            ]  # fmt: skip
            # An owner's copies lie at different members: who takes over gets a share each.
            siblings = shares[owner[partition]]
            able.sort(key=lambda i: (len(standing[i] & siblings), len(standing[i]), i))
            for i in able[: copies - have]:
                standing[i].add(partition)
    return [frozenset(s) for s in standing]
