"""How the measurements of every-prefix BPE are printed, the paper's own figures below them."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from toktier_stream.incremental.search import Search

PAPER = (
    "Paper, GPT-2 (Rust, Apple M4): English 9.53 % searched, degree 4, probes 2/4/5/5/7 -> "
    "1/2/2/3/4, 13.15 -> 13.72 ns; code 7.40 %, degree 4, 2/4/5/6/7 -> 1/2/2/3/4, 9.49 -> 9.67 ns; "
    "38.50 -> 44.71 MB, 41.2 -> 49.5 ms. Constructed family at t = 8192: 92 -> 13 probes, "
    "92 -> 14 comparisons, 10.18 -> 9.73 us."
)

_LETTER = {"WALK": "W", "SUFFIX": "S", "BALANCED": "B", "WEIGHTED": "C", "HYBRID": "D"}


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables of :func:`toktier_stream.bench.incremental.run`."""
    if result["family"]:
        console.print(_family(result))
    if result["searches"]:
        console.print(_probes(result), _times(result), _memory(result), _adversarial(result))
    if result["walls"]:
        console.print(_walls(result))
    console.print(
        f"Searches: W walk, S suffixes, B count-balanced, C component-weighted, D hybrid. "
        f"Medians of {result['rounds']} rounds; load average {result['load_average']:.1f} on "
        f"{result['cpus']} CPUs.",
        PAPER,
        sep="\n",
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    return table


def _family(result: dict[str, Any]) -> Table:
    table = _table(
        "Constructed family, last byte of 255 S",
        "k", "t", "depth", "B probes", "predicted", "C probes", "predicted", "comparisons B/C",
        *(f"{s} us" for s in _LETTER.values()),
    )  # fmt: skip
    for row in result["family"]:
        comparisons = row["comparisons"]
        table.add_row(
            *(str(row[x]) for x in ("k", "t", "depth")),
            str(row["probes"]["BALANCED"]),
            str(row["predicted"][0]),
            str(row["probes"]["WEIGHTED"]),
            str(row["predicted"][1]),
            f"{comparisons['BALANCED']}/{comparisons['WEIGHTED']}",
            *(f"{row['final_us'][s]:.1f}" for s in _LETTER),
        )
    return table


def _probes(result: dict[str, Any]) -> Table:
    table = _table(
        "Probes where a search was entered: p50/p95/p99/p99.9/max",
        "vocabulary", "corpus", "searched", "degree", "B records", "C records", "D records",
        "B ends", "C ends",
    )  # fmt: skip
    for row in result["searches"]:
        records, ends = row["probes"], row["comparisons"]
        table.add_row(
            row["vocabulary"],
            row["corpus"],
            f"{row['searched_percent']:.2f} %",
            str(row["max_degree"]),
            *("/".join(map(str, records[s])) for s in ("BALANCED", "WEIGHTED", "HYBRID")),
            *("/".join(map(str, ends[s])) for s in ("BALANCED", "WEIGHTED")),
        )
    return table


def _times(result: dict[str, Any]) -> Table:
    table = _table(
        "Nanoseconds per byte, whole update", "vocabulary", "corpus", *_LETTER.values(), "audits"
    )
    for row in result["searches"]:
        times = (f"{row['ns_per_byte'][s.name]:.1f}" for s in Search)
        table.add_row(row["vocabulary"], row["corpus"], *times, str(row["audits"]))
    return table


def _memory(result: dict[str, Any]) -> Table:
    table = _table(
        "Construction and memory (decimal MB)",
        "vocabulary", "tokens", "canonical", "improper", "longest", "depth", "W", "with B",
        "with C", "B bytes/interval", "C bytes/interval", "read s", "build s", "check s", "trees s",
    )  # fmt: skip
    for row in result["memory"]:
        seconds = row["seconds"]
        table.add_row(
            row["vocabulary"],
            *(str(row[x]) for x in ("tokens", "canonical", "improper", "longest", "depth")),
            *(f"{row[x]:.1f}" for x in ("walk_mb", "balanced_mb", "weighted_mb")),
            f"{row['balanced_bytes_per_interval']:.1f}",
            f"{row['weighted_bytes_per_interval']:.1f}",
            f"{seconds['json'] + seconds['rules']:.2f}",
            *(f"{seconds[x]:.2f}" for x in ("build", "check", "search trees")),
        )
    return table


def _adversarial(result: dict[str, Any]) -> Table:
    inputs = [name for name in result["adversarial"][0]["times_prose"] if name != "prose"]
    table = _table(
        "Adversarial inputs, as multiples of prose (ns per symbol)", "vocabulary", "prose", *inputs
    )
    for row in result["adversarial"]:
        table.add_row(
            row["vocabulary"],
            f"{row['ns_per_symbol']['prose']:.1f} ns",
            *(f"{row['times_prose'][name]:.2f}" for name in inputs),
        )
    return table


def _walls(result: dict[str, Any]) -> Table:
    rows = result["walls"]
    kinds = [name for name in rows[0]["times_prose"] if name != "prose"]
    table = _table(
        f"Appends of {rows[0]['append']:,} characters to {rows[0]['context']:,} without "
        "boundaries, as multiples of prose",
        "vocabulary", "prose", *kinds, "load",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["vocabulary"],
            f"{row['us']['prose']:.0f} us",
            *(f"{row['times_prose'][kind]:.2f}" for kind in kinds),
            f"{row['load_average']:.1f}",
        )
    return table
