"""``toktier-stream verify``: a differential campaign of any length, with a report to continue."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from toktier_stream.cli.extras import worker_extra
from toktier_stream.errors import Code, ToktierError


def verify(
    tokenizer: Annotated[
        Path, typer.Argument(help="A tokenizer.json, or its folder.", exists=True)
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Texts to compare too; folders are searched.", exists=True),
    ] = None,
    chars: Annotated[int, typer.Option(min=0, help="Compare so many characters at least.")] = 0,
    strings: Annotated[int, typer.Option(min=0, help="Compare so many strings at least.")] = 0,
    cuts: Annotated[int, typer.Option(min=0, help="Try so many cuts at least.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Stop after so many minutes.")] = 0,
    seed: Annotated[int, typer.Option(help="Another seed gives other texts.")] = 0,
    report: Annotated[
        Path | None, typer.Option(help="JSON report; an earlier one is continued.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report.")] = False,
) -> None:
    """Hold the engine against the reference: random strings, code points, runs, cuts, sessions,
    and the given files; ids and byte lengths.

    Goes on until all of --chars, --strings and --cuts are reached, at most for --minutes; with
    none of these and no files for one minute. Exit code 1 if anything differs.
    """
    with worker_extra():
        from toktier_stream.bench.campaign import Campaign, Report
        from toktier_stream.session.engines import open_tokenizer
    entry = open_tokenizer(tokenizer)
    earlier = None
    if report is not None and report.exists():
        try:
            earlier = Report(**json.loads(report.read_text()))
        except (ValueError, TypeError) as error:
            raise ToktierError(Code.CONFIG_INVALID, f"{report}: not a report") from error
    campaign = Campaign(entry, seed, earlier)
    texts = [f for place in files or [] for f in _files(place)]
    goals = {"chars": chars, "strings": strings, "cuts": cuts}
    wanted = sum(goals.values())
    if not (wanted or minutes or texts):
        minutes = 1.0
    deadline = time.monotonic() + minutes * 60 if minutes else None
    console = Console(stderr=True)

    def save() -> None:
        if report is not None:
            report.parent.mkdir(parents=True, exist_ok=True)
            scratch = report.with_suffix(".tmp")
            scratch.write_text(json.dumps(campaign.report.as_dict(), indent=1))
            scratch.replace(report)

    def going() -> bool:
        if campaign.exhausted or (deadline is not None and time.monotonic() > deadline):
            return False
        return reached() < wanted if wanted else deadline is not None

    def reached() -> int:
        return sum(min(getattr(campaign.report, what), goal) for what, goal in goals.items())

    with Progress(console=console, disable=not console.is_terminal) as bar:
        for file in texts:
            task = bar.add_task(file.name, total=file.stat().st_size)
            for done in campaign.file(file):
                bar.update(task, completed=done)
            save()
        task = bar.add_task("generated", total=wanted or None)
        saved = time.monotonic()
        while going():
            campaign.round()
            bar.update(task, completed=reached() if wanted else campaign.report.rounds)
            if time.monotonic() - saved > 10:
                saved = time.monotonic()
                save()
    save()
    r = campaign.report
    if as_json:
        typer.echo(json.dumps(r.as_dict(), indent=1))
    else:
        typer.echo(
            f"{r.engine} against {r.reference}: {r.strings:,} strings, {r.chars:,} characters "
            f"({r.real_chars:,} of files), {r.code_points:,} code points, {r.cuts:,} cuts, "
            f"{r.piece_texts:,} texts and {r.piece_cuts:,} cuts of the pre-tokenizer, "
            f"{r.splices:,} splices in {r.seconds:.0f} s: {len(r.divergences)} divergences"
        )
        for found in r.divergences:
            typer.echo(json.dumps(found))
    raise typer.Exit(1 if r.divergences else 0)


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return [p for p in sorted(place.rglob("*")) if p.is_file()]
    return [place]
