"""How the measurements of appends are printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from toktier_stream.bench.append import OURS, TYPICAL
from toktier_stream.errors import Code, ToktierError


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table of :func:`toktier_stream.bench.append.run`."""
    rows = result["appends"]
    others = _others(rows)
    table = Table(title="Append to a context", title_justify="left")
    for i, column in enumerate(("tokenizer", "context", "append", OURS, "first")):
        table.add_column(column, justify="left" if i == 0 else "right")
    for name in others:
        table.add_column(f"{name} (times ours)", justify="right")
    for row in rows:
        engines = row["engines"]
        ours = engines[OURS]
        cells = []
        for name in others:
            if name not in engines:
                cells.append("failed" if name in row["failed"] else "-")
                continue
            peer = engines[name]
            star = "" if peer["exact"] else "*"
            cells.append(f"{peer['cpu_ms']:.2f} ({peer['cpu_ms'] / ours['cpu_ms']:.1f}){star}")
        table.add_row(
            row["vocabulary"],
            f"{row['context']:,}",
            f"{row['append']:,}",
            f"{ours['cpu_ms']:.3f}" + ("" if ours["exact"] else "*"),
            f"{ours['first_ms']:.3f}",
            *cells,
        )
    console.print(table)
    for name, target in result["targets"].items():
        console.print(
            f"{name}: largest context over smallest, append of {target['typical']['append']:,} "
            f"characters: {target['flat']:.2f} times"
        )
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"].items())
    console.print(
        f"CPU milliseconds, medians of {result['rounds']} rounds (the reference: one sample); "
        f"first: of the first append of each turn, caches cold. Sizes in characters; text: "
        f"{result['text']}. A * marks ids that differ. {versions or 'No peers'}. Load average "
        f"{result['load_average']:.1f} before and {result['load_average_after']:.1f} after, on "
        f"{result['cpus']} CPUs."
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Latency against the context (typical append) and against the append (largest context), one
    row of panels per tokenizer, as an image. Raises ``EXTRA_MISSING`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToktierError(Code.EXTRA_MISSING, "toktier-stream[bench]") from error
    rows = result["appends"]
    names = list(dict.fromkeys(row["vocabulary"] for row in rows))
    figure = Figure(figsize=(10, 4 * len(names)))
    panels = figure.subplots(len(names), 2, squeeze=False, gridspec_kw={"hspace": 0.35})
    # One colour per engine in every panel, also where another has no points.
    colours = {engine: f"C{i}" for i, engine in enumerate((OURS, *_others(rows)))}
    for (left, right), name in zip(panels, names, strict=True):
        mine = [row for row in rows if row["vocabulary"] == name]
        typical = min({r["append"] for r in mine}, key=lambda chars: abs(chars - TYPICAL))
        largest = max(r["context"] for r in mine)
        _panel(left, [r for r in mine if r["append"] == typical], "context", colours)
        left.set_title(f"{name}: append of {typical:,} characters")
        _panel(right, [r for r in mine if r["context"] == largest], "append", colours)
        right.set_title(f"{name}: context of {largest:,} characters")
    known: dict[str, Any] = {}
    for axes in panels.flat:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="center left", bbox_to_anchor=(0.91, 0.5))
    figure.savefig(path, bbox_inches="tight")


def _panel(axes: Any, rows: list[dict[str, Any]], key: str, colours: dict[str, str]) -> None:
    for name, colour in colours.items():
        points = [(r[key], r["engines"][name]["cpu_ms"]) for r in rows if name in r["engines"]]
        if points:
            style = "o-" if name == OURS else ".--"
            axes.plot(*zip(*points, strict=True), style, label=name, color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"characters of the {key}")
    axes.set_ylabel("CPU milliseconds")


def _others(rows: list[dict[str, Any]]) -> list[str]:
    """All engines but ours, in the order in which they first appear."""
    seen = dict.fromkeys(n for r in rows for n in (*r["engines"], *r["failed"]) if n != OURS)
    return list(seen)
