"""Puts the verbs together, and turns errors into one sentence and an exit code.

Exit codes: 0 done and all is well; 1 done, and something is wrong (an id differs, a check failed);
2 the command was used wrongly; 3 it could not be done (the message has a stable code).
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from toktier_stream import __version__
from toktier_stream.cli import (
    bench,
    configure,
    demo,
    encode,
    inspect,
    replay,
    session,
    store,
    tail,
    tokenizers,
    verify,
    warmup,
    worker,
)
from toktier_stream.errors import ToktierError

app = typer.Typer(
    name="toktier-stream",
    help="Exact, stateful tokenization for agentic LLM serving, as a Kafka pipeline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("worker")(worker.worker)
app.command("replay")(replay.replay)
app.command("tail")(tail.tail)
app.command("encode")(encode.encode)
app.command("session")(session.session)
app.command("verify")(verify.verify)
app.command("warmup")(warmup.warmup)
app.command("inspect")(inspect.inspect)
app.add_typer(store.app, name="store")
app.add_typer(bench.app, name="bench")
app.add_typer(tokenizers.app, name="tokenizers")
app.command("check-config")(configure.check_config)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Exact, stateful tokenization for agentic LLM serving, as a Kafka pipeline."""


def main() -> None:
    """The console script."""
    try:
        app()
    except ToktierError as error:
        print(f"toktier-stream: {error}", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
