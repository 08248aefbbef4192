"""``toktier-stream inspect``: what is known of a tokenizer, and which path serves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from toktier_stream.cli.extras import worker_extra

_LISTS = ("stages", "classes", "no_boundary")


def inspect(
    tokenizer: Annotated[
        Path, typer.Argument(help="A tokenizer.json, or the folder that holds it.", exists=True)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show a tokenizer's name, pipeline and admission, with the reason for each refusal; for the
    exact engine its stages, character classes, and between which classes text may not be cut."""
    with worker_extra():
        from toktier_stream.session.engines import open_tokenizer
        from toktier_stream.tokenizer.encoder import FastEncoder
    entry = open_tokenizer(tokenizer)
    spec = entry.artifact.spec
    added = entry.artifact.added_tokens
    facts: dict[str, Any] = {
        "file": str(entry.artifact.path),
        "name": entry.name,
        "fingerprint": entry.encoder.fingerprint,
        "engine": entry.encoder.engine,
        "admission": entry.admission.path,
        "reasons": list(entry.admission.reasons),
        "splices": entry.encoder.splices,
        "normalizer": _kinds(spec.get("normalizer"), "normalizers"),
        "pre_tokenizer": _kinds(spec.get("pre_tokenizer"), "pretokenizers"),
        "model": spec["model"].get("type", "BPE"),
        "added_tokens": {
            "all": len(added),
            "special": sum(t.special for t in added),
            "normalized": sum(t.normalized for t in added),
            "reaching": sum(not t.plain for t in added),
        },
        "longest_token_chars": entry.encoder.longest_token,
        "literal_reach_bytes": entry.encoder.literal_reach,
    }
    encoder = entry.encoder
    if isinstance(encoder, FastEncoder):
        tables = encoder.compiled.matcher
        facts["stages"] = list(tables.stage_words)
        facts["classes"] = list(tables.class_words)
        facts["no_boundary"] = list(tables.boundary_words)
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if name in _LISTS:
            typer.echo(f"{name}:")
            for line in value:
                typer.echo(f"    {line}")
        else:
            typer.echo(f"{name:<{width}}  {_readable(value)}")


def _kinds(part: Any, inner: str) -> list[str]:
    if not isinstance(part, dict):
        return []
    if part.get("type") == "Sequence":
        return [kind for child in part[inner] for kind in _kinds(child, inner)]
    return [str(part.get("type"))]


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return str(value)
