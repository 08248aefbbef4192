"""``toktier-stream bench``: measurements on this machine, as tables, JSON and plots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from toktier_stream.cli import bench_fleet
from toktier_stream.cli.bench_options import (
    AsJson,
    PlotTo,
    Rounds,
    SaveTo,
    Seed,
    Texts,
    Tokenizers,
    files_of,
    finish,
    joined,
    pair,
    sizes_of,
    tell,
)
from toktier_stream.cli.extras import worker_extra
from toktier_stream.errors import Code, ToktierError

app = typer.Typer(
    help="Measure on this machine; every timed answer is checked. Other tokenizers are measured "
    "too where they are installed: pip install 'toktier-stream[bench]'.",
    no_args_is_help=True,
)


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
        files_of(tokenizer),
        joined(text),
        contexts=sizes_of(contexts),
        appends=sizes_of(appends),
        rounds=rounds,
        seed=seed,
        with_peers=peers,
        progress=tell,
    )
    finish(result, save, plot, as_json, append_tables.show, append_tables.plot)
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
        files_of(tokenizer),
        joined(text),
        sizes=sizes_of(sizes),
        sessions=sessions,
        batches=batches,
        resident=[pair(part) for part in resident.split(",") if part],
        sync=sync,
        seed=seed,
        folder=folder,
        progress=tell,
    )
    finish(result, save, plot, as_json, store_tables.show, store_tables.plot)
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
    given = joined(text)
    result = bench.run(
        files_of(tokenizer),
        wanted if given is None else {"given": given},
        sizes=sizes_of(sizes),
        rounds=rounds,
        starts=starts,
        progress=tell,
    )
    finish(result, save, plot, as_json, encode_tables.show, encode_tables.plot)
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
    given = joined(text)
    result = bench.run(
        files_of(tokenizer),
        None if given is None else {"given": given.encode()},
        sizes=sizes_of(family, may_be_none=True),
        updates=updates,
        rounds=rounds,
        progress=tell,
    )
    finish(result, save, plot, as_json, incremental_tables.show, bench.plot)


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
        (count,) = sizes_of(characters)
        chosen = chosen.with_characters(count)
    try:
        result = bench.check(
            files_of(tokenizer, bench.BYTE_LEVEL),
            bench.open_device(device),
            text or (),
            replace(chosen, seconds=60 * minutes, peers=chosen.peers and peers),
            tell,
        )
    except DeviceError as error:
        raise ToktierError(Code.GPU_UNAVAILABLE, str(error)) from error
    finish(result, save, None, as_json, gpu_tables.show, None)
    raise typer.Exit(1 if bench.differences(result) else 0)


app.add_typer(bench_fleet.app)
