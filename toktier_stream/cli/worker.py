"""``toktier-stream worker``: one worker process, until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, TypeVar

import typer

from toktier_stream import telemetry
from toktier_stream.cli.configure import ConfigFile
from toktier_stream.cli.extras import worker_extra
from toktier_stream.errors import Code, ToktierError

if TYPE_CHECKING:
    from toktier_stream.config import Settings
    from toktier_stream.pipeline.health import Health
    from toktier_stream.pipeline.worker import Worker

_LOG = telemetry.logger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# Beyond shutdown_deadline_s, in which the partitions finish: leaving the group, closing, exporting.
CLOSING_S: Final = 15.0
# How long a thread that cuts a full text into pages may keep the interpreter from the threads that
# answer appends. Python's default, 5 ms, is seen in their P99.
SWITCH_S: Final = 0.0005

T = TypeVar("T")


class Ending(Enum):
    """How a worker that was told to stop has stopped."""

    CLEAN = "clean"
    UNBEGUN = "before its engines were loaded"
    ABANDONED = "leaving work in flight behind"


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

    Ends with 0 after a clean stop, with 1 when the deadline for it passed (what was in flight is
    done again by whoever takes over), and with 3 when an error ended it; that was logged with its
    code. A second signal ends it at once.
    """
    # The first process of a container ignores what it has no handler for.
    signal.signal(signal.SIGTERM, _nothing_begun)
    with worker_extra():
        import uvloop

        from toktier_stream.cli.otel import setup
        from toktier_stream.config import load
        from toktier_stream.pipeline.health_http import HealthServer, probe
        from toktier_stream.pipeline.worker import health_of
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
    exported = setup(settings, "toktier-worker")
    health = health_of(settings)
    server = None
    if settings.health_listen:
        routes = {"/livez": probe(health.live), "/readyz": probe(health.ready)}
        if exported.page is not None:
            routes["/metrics"] = exported.page
        server = HealthServer(settings.health_listen, routes)
        server.start()
    sys.setswitchinterval(SWITCH_S)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            ending = runner.run(_until_stopped(settings, health))
    finally:
        if server is not None:
            server.stop()
        exported.end()
    if ending is Ending.UNBEGUN:
        # Engines may still be compiled in a thread, which nothing can interrupt.
        _leave(0)
    if ending is Ending.ABANDONED:
        sys.exit(1)


def _nothing_begun(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _files(options: list[str]) -> dict[str, Path]:
    files = {}
    for option in options:
        alias, equals, file = option.partition("=")
        if not equals or not alias:
            raise ToktierError(Code.CONFIG_INVALID, f"--tokenizer {option!r}: give ALIAS=FILE")
        files[alias] = Path(file)
    return files


async def _until_stopped(settings: Settings, health: Health) -> Ending:
    """Work until a signal comes. Raises what ended the worker before."""
    if settings.broker == "local:":
        raise ToktierError(
            Code.CONFIG_INVALID,
            "broker local: lives inside one process; a worker needs kafka://host:port",
        )
    begun: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    work = asyncio.create_task(_work(settings, health, begun))
    stopping = False

    def stop(number: int) -> None:
        nonlocal stopping
        if stopping:
            _leave(128 + number)
        stopping = True
        _LOG.info("worker_stopping", signal=signal.Signals(number).name)
        _end_anyway(settings.shutdown_deadline_s + CLOSING_S)
        if begun.done() and begun.result().started:
            begun.result().stop()
        else:
            work.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await work
    except asyncio.CancelledError:
        if not stopping:
            raise
        _LOG.info("worker_stopped", started=False)
    if not begun.done() or not begun.result().facts().engines:
        return Ending.UNBEGUN
    return Ending.ABANDONED if begun.result().abandoned else Ending.CLEAN


def _end_anyway(seconds: float) -> None:
    """End the process after so long, whatever hangs: the loop, a thread, an exporter."""

    def end() -> None:
        _LOG.error("shutdown_deadline_passed", seconds=seconds)
        _leave(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def _work(settings: Settings, health: Health, begun: asyncio.Future[Worker]) -> None:
    from toktier_stream.pipeline.open import broker_of
    from toktier_stream.pipeline.worker import Worker
    from toktier_stream.session.engines import open_registry

    registry = await _in_daemon_thread(
        lambda: open_registry(settings.tokenizers, settings.default_tokenizer)
    )
    broker = broker_of(settings)
    await broker.start()
    try:
        worker = Worker(settings, broker, registry, health)
        begun.set_result(worker)
        tidying = asyncio.create_task(_settle_heap(worker))
        try:
            await worker.run()
        finally:
            tidying.cancel()
    finally:
        await broker.stop()


async def _settle_heap(worker: Worker) -> None:
    """Once everything is loaded, and again once every partition is restored."""
    from toktier_stream.pipeline.heap import Pauses, settle

    pauses = Pauses(telemetry.Instruments())
    pauses.open()
    try:
        for ready in (worker.warmed, worker.ready):
            await ready.wait()
            _LOG.info("heap_settled", frozen=settle())
        await asyncio.Event().wait()
    finally:
        pauses.close()


async def _in_daemon_thread(call: Callable[[], T]) -> T:
    """Run a call without holding up the loop, nor the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
            failed = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name="load", daemon=True).start()
    return await done
