"""Who else encodes on the card's machine: gigatoken on its cores, ``toktier`` on the card."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toktier_stream.bench.peers_toktier import open_toktier
from toktier_stream.tokenizer.artifact import Artifact

GIGATOKEN: Final = "gigatoken"
TOKTIER_GPU: Final = "toktier gpu"

EncodeAll = Callable[[Sequence[str]], Any]
"""Texts to what the peer makes of them."""
IdsOf = Callable[[Any], Sequence[npt.NDArray[np.uint32]]]
"""The ids of each text in that. Not timed: not all peers give arrays."""


@dataclass(frozen=True, slots=True)
class GpuPeers:
    """The peers that serve one tokenizer here, their versions, and why others do not."""

    encode: Mapping[str, tuple[EncodeAll, IdsOf]]
    versions: Mapping[str, str]
    refused: Mapping[str, str] = field(default_factory=dict)


def opened(artifact: Artifact, stack: ExitStack) -> GpuPeers:
    """What is installed and can serve the file."""
    encode: dict[str, tuple[EncodeAll, IdsOf]] = {}
    versions: dict[str, str] = {}
    refused: dict[str, str] = {}
    makers = ((GIGATOKEN, "gigatoken", _gigatoken), (TOKTIER_GPU, "toktier", _toktier))
    for name, package, make in makers:
        if importlib.util.find_spec(package) is None:
            refused[name] = f"{package} is not installed"
            continue
        versions[name] = importlib.metadata.version(package)
        try:
            encode[name] = make(artifact, stack)
        except (ImportError, OSError, ValueError, RuntimeError) as error:
            refused[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return GpuPeers(encode, versions, refused)


def _gigatoken(artifact: Artifact, stack: ExitStack) -> tuple[EncodeAll, IdsOf]:
    """Batches on all cores, as it does by itself; a single text on one."""
    import gigatoken

    tokenizer = gigatoken.Tokenizer.from_json(artifact.data)

    def encode(texts: Sequence[str]) -> Any:
        return [tokenizer.encode(texts[0])] if len(texts) == 1 else tokenizer.encode_batch(texts)

    return encode, _arrays


def _toktier(artifact: Artifact, stack: ExitStack) -> tuple[EncodeAll, IdsOf]:
    """Its GPU route by its public calls, without its store of earlier texts."""
    tokenizer = open_toktier(artifact, stack, "cuda")

    def encode(texts: Sequence[str]) -> Any:
        if len(texts) == 1:
            return [tokenizer.encode(texts[0], lookup="off").ids]
        return [e.ids for e in tokenizer.encode_batch(list(texts))]

    return encode, _arrays


def _arrays(answers: Any) -> Sequence[npt.NDArray[np.uint32]]:
    return [np.asarray(ids, dtype=np.uint32) for ids in answers]
