"""Encoders and references for the tests of the exact engine, and texts made to tell them apart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from toktier_stream.tokenizer.admission import added_tables, load_encoder
from toktier_stream.tokenizer.artifact import Artifact, byte_level_alphabet
from toktier_stream.tokenizer.encoder import Compiled, FastEncoder
from toktier_stream.tokenizer.matcher import compile_pre_tokenizer, sample_members
from toktier_stream.tokenizer.merges import BpeModel, compile_merges, read_model
from toktier_stream.tokenizer.normalization import Normalizer, probe
from toktier_stream.tokenizer.reference import Reference
from toktier_stream.tokenizer.tables import MatcherTables

BYTE_LEVEL = (
    "qwen3", "llama3", "llama3_1", "gptoss", "deepseek_v3", "deepseek_v4", "gpt4o", "gpt35turbo",
    "claude", "gpt2",
)  # fmt: skip
"""The families that the exact engine must admit."""

EXAMPLES = int(os.environ.get("TOKTIER_TEST_EXAMPLES", "60"))

GPT2_SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
WHOLE = {**GPT2_SPLIT, "use_regex": False}
"""No splitting: the whole text is one piece."""

STAND_IN = {byte: character for character, byte in byte_level_alphabet().items()}

TRAPS = (
    "", " ", "a", "  1", "\n     a", "\r\n\r\n", "'ſ 'K don'T I'LL", "\x1c\x85\u2028\u3000x",
    "A中BBBBc中", "ǅʰª½Ⅷ٣", "1234567 12", "👩\u200d👧🏽🇩🇪\ufe0f", "e\u0301\u0323 \u0301a",
    "한글\u1112\u1161\u11ab", "\u09fe\u09cd \u0c4d\u0c3c \u0301\u1abf \u09c7\u09be", "ﬁ…①㎏ﷺ　ｱﾞ",
    "Å \u212b Ω \u2126", "\u0344\u0345\u1e0b\u0323", "\U0010ffff\x00\x7f\u0378",
    "<|im_start|>user\n<|im_end|><|endoftext|>", "a" * 200, " " * 97 + "x", "中国人民" * 30,
    "ab" * 90, "가" * 40, "-=" * 50, "😀" * 25, "\u0301" * 30, "\n" * 70, " kapsamıydı",
)  # fmt: skip


def spelled(token: bytes) -> str:
    """A token as byte-level vocabularies write it."""
    return "".join(STAND_IN[b] for b in token)


def artifact_of(spec: dict[str, Any]) -> Artifact:
    """A tokenizer that is in no file."""
    return Artifact(Path("made-by-a-test.json"), "0" * 64, json.dumps(spec).encode())


def bpe_spec(
    merges: Sequence[tuple[bytes, bytes]],
    *,
    extra: Sequence[bytes] = (),
    pre_tokenizer: Any = WHOLE,
    normalizer: Any = None,
    added: Sequence[dict[str, Any]] = (),
    **model: Any,
) -> dict[str, Any]:
    """A tokenizer.json over all bytes, with these merges. ``extra`` tokens have no merge."""
    tokens = [bytes((b,)) for b in range(256)]
    tokens += [t for t in [*(a + b for a, b in merges), *extra] if t not in tokens]
    vocabulary = {spelled(t): i for i, t in enumerate(dict.fromkeys(tokens))}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokens_added = [
        {"id": len(vocabulary) + i, "special": False, **flags, **a} for i, a in enumerate(added)
    ]
    return {
        "version": "1.0",
        "added_tokens": tokens_added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [[spelled(a), spelled(b)] for a, b in merges],
            **model,
        },
    }


@cache
def tables_of(pre_tokenizer: str) -> MatcherTables:
    """Compiled tables of a pre-tokenizer given as JSON."""
    tables = compile_pre_tokenizer(json.loads(pre_tokenizer))
    assert isinstance(tables, MatcherTables), tables
    return tables


@cache
def normalizer_of(form: str) -> Normalizer:
    """The normalizer of one Unicode form."""
    return Normalizer(form, probe(form))


def quick_encoder(spec: dict[str, Any]) -> FastEncoder:
    """An encoder of a spec, without admission: parts that other tests compiled are used again."""
    model = read_model(spec)
    assert isinstance(model, BpeModel), model
    form = (spec.get("normalizer") or {}).get("type", "")
    normalizer = normalizer_of(form) if form else None
    added = Reference(artifact_of(spec)).added_tokens
    compiled = Compiled(
        matcher=tables_of(json.dumps(spec["pre_tokenizer"])),
        merges=compile_merges(model),
        added=added_tables(added, normalizer),
        normalizer=normalizer,
    )
    return FastEncoder("made-by-a-test", compiled.frozen())


@cache
def family(path: Path) -> tuple[FastEncoder, Reference]:
    """The exact encoder and the reference of a real tokenizer."""
    reference = Reference(Artifact.load(path))
    encoder = load_encoder(reference.artifact, reference=reference)
    assert isinstance(encoder, FastEncoder), str(encoder)
    return encoder, reference


def assert_same(encoder: FastEncoder, reference: Reference, text: str) -> None:
    """Ids and byte lengths equal the reference's."""
    ours, theirs = encoder.encode(text.encode()), reference.encode(text.encode())
    assert ours.ids.tolist() == theirs.ids.tolist(), ascii(text[:300])
    assert ours.lengths.tolist() == theirs.lengths.tolist(), ascii(text[:300])
    assert int(ours.lengths.sum()) == len(text.encode())
    assert ours.ids.dtype == ours.lengths.dtype == np.uint32


def texts(encoder: FastEncoder, reference: Reference) -> st.SearchStrategy[str]:
    """Texts over what matters to a tokenizer: its character classes, its vocabulary, its added
    tokens whole and broken, what its normalizer changes, and runs."""
    classes = sample_members(encoder.compiled.matcher, each=6)
    literals = [t.content for t in reference.artifact.added_tokens] or ["<|x|>"]
    words = [t.decode(errors="ignore") for t in list(reference._token_bytes.values())[::97]]
    kinds = [] if encoder.normalizer is None else np.flatnonzero(encoder.normalizer.kinds).tolist()
    unstable = [chr(c) for c in kinds] or ["e\u0301"]
    character = st.sampled_from(classes).flatmap(st.sampled_from)
    broken = st.tuples(st.sampled_from(literals), st.integers(0, 40), character).map(
        lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
    )
    part = st.one_of(
        character,
        character,
        st.sampled_from(words),
        st.sampled_from(literals),
        broken,
        st.sampled_from(unstable),
        st.tuples(character, st.integers(1, 70)).map(lambda t: t[0] * t[1]),
        st.text(max_size=8),
    )
    return st.lists(part, max_size=24).map("".join)


def transcript_texts(folder: Path | None) -> list[str]:
    """Some real agent transcripts, as raw text."""
    if folder is None:
        return []
    files = sorted(f for f in folder.rglob("*") if f.suffix in {".traj", ".jsonl"})
    return [f.read_text(encoding="utf-8") for f in files]


FamilyFile = Callable[[str], Path]
