"""``toktier-stream encode``: the engine for a shell, and for anyone who wants to check it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toktier_stream.cli.extras import worker_extra
from toktier_stream.cli.lines import objects, put, put_error, text_of
from toktier_stream.errors import ToktierError

TokenizerFile = Annotated[
    Path,
    typer.Option("--tokenizer", "-t", help="A tokenizer.json, or its folder.", exists=True),
]


def encode(
    tokenizer: TokenizerFile,
    reference: Annotated[
        bool, typer.Option("--reference", help="Use the reference engine instead.")
    ] = False,
) -> None:
    """Encode JSON lines: ``{"text": …}`` on standard input, ``{"ids": […], "lengths": […],
    "route": …}`` on standard output, in order. ``lengths`` are bytes of the text.

    A line that cannot be read is answered with ``{"error": code, "message": …}``; then the exit
    code is 1.
    """
    with worker_extra():
        from toktier_stream.session.engines import open_tokenizer
    entry = open_tokenizer(tokenizer)
    engine = entry.reference if reference else entry.encoder
    route = "reference" if reference or entry.admission.path == "reference" else "cpu"
    failed = False
    for value in objects():
        try:
            if isinstance(value, ToktierError):
                raise value
            tokens = engine.encode(text_of(value.get("text")))
        except ToktierError as error:
            failed = True
            put_error(error)
            continue
        put({"ids": tokens.ids.tolist(), "lengths": tokens.lengths.tolist(), "route": route})
    raise typer.Exit(1 if failed else 0)
