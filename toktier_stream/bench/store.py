"""Durable appends: the store beside the engine alone, and what it keeps (target P6).

A batch is one append to each of the live sessions. It is done twice in turn, with other texts: as
the engine does it (edited in memory and discarded), and as a worker does it (edited, its records
taken for the changelog, committed to LMDB as one transaction). Bytes written are counted as
records (what goes to the changelog and into LMDB) and, where the system tells, as what LMDB gives
to the file system: whole pages of 4 KB, those of its trees included. At the end every session's ids
are compared with a full encode, the first session's with the reference's too where it has at most
``reference_chars``, and the store is checked record by record.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from toktier_stream.bench.generate import generate_context
from toktier_stream.bench.store_memory import residence
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.batch import Batch, Changes
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.store import Store
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.registry import Entry

SIZES: Final = (100_000, 500_000, 1_000_000, 2_000_000)
SESSIONS: Final = 64
APPEND: Final = 1_500
RESIDENT: Final = ((1_000, 50_000), (1, 1_000_000))
"""Live sessions whose memory is measured, and tokens of each."""

_SHIFT: Final = 1_009  # characters between two sessions' contexts: no two are equal

Progress = Callable[[str], None]
Result = dict[str, Any]


def run(
    vocabularies: Mapping[str, Path],
    text: str | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    sessions: int = SESSIONS,
    batches: int = 15,
    append: int = APPEND,
    resident: Sequence[tuple[int, int]] = RESIDENT,
    sync: bool = False,
    reference_chars: int = 1_000_000,
    seed: int = 1,
    folder: Path | None = None,
    progress: Progress = lambda _: None,
) -> Result:
    """Measure; returns what :func:`toktier_stream.bench.store_tables.show` prints.

    ``vocabularies``: name to tokenizer.json. ``text``: contexts and appended texts are taken from
    it; generated agent sessions if None. ``sizes`` are the sessions' characters, ``sessions`` how
    many of each, one append each in a batch; ``resident``: live sessions whose memory is measured,
    and tokens of each (store_memory.py). ``sync``: commits wait for the disk; a worker's do not by
    default. ``folder``: where the stores are made and removed again; they take about 2 bytes per
    character. Raises ``CONFIG_INVALID`` for a text that is too short, ``STORE_FULL``.
    """
    room = sessions * _SHIFT + append
    given = text if text is not None else generate_context(seed, max(sizes) + room)
    if len(given) < min(sizes) + room:
        raise ToktierError(Code.CONFIG_INVALID, f"a text of {len(given)} characters is too short")
    result: Result = {
        "sessions": sessions,
        "batches": batches,
        "append": append,
        "sync": sync,
        "text": "given" if text is not None else f"generated, seed {seed}",
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "sizes": [],
        "resident": [],
    }
    for name, path in vocabularies.items():
        progress(f"{name}: tables")
        entry = open_tokenizer(path)
        warm(entry.encoder)
        for size in sorted(sizes):
            if size + room > len(given):
                continue
            progress(f"{name}: {sessions} sessions of {size:,} characters")
            with tempfile.TemporaryDirectory(prefix="toktier-bench-", dir=folder) as place:
                bench = _Sessions(entry, Path(place), given, size, sessions, append, sync)
                row = bench.measure(batches, reference_chars)
            result["sizes"].append({"vocabulary": name, "chars": size, **row})
        for count, tokens in resident:
            progress(f"{name}: memory of {count} live sessions of {tokens:,} tokens")
            found = residence(path, count, tokens, folder)
            result["resident"].append({"vocabulary": name, **found})
    result["load_average_after"] = os.getloadavg()[0]
    return result


class _Sessions:
    """Live sessions of one size in one store, and their texts."""

    def __init__(
        self, entry: Entry, place: Path, given: str, size: int, sessions: int, append: int,
        sync: bool,
    ) -> None:  # fmt: skip
        self._entry = entry
        self._given = given
        self._append = append
        self._taken = size
        self._names = [b"session-%d" % i for i in range(sessions)]
        self._texts = [given[i * _SHIFT :][:size] for i in range(sessions)]
        self._store = Store.open(place, hot_bytes=1 << 30, sync=sync)
        self._offset = 0
        for name, text in zip(self._names, self._texts, strict=True):
            batch = self._store.begin()
            batch.create(name).reset(entry.encoder, text.encode())
            self._store.commit(batch, changelog_offset=self._published(batch.changes()))

    def measure(self, batches: int, reference_chars: int) -> Result:
        """Batches in memory and through the store in turn, then the sizes and the proofs."""
        count = len(self._names)
        times: dict[str, list[tuple[float, float]]] = {"engine": [], "durable": []}
        written: list[int] = []
        files: list[int] = []
        with self._store:
            for turn in range(batches + 1):
                engine = self._in_memory(self._news())
                before = _file_bytes()
                durable, size = self._durable(self._news())
                if not turn:
                    continue  # pages that the first touch reads
                times["engine"].append(engine)
                times["durable"].append(durable)
                written.append(size)
                if before is not None:
                    files.append((_file_bytes() or before) - before)
            cpu, wall = (
                {k: statistics.median(pair[i] for pair in v) / count for k, v in times.items()}
                for i in (0, 1)
            )
            stat = self._store.stat()
            return {
                "engine_us": 1e6 * cpu["engine"],
                "durable_us": 1e6 * cpu["durable"],
                "ratio": cpu["durable"] / cpu["engine"],
                "wall_ratio": wall["durable"] / wall["engine"],
                "durable_wall_us": 1e6 * wall["durable"],
                "record_bytes": statistics.mean(written) / count,
                "file_bytes": statistics.mean(files) / count if files else None,
                "tokens": (tokens := self._tokens()),
                "bytes_per_token": stat.used_bytes / tokens,
                "hot_bytes_per_session": stat.hot_bytes / max(1, stat.hot_sessions),
                **self._proofs(reference_chars),
            }

    def _news(self) -> list[bytes]:
        """One new text for each session."""
        out = []
        for _ in self._names:
            self._taken = (self._taken + self._append) % (len(self._given) - self._append)
            out.append(self._given[self._taken :][: self._append].encode())
        return out

    def _in_memory(self, news: list[bytes]) -> tuple[float, float]:
        """CPU and wall seconds of one batch that is not kept."""
        clock = _Clock()
        with clock:
            batch = self._store.begin()
            self._edit(batch, news)
        batch.discard()
        return clock.cpu, clock.wall

    def _durable(self, news: list[bytes]) -> tuple[tuple[float, float], int]:
        """CPU and wall seconds of one batch that is kept, and the bytes of its records."""
        clock = _Clock()
        with clock:
            batch = self._store.begin()
            self._edit(batch, news)
            changes = batch.changes()
            self._store.commit(batch, changelog_offset=self._published(changes))
        self._texts = [t + new.decode() for t, new in zip(self._texts, news, strict=True)]
        size = sum(len(key) + len(value or b"") for key, value in changes)
        return (clock.cpu, clock.wall), size

    def _published(self, changes: Changes) -> int:
        """Where the changelog stands behind these records and their transaction's marker."""
        self._offset += len(changes) + 1
        return self._offset

    def _edit(self, batch: Batch, news: list[bytes]) -> None:
        encoder, now_ms = self._entry.encoder, time.time_ns() // 1_000_000
        for name, new in zip(self._names, news, strict=True):
            session = batch.session(name)
            if session is None:
                raise RuntimeError("the benchmark's session is gone")
            session.edit(encoder, session.bytes, session.bytes, new)
            session.mark(revision=session.revision + 1, touched_ms=now_ms)

    def _tokens(self) -> int:
        loaded = (self._store.load(name) for name in self._names)
        return sum(session.tokens for session in loaded if session is not None)

    def _proofs(self, reference_chars: int) -> Result:
        """Whether every session's ids are right, and every record sound."""
        exact, judge = True, "full encode"
        for i, (name, text) in enumerate(zip(self._names, self._texts, strict=True)):
            session = self._store.load(name)
            expected = self._entry.encoder.encode(text.encode()).ids
            exact &= session is not None and bool(np.array_equal(session.ids(), expected))
            if i == 0 and len(text) <= reference_chars:
                judge = "reference (first session), full encode"
                exact &= bool(np.array_equal(expected, self._entry.reference.ids(text)))
        report = self._store.check()
        return {"exact": exact, "judge": judge, "sound": not report.damaged and not report.orphans}


class _Clock:
    """CPU and wall seconds of its block, without collections of garbage in it."""

    cpu = wall = 0.0

    def __enter__(self) -> None:
        gc.disable()
        self._start = time.thread_time(), time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        gc.enable()
        self.cpu, self.wall = cpu - self._start[0], wall - self._start[1]


def _file_bytes() -> int | None:
    """Bytes that this process gave to the file system so far, where the system counts them."""
    process = psutil.Process()
    if not hasattr(process, "io_counters"):
        return None
    return getattr(process.io_counters(), "write_chars", None)


def save(result: Result, path: Path) -> None:
    """Write the measurements as JSON."""
    path.write_text(json.dumps(result, indent=2) + "\n")
