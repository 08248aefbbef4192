"""How the check of a card is printed."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show(result: dict[str, Any], console: Console) -> None:
    """Print the tables of :func:`toktier_stream.bench.gpu.check`."""
    console.print(_exactness(result))
    console.print(_timings(result))
    host = result["host"]
    versions = {
        name: version for peers in result["peers"].values() for name, version in peers.items()
    }
    console.print(
        "Microseconds, medians; encode: the whole call, ids and byte lengths in host memory, by "
        "CUDA graphs; the parts with a wait behind each. A * marks ids unlike ours. "
        + ", ".join(f"{name} {host[name]}" for name in ("cupy", "numpy", "tokenizers", "python")
                    if name in host)
        + f". Load average {host['load_average']:.1f} on {host['cpus']} CPUs."
    )  # fmt: skip
    for name, said in versions.items():
        console.print(f"{name}: {said}")


def _table(title: str, left: int, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < left else "right")
    return table


def _exactness(result: dict[str, Any]) -> Table:
    table = _table(
        f"Exact on {result['device']}", 2, "tokenizer", "text", "chars", "texts", "left to the CPU",
        "differences",
    )  # fmt: skip
    for family, outcomes in result["exactness"].items():
        for kind, outcome in outcomes.items():
            table.add_row(
                family,
                kind,
                f"{outcome['characters']:,}",
                f"{outcome['texts']:,}",
                str(outcome["left_to_cpu"]),
                str(len(outcome["differences"])),
            )
    return table


def _timings(result: dict[str, Any]) -> Table:
    peers = sorted(
        {name for rows in result["timings"].values() for row in rows for name in row["peers"]}
    )
    table = _table(
        "Full encodes", 2, "tokenizer", "texts x chars", "encode", "MB/s", "no graphs", "up",
        "kernels", "down ids", "down spans", "CPU engine", "on all cores", "reference", *peers,
    )  # fmt: skip
    for family, rows in result["timings"].items():
        for row in rows:
            table.add_row(
                family,
                f"{row['texts']} x {row['characters'] // row['texts']:,}",
                _us(row["encode_graph"]),
                f"{row['mb_per_s']:,.0f}",
                *(
                    _us(row[part])
                    for part in (
                        "encode_eager", "upload", "kernels_graph", "download_ids",
                        "download_ids_and_lengths", "cpu_engine", "cpu_engine_threads", "reference",
                    )
                ),
                *(_peer(row["peers"].get(name)) for name in peers),
            )  # fmt: skip
    return table


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _peer(timing: dict[str, Any] | None) -> str:
    return "-" if timing is None else f"{timing['us']:,.0f}{'' if timing['exact'] else '*'}"
