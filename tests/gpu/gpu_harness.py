"""What the GPU tests share: shim programs, tokenizers without a file, and encoders over them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toktier_gpu.campaign import Samples, words_of
from toktier_gpu.device import Device
from toktier_gpu.host import GpuEncoder
from toktier_gpu.plan import Limits
from toktier_gpu.shim_device import ShimDevice, build
from toktier_gpu.tables import DeviceTables
from toktier_stream.tokenizer.added import AddedTables
from toktier_stream.tokenizer.admission import load_encoder
from toktier_stream.tokenizer.artifact import Artifact, byte_level_alphabet
from toktier_stream.tokenizer.encoder import Compiled, FastEncoder
from toktier_stream.tokenizer.matcher import compile_pre_tokenizer
from toktier_stream.tokenizer.merges import compile_merges, read_model
from toktier_stream.tokenizer.paths import cache_root
from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder
from toktier_stream.tokenizer.tables import MatcherTables, Refusal

CHARACTERS = int(float(os.environ.get("TOKTIER_TEST_GPU_CHARS", "60000")))
"""Characters per family and mode; 1e7 and more is the long form."""

SMALL = Limits(bytes=1 << 14, texts=64, buckets=(1 << 12,))
"""Several tiles and plans, and little to allocate."""

_WHOLE = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
}  # fmt: skip


def program(kind: str = "plain", source: str | None = None) -> Path:
    """The shim, built once for all runs."""
    return build(cache_root() / "gpu-shim", kind, source)


def device(kind: str = "plain", source: str | None = None, **options: Any) -> ShimDevice:
    """A new shim process."""
    return ShimDevice(program(kind, source), **options)


@dataclass(frozen=True)
class Subject:
    """A tokenizer under test, three times: the reference, the CPU engine, the device's tables."""

    reference: ReferenceEncoder
    cpu: FastEncoder
    tables: DeviceTables
    vocabulary: tuple[str, ...]
    literals: tuple[str, ...]

    def samples(self, seed: int, **options: Any) -> Samples:
        """Its texts."""
        return Samples(self.tables, self.vocabulary, self.literals, seed, **options)

    def encoder(self, of: Device, limits: Limits = SMALL) -> GpuEncoder:
        """Its encoder on a device."""
        return GpuEncoder(self.tables, self.cpu, of, limits)


@cache
def subject(file: Path) -> Subject:
    """The tokenizer of a file; the tables come from the cache on disk where they are there."""
    artifact = Artifact.load(file)
    cpu = load_encoder(artifact)
    if isinstance(cpu, Refusal):
        raise TypeError(f"{file}: {cpu}")
    reference = Reference(artifact)
    vocabulary = words_of(
        sorted(reference.tokenizer.get_vocab(with_added_tokens=False)), byte_level_alphabet()
    )
    literals = [token.content for token in artifact.added_tokens]
    tables = device_tables(cpu.compiled)
    return Subject(ReferenceEncoder(reference), cpu, tables, tuple(vocabulary), tuple(literals))


def device_tables(compiled: Compiled) -> DeviceTables:
    """The device's tables, which these tokenizers must have."""
    tables = DeviceTables.build(compiled)
    if isinstance(tables, Refusal):
        raise TypeError(str(tables))
    return tables


@cache
def _unsplit() -> MatcherTables:
    tables = compile_pre_tokenizer(_WHOLE)
    if isinstance(tables, Refusal):
        raise TypeError(str(tables))
    return tables


def made(
    merges: Sequence[tuple[bytes, bytes]],
    *,
    ignore_merges: bool = False,
    raw: Sequence[str] = (),
    normalized: Sequence[str] = (),
) -> Subject:
    """A tokenizer over all bytes with these merges in rank order. Its texts are one piece between
    added tokens."""
    stand_in = {byte: character for character, byte in byte_level_alphabet().items()}
    tokens = [bytes((b,)) for b in range(256)] + [a + b for a, b in merges]
    spelled = {t: "".join(stand_in[b] for b in t) for t in tokens}
    vocabulary = {s: i for i, s in enumerate(dict.fromkeys(spelled.values()))}
    added = [
        {
            "id": len(vocabulary) + i, "content": content, "special": False, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": i >= len(raw),
        }
        for i, content in enumerate((*raw, *normalized))
    ]  # fmt: skip
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": _WHOLE,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [f"{spelled[a]} {spelled[b]}" for a, b in merges],
            "ignore_merges": ignore_merges,
        },
    }
    artifact = Artifact(Path("made-by-a-test.json"), "0" * 64, json.dumps(spec).encode())
    model = read_model(spec)
    if isinstance(model, Refusal):
        raise TypeError(str(model))
    ids = {a["content"]: a["id"] for a in added}
    tables = AddedTables.build(
        {r.encode(): ids[r] for r in raw},
        {n.encode(): ids[n] for n in normalized},
        max(map(len, (*raw, *normalized)), default=0),
    )
    compiled = Compiled(_unsplit(), compile_merges(model), tables, None).frozen()
    cpu = FastEncoder("made", compiled)
    reference = ReferenceEncoder(Reference(artifact))
    return Subject(reference, cpu, device_tables(compiled), ("a", "b"), (*raw, *normalized))
