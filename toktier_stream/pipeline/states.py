"""The states of a partition's life, and what an error means for it."""

from __future__ import annotations

from enum import Enum
from typing import Final

from toktier_stream.errors import Code


class State(Enum):
    """Where a partition stands."""

    FENCING = "fencing"
    RESTORING = "restoring"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


ALLOWED: Final = {
    State.FENCING: {State.RESTORING, State.FENCING, State.STOPPING, State.FAILED},
    State.RESTORING: {State.RUNNING, State.FENCING, State.STOPPING, State.FAILED},
    State.RUNNING: {State.FENCING, State.STOPPING, State.FAILED},
    State.STOPPING: {State.STOPPED, State.FAILED},
    State.STOPPED: set(),
    State.FAILED: set(),
}

# Waited for without end: room in the store, and a broker that is away. Readiness and alerts tell.
PATIENT: Final = frozenset({Code.STORE_FULL, Code.BROKER_UNREACHABLE})
FATAL: Final = frozenset(
    {
        Code.STORE_FORMAT, Code.STORE_DAMAGED, Code.STORE_BUSY, Code.TOPIC_MISSING,
        Code.CONFIG_INVALID,
    }
)  # fmt: skip

# Another worker has the partition, or had it meanwhile.
REPLACED: Final = frozenset({Code.PRODUCER_FENCED, Code.PARTITION_LOST})
