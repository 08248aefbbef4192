"""``toktier-stream check-config``: the effective settings, or what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from toktier_stream.cli.extras import worker_extra

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="A TOML file; TOKTIER_… variables take precedence."),
]


def check_config(config: ConfigFile = None) -> None:
    """Print the settings a worker would start with, secrets masked, or say what is wrong.

    Also reads the TLS files, loads every registered tokenizer, and says which path serves it. The
    broker is not asked.
    """
    with worker_extra():
        from toktier_stream.config import load
        from toktier_stream.pipeline.open import check_broker
        from toktier_stream.session.engines import open_registry
    settings = load(config)
    check_broker(settings)
    registry = open_registry(settings.tokenizers, settings.default_tokenizer)
    shown = settings.model_dump(mode="json")
    shown["tokenizers"] = {
        alias: {
            "file": str(registry.resolve(alias).artifact.path),
            "name": name,
            "path": registry.resolve(alias).admission.path,
        }
        for alias, name in registry.aliases.items()
    }
    typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
