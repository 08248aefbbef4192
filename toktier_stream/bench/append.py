"""Appends to long contexts: the engine beside other tokenizers (targets P1, P2 and P3).

An append here is what the engine does between two events: take the session from memory, encode
the window, find the certificate, change the session's pages in memory; nothing is stored. Peers do
the same work in their best way (append_peers.py).

Engines take turns. In a turn an engine appends new texts to the same context, one after another,
until it has done :data:`MOST` or used :data:`TURN_S` of CPU time: what takes microseconds is then
measured as a busy worker does it, with its tables in the processor's caches, and the first append
of each turn, after others had the caches, is told apart (``first``). Times are CPU time of the
process (a peer's threads count), medians over all appends of all rounds. The ids of the whole text
are compared after every timed append: with the reference's in the first append of contexts up to
``reference_chars``, else with those of a full encode by the engine.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from toktier_stream.bench.append_peers import Appender, opened
from toktier_stream.bench.generate import generate_context
from toktier_stream.errors import Code, ToktierError
from toktier_stream.session.engines import open_tokenizer
from toktier_stream.session.store import Store
from toktier_stream.session.warm import warm
from toktier_stream.tokenizer.face import Encoder, Ids
from toktier_stream.tokenizer.registry import Entry

CONTEXTS: Final = (100_000, 500_000, 1_000_000, 2_000_000, 4_400_000, 8_000_000)
APPENDS: Final = (256, 1_500, 10_000, 50_000, 100_000)
OURS: Final = "toktier-stream"
REFERENCE: Final = "tokenizers"
TYPICAL: Final = 1_500
"""Characters of the append that P1 and P2 speak of."""

MOST: Final = 8
"""Appends in one turn of an engine, at most."""
TURN_S: Final = 0.005

_NAME: Final = b"bench"
_MORE: Final = 2_000_000  # generated characters behind the longest context, for appends

Progress = Callable[[str], None]
Result = dict[str, Any]


def run(
    vocabularies: Mapping[str, Path],
    text: str | None = None,
    *,
    contexts: Sequence[int] = CONTEXTS,
    appends: Sequence[int] = APPENDS,
    rounds: int = 7,
    reference_chars: int = 1_000_000,
    seed: int = 1,
    with_peers: bool = True,
    progress: Progress = lambda _: None,
) -> Result:
    """Measure; returns what :func:`toktier_stream.bench.append_tables.show` prints.

    ``vocabularies``: name to tokenizer.json. ``text``: where contexts and appended texts are taken
    from; generated agent sessions if None. ``contexts`` and ``appends`` are in characters; contexts
    longer than the text allows are left out. Raises ``TOKENIZER_LOAD``, and ``CONFIG_INVALID`` for
    a text too short for any.
    """
    given = text if text is not None else generate_context(seed, max(contexts) + _MORE)
    sizes = [size for size in sorted(contexts) if size + max(appends) <= len(given)]
    if not sizes:
        raise ToktierError(Code.CONFIG_INVALID, f"a text of {len(given)} characters is too short")
    result: Result = {
        "rounds": rounds,
        "reference_chars": reference_chars,
        "text": "given" if text is not None else f"generated, seed {seed}",
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "peers": {},
        "appends": [],
    }
    for name, path in vocabularies.items():
        progress(f"{name}: tables")
        entry = open_tokenizer(path)
        warm(entry.encoder)
        with ExitStack() as stack:
            found = opened(entry.artifact, stack) if with_peers else None
            makers = found.make if found is not None else {}
            result["peers"] |= found.versions if found is not None else {}
            for size in sizes:
                progress(f"{name}: context of {size:,} characters")
                bench = _Context(entry, given[:size], makers, reference_chars)
                with bench:
                    for chars in appends:
                        row = bench.measure(_news(given, size, chars, rounds * MOST), rounds)
                        result["appends"].append(
                            {"vocabulary": name, "context": size, "append": chars, **row}
                        )
    result["load_average_after"] = os.getloadavg()[0]
    result["targets"] = targets(result)
    return result


def _news(given: str, context: int, chars: int, count: int) -> list[str]:
    """Texts to append: those behind the context, and where it ends, those from the start on."""
    places = ((context + i * chars) % (len(given) - chars + 1) for i in range(count))
    return [given[place : place + chars] for place in places]


class _Ours:
    """The engine, with the context as a live session of a store."""

    def __init__(self, store: Store, encoder: Encoder) -> None:
        self._store = store
        self._encoder = encoder

    def append(self, text: str) -> Callable[[], Callable[[], Ids]]:
        """See :class:`toktier_stream.bench.append_peers.Appender`."""
        data, encoder = text.encode(), self._encoder
        batch = self._store.begin()  # discards the last one: every append meets the same context

        def work() -> Callable[[], Ids]:
            session = batch.session(_NAME)
            if session is None:
                raise RuntimeError("the benchmark's session is gone")
            session.edit(encoder, session.bytes, session.bytes, data)
            return session.ids

        return work


class _Context:
    """One context, known to every engine."""

    def __init__(
        self, entry: Entry, context: str, makers: Mapping[str, Any], reference_chars: int
    ) -> None:
        self._entry = entry
        self._context = context
        self._makers = makers
        self._judged = len(context) <= reference_chars
        self._stack = ExitStack()
        self._engines: dict[str, Appender] = {}
        self._failed: dict[str, str] = {}

    def __enter__(self) -> _Context:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="toktier-bench-"))
        store = self._stack.enter_context(Store.open(folder))
        batch = store.begin()
        batch.create(_NAME).reset(self._entry.encoder, self._context.encode())
        store.commit(batch, changelog_offset=0)
        self._engines[OURS] = _Ours(store, self._entry.encoder)
        for name, make in self._makers.items():
            try:
                self._engines[name] = make(self._context)
            except (ValueError, RuntimeError) as error:
                self._failed[name] = type(error).__name__
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def measure(self, news: Sequence[str], rounds: int) -> Result:
        """Append these texts to the context, with every engine in turn."""
        samples: dict[str, _Samples] = {}
        each = len(news) // rounds
        for turn in range(rounds):
            texts = news[turn * each : (turn + 1) * each]
            expected = _Expected(self, texts, reference=self._judged and not turn)
            if self._judged and not turn:
                samples[REFERENCE] = _Samples([expected.reference_s], [expected.reference_s])
            for name, engine in self._engines.items():
                if name in self._failed:
                    continue
                try:
                    done = _turn(engine, texts)
                except (ValueError, RuntimeError) as error:
                    if name == OURS:
                        raise
                    self._failed[name] = type(error).__name__
                    continue
                found = samples.setdefault(name, _Samples([], []))
                found.first.append(done[0][0])
                for i, (seconds, answer) in enumerate(done):
                    found.all.append(seconds)
                    found.exact &= bool(np.array_equal(answer(), expected.ids(i)))
        return {
            "judge": REFERENCE if self._judged else "full encode",
            "failed": dict(self._failed),
            "engines": {
                name: {
                    "cpu_ms": 1e3 * statistics.median(found.all),
                    "first_ms": 1e3 * statistics.median(found.first),
                    "samples": len(found.all),
                    "exact": found.exact,
                }
                for name, found in samples.items()
            },
        }

    def full(self, new: str) -> Ids:
        """The ids of the context and this text by a full encode of the engine."""
        return self._entry.encoder.encode((self._context + new).encode()).ids

    def reference(self, new: str) -> Ids:
        """The same by the reference."""
        return self._entry.reference.ids(self._context + new)


@dataclass
class _Samples:
    """Seconds of CPU time: of every append, and of the first in each turn."""

    all: list[float]
    first: list[float]
    exact: bool = True


class _Expected:
    """What each text must give; computed when it is asked for."""

    def __init__(self, context: _Context, texts: Sequence[str], *, reference: bool) -> None:
        self._context = context
        self._texts = texts
        self._known: dict[int, Ids] = {}
        self.reference_s = 0.0
        if reference:
            start = time.process_time()
            self._known[0] = context.reference(texts[0])
            self.reference_s = time.process_time() - start

    def ids(self, i: int) -> Ids:
        """Of the context with the i-th text."""
        if i not in self._known:
            self._known[i] = self._context.full(self._texts[i])
        return self._known[i]


def _turn(engine: Appender, texts: Sequence[str]) -> list[tuple[float, Callable[[], Ids]]]:
    """One turn: seconds of each append, and what tells its ids."""
    done = []
    used = 0.0
    # As timeit does: no engine pays for another's garbage.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for text in texts:
            work = engine.append(text)
            start = time.process_time()
            answer = work()
            seconds = time.process_time() - start
            done.append((seconds, answer))
            used += seconds
            if used >= TURN_S:
                break
    finally:
        if collecting:
            gc.enable()
    return done


def targets(result: Result) -> Result:
    """What P1, P2 and P3 ask for, per vocabulary: ratios of medians of CPU time.

    ``times_ours``: context to peer to how many times our time it takes, for the typical append and
    for the largest; ``flat``: our time at the largest context over that at the smallest.
    """
    out: Result = {}
    for name in dict.fromkeys(row["vocabulary"] for row in result["appends"]):
        rows = [r for r in result["appends"] if r["vocabulary"] == name]
        sizes = sorted({r["append"] for r in rows})
        typical = min(sizes, key=lambda chars: abs(chars - TYPICAL))
        ours = {r["context"]: r["engines"][OURS]["cpu_ms"] for r in rows if r["append"] == typical}
        out[name] = {
            "typical": {"append": typical, "times_ours": _times_ours(rows, typical)},
            "largest": {"append": sizes[-1], "times_ours": _times_ours(rows, sizes[-1])},
            "flat": ours[max(ours)] / ours[min(ours)],
            "exact": all(r["engines"][OURS]["exact"] for r in rows),
        }
    return out


def _times_ours(rows: Sequence[Result], chars: int) -> dict[str, dict[str, float]]:
    return {
        str(row["context"]): {
            name: engine["cpu_ms"] / row["engines"][OURS]["cpu_ms"]
            for name, engine in row["engines"].items()
            if name != OURS
        }
        for row in rows
        if row["append"] == chars
    }


def save(result: Result, path: Path) -> None:
    """Write the measurements as JSON."""
    path.write_text(json.dumps(result, indent=2) + "\n")
