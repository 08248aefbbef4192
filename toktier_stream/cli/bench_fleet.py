"""``toktier-stream bench pipeline`` and ``restore``: what needs a broker and a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toktier_stream import telemetry
from toktier_stream.cli.bench_options import (
    AsJson,
    PlotTo,
    SaveTo,
    Seed,
    Texts,
    Tokenizers,
    files_of,
    finish,
    joined,
    sizes_of,
    tell,
)
from toktier_stream.cli.extras import worker_extra
from toktier_stream.errors import Code, ToktierError

app = typer.Typer()


@app.command("pipeline")
def pipeline(
    tokenizer: Tokenizers = None,
    text: Texts = None,
    broker: Annotated[
        str, typer.Option("--broker", "-b", help="local: (all in one process) or kafka://host:port")
    ] = "local:",
    mode: Annotated[
        str,
        typer.Option(
            help="mixture: 2.3 % full contexts; appends: none; light: few requests; soak: one rate "
            "for --minutes; overload: half of a rate, three times it, and half of it again."
        ),
    ] = "mixture",
    rates: Annotated[
        str, typer.Option(help="Requests per second, such as 100,1K; empty: searched for.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.5, help="Of each rate.")] = 15.0,
    minutes: Annotated[float, typer.Option(help="Of a soak.")] = 30.0,
    shape: Annotated[
        str, typer.Option(help="Arrivals: poisson, turns (as measured), recorded (--times).")
    ] = "poisson",
    times: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Timed transcripts (.jsonl), for the recorded shape."),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Live sessions.")] = 200,
    most_tokens: Annotated[int, typer.Option(min=1, help="Of a context, at most.")] = 1_000_000,
    append: Annotated[
        int, typer.Option(min=0, help="Characters of each append; 0: the paper's, 5 K in the mean.")
    ] = 0,
    partitions: Annotated[int, typer.Option(min=1, help="Of the topics.")] = 4,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE of a worker setting; repeat for several."),
    ] = None,
    pinned: Annotated[
        bool, typer.Option("--pin/--no-pin", help="One core for the worker, the rest for others.")
    ] = True,
    broker_pid: Annotated[
        int, typer.Option(help="A broker on this machine, to be kept off the worker's core.")
    ] = 0,
    seed: Seed = 1,
    save: SaveTo = None,
    plot: PlotTo = None,
    as_json: AsJson = False,
) -> None:
    """Send a fleet's requests through broker and worker, in an open loop (P7, P8).

    Latency counts from when a request was due. Makes topics of its own (bench-…) and leaves them
    behind. Exit code 1 if an answer is wrong, missing or repeated.
    """
    with worker_extra():
        from toktier_stream.bench import pipeline as bench
        from toktier_stream.bench import pipeline_tables
        from toktier_stream.bench.workload import FULL_SHARE, Shares, recorded_gaps
    if mode not in ("mixture", "appends", "light", "soak", "overload"):
        raise typer.BadParameter(f"--mode {mode!r}: mixture, appends, light, soak or overload")
    if shape not in ("poisson", "turns", "recorded"):
        raise typer.BadParameter(f"--shape {shape!r}: poisson, turns or recorded")
    share = 0.0 if mode == "appends" else FULL_SHARE
    wanted = tuple(map(float, sizes_of(rates, may_be_none=True)))
    if mode == "light":
        wanted = wanted or (10.0, 20.0, 50.0)
    elif mode in ("soak", "overload"):
        (rate, *_) = wanted or (100.0,)
        halves = (rate / 2, rate / 2)
        soak = (rate,) * max(1, round(60 * minutes / seconds))
        wanted = soak if mode == "soak" else (*halves, 3 * rate, *halves)
    plan = bench.Plan(
        rates=wanted,
        first_rate=500.0 if mode == "appends" else 100.0,
        seconds=seconds,
        shape=shape,  # type: ignore[arg-type]
        shares=Shares(share, sessions, most_tokens=most_tokens, append=append),
        partitions=partitions,
        pin=pinned,
        broker_pid=broker_pid,
        seed=seed,
        worker=_settings(setting),
    )
    files = [f for p in times or () for f in (sorted(p.rglob("*")) if p.is_dir() else [p])]
    ((name, path), *_) = files_of(tokenizer).items()
    telemetry.setup_logging("warning", json=False)
    result = bench.run(
        name, path, broker, plan, text=joined(text), gaps=recorded_gaps(files), progress=tell
    )
    finish(result, save, plot, as_json, pipeline_tables.show, pipeline_tables.plot)
    raise typer.Exit(0 if result["exact"] and result["opening"]["exact"] else 1)


@app.command("restore")
def restore(
    tokenizer: Tokenizers = None,
    broker: Annotated[
        str, typer.Option("--broker", "-b", help="local: or kafka://host:port")
    ] = "local:",
    sessions: Annotated[int, typer.Option(min=1, help="Sessions in the changelog.")] = 10_000,
    chars: Annotated[str, typer.Option(help="Characters of each.")] = "50K",
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Of the sessions, on the disk of yesterday.")
    ] = 0.9,
    partitions: Annotated[int, typer.Option(min=1, help="Of the topics.")] = 4,
    folder: Annotated[
        Path | None, typer.Option(help="Where states are made for a while; default: temporary.")
    ] = None,
    seed: Seed = 1,
    save: SaveTo = None,
    as_json: AsJson = False,
) -> None:
    """Bring a worker back with an empty disk, and with one of yesterday: time and bytes.

    Makes topics of its own (bench-…) and leaves them behind. Exit code 1 if a continued session
    has a wrong id.
    """
    with worker_extra():
        from toktier_stream.bench import pipeline_tables
        from toktier_stream.bench import restore as bench
    ((_, path), *_) = files_of(tokenizer).items()
    (size,) = sizes_of(chars)
    telemetry.setup_logging("warning", json=False)
    result = bench.run(
        path, broker, sessions=sessions, chars=size, share=share, partitions=partitions,
        seed=seed, folder=folder, progress=tell,
    )  # fmt: skip
    finish(result, save, None, as_json, pipeline_tables.show_restore, None)
    raise typer.Exit(0 if result["empty"]["exact"] and result["yesterday"]["exact"] else 1)


# What the verbs share


def _settings(options: list[str] | None) -> dict[str, str]:
    """Settings given as NAME=VALUE."""
    found = {}
    for option in options or ():
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise ToktierError(Code.CONFIG_INVALID, f"--set {option!r}: give NAME=VALUE")
        found[name] = value
    return found
