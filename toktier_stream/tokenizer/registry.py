"""The content-addressed registry: names to frozen tokenizers. Entries never change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from toktier_stream.errors import Code, ToktierError
from toktier_stream.tokenizer.admission import Progress, load_encoder
from toktier_stream.tokenizer.artifact import HASH_PREFIX, Artifact
from toktier_stream.tokenizer.face import Encoder
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.tokenizer.tables import Refusal


@dataclass(frozen=True)
class Admission:
    """Which path serves a tokenizer, and why not a faster one."""

    path: str
    reasons: tuple[str, ...]


Engine = Callable[[Artifact, Reference, Progress | None], Encoder | Refusal]
"""Tries to admit a tokenizer: an exact encoder, or the reasons why it has none."""


def exact_engine(
    artifact: Artifact, reference: Reference, progress: Progress | None
) -> Encoder | Refusal:
    """Byte-level BPE behind a derived pre-tokenizer (see admission.py)."""
    return load_encoder(artifact, reference=reference, progress=progress)


Engines = Mapping[str, Engine]
"""Engines by the name of their path, in the order in which they are tried."""

EXACT: Engines = {"engine": exact_engine}


class Entry:
    """One registered tokenizer. The reference and the encoder are built on first use."""

    def __init__(
        self, artifact: Artifact, engines: Engines = EXACT, progress: Progress | None = None
    ) -> None:
        self.artifact = artifact
        self._engines = engines
        self._progress = progress
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """``sha256:<hex>`` of the file."""
        return self.artifact.name

    @cached_property
    def reference(self) -> Reference:
        """The judge. Raises ``TOKENIZER_LOAD``."""
        return Reference(self.artifact)

    @cached_property
    def _built(self) -> tuple[Encoder, Admission]:
        reasons: list[str] = []
        for path, engine in self._engines.items():
            found = engine(self.artifact, self.reference, self._progress)
            if not isinstance(found, Refusal):
                return found, Admission(path, ())
            reasons.extend(f"{path}: {reason}" for reason in found.reasons)
        return ReferenceEncoder(self.reference), Admission("reference", tuple(reasons))

    @property
    def encoder(self) -> Encoder:
        """The fastest exact encoder this tokenizer is admitted to."""
        with self._lock:
            return self._built[0]

    @property
    def admission(self) -> Admission:
        """Which path that is, with the reasons."""
        with self._lock:
            return self._built[1]


class Registry:
    """Aliases and hashes to entries. Immutable after construction, safe for threads."""

    def __init__(
        self,
        files: Mapping[str, Path],
        default: str = "",
        engines: Engines = EXACT,
        progress: Progress | None = None,
    ) -> None:
        """``files`` maps an alias to a tokenizer.json (or its folder). ``progress`` is told what
        takes long, when an encoder is built.

        Raises ``TOKENIZER_LOAD`` for an unreadable file, ``UNKNOWN_TOKENIZER`` for a default
        that is not among them.
        """
        self._entries: dict[str, Entry] = {}
        self._aliases: dict[str, str] = {}
        for alias, path in files.items():
            artifact = Artifact.load(path)
            self._entries.setdefault(artifact.name, Entry(artifact, engines, progress))
            self._aliases[alias] = artifact.name
        if default:
            self.resolve(default)
        self.default = default

    def resolve(self, name: str) -> Entry:
        """The entry of an alias or ``sha256:…``; an empty name means the default.

        Raises ``MISSING_TOKENIZER`` or ``UNKNOWN_TOKENIZER``.
        """
        name = name or self.default
        if not name:
            raise ToktierError(Code.MISSING_TOKENIZER)
        key = name if name.startswith(HASH_PREFIX) else self._aliases.get(name, "")
        entry = self._entries.get(key)
        if entry is None:
            raise ToktierError(Code.UNKNOWN_TOKENIZER, f"name of {len(name)} characters")
        return entry

    @property
    def aliases(self) -> Mapping[str, str]:
        """Alias to ``sha256:…``."""
        return dict(self._aliases)

    def entries(self) -> tuple[Entry, ...]:
        """All entries."""
        return tuple(self._entries.values())
