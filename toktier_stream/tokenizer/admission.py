"""Admission to the exact engine: a tokenizer's file in, an encoder or the reasons against it out.

What is not understood is not guessed. Every part of the pipeline is read by the room that knows
it, each names all obstacles it sees, and an encoder is handed out only after it agreed with the
reference on a text made to find differences. Both outcomes are kept on disk under the fingerprint.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toktier_stream.tokenizer import added, cache, matcher, merges, normalization
from toktier_stream.tokenizer.added import AddedTables
from toktier_stream.tokenizer.artifact import AddedToken, Artifact
from toktier_stream.tokenizer.encoder import ENGINE, Compiled, FastEncoder
from toktier_stream.tokenizer.normalization import Normalizer
from toktier_stream.tokenizer.paths import cache_root
from toktier_stream.tokenizer.reference import Reference, fingerprint
from toktier_stream.tokenizer.tables import MatcherTables, Refusal

Progress = Callable[[str], None]

SELF_TEST_TEXTS: Final = 200


@lru_cache(maxsize=1)
def sources_hash() -> str:
    """A hash over this room's sources: tables of other code are never read."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def table_folder() -> Path:
    """Where compiled tables are kept: ``tables`` in the cache root (``TOKTIER_CACHE``)."""
    return cache_root() / "tables"


def table_key(artifact: Artifact) -> str:
    """What compiled tables are kept under: everything that they depend on."""
    return f"{fingerprint(artifact, ENGINE)} {sources_hash()}"


def load_encoder(
    artifact: Artifact,
    *,
    cache_dir: Path | None = None,
    reference: Reference | None = None,
    progress: Progress | None = None,
) -> FastEncoder | Refusal:
    """The exact encoder of a tokenizer, or why there is none.

    Tables come from ``cache_dir`` (default: :func:`table_folder`) or are compiled and left there;
    a folder that cannot be written costs the time of compiling again. ``reference`` saves reading
    the file twice. ``progress`` is told what takes long. Raises ``TOKENIZER_LOAD``.
    """
    folder = table_folder() if cache_dir is None else cache_dir
    name, key = fingerprint(artifact, ENGINE), table_key(artifact)
    stored = cache.load(folder, key)
    if stored is not None:
        loaded = _from_arrays(name, stored)
        if loaded is not None:
            return loaded
    tell = progress or (lambda message: None)
    result = compile_encoder(artifact, reference or Reference(artifact), tell)
    arrays = _to_arrays(result)
    try:
        cache.store(folder, key, arrays)
    except OSError as error:
        tell(f"compiled tables were not kept: {error.strerror}")
    return result


def _to_arrays(result: FastEncoder | Refusal) -> dict[str, npt.NDArray[Any]]:
    if isinstance(result, Refusal):
        return {"refused": np.frombuffer("\n".join(result.reasons).encode(), dtype=np.uint8)}
    return result.compiled.to_arrays()


def _from_arrays(name: str, stored: dict[str, npt.NDArray[Any]]) -> FastEncoder | Refusal | None:
    if "refused" in stored:
        return Refusal(tuple(stored["refused"].tobytes().decode().split("\n")))
    try:
        return FastEncoder(name, Compiled.from_arrays(stored))
    except (KeyError, ValueError):
        return None


def compile_encoder(
    artifact: Artifact, reference: Reference, progress: Progress = lambda message: None
) -> FastEncoder | Refusal:
    """As :func:`load_encoder`, without a cache."""
    spec = artifact.spec
    if sys.byteorder != "little":
        return Refusal(("the kernels need a little-endian machine",))
    form = normalization.form_of(spec.get("normalizer"))
    tokens = reference.added_tokens
    refused = [r for r in (form, added.refusal(tokens)) if isinstance(r, Refusal)]
    progress("reading the merges")
    model = merges.read_model(spec)
    if isinstance(model, Refusal):
        refused.append(model)
    progress("compiling the pre-tokenizer")
    machine = matcher.compile_pre_tokenizer(spec.get("pre_tokenizer"))
    if isinstance(machine, Refusal):
        refused.append(machine)
    else:
        refused.extend(_pipeline_refusals(machine))
    if refused or isinstance(form, Refusal) or isinstance(model, Refusal):
        return Refusal(tuple(reason for r in refused for reason in r.reasons))
    if isinstance(machine, Refusal):
        return machine
    progress("compiling the merges")
    normalizer = Normalizer(form, normalization.probe(form)) if form else None
    compiled = Compiled(
        matcher=machine,
        merges=merges.compile_merges(model),
        added=added_tables(tokens, normalizer),
        normalizer=normalizer,
    )
    try:
        encoder = FastEncoder(fingerprint(artifact, ENGINE), compiled.frozen())
    except ValueError as error:
        return Refusal((f"the fused pre-tokenizer is too large: {error}",))
    progress("comparing with the reference")
    return _self_tested(encoder, reference, tokens)


def _pipeline_refusals(machine: MatcherTables) -> list[Refusal]:
    refused = []
    if not machine.byte_level or machine.space_marker:
        refused.append(Refusal(("the pieces are not byte-level",)))
    if machine.drops:
        refused.append(Refusal(("the pre-tokenizer removes text",)))
    return refused


def added_tables(tokens: Sequence[AddedToken], normalizer: Normalizer | None) -> AddedTables:
    """The searches for these tokens. Literals matched after normalization are normalized too."""
    raw = {t.content.encode(): t.id for t in tokens if not t.normalized}
    normalized = {
        (normalizer.normalize(t.content) if normalizer else t.content).encode(): t.id
        for t in tokens
        if t.normalized
    }
    longest = max((len(t.content) for t in tokens), default=0)
    return AddedTables.build(raw, normalized, longest)


def _self_tested(
    encoder: FastEncoder, reference: Reference, tokens: Sequence[AddedToken]
) -> FastEncoder | Refusal:
    """The encoder, if it agrees with the reference on random texts over what matters to it."""
    chooser = random.Random(artifact_seed(reference.artifact))
    classes = matcher.sample_members(encoder.compiled.matcher, each=4)
    literals = [t.content for t in tokens] or ["<|end|>"]
    kinds = [] if encoder.normalizer is None else np.flatnonzero(encoder.normalizer.kinds).tolist()
    unstable = [chr(c) for c in kinds] or ["e\u0301"]
    vocabulary = [t for t in reference.tokenizer.get_vocab(with_added_tokens=False) if t.isascii()]
    sources: tuple[Callable[[], str], ...] = (
        lambda: chooser.choice(chooser.choice(classes)),
        lambda: chooser.choice(vocabulary),
        lambda: chooser.choice(literals),
        lambda: chooser.choice(unstable),
        lambda: " " * chooser.randint(1, 20),
        lambda: chooser.choice(chooser.choice(classes)) * chooser.randint(1, 80),
    )
    for _ in range(SELF_TEST_TEXTS):
        text = "".join(chooser.choice(sources)() for _ in range(chooser.randint(1, 24))).encode()
        ours, theirs = encoder.encode(text), reference.encode(text)
        if not (
            np.array_equal(ours.ids, theirs.ids) and np.array_equal(ours.lengths, theirs.lengths)
        ):
            return Refusal(("the compiled tables differ from the reference on the self-test",))
    return encoder


def artifact_seed(artifact: Artifact) -> int:
    """A seed of the artifact's own, so that the self-test is the same on every machine."""
    return int(artifact.sha256[:12], 16)
