"""How the measurements of full encodes are printed."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from toktier_stream.bench.encode import OURS


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables of :func:`toktier_stream.bench.encode.run`."""
    for table in (_encode(result), _local(result), _window(result)):
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
