"""``toktier-stream warmup``: compile and cache everything, for images and first starts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from toktier_stream.cli.extras import worker_extra


def warmup(
    tokenizers: Annotated[
        list[Path] | None,
        typer.Argument(
            help="tokenizer.json files or folders; default: the shipped one.", exists=True
        ),
    ] = None,
) -> None:
    """Build the tables of tokenizers and compile the kernels into the cache (TOKTIER_CACHE), so
    that a worker starts in about a second.
    """
    with worker_extra():
        from toktier_stream.session.engines import open_tokenizer
        from toktier_stream.session.warm import warm
        from toktier_stream.tokenizer.shipped import shipped_path
    for file in tokenizers or [shipped_path()]:
        started = time.monotonic()
        entry = open_tokenizer(file, lambda step: typer.echo(f"  {step}", err=True))
        warm(entry.encoder)
        seconds = time.monotonic() - started
        typer.echo(f"{file}: {entry.admission.path}, ready in {seconds:.1f} s")
