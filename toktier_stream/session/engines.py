"""All engines there are, and registries that try them in turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from toktier_stream.errors import Code, ToktierError
from toktier_stream.incremental.families import OnePieceEncoder
from toktier_stream.tokenizer.admission import Progress
from toktier_stream.tokenizer.artifact import Artifact
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.registry import EXACT, Engines, Entry, Registry
from toktier_stream.tokenizer.tables import Refusal
from toktier_stream.tokenizer.wordpiece import wordpiece_engine


def every_prefix_engine(
    artifact: Artifact, reference: Reference, progress: Progress | None
) -> Encoder | Refusal:
    """Families whose whole text is one piece (Gemma, Llama 2), by every-prefix BPE."""
    if progress is not None:
        progress("building every-prefix tables")
    try:
        return OnePieceEncoder(artifact)
    except ToktierError as error:
        if error.code is not Code.TOKENIZER_UNSUPPORTED:
            raise
        return Refusal((error.detail,))


ENGINES: Final[Engines] = {
    **EXACT,
    "every-prefix": every_prefix_engine,
    "word-piece": wordpiece_engine,
}


def open_registry(
    files: Mapping[str, Path], default: str = "", progress: Progress | None = None
) -> Registry:
    """A registry whose tokenizers may be served by any engine. Raises as :class:`Registry`."""
    return Registry(files, default, ENGINES, progress)


def open_tokenizer(path: Path, progress: Progress | None = None) -> Entry:
    """One tokenizer without a registry. Raises ``TOKENIZER_LOAD``."""
    return Entry(Artifact.load(path), ENGINES, progress)
