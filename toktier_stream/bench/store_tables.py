"""How the measurements of durable appends are printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from toktier_stream.errors import Code, ToktierError


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables of :func:`toktier_stream.bench.store.run`."""
    table = _table(
        "Durable appends", "tokenizer", "chars", "engine us", "durable us", "times", "wall us",
        "wall times", "record bytes", "file bytes", "bytes/token", "ids", "records",
    )  # fmt: skip
    for row in result["sizes"]:
        file_bytes = row["file_bytes"]
        table.add_row(
            row["vocabulary"],
            f"{row['chars']:,}",
            f"{row['engine_us']:.0f}",
            f"{row['durable_us']:.0f}",
            f"{row['ratio']:.2f}",
            f"{row['durable_wall_us']:.0f}",
            f"{row['wall_ratio']:.2f}",
            f"{row['record_bytes']:,.0f}",
            "-" if file_bytes is None else f"{file_bytes:,.0f}",
            f"{row['bytes_per_token']:.2f}",
            "exact" if row["exact"] else "DIFFER",
            "sound" if row["sound"] else "DAMAGED",
        )
    console.print(table)
    if result["resident"]:
        memory = _table(
            "Memory of live sessions", "tokenizer", "sessions", "tokens each", "live",
            "memory each, KB", "accounted, KB", "process before, MB", "after", "limit", "on disk",
        )  # fmt: skip
        for row in result["resident"]:
            memory.add_row(
                row["vocabulary"],
                f"{row['sessions']:,}",
                f"{row['tokens']:,.0f}",
                f"{row['live']:,}",
                f"{(row['after_bytes'] - row['before_bytes']) / 1e3 / max(1, row['live']):,.1f}",
                f"{row['accounted_bytes'] / 1e3 / max(1, row['live']):,.1f}",
                f"{row['before_bytes'] / 1e6:.1f}",
                f"{row['after_bytes'] / 1e6:.1f}",
                f"{row['hot_limit'] / 1e6:.0f}",
                f"{row['stored_bytes'] / 1e6:.0f}",
            )
        console.print(memory)
    console.print(
        f"Per append of {result['append']:,} characters, one to each of {result['sessions']} live "
        f"sessions in a batch; CPU time, and wall time with the disk"
        f"{' (commits wait for it)' if result['sync'] else ''}; medians of "
        f"{result['batches']} batches. Text: {result['text']}. Load average "
        f"{result['load_average']:.1f} before and {result['load_average_after']:.1f} after, on "
        f"{result['cpus']} CPUs."
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Microseconds per append against the sessions' size, as an image.

    Raises ``EXTRA_MISSING`` without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToktierError(Code.EXTRA_MISSING, "toktier-stream[bench]") from error
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for name in dict.fromkeys(row["vocabulary"] for row in result["sizes"]):
        rows = [row for row in result["sizes"] if row["vocabulary"] == name]
        chars = [row["chars"] for row in rows]
        axes.plot(chars, [row["engine_us"] for row in rows], "o--", label=f"{name}, engine")
        axes.plot(chars, [row["durable_us"] for row in rows], "s-", label=f"{name}, durable")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("characters of the session")
    axes.set_ylabel("CPU microseconds per append")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    return table
