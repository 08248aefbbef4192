"""How the measurements of full encodes are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from toktier_stream.bench.encode import OURS
from toktier_stream.errors import Code, ToktierError


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables of :func:`toktier_stream.bench.encode.run`."""
    for table in (_encode(result), _local(result), _window(result), _start(result)):
        if table.row_count:
            console.print(table)
    versions = ", ".join(f"{name} {version}" for name, version in result["peers"].items())
    console.print(
        f"CPU milliseconds, medians of up to {result['rounds']} rounds; cold / warm, both on text "
        f"that the engine has not seen. A * marks ids unlike the reference's. {versions}. "
        f"Load average {result['load_average']:.1f} on {result['cpus']} CPUs."
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < 2 else "right")
    return table


def _encode(result: dict[str, Any]) -> Table:
    others = list(result["peers"])
    table = _table(
        "Fresh full encode", "tokenizer", "text", "chars", "MB/s", OURS,
        *(f"{name} (times ours)" for name in others),
    )  # fmt: skip
    for row in result["encode"]:
        engines = row["engines"]
        ours = engines[OURS]
        cells = []
        for name in others:
            if name not in engines:
                cells.append("-")
                continue
            peer = engines[name]
            cold, warm = (peer[x] / ours[x] for x in ("cold_ms", "warm_ms"))
            star = "" if peer["exact"] else "*"
            cells.append(
                f"{peer['cold_ms']:.2f} / {peer['warm_ms']:.2f} ({cold:.1f} / {warm:.1f}){star}"
            )
        table.add_row(
            row["vocabulary"],
            row["corpus"],
            f"{row['chars']:,}",
            f"{ours['warm_mb_per_s']:.0f}",
            f"{ours['cold_ms']:.2f} / {ours['warm_ms']:.2f}" + ("" if ours["exact"] else "*"),
            *cells,
        )
    return table


def _local(result: dict[str, Any]) -> Table:
    kinds = list(result["local"][0]["times_plain"]) if result["local"] else []
    table = _table("Work local to its cause (times the plain text)", "tokenizer", *kinds)
    for row in result["local"]:
        table.add_row(row["vocabulary"], *(f"{row['times_plain'][k]:.2f}" for k in kinds))
    return table


def _window(result: dict[str, Any]) -> Table:
    table = _table(
        "Window of 1.9 K characters, and two threads", "tokenizer", "us", "reference us",
        "1 thread ms", "2 threads ms", "times",
    )  # fmt: skip
    for row, parallel in zip(result["window"], result["threads"], strict=True):
        table.add_row(
            row["vocabulary"],
            f"{row['us']:.1f}",
            f"{row['reference_us']:.0f}",
            f"{parallel['one_ms']:.2f}",
            f"{parallel['two_ms']:.2f}",
            f"{parallel['times']:.2f}",
        )
    return table


def _start(result: dict[str, Any]) -> Table:
    table = _table(
        "Start-up: import to first encode, seconds (CPU seconds)", "tokenizer", "caches empty",
        "caches full",
    )  # fmt: skip
    for row in result["start"]:
        cells = (f"{row[x]['wall_s']:.2f} ({row[x]['cpu_s']:.2f})" for x in ("cold", "warm"))
        table.add_row(row["vocabulary"], *cells)
    return table


def plot(result: dict[str, Any], path: Path) -> None:
    """Megabytes per second against the size of the text, a panel for each tokenizer and kind of
    text: cold as full lines, warm as dotted ones. Raises ``EXTRA_MISSING`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToktierError(Code.EXTRA_MISSING, "toktier-stream[bench]") from error
    rows = result["encode"]
    names = list(dict.fromkeys(row["vocabulary"] for row in rows))
    kinds = list(dict.fromkeys(row["corpus"] for row in rows))
    figure = Figure(figsize=(3.6 * len(kinds) + 1, 3.2 * len(names)))
    panels = figure.subplots(len(names), len(kinds), squeeze=False, sharex=True, sharey=True)
    colours = {engine: f"C{i}" for i, engine in enumerate((OURS, *result["peers"]))}
    for name, line in zip(names, panels, strict=True):
        for kind, axes in zip(kinds, line, strict=True):
            mine = [r for r in rows if (r["vocabulary"], r["corpus"]) == (name, kind)]
            _panel(axes, mine, colours)
            axes.set_title(f"{name}: {kind}", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("characters")
    for axes in panels[:, 0]:
        axes.set_ylabel("MB per second of CPU")
    known: dict[str, Any] = {}
    for axes in panels.flat:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="center left", bbox_to_anchor=(0.91, 0.5))
    figure.savefig(path, bbox_inches="tight")


def _panel(axes: Any, rows: list[dict[str, Any]], colours: dict[str, str]) -> None:
    for name, colour in colours.items():
        mine = [r for r in rows if name in r["engines"]]
        if not mine:
            continue
        sizes = [r["chars"] for r in mine]
        for state, style, label in (("cold_ms", "o-", name), ("warm_ms", ".:", None)):
            speed = [r["bytes"] / 1e3 / max(r["engines"][name][state], 1e-6) for r in mine]
            axes.plot(sizes, speed, style, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
