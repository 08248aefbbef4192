"""``toktier-stream worker``: one worker process, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toktier_stream import telemetry
from toktier_stream.cli.configure import ConfigFile
from toktier_stream.cli.extras import worker_extra
from toktier_stream.errors import Code, ToktierError

if TYPE_CHECKING:
    from toktier_stream.config import Settings


def worker(
    config: ConfigFile = None,
    broker: Annotated[str | None, typer.Option("--broker", "-b", help="kafka://host:port")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Where the session stores are kept.")
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option("--tokenizer", "-t", help="ALIAS=FILE; repeat for several."),
    ] = None,
    create_topics: Annotated[
        bool | None, typer.Option("--create-topics", help="Create missing topics at start.")
    ] = None,
) -> None:
    """Run a worker: consume appends, answer with token updates, until SIGTERM or SIGINT.

    Ends with 0 after a clean stop; anything else was logged with its code.
    """
    with worker_extra():
        from toktier_stream.cli.otel import setup
        from toktier_stream.config import load
    files = _files(tokenizer or [])
    settings = load(
        config,
        broker=broker,
        state_dir=state_dir,
        create_topics=create_topics,
        tokenizers=files or None,
        default_tokenizer=next(iter(files)) if len(files) == 1 else None,
    )
    telemetry.setup_logging(settings.log_level, json=settings.log_json)
    end = setup(settings, "toktier-worker")
    try:
        asyncio.run(_run(settings))
    finally:
        end()


def _files(options: list[str]) -> dict[str, Path]:
    files = {}
    for option in options:
        alias, equals, file = option.partition("=")
        if not equals or not alias:
            raise ToktierError(Code.CONFIG_INVALID, f"--tokenizer {option!r}: give ALIAS=FILE")
        files[alias] = Path(file)
    return files


async def _run(settings: Settings) -> None:
    from toktier_stream.pipeline.open import broker_of
    from toktier_stream.pipeline.worker import Worker
    from toktier_stream.session.engines import open_registry

    if settings.broker == "local:":
        raise ToktierError(
            Code.CONFIG_INVALID,
            "broker local: lives inside one process; a worker needs kafka://host:port",
        )
    registry = open_registry(settings.tokenizers, settings.default_tokenizer)
    broker = broker_of(settings)
    await broker.start()
    try:
        worker = Worker(settings, broker, registry)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        await worker.run()
    finally:
        await broker.stop()
