"""``toktier-stream demo``: the whole pipeline in one process, every id checked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from toktier_stream import telemetry
from toktier_stream.cli.extras import worker_extra
from toktier_stream.client.chat_template import ChatTemplate
from toktier_stream.client.replay import find_transcripts, session_of, sessions
from toktier_stream.errors import Code, ToktierError

if TYPE_CHECKING:
    from toktier_stream.cli.demo_run import DemoResult


def demo(
    transcripts: Annotated[
        list[Path] | None,
        typer.Option(
            "--transcripts",
            help="A folder or file of agent transcripts; repeat for several. "
            "Default: generated sessions.",
            exists=True,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="A tokenizer.json; default: the small one shipped."),
    ] = None,
    generated: Annotated[
        int, typer.Option("--sessions", min=1, help="How many sessions to generate.")
    ] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each generated session.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the generated sessions.")] = 0,
    verify_rate: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of answers the verifier re-encodes.")
    ] = 0.05,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topics.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="The result for machines.")] = False,
) -> None:
    """Stream agent sessions through producer, worker and consumer on the embedded broker, and
    hold every session's token ids against the reference tokenizer.

    Needs no network, no Docker and no server. Exit code 0 only if all ids are exact.
    """
    with worker_extra():
        from toktier_stream.bench.generate import generate_session
        from toktier_stream.cli.demo_run import run
        from toktier_stream.session.engines import open_tokenizer
        from toktier_stream.session.warm import warm
        from toktier_stream.tokenizer.shipped import shipped_path
    telemetry.setup_logging("warning", json=False)
    file = tokenizer or shipped_path()
    console = Console(stderr=True)
    entry = open_tokenizer(file, lambda step: console.print(f"{step} …", style="dim"))
    with console.status("preparing (the first run compiles, later ones load)"):
        warm(entry.encoder)
    if transcripts:
        found = list(sessions(find_transcripts(transcripts), _template(file)))
    else:
        template = _template(file)
        found = [
            session_of(generate_session(seed + i, turns), f"generated-{i}", template)
            for i in range(generated)
        ]
    with Progress(console=console, disable=as_json or not console.is_terminal) as bar:
        task = bar.add_task("streaming", total=None)
        result = asyncio.run(
            run(
                entry,
                found,
                verify_rate=verify_rate,
                partitions=partitions,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        )
    if as_json:
        typer.echo(json.dumps(as_dict(result), indent=2, ensure_ascii=False))
    else:
        _show(result)
    raise typer.Exit(0 if result.exact else 1)


def _template(file: Path) -> ChatTemplate | None:
    """The chat template beside the tokenizer, if it has one."""
    try:
        return ChatTemplate.load(file if file.is_dir() else file.parent)
    except ToktierError as error:
        if error.code is not Code.TEMPLATE:
            raise
        return None


def as_dict(r: DemoResult) -> dict[str, object]:
    """The result as JSON holds it."""
    return {
        "exact": r.exact,
        "tokenizer": r.tokenizer,
        "engine": r.engine,
        "admission": r.admission,
        "sessions": [
            {
                "session": s.session_id,
                "events": s.events,
                "chars": s.chars,
                "tokens": s.tokens,
                "exact": s.exact,
                "notes": list(s.notes),
            }
            for s in r.sessions
        ],
        "events": sum(s.events for s in r.sessions),
        "statuses": dict(r.statuses),
        "routes": dict(r.routes),
        "splices": {
            "first_window": r.first_window,
            "widened": r.widened,
            "fallback": r.fallback,
        },
        "appends": r.appends,
        "appends_within_window": r.appends_within_window,
        "chars": {
            "context": r.chars_context,
            "received": r.chars_received,
            "tokenized": r.chars_tokenized,
        },
        "latency_ms": {
            "p50": round(r.median_ms(), 3),
            "p90": round(r.quantile_ms(0.9), 3),
            "p99": round(r.quantile_ms(0.99), 3),
        },
        "verifier": {
            "checked": r.verified,
            "dropped": r.verifier_dropped,
            "mismatches": r.verifier_mismatches,
        },
        "seconds": round(r.seconds, 3),
    }


def _show(r: DemoResult) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()

    def row(name: str, value: str) -> None:
        table.add_row(name, value)

    exact = sum(s.exact for s in r.sessions)
    events = sum(s.events for s in r.sessions)
    saved = r.chars_context / r.chars_tokenized if r.chars_tokenized else 0.0
    row("sessions", f"{len(r.sessions)}, of which exact: {exact}")
    row("events answered", f"{events} ({_counts(r.statuses)}), by route: {_counts(r.routes)}")
    row(
        "splices",
        f"{r.first_window} in the first window, {r.widened} widened; "
        f"{r.fallback} fell back to a full encode",
    )
    row("appends within 512 + their own size", f"{r.appends_within_window} of {r.appends}")
    row("characters in all requests", f"{r.chars_context:,}")
    row("characters received", f"{r.chars_received:,}")
    row("characters tokenized", f"{r.chars_tokenized:,}  ({saved:.1f} times less than all)")
    row(
        "latency, send to ids",
        f"median {r.median_ms():.2f} ms, P90 {r.quantile_ms(0.9):.2f} ms, "
        f"P99 {r.quantile_ms(0.99):.2f} ms",
    )
    row(
        "shadow verifier",
        f"{r.verified} answers re-encoded by the reference, {r.verifier_mismatches} differed, "
        f"{r.verifier_dropped} dropped",
    )
    row("tokenizer", f"{r.tokenizer[:19]}… by {r.engine} ({r.admission})")
    row("time", f"{r.seconds:.1f} s")
    console = Console()
    console.print(table)
    for s in r.sessions:
        for note in s.notes:
            console.print(f"note: {s.session_id}: {note}", style="dim", markup=False)
        if not s.exact:
            console.print(f"DIFFERS: {s.session_id}", style="red", markup=False)
    if r.exact:
        console.print("All ids equal the reference tokenizer's.", style="green")
    else:
        console.print("NOT EXACT: see above.", style="red")


def _counts(counter: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counter.items()))
