"""How the measurements of the pipeline are printed and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from toktier_stream.errors import Code, ToktierError


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table of :func:`toktier_stream.bench.pipeline.run`."""
    table = Table(title=f"Requests through the pipeline ({result['broker']})", title_justify="left")
    for column in (
        "requests/s", "P50 ms", "P99 ms", "max ms", "P50 from send",
        "appends P50", "P99", "full P50", "P99", "client", "queue", "encode",
        "publish", "worker CPU", "µs/request", "MB", "client CPU", "ids",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for p in result["points"]:
        table.add_row(
            f"{p['rate']:,.0f}" + ("" if p["kept_up"] else " (behind)"),
            *(f"{p[k]:.1f}" for k in ("p50_ms", "p99_ms", "max_ms")),
            f"{p['from_send']['p50_ms']:.1f}",
            *(f"{p[kind][k]:.1f}" for kind in ("appends", "full") for k in ("p50_ms", "p99_ms")),
            *(f"{stage['p50_ms']:.1f}/{stage['p99_ms']:.0f}" for stage in p["stages"].values()),
            f"{p['worker_cpu']:.2f}",
            f"{p['worker_cpu_us_per_request']:,.0f}",
            f"{p['worker_memory_mb']:,.0f}",
            f"{p['client_cpu']:.2f}",
            "exact" if p["exact"] else "WRONG",
        )
    console.print(table)
    for objective, rate in result["highest"].items():
        console.print(f"P99 within {objective} ms: up to {rate:,.0f} requests/s of those tried")
    memory = result["memory"]
    console.print(
        f"Worker's own memory: {memory['early_mb']:,.0f} MB in the second quarter, "
        f"{memory['late_mb']:,.0f} MB in the last, {memory['most_mb']:,.0f} MB at most"
    )
    opening = result["opening"]
    console.print(
        f"{result['sessions']} sessions opened with {opening['chars']:,} characters in "
        f"{opening['seconds']:.1f} s. Open loop ({result['shape']}), {result['full_share']:.1%} "
        f"full contexts, text: {result['text']}, {result['tokenizer']}; latencies from when a "
        f"request was due; stages as median/P99. Worker settings: {result['worker'] or 'default'}, "
        f"verification off. Load average {result['load_average']:.1f} before and "
        f"{result['load_average_after']:.1f} after, on {result['cpus']} CPUs."
    )
    for warning, count in result["worker_warned"].items():
        console.print(f"The worker warned {count} times: {warning}")
    for p in [opening, *result["points"]]:
        for flaw in p["wrong"]:
            console.print(f"WRONG: {flaw}")


def show_restore(result: dict[str, Any], console: Console) -> None:
    """Print the table of :func:`toktier_stream.bench.restore.run`."""
    table = Table(title=f"A worker comes back ({result['broker']})", title_justify="left")
    for column in ("disk", "seconds", "CPU s", "changelog bytes", "records", "sessions continued"):
        table.add_column(column, justify="right")
    for disk in ("empty", "yesterday"):
        row = result[disk]
        table.add_row(
            disk, f"{row['seconds']:.2f}", f"{row['cpu_s']:.2f}", f"{row['bytes']:,}",
            f"{row['records']:,}", "exact" if row["exact"] else "WRONG",
        )  # fmt: skip
    console.print(table)
    console.print(
        f"{result['sessions']:,} sessions of {result['chars']:,} characters on "
        f"{result['partitions']} partitions, {result['state_bytes']:,} bytes on disk, filled in "
        f"{result['fill_s']:.1f} s. Load average {result['load_average']:.1f}, on "
        f"{result['cpus']} CPUs."
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Latency against the rate, and the stages' medians. Raises ``EXTRA_MISSING`` without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToktierError(Code.EXTRA_MISSING, "toktier-stream[bench]") from error
    points = result["points"]
    rates = [p["rate"] for p in points]
    figure = Figure(figsize=(11, 4.5))
    left, right = figure.subplots(1, 2)
    for name, style in (("p50_ms", "o-"), ("p90_ms", ".--"), ("p99_ms", "s-")):
        left.plot(rates, [p[name] for p in points], style, label=name[:3].upper())
    for objective in result["highest"]:
        left.axhline(float(objective), color="grey", linewidth=0.8)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("requests per second, offered")
    left.set_ylabel("milliseconds from when it was due")
    left.legend()
    bottom = [0.0] * len(points)
    for stage in points[0]["stages"] if points else ():
        medians = [p["stages"][stage]["p50_ms"] for p in points]
        right.bar([f"{r:,.0f}" for r in rates], medians, bottom=bottom, label=stage)
        bottom = [b + m for b, m in zip(bottom, medians, strict=True)]
    right.set_xlabel("requests per second, offered")
    right.set_ylabel("medians of the stages, milliseconds")
    right.legend()
    figure.savefig(path, bbox_inches="tight")
