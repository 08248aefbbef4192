"""``toktier-stream bench``: measurements on this machine, as tables, JSON and plots."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from toktier_stream import telemetry
from toktier_stream.cli.extras import worker_extra
from toktier_stream.errors import Code, ToktierError

app = typer.Typer(
    help="Measure on this machine; every timed answer is checked. Other tokenizers are measured "
    "too where they are installed: pip install 'toktier-stream[bench]'.",
    no_args_is_help=True,
)

Tokenizers = Annotated[
    list[str] | None,
    typer.Option(
        "--tokenizer",
        "-t",
        help="NAME=FILE of a tokenizer.json; repeat for several. Default: qwen3 and gptoss where "
        "they are in the cache, else the small one shipped.",
    ),
]
Texts = Annotated[
    list[Path] | None,
    typer.Option(
        "--text", exists=True, help="Text to use, joined; default: generated agent sessions."
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")]
Seed = Annotated[int, typer.Option(help="Another seed generates other text.")]
SaveTo = Annotated[Path | None, typer.Option("--save", help="Write the result as JSON here.")]
PlotTo = Annotated[Path | None, typer.Option("--plot", help="Draw an image here (matplotlib).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

_DEFAULTS: Final = ("qwen3", "gptoss")
_UNITS: Final = {"": 1, "K": 1_000, "M": 1_000_000}


@app.command("append")
def append(
    tokenizer: Tokenizers = None,
    text: Texts = None,
    contexts: Annotated[
        str, typer.Option(help="Characters of the contexts.")
    ] = "100K,500K,1M,2M,4.4M,8M",
    appends: Annotated[
        str, typer.Option(help="Characters of the appends.")
    ] = "256,1.5K,10K,50K,100K",
    rounds: Rounds = 7,
    peers: Annotated[bool, typer.Option(help="Measure other tokenizers too.")] = True,
    seed: Seed = 1,
    save: SaveTo = None,
    plot: PlotTo = None,
    as_json: AsJson = False,
) -> None:
    """Append to long contexts in memory, beside other tokenizers (P1, P2, P3).

    Exit code 1 if an id of ours is wrong.
    """
    with worker_extra():
        from toktier_stream.bench import append as bench
        from toktier_stream.bench import append_tables
    result = bench.run(
        _files(tokenizer),
        _joined(text),
        contexts=_sizes(contexts),
        appends=_sizes(appends),
        rounds=rounds,
        seed=seed,
        with_peers=peers,
        progress=_tell,
    )
    _finish(result, save, plot, as_json, append_tables.show, append_tables.plot)
    raise typer.Exit(0 if all(t["exact"] for t in result["targets"].values()) else 1)


@app.command("store")
def store(
    tokenizer: Tokenizers = None,
    text: Texts = None,
    sizes: Annotated[str, typer.Option(help="Characters of the sessions.")] = "100K,500K,1M,2M",
    sessions: Annotated[int, typer.Option(min=1, help="Live sessions: appends in a batch.")] = 64,
    batches: Annotated[int, typer.Option(min=1, help="Batches; medians are shown.")] = 15,
    resident: Annotated[
        str, typer.Option(help="Live sessions whose memory is measured, x tokens of each.")
    ] = "1000x50K,1x1M",
    sync: Annotated[
        bool, typer.Option(help="Commits wait for the disk; a worker's do not by default.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where stores are made for a while; default: the temporary folder."),
    ] = None,
    seed: Seed = 1,
    save: SaveTo = None,
    plot: PlotTo = None,
    as_json: AsJson = False,
) -> None:
    """Append durably through the session store, beside the same in memory (P6).

    Exit code 1 if an id is wrong or a record damaged.
    """
    with worker_extra():
        from toktier_stream.bench import store as bench
        from toktier_stream.bench import store_tables
    result = bench.run(
        _files(tokenizer),
        _joined(text),
        sizes=_sizes(sizes),
        sessions=sessions,
        batches=batches,
        resident=[_pair(part) for part in resident.split(",") if part],
        sync=sync,
        seed=seed,
        folder=folder,
        progress=_tell,
    )
    _finish(result, save, plot, as_json, store_tables.show, store_tables.plot)
    raise typer.Exit(0 if all(r["exact"] and r["sound"] for r in result["sizes"]) else 1)


@app.command("encode")
def encode(
    tokenizer: Tokenizers = None,
    text: Texts = None,
    kinds: Annotated[
        str, typer.Option(help="Of text, where none is given: code, prose, chat, CJK.")
    ] = "code,prose,chat,CJK",
    sizes: Annotated[str, typer.Option(help="Characters of the texts.")] = "10K,100K,1M,4M",
    rounds: Rounds = 5,
    starts: Annotated[
        bool, typer.Option("--starts/--no-starts", help="Start-up with empty and full caches too.")
    ] = False,
    save: SaveTo = None,
    plot: PlotTo = None,
    as_json: AsJson = False,
) -> None:
    """Encode fresh text in full, beside other tokenizers (P4, P5, P11).

    With --text: that text, which must have twice the characters of a size to be measured at it.
    Exit code 1 if an id of ours is wrong.
    """
    with worker_extra():
        from toktier_stream.bench import encode as bench
        from toktier_stream.bench import encode_tables
    wanted = tuple(kinds.split(","))
    if not set(wanted) <= set(bench.KINDS):
        raise typer.BadParameter(f"--kinds {kinds!r}: of {', '.join(bench.KINDS)}")
    given = _joined(text)
    result = bench.run(
        _files(tokenizer),
        wanted if given is None else {"given": given},
        sizes=_sizes(sizes),
        rounds=rounds,
        starts=starts,
        progress=_tell,
    )
    _finish(result, save, plot, as_json, encode_tables.show, encode_tables.plot)
    exact = all(row["engines"][bench.OURS]["exact"] for row in result["encode"])
    raise typer.Exit(0 if exact else 1)


@app.command("incremental")
def incremental(
    tokenizer: Tokenizers = None,
    text: Texts = None,
    family: Annotated[
        str, typer.Option(help="The k of the constructed family; 13 takes 1 GB; empty: none.")
    ] = "4,6,8,10,11,12,13",
    updates: Annotated[int, typer.Option(min=1, help="Bytes of text.")] = 1_000_000,
    rounds: Rounds = 5,
    save: SaveTo = None,
    plot: PlotTo = None,
    as_json: AsJson = False,
) -> None:
    """Every-prefix BPE: the searches on the constructed family and on ordinary text (P9)."""
    with worker_extra():
        from toktier_stream.bench import incremental as bench
        from toktier_stream.bench import incremental_tables
    given = _joined(text)
    result = bench.run(
        _files(tokenizer),
        None if given is None else {"given": given.encode()},
        sizes=_sizes(family, may_be_none=True),
        updates=updates,
        rounds=rounds,
        progress=_tell,
    )
    _finish(result, save, plot, as_json, incremental_tables.show, bench.plot)


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
    wanted = tuple(map(float, _sizes(rates, may_be_none=True)))
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
        shares=Shares(share, sessions, most_tokens=most_tokens),
        partitions=partitions,
        pin=pinned,
        broker_pid=broker_pid,
        seed=seed,
        worker=_settings(setting),
    )
    files = [f for p in times or () for f in (sorted(p.rglob("*")) if p.is_dir() else [p])]
    ((name, path), *_) = _files(tokenizer).items()
    telemetry.setup_logging("warning", json=False)
    result = bench.run(
        name, path, broker, plan, text=_joined(text), gaps=recorded_gaps(files), progress=_tell
    )
    _finish(result, save, plot, as_json, pipeline_tables.show, pipeline_tables.plot)
    raise typer.Exit(0 if result["exact"] and result["opening"]["exact"] else 1)


@app.command("gpu")
def gpu(
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(
            "--tokenizer",
            "-t",
            help="NAME=FILE of a tokenizer.json; repeat for several. Default: all byte-level "
            "families in the cache, else the small one shipped.",
        ),
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option("--text", exists=True, help="Real text to compare, too.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="Number of a CUDA device, or shim: the kernels on one CPU core.")
    ] = "0",
    minutes: Annotated[
        float, typer.Option(min=0.1, help="After these nothing new is started.")
    ] = 7.0,
    characters: Annotated[
        str | None, typer.Option(help="Random characters per tokenizer; 1M, or 20K on the shim.")
    ] = None,
    peers: Annotated[bool, typer.Option(help="Measure other tokenizers too.")] = True,
    save: SaveTo = None,
    as_json: AsJson = False,
) -> None:
    """Compare a GPU with the reference on every tokenizer, then measure it.

    Exit code 1 if ids differ; 3 where there is no GPU.
    """
    with worker_extra():
        from toktier_gpu.device import DeviceError
        from toktier_stream.bench import gpu as bench
        from toktier_stream.bench import gpu_tables
    if device != bench.SHIM and not device.isdecimal():
        raise typer.BadParameter(f"{device!r} is neither a number nor {bench.SHIM}")
    chosen = bench.Settings.small() if device == bench.SHIM else bench.Settings()
    if characters is not None:
        (count,) = _sizes(characters)
        chosen = chosen.with_characters(count)
    try:
        result = bench.check(
            _files(tokenizer, bench.BYTE_LEVEL),
            bench.open_device(device),
            text or (),
            replace(chosen, seconds=60 * minutes, peers=chosen.peers and peers),
            _tell,
        )
    except DeviceError as error:
        raise ToktierError(Code.GPU_UNAVAILABLE, str(error)) from error
    _finish(result, save, None, as_json, gpu_tables.show, None)
    raise typer.Exit(1 if bench.differences(result) else 0)


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
    ((_, path), *_) = _files(tokenizer).items()
    (size,) = _sizes(chars)
    telemetry.setup_logging("warning", json=False)
    result = bench.run(
        path, broker, sessions=sessions, chars=size, share=share, partitions=partitions,
        seed=seed, folder=folder, progress=_tell,
    )  # fmt: skip
    _finish(result, save, None, as_json, pipeline_tables.show_restore, None)
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


def _files(options: list[str] | None, wanted: Sequence[str] = _DEFAULTS) -> dict[str, Path]:
    """Name to tokenizer.json; without options the ``wanted`` ones of the cache."""
    from toktier_stream.tokenizer.fetch import default_cache
    from toktier_stream.tokenizer.shipped import shipped_path

    if not options:
        cached = {name: default_cache() / name / "tokenizer.json" for name in wanted}
        found = {name: file for name, file in cached.items() if file.is_file()}
        return found or {"shipped": shipped_path()}
    files = {}
    for option in options:
        name, equals, file = option.partition("=")
        if not (name and equals and Path(file).exists()):
            raise ToktierError(Code.CONFIG_INVALID, f"--tokenizer {option!r}: give NAME=FILE")
        files[name] = Path(file) / "tokenizer.json" if Path(file).is_dir() else Path(file)
    return files


def _joined(paths: list[Path] | None) -> str | None:
    """Files and folders of files as one text."""
    if not paths:
        return None
    files = [f for p in paths for f in (sorted(p.rglob("*")) if p.is_dir() else [p])]
    return "".join(f.read_bytes().decode(errors="replace") for f in files if f.is_file())


def _pair(text: str) -> tuple[int, int]:
    """``1000x50K``."""
    count, _, size = text.partition("x")
    return _sizes(count)[0], _sizes(size)[0]


def _sizes(text: str, *, may_be_none: bool = False) -> list[int]:
    """Sizes like ``256,1.5K,8M``."""
    sizes = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([KM]?)", part.upper())
        size = round(float(match[1]) * _UNITS[match[2]]) if match else 0
        if size < 1:
            raise typer.BadParameter(f"{part!r} is no size: 256, 1.5K or 8M")
        sizes.append(size)
    if not (sizes or may_be_none):
        raise typer.BadParameter("give at least one size")
    return sizes


def _tell(step: str) -> None:
    typer.echo(f"{step} …", err=True)


def _finish(
    result: dict[str, Any],
    save: Path | None,
    plot: Path | None,
    as_json: bool,
    show: Callable[[dict[str, Any], Console], None],
    draw: Callable[[dict[str, Any], Path], None] | None,
) -> None:
    """Keep the numbers first: drawing may need what is not installed."""
    if save is not None:
        save.write_text(json.dumps(result, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        console = Console()
        # Tables that are cut off at 80 columns say little in a log.
        show(result, console if console.is_terminal else Console(width=200))
    if plot is not None and draw is not None:
        draw(result, plot)
