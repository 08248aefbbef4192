"""The assignor of members that keep state: partitions go where their state is, and copies of it
are told to other members.

aiokafka's own assignors know nothing of copies. This one uses the same shares as the embedded
cluster. Members send the leader what they hold and have copies of; the leader sends each its
partitions and, beside them, the partitions whose state it shall follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from toktier_stream.broker.port import Copies
from toktier_stream.broker.shares import share_out, stand_by

_VERSION: Final = 0


class StatefulAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """See the module. aiokafka uses the class itself, so each member makes its own subclass."""

    name = "toktier-stateful"
    copies = Copies()
    held: frozenset[int] = frozenset()
    standby: frozenset[int] = frozenset()
    generation = 0

    @classmethod
    def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        told = {
            "held": sorted(cls.held),
            "generation": cls.generation,
            "warm": sorted(cls.copies.warm()),
            "copies": cls.copies.count,
        }
        return ConsumerProtocolMemberMetadata(_VERSION, list(topics), json.dumps(told).encode())

    @classmethod
    def assign(
        cls, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        told = {m: json.loads(meta.user_data or b"{}") for m, meta in members.items()}
        generation = 1 + max((t.get("generation", 0) for t in told.values()), default=0)
        assigned: dict[str, ConsumerProtocolMemberAssignment] = {}
        for topic in {topic for meta in members.values() for topic in meta.subscription}:
            names = sorted(m for m, meta in members.items() if topic in meta.subscription)
            count = len(cluster.partitions_for_topic(topic) or ())
            held = _held(names, told)
            warm = [frozenset(told[m].get("warm", ())) for m in names]
            shares = share_out(held, count, warm)
            copies = max(told[m].get("copies", 0) for m in names)
            standing = stand_by(shares, copies, warm)
            for member, share, standby in zip(names, shares, standing, strict=True):
                extra = {"standby": sorted(standby), "generation": generation}
                assigned[member] = ConsumerProtocolMemberAssignment(
                    _VERSION, [(topic, sorted(share))], json.dumps(extra).encode()
                )
        return assigned

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        told = json.loads(assignment.user_data or b"{}")
        cls.held = frozenset(tp.partition for tp in assignment.partitions())
        cls.standby = frozenset(told.get("standby", ()))
        cls.generation = told.get("generation", 0)


def _held(names: list[str], told: Mapping[str, dict[str, Any]]) -> list[frozenset[int]]:
    """What each member holds. A member that was away reports what it held then: of two that
    report the same partition, the one with the newer assignment has it."""
    taken: set[int] = set()
    held: dict[str, frozenset[int]] = {}
    for member in sorted(names, key=lambda m: (-told[m].get("generation", 0), m)):
        held[member] = frozenset(told[member].get("held", ())) - taken
        taken |= held[member]
    return [held[member] for member in names]
