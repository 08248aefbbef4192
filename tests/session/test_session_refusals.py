"""An event that is refused leaves its session as it was, whatever the reason."""

from __future__ import annotations

import pytest

from toktier_stream.errors import Code
from toktier_stream.session.machine import Limits, Machine
from toktier_stream.session.store import Store
from toktier_stream.tokenizer.reference import ReferenceEncoder
from toktier_stream.tokenizer.registry import Registry
from toktier_stream.tokenizer.shipped import shipped_path
from toktier_stream.wire.messages import AppendEvent, Close, Edit, Operation, Reset, Status

TEXT = "größe and 漢字"
# Its pattern matcher retries ten million times at most.
ENDLESS = b" " * 11_000_000 + b"x"
LIMIT = 1 << 24

REFUSED: list[tuple[Code, Operation, dict[str, object]]] = [
    (Code.REFERENCE_GAVE_UP, Reset(ENDLESS), {}),
    (Code.REFERENCE_GAVE_UP, Edit(ENDLESS), {}),
    (Code.SESSION_TOO_LARGE, Reset(bytes(LIMIT + 1)), {}),
    (Code.SESSION_TOO_LARGE, Edit(bytes(LIMIT)), {}),
    (Code.UNKNOWN_TOKENIZER, Reset(b"x"), {"tokenizer": "unknown"}),
    (Code.UNKNOWN_TOKENIZER, Edit(b"x"), {"tokenizer": "unknown"}),
    (Code.OFFSET_RANGE, Edit(b"x", 3, 2), {}),
    (Code.OFFSET_IN_CHARACTER, Edit(b"x", 3, 3), {}),
    (Code.EXPECT_BYTES, Reset(b"x"), {"expect_bytes": 1}),
    (Code.EXPECT_BYTES, Edit(b"x"), {"expect_bytes": 1}),
    (Code.EXPECT_DIGEST, Close(), {"expect_digest": 1}),
    (Code.STALE_REVISION, Reset(b"x"), {"revision": 1}),
    (Code.REVISION_REUSED, Reset(b"x"), {"revision": 7}),
    (Code.REVISION_GAP, Edit(b"x"), {"revision": 9}),
]


@pytest.mark.parametrize(("code", "op", "fields"), REFUSED)
def test_what_is_refused_changes_nothing(
    store: Store, code: Code, op: Operation, fields: dict[str, object]
) -> None:
    """Its header and records stay, and the next event finds it; with the reference as the engine,
    which gives up on some texts."""
    registry = Registry(
        {"shipped": shipped_path()},
        "shipped",
        {"none": lambda _a, judge, _p: ReferenceEncoder(judge)},
    )
    machine = Machine(registry, Limits(max_session_bytes=LIMIT))
    batch = store.begin()
    kept = machine.apply(batch, AppendEvent("session", 7, Reset(TEXT.encode())), 1)
    changes = batch.changes()
    store.commit(batch, changelog_offset=len(changes))
    batch = store.begin()
    event = AppendEvent("session", **{"revision": 8, "op": op, **fields})  # type: ignore[arg-type]
    answer = machine.apply(batch, event, 2)
    assert answer.status in (Status.REJECTED, Status.CONFLICT, Status.NEED_RESET)
    assert answer.code is code
    assert batch.changes() == []
    batch.discard()
    batch = store.begin()
    machine.apply(batch, event, 2)
    then = machine.apply(batch, AppendEvent("session", 8, Edit(b" on")), 3)
    assert (then.status, then.session_revision) == (Status.OK, 8)
    assert then.total_bytes == kept.total_bytes + 3
