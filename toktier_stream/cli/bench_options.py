"""Options that the benchmarks share, what they stand for, and how results are given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from toktier_stream.errors import Code, ToktierError

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


def files_of(options: list[str] | None, wanted: Sequence[str] = _DEFAULTS) -> dict[str, Path]:
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


def joined(paths: list[Path] | None) -> str | None:
    """Files and folders of files as one text."""
    if not paths:
        return None
    files = [f for p in paths for f in (sorted(p.rglob("*")) if p.is_dir() else [p])]
    return "".join(f.read_bytes().decode(errors="replace") for f in files if f.is_file())


def pair(text: str) -> tuple[int, int]:
    """``1000x50K``."""
    count, _, size = text.partition("x")
    return sizes_of(count)[0], sizes_of(size)[0]


def sizes_of(text: str, *, may_be_none: bool = False) -> list[int]:
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


def tell(step: str) -> None:
    typer.echo(f"{step} …", err=True)


def finish(
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
