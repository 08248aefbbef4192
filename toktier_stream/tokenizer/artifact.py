"""A frozen tokenizer artifact: the file's bytes, their SHA-256, and its pipeline as data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from toktier_stream.errors import Code, ToktierError

HASH_PREFIX = "sha256:"


@dataclass(frozen=True)
class AddedToken:
    """One added token as the file declares it."""

    id: int
    content: str
    special: bool
    normalized: bool
    lstrip: bool
    rstrip: bool
    single_word: bool

    @property
    def plain(self) -> bool:
        """Whether the token is a bare literal that does not reach into its surroundings."""
        return not (self.lstrip or self.rstrip or self.single_word)


@dataclass(frozen=True)
class Artifact:
    """A tokenizer.json. Immutable: a changed file is another artifact with another name."""

    path: Path
    sha256: str
    data: bytes

    @classmethod
    def load(cls, path: Path) -> Artifact:
        """Read a tokenizer.json, or the one in a folder. Raises ``TOKENIZER_LOAD``."""
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ToktierError(Code.TOKENIZER_LOAD, f"{file}: {error.strerror}") from error
        return cls(file, hashlib.sha256(data).hexdigest(), data)

    @property
    def name(self) -> str:
        """The artifact's own name: ``sha256:<hex>``."""
        return HASH_PREFIX + self.sha256

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The file as parsed JSON. Raises ``TOKENIZER_LOAD``."""
        try:
            spec = json.loads(self.data)
        except ValueError as error:
            raise ToktierError(Code.TOKENIZER_LOAD, f"{self.path}: not JSON") from error
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise ToktierError(Code.TOKENIZER_LOAD, f"{self.path}: no model in it")
        return spec

    @cached_property
    def added_tokens(self) -> tuple[AddedToken, ...]:
        """The added tokens, in the file's order."""
        return tuple(
            AddedToken(
                id=int(t["id"]),
                content=str(t["content"]),
                special=bool(t.get("special", False)),
                normalized=bool(t.get("normalized", True)),
                lstrip=bool(t.get("lstrip", False)),
                rstrip=bool(t.get("rstrip", False)),
                single_word=bool(t.get("single_word", False)),
            )
            for t in self.spec.get("added_tokens") or ()
        )


def byte_level_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    table.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return table
