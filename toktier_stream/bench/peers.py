"""Other tokenizers behind one face, for benchmarks: each is measured where it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from toktier_stream.tokenizer.artifact import Artifact, byte_level_alphabet

Encode = Callable[[str], Any]
"""A whole text to ids, added tokens recognised, none put around it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One other tokenizer."""

    name: str
    version: str
    make: Callable[[Artifact], Encode]
    """A new instance of a tokenizer.json; raises ValueError where it cannot serve the file."""


def installed() -> tuple[Peer, ...]:
    """The peers that this environment has, the reference first."""
    candidates = (
        ("tokenizers", _reference),
        ("gigatoken", _gigatoken),
        ("fastokens", _fastokens),
        ("tiktoken", _tiktoken),
    )
    return tuple(
        Peer(name, importlib.metadata.version(name), make)
        for name, make in candidates
        if importlib.util.find_spec(name) is not None
    )


def _reference(artifact: Artifact) -> Encode:
    tokenizer = Tokenizer.from_buffer(artifact.data)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def _gigatoken(artifact: Artifact) -> Encode:
    import gigatoken

    try:
        tokenizer = gigatoken.Tokenizer.from_json(artifact.data)
    except Exception as error:
        raise ValueError(f"gigatoken: {error}") from error
    encode: Encode = tokenizer.encode
    return encode


def _fastokens(artifact: Artifact) -> Encode:
    import fastokens

    try:
        tokenizer = fastokens.Tokenizer.from_json_str(artifact.data.decode())
    except Exception as error:
        raise ValueError(f"fastokens: {error}") from error

    return lambda text: tokenizer.encode(text).ids


def _tiktoken(artifact: Artifact) -> Encode:
    """Only files whose ids are ranks, with one pattern and no normalizer, can be told to it."""
    import tiktoken

    spec = artifact.spec
    patterns = _patterns(spec.get("pre_tokenizer"))
    if len(patterns) != 1 or spec.get("normalizer"):
        raise ValueError("tiktoken: more than one pattern, or a normalizer")
    alphabet = byte_level_alphabet()
    added = {t.content: t.id for t in artifact.added_tokens}
    ranks = {
        bytes(alphabet[c] for c in token): token_id
        for token, token_id in spec["model"]["vocab"].items()
        if token not in added and all(c in alphabet for c in token)
    }
    encoding = tiktoken.Encoding(
        "bench", pat_str=patterns[0], mergeable_ranks=ranks, special_tokens=added
    )
    return lambda text: encoding.encode(text, allowed_special="all")


def _patterns(pre_tokenizer: Any) -> list[str]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return [p for part in pre_tokenizer["pretokenizers"] for p in _patterns(part)]
    pattern = pre_tokenizer.get("pattern", {}).get("Regex")
    return [pattern] if pattern else []
