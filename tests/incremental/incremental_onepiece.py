"""A small SentencePiece-style tokenizer file for the tests of one-piece families."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toktier_stream.tokenizer.artifact import Artifact

LITERALS = ("<s>", "</s>", "<a>", "<ab>", "\n\n", "\n\n\n", "▁▁", "é<a")
MERGES = (
    "▁ a", "a b", "▁a b", "b a", "▁ ▁", "▁▁ ▁▁", "ab ab", "▁ab ab", "a a", "aa a", "\n a",
    "< a", "<a >", "é a", "c c", "cc cc", "b c", "▁ b", "a ▁",
)  # fmt: skip
LETTERS = "ab cé\n<>s/▁xy中😀"
"""x, y and the last two are outside the vocabulary."""


def added(contents: Sequence[str], vocab: dict[str, int], **flags: bool) -> list[dict[str, Any]]:
    """Added tokens as the reference numbers them: by the vocabulary, else after all others."""
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    out: list[dict[str, Any]] = []
    highest = len(vocab) - 1
    for content in contents:
        number = vocab.get(content, highest + 1)
        highest = max(highest, number)
        out.append({"id": number, "content": content, **plain, **flags})
    return out


def spec(prepend: bool = True, literals: Sequence[str] = LITERALS) -> dict[str, Any]:
    """A parsed tokenizer.json that fulfils every condition."""
    tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *"▁abcé\n<>s/"]
    products = ["".join(m.split(" ")) for m in MERGES]
    tokens += [p for i, p in enumerate(products) if p not in products[:i]]
    vocab = {t: i for i, t in enumerate(dict.fromkeys(tokens))}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [{"type": "Prepend", "prepend": "▁"}, replace] if prepend else [replace]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added(literals, vocab),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocab,
            "merges": list(MERGES),
        },
    }


def artifact(parsed: dict[str, Any]) -> Artifact:
    """The same as an artifact, without a file behind it."""
    return Artifact(Path("memory"), "0" * 64, json.dumps(parsed).encode())
