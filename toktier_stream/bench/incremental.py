"""Every-prefix BPE: the tables of Verma & Ying (section 4 and appendix D) beside ours.

Five tables: the constructed family (figure 1), searches and probes on ordinary text (tables 1 and
2), construction and memory (table 3), adversarial inputs against prose, and appends to long runs
without boundaries (incremental_walls.py). Timings are medians of
CPU time over rounds in which the searches take turns. Every timed state is compared with the
walk's, and the walk's with offline BPE at some prefixes.
"""

from __future__ import annotations

import json
import os
import statistics
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from toktier_stream.bench.incremental_walls import CONTEXT as WALL
from toktier_stream.bench.incremental_walls import walls
from toktier_stream.bench.prose import Prose
from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental import pipeline, selftest, tables
from toktier_stream.incremental.canonical import offline, pair_table
from toktier_stream.incremental.debruijn import CONTEXT, family, word
from toktier_stream.incremental.rules import Ints, Longs, Rules, Symbols, from_merges, from_spec
from toktier_stream.incremental.search import Counts, Search
from toktier_stream.incremental.segments import Reader
from toktier_stream.incremental.state import State
from toktier_stream.incremental.tables import Tables
from toktier_stream.tokenizer.artifact import Artifact

SEARCHES = tuple(Search)
FAMILY_SIZES = (4, 6, 8, 10, 11, 12, 13)
UPDATES = 1_000_000
_QUANTILES = (0.5, 0.95, 0.99, 0.999, 1.0)
_AUDITS = 12
_FINAL_ROUNDS = 31

Progress = Callable[[str], None]
Result = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """One model under test."""

    name: str
    rules: Rules
    tables: Tables
    reader: Reader | None
    seconds: dict[str, float]

    def symbols(self, text: bytes) -> Symbols:
        """A text as one continuous piece of symbols, without its pre-tokenizer."""
        if self.reader is None:
            return np.frombuffer(text, dtype=np.uint8)
        return self.reader.read(text.decode(errors="replace").encode(), True).codes


def run(
    vocabularies: Mapping[str, Path],
    corpora: Mapping[str, bytes] | None = None,
    *,
    sizes: Sequence[int] = FAMILY_SIZES,
    updates: int = UPDATES,
    rounds: int = 5,
    wall_context: int = WALL,
    progress: Progress = lambda _: None,
) -> Result:
    """Measure; returns what :func:`toktier_stream.bench.incremental_tables.show` prints.

    ``vocabularies``: name to tokenizer.json. ``corpora``: name to UTF-8, of which the first
    ``updates`` bytes are used; generated English and the standard library's sources if None.
    ``sizes``: the k of the constructed family (13 takes 1 GB and half a minute; empty: none).
    ``wall_context``: characters of the runs without boundaries that are appended to (0: none).
    Raises ``TOKENIZER_UNSUPPORTED`` for a model that is not plain BPE, ``RuntimeError`` if two
    searches or a search and offline BPE ever differ.
    """
    texts = dict(corpora) if corpora is not None else default_corpora(updates)
    texts = {name: text[:updates] for name, text in texts.items()}
    result: Result = {
        "updates": updates,
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "family": [],
        "searches": [],
        "memory": [],
        "adversarial": [],
        "walls": [],
    }
    for k in sizes:
        progress(f"constructed family, t = {2**k}")
        result["family"].append(constructed(k))
    for name, path in vocabularies.items():
        progress(f"{name}: tables")
        subject = load(name, path)
        result["memory"].append(memory(subject))
        for corpus, text in texts.items():
            progress(f"{name}: {corpus}")
            result["searches"].append(searches(subject, corpus, text, rounds))
        progress(f"{name}: adversarial inputs")
        prose = next(iter(texts.values()))
        result["adversarial"].append(adversarial(subject, prose, updates, rounds))
        if wall_context:
            progress(f"{name}: appends to runs without boundaries")
            found = walls(name, path, rounds, context=wall_context)
            result["walls"] += [] if found is None else [found]
    return result


def default_corpora(size: int) -> dict[str, bytes]:
    """Generated English, and the Python standard library's own sources."""
    english = Prose(Random(1)).sentences(size).encode()
    code = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        code += path.read_bytes()
        if len(code) >= size:
            break
    return {"English": english, "code": bytes(code)}


def load(name: str, path: Path) -> Subject:
    """Read one tokenizer.json, build its tables and search trees, and time each step."""
    artifact = Artifact.load(path)
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    spec = artifact.spec
    clock.lap("json")
    rules = from_spec(spec)
    clock.lap("rules")
    # The first build may compile; the second is the one that counts.
    tables.build(rules)
    clock.lap("first build")
    built = tables.build(rules)
    built.steps  # noqa: B018 - built on first use
    clock.lap("build")
    selftest.check(built, rules)
    clock.lap("check")
    built.centroids  # noqa: B018 - built on first use
    clock.lap("search trees")
    reader = None if rules.bytewise else Reader(pipeline.read(artifact, rules))
    return Subject(name, rules, built, reader, seconds)


def constructed(k: int) -> Result:
    """One size of the adversarial family: probes on the forced update, and times."""
    f = family(k)
    t = tables.build(from_merges(range(CONTEXT + 1), f.merges))
    symbols = np.frombuffer(f.stream, dtype=np.uint8)
    row: Result = {
        "k": k,
        "t": t.longest,
        "depth": t.forest.depth,
        "search": t.search.name,
        "predicted": [f.balanced_probes, f.weighted_probes],
        "probes": {},
        "comparisons": {},
        "final_us": {},
    }
    theta = _run(t, Search.WALK, symbols)[0].theta.copy()
    for search in SEARCHES:
        state, _ = _run(t, search, symbols[:-1])
        state.counts = Counts()
        times = []
        for _ in range(_FINAL_ROUNDS):
            state.cut(len(symbols) - 1)
            start = time.thread_time()
            state.extend(symbols[-1:])
            times.append(time.thread_time() - start)
        _same(theta, state.theta, f"{search.name} on the family, k = {k}")
        row["final_us"][search.name] = statistics.median(times) * 1e6
        if search is not Search.WALK:
            row["probes"][search.name] = int(np.flatnonzero(state.counts.probes)[-1])
            row["comparisons"][search.name] = int(np.flatnonzero(state.counts.comparisons)[-1])
    return row


def searches(subject: Subject, corpus: str, text: bytes, rounds: int) -> Result:
    """All searches on one text: how often a search is entered, what it reads, how long it takes."""
    symbols = subject.symbols(text)
    times: dict[Search, list[float]] = {s: [] for s in SEARCHES}
    counts: dict[Search, Counts] = {}
    theta: Ints | None = None
    for turn in range(rounds + 1):  # the first is a warm-up
        for search in SEARCHES:
            state, seconds = _run(subject.tables, search, symbols)
            if turn:
                times[search].append(seconds)
            theta = state.theta.copy() if theta is None else theta
            _same(theta, state.theta, f"{search.name} on {corpus} with {subject.name}")
            counts[search] = state.counts
    balanced = counts[Search.BALANCED]
    return {
        "vocabulary": subject.name,
        "corpus": corpus,
        "bytes": len(text),
        "searched_percent": 100 * balanced.searched / max(1, balanced.updates),
        "max_degree": balanced.max_degree,
        "probes": {s.name: quantiles(counts[s].probes) for s in SEARCHES if s},
        "comparisons": {s.name: quantiles(counts[s].comparisons) for s in SEARCHES if s},
        "ns_per_byte": {
            s.name: statistics.median(times[s]) * 1e9 / max(1, len(text)) for s in SEARCHES
        },
        "audits": _audit(subject, symbols),
    }


def memory(subject: Subject) -> Result:
    """Retained megabytes (decimal) and build times; bytes of each search record."""
    trees, t = subject.tables.centroids, subject.tables
    shared = trees.tree.nbytes + trees.parts.nbytes
    intervals = max(1, len(trees.sorted_))
    return {
        "vocabulary": subject.name,
        "tokens": len(subject.rules.ids),
        "canonical": t.forest.nodes,
        "improper": int((t.forest.top != t.forest.rank).sum()),
        "longest": t.longest,
        "depth": t.forest.depth,
        "walk_mb": t.nbytes / 1e6,
        "balanced_mb": (t.nbytes + shared + trees.sorted_.nbytes) / 1e6,
        "weighted_mb": (t.nbytes + shared + trees.weighted.nbytes) / 1e6,
        "balanced_bytes_per_interval": (shared + trees.sorted_.nbytes) / intervals,
        "weighted_bytes_per_interval": (shared + trees.weighted.nbytes) / intervals,
        "seconds": subject.seconds,
    }


def adversarial(subject: Subject, prose: bytes, size: int, rounds: int) -> Result:
    """Inputs made to be slow, in the search that production uses, as multiples of prose."""
    rng = np.random.default_rng(1)
    pairs = bytes(word(min(size, 64_000)))
    nodes = rng.integers(1, subject.tables.forest.nodes + 1, size // 4).astype(np.int32)
    spelled = selftest.spell(subject.tables, nodes)
    inputs = {
        "prose": subject.symbols(prose),
        "one letter": subject.symbols(b"a" * size),
        "spaces": subject.symbols(b" " * size),
        "newlines": subject.symbols(b"\n" * size),
        "all pairs": subject.symbols((pairs * (size // len(pairs) + 1))[:size]),
        "random bytes": subject.symbols(rng.bytes(size)),
        "tokens": spelled[spelled >= 0][:size],
    }
    times: dict[str, list[float]] = {name: [] for name in inputs}
    for turn in range(rounds + 1):
        for name, symbols in inputs.items():
            _, seconds = _run(subject.tables, subject.tables.search, symbols)
            if turn:
                times[name].append(seconds / len(symbols))
    ns = {name: statistics.median(t) * 1e9 for name, t in times.items()}
    return {
        "vocabulary": subject.name,
        "search": subject.tables.search.name,
        "ns_per_symbol": ns,
        "times_prose": {name: value / ns["prose"] for name, value in ns.items()},
    }


def quantiles(histogram: Longs) -> list[int]:
    """p50, p95, p99, p99.9 and maximum of a histogram (nearest rank); zeros if it is empty."""
    sums = np.cumsum(histogram)
    total = int(sums[-1])
    return [int(np.searchsorted(sums, np.ceil(q * total))) if total else 0 for q in _QUANTILES]


def save(result: Result, path: Path) -> None:
    """Write the measurements as JSON."""
    path.write_text(json.dumps(result, indent=2) + "\n")


def plot(result: Result, path: Path) -> None:
    """Probes against log2 t on the constructed family (the paper's figure 1), as an image.

    Raises ``EXTRA_MISSING`` without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToktierError(Code.EXTRA_MISSING, "toktier-stream[bench]") from error
    rows = result["family"]
    k = [row["k"] for row in rows]
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    axes.plot(k, [x * (x + 1) / 2 + 1 for x in k], ":", color="grey", label="k(k+1)/2 + 1, and k")
    axes.plot(k, k, ":", color="grey")
    for search, mark in ((Search.BALANCED, "o"), (Search.WEIGHTED, "s")):
        probes = [row["probes"][search.name] for row in rows]
        axes.plot(k, probes, mark, label=search.name.lower())
    axes.set_xlabel("log2 of the longest token")
    axes.set_ylabel("interval records read by the forced update")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


class _Clock:
    """Splits one stretch of CPU time into named laps."""

    def __init__(self, laps: dict[str, float]) -> None:
        self._laps = laps
        self._last = time.thread_time()

    def lap(self, name: str) -> None:
        now = time.thread_time()
        self._laps[name] = now - self._last
        self._last = now


def _run(t: Tables, search: Search, symbols: Symbols) -> tuple[State, float]:
    state = State(t, search)
    state.reserve(len(symbols))
    start = time.thread_time()
    state.extend(symbols)
    return state, time.thread_time() - start


def _same(expected: Ints, found: Ints, where: str) -> None:
    if not np.array_equal(expected, found):
        raise RuntimeError(f"searches differ: {where}")


def _audit(subject: Subject, symbols: Symbols) -> int:
    """Compare the state with offline BPE at prefixes spread over the text; returns how many."""
    rules, forest = subject.rules, subject.tables.forest
    table = pair_table(rules.lefts, rules.rights, rules.products)
    state, _ = _run(subject.tables, subject.tables.search, symbols)
    ends = np.linspace(1, len(symbols), _AUDITS).astype(int)
    for end in ends:
        expected = offline(symbols[:end].astype(np.int32), rules.atoms, table)
        last = state.theta[state.boundaries(int(end))[1:]]
        found = np.where(last > 0, forest.row[np.maximum(last, 0)], -1)
        if not np.array_equal(found, expected):
            raise RuntimeError(f"offline BPE differs at prefix {end} with {subject.name}")
    return len(ends)
