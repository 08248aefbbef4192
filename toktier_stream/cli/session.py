"""``toktier-stream session``: sessions without Kafka, line by line."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toktier_stream.cli.encode import TokenizerFile
from toktier_stream.cli.extras import worker_extra
from toktier_stream.cli.lines import objects, put, put_error, text_of
from toktier_stream.errors import Code, ToktierError
from toktier_stream.wire.messages import (
    MAX_SESSION_ID_BYTES,
    AppendEvent,
    Close,
    Edit,
    Operation,
    Reset,
    TokenUpdate,
)

if TYPE_CHECKING:
    from toktier_stream.session.machine import Machine
    from toktier_stream.session.store import Store


def session(
    tokenizer: TokenizerFile,
    store: Annotated[
        Path | None, typer.Option("--store", help="Keep the sessions here; default: nowhere.")
    ] = None,
) -> None:
    """Drive sessions by JSON lines and get one token update a line.

    In: ``{"session": id, "reset": text}``, ``{"session": id, "append": text}``,
    ``{"session": id, "edit": [start_byte, end_byte, text]}``, ``{"session": id, "close": true}``.
    Out: ``keep``, ``ids``, ``tail``, ``total``, ``settled``, ``digest``, ``route``, ``evidence``;
    an event that is refused gives ``error`` and ``message`` instead, and exit code 1 at the end.
    """
    with worker_extra():
        from toktier_stream.session.engines import open_registry
        from toktier_stream.session.machine import Limits, Machine
        from toktier_stream.session.store import Store
    registry = open_registry({"tokenizer": tokenizer}, "tokenizer")
    machine = Machine(registry, Limits(1 << 40))
    with ExitStack() as stack:
        folder = store or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        opened = stack.enter_context(Store.open(folder))
        refused = sum(_answer(machine, opened, value) for value in objects())
    raise typer.Exit(1 if refused else 0)


def _answer(machine: Machine, store: Store, value: dict[str, Any] | ToktierError) -> int:
    try:
        if isinstance(value, ToktierError):
            raise value
        name, op = _read(value)
    except ToktierError as error:
        put_error(error)
        return 1
    batch = store.begin()
    revision = machine.revision(batch, name.encode()) + 1
    update = machine.apply(batch, AppendEvent(name, revision, op), time.time_ns() // 1_000_000)
    store.commit(batch, changelog_offset=store.changelog_offset)
    put(_shown(update))
    return int(update.code is not None)


def _read(value: dict[str, Any]) -> tuple[str, Operation]:
    name = text_of(value.get("session")).decode()
    kinds = [k for k in ("reset", "append", "edit", "close") if k in value]
    if not name:
        raise ToktierError(Code.MISSING_SESSION)
    if len(name.encode()) > MAX_SESSION_ID_BYTES:
        raise ToktierError(Code.SESSION_ID_TOO_LONG, f"{len(name.encode())} bytes")
    if len(kinds) != 1:
        raise ToktierError(Code.MISSING_OP)
    (kind,) = kinds
    content = value[kind]
    if kind == "close":
        return name, Close()
    if kind == "reset":
        return name, Reset(text_of(content))
    if kind == "append":
        return name, Edit(text_of(content))
    if not (isinstance(content, list) and len(content) == 3):
        raise ToktierError(Code.EDIT_OFFSETS, "give [start_byte, end_byte, text]")
    start, end, text = content
    # bool is an int to Python, not to us
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise ToktierError(Code.EDIT_OFFSETS)
    return name, Edit(text_of(text), start, end)


def _shown(u: TokenUpdate) -> dict[str, Any]:
    shown: dict[str, Any] = {"session": u.session_id, "revision": u.revision}
    if u.code is not None:
        return {**shown, "error": u.code.value, "message": u.message}
    ids = memoryview(u.token_ids).cast("I").tolist() if u.token_ids else []
    return {
        **shown,
        "keep": u.keep,
        "ids": ids,
        "tail": u.tail,
        "total": u.total_tokens,
        "settled": u.settled,
        "digest": f"{u.digest:016x}",
        "route": u.route.value,
        "closed": u.closed,
        "evidence": asdict(u.evidence) if u.evidence is not None else None,
    }
