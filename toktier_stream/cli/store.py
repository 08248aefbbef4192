"""``toktier-stream store``: look into a stopped worker's session stores, and remove sessions."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from toktier_stream.cli.extras import worker_extra
from toktier_stream.errors import Code, ToktierError

if TYPE_CHECKING:
    from toktier_stream.session.record import Session
    from toktier_stream.session.store import Store

app = typer.Typer(
    help="Look into the session stores of a stopped worker, and remove sessions from them.",
    no_args_is_help=True,
)

StateFolder = Annotated[
    Path,
    typer.Argument(help="One partition's store, or a state_dir that holds several.", exists=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]

_DATA: Final = "data.mdb"
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EVICTED_AT_ONCE: Final = 256
_KEPT_ELSEWHERE: Final = (
    "the changelog topic still holds these sessions: a store that is rebuilt from it has them again"
)


@app.command("stat")
def stat(folder: StateFolder, as_json: AsJson = False) -> None:
    """Sizes and offsets of each store. Exit code 1 if a session's header is damaged."""
    rows = []
    for path in _stores(folder):
        with _opened(path) as store:
            rows.append(_stat(store))
    if as_json:
        _print_json({"stores": rows})
    else:
        for row in rows:
            _print_table(row)
    raise typer.Exit(1 if any(row["damaged"] for row in rows) else 0)


@app.command("get")
def get(
    folder: StateFolder,
    session: Annotated[str, typer.Argument(help="The session's id.")],
    show_text: Annotated[
        bool,
        typer.Option(
            "--show-text",
            help="Also print the transcript's text: it is private, and goes wherever this "
            "output goes.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What is stored of one session: counts, revision, digest, flags and hashes; no text."""
    found: list[dict[str, Any]] = []
    for path in _stores(folder):
        with _opened(path) as store:
            stored = store.load(session.encode())
            if stored is not None:
                row = _session(store, stored)
                if show_text:
                    # A store holds whole characters: edits are refused inside of one.
                    row["text"] = stored.text().decode()
                found.append(row)
    if not found:
        raise ToktierError(Code.STATE_MISS, f"session {session!r} in {folder}")
    if as_json:
        _print_json({"sessions": found})
        return
    for row in found:
        text = row.pop("text", None)
        _print_table(row)
        if text is not None:
            sys.stdout.write(f"\n{text}\n")


@app.command("evict")
def evict(
    folder: StateFolder,
    sessions: Annotated[
        list[str] | None, typer.Argument(help="Ids of the sessions to remove.")
    ] = None,
    older_than: Annotated[
        str, typer.Option(help="Remove what nobody touched for so long: 90s, 30m, 24h, 7d.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Remove sessions from the stores of a stopped worker (STORE_BUSY if it runs).

    Their next event is answered NEED_RESET. The changelog topic is not touched: a store that is
    rebuilt from it has the sessions again. Exit code 1 if a named session is in no store.
    """
    if bool(sessions) == bool(older_than):
        raise typer.BadParameter("give either session ids or --older-than")
    seconds = _duration(older_than) if older_than else 0.0
    missing = set(sessions or ())
    evicted: list[dict[str, str]] = []
    for path in _stores(folder):
        with _opened(path, older_than_ms=round(seconds * 1000)) as store:
            if older_than:
                gone = _evict_old(store)
            else:
                gone = [s.encode() for s in dict.fromkeys(sessions or ())]
                gone = [s for s in gone if store.exists(s)]
                _remove(store, gone)
        for session_id in gone:
            evicted.append({"store": str(path), "session": _name(session_id)})
            missing.discard(_name(session_id))
    if evicted:
        typer.echo(f"warning: {_KEPT_ELSEWHERE}", err=True)
    if as_json:
        _print_json({"evicted": evicted, "missing": sorted(missing)})
    else:
        for one in evicted:
            typer.echo(f"evicted {one['session']} from {one['store']}")
        for name in sorted(missing):
            typer.echo(f"not there: {name}")
        typer.echo(f"{len(evicted)} evicted, {len(missing)} not there")
    raise typer.Exit(1 if missing else 0)


@app.command("check")
def check(folder: StateFolder, as_json: AsJson = False) -> None:
    """Read everything and verify it: checksums of headers, pages and index, sums and digests.

    Exit code 1 if a session is damaged. A worker answers a damaged session NEED_RESET.
    """
    rows: list[dict[str, Any]] = []
    for path in _stores(folder):
        with _opened(path) as store:
            report = store.check()
        rows.append(
            {
                "store": str(path),
                "sessions": report.sessions,
                "records": report.records,
                "orphans": report.orphans,
                "damaged": [_name(s) for s in report.damaged],
            }
        )
    if as_json:
        _print_json({"stores": rows})
    else:
        for row in rows:
            state = f"{len(row['damaged'])} DAMAGED" if row["damaged"] else "sound"
            typer.echo(
                f"{row['store']}: {state}; {row['sessions']:,} sessions, {row['records']:,} "
                f"records, {row['orphans']:,} of them belong to no session"
            )
            for name in row["damaged"]:
                typer.echo(f"  damaged: {name}")
    raise typer.Exit(1 if any(row["damaged"] for row in rows) else 0)


# Finding and opening


def _stores(folder: Path) -> list[Path]:
    """The stores at or directly below a folder. Raises ``STORE_FORMAT`` if there is none."""
    if (folder / _DATA).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{_DATA}"))
    if not found:
        raise ToktierError(Code.STORE_FORMAT, f"{folder}: no {_DATA} here or one folder below")
    return found


@contextmanager
def _opened(path: Path, *, older_than_ms: int = 0) -> Iterator[Store]:
    """A store, with the map that its worker gave it: LMDB would remember a larger one."""
    with worker_extra():
        from toktier_stream.session.store import Store
    with Store.open(path, map_bytes=0, ttl_ms=older_than_ms) as store:
        yield store


# What is shown


def _stat(store: Store) -> dict[str, Any]:
    tokens = size = closed = quarantined = 0
    damaged: list[str] = []
    for session_id in list(store.session_ids()):
        try:
            session = store.load(session_id)
        except ToktierError as error:
            if error.code is not Code.STORE_CORRUPT:
                raise
            damaged.append(_name(session_id))
            continue
        if session is not None:
            tokens += session.tokens
            size += session.bytes
            closed += session.closed
            quarantined += session.quarantined
    sizes = store.stat()
    return {
        "store": str(store.path),
        "sessions": sizes.sessions,
        "closed": closed,
        "quarantined": quarantined,
        "damaged": damaged,
        "tokens": tokens,
        "text_bytes": size,
        "records": sizes.records,
        "used_bytes": sizes.used_bytes,
        "bytes_per_token": round(sizes.used_bytes / tokens, 2) if tokens else None,
        "map_bytes": sizes.map_bytes,
        "changelog_offset": store.changelog_offset,
        "source_offset": store.source_offset,
    }


def _session(store: Store, session: Session) -> dict[str, Any]:
    touched = datetime.fromtimestamp(session.touched_ms / 1000, UTC)
    return {
        "store": str(store.path),
        "session": _name(session.session_id),
        "revision": session.revision,
        "tokens": session.tokens,
        "bytes": session.bytes,
        "chars": session.chars,
        "records": len(store.numbers(session.session_id)),
        "digest": f"{session.digest:016x}",
        "tokenizer": session.tokenizer,
        "fingerprint": session.fingerprint,
        "touched": touched.isoformat(timespec="milliseconds"),
        "closed": session.closed,
        "quarantined": session.quarantined,
        "recent": [
            {"revision": r, "content": f"{content:016x}", "digest": f"{digest:016x}"}
            for r, content, digest in session.recent
        ],
    }


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_table(row: dict[str, Any]) -> None:
    for name, value in row.items():
        if not isinstance(value, list):
            typer.echo(f"{name + ':':<18}{_cell(value)}")
            continue
        typer.echo(f"{name + ':':<18}{len(value)}")
        for item in value:
            parts = [f"{k} {v}" for k, v in item.items()] if isinstance(item, dict) else [item]
            typer.echo(" " * 18 + ", ".join(parts))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _name(session_id: bytes) -> str:
    """Ids are UTF-8 on the wire; a damaged one is still shown."""
    return session_id.decode(errors="backslashreplace")


# Removing


def _duration(text: str) -> float:
    """Seconds of a duration like 90s, 30m, 24h or 7d. Raises ``BadParameter``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no duration: 90s, 30m, 24h or 7d")
    return float(match[1]) * _SECONDS[match[2]]


def _evict_old(store: Store) -> list[bytes]:
    gone: list[bytes] = []
    now_ms = time.time_ns() // 1_000_000
    while some := store.expired(now_ms, _EVICTED_AT_ONCE):
        _remove(store, some)
        gone += some
    return gone


def _remove(store: Store, session_ids: list[bytes]) -> None:
    """Remove sessions, the store's place in the topics unchanged."""
    for i in range(0, len(session_ids), _EVICTED_AT_ONCE):
        batch = store.begin()
        for session_id in session_ids[i : i + _EVICTED_AT_ONCE]:
            batch.remove(session_id)
        store.commit(
            batch, changelog_offset=store.changelog_offset, source_offset=store.source_offset
        )
