"""The reference engine with a first, hand-proved set of cuts: an ASCII letter, then a space.

Holds for the pre-tokenizer patterns listed here and no others: in each of them every alternative
that can consume a letter ends before a space (so no match spans the position), whatever stands on
either side; and NFC or NFKC never moves anything across an ASCII letter followed by a space. The
derived tables of the exact engine take this module's place where they are compiled.
"""

from __future__ import annotations

import json
import re
from typing import Any

from toktier_stream.tokenizer.reference import Reference, ReferenceEncoder

_CUT = re.compile(rb"(?<=[A-Za-z])(?= )")

_KEEPING = (("Isolated", False), ("Removed", True))
_PATTERNS = frozenset(
    {
        # cl100k (gpt-3.5/4), as two spellings in circulation
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # Qwen 2 and 3
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # o200k
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        # DeepSeek V3, its three stages
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    }
)


def _stages(pre_tokenizer: Any) -> list[dict[str, Any]]:
    if not isinstance(pre_tokenizer, dict):
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return [s for p in pre_tokenizer["pretokenizers"] for s in _stages(p)]
    return [pre_tokenizer]


def _known(stage: dict[str, Any]) -> bool:
    if stage.get("type") == "ByteLevel":
        return not stage.get("add_prefix_space", True)
    if stage.get("type") == "Split":
        # Removed + invert keeps the matches; with a pattern that matches everywhere it is Isolated.
        kept = (stage.get("behavior"), bool(stage.get("invert"))) in _KEEPING
        pattern = str(stage.get("pattern", {}).get("Regex"))
        return kept and pattern.replace("\r", "\\r").replace("\n", "\\n") in _PATTERNS
    return False


def _normalizers(normalizer: Any) -> list[str]:
    if normalizer is None:
        return []
    if normalizer.get("type") == "Sequence":
        return [n for part in normalizer["normalizers"] for n in _normalizers(part)]
    return [normalizer.get("type", "")]


def refusal(reference: Reference) -> str:
    """Why this artifact has no seed cuts; empty if it has."""
    spec = reference.artifact.spec
    stages = _stages(spec.get("pre_tokenizer"))
    if spec["model"].get("type", "BPE") != "BPE" or spec["model"].get("dropout"):
        return "the model is not plain BPE"
    if not stages or not any(s.get("type") == "ByteLevel" for s in stages):
        return "the pre-tokenizer is not byte-level"
    unknown = [s for s in stages if not _known(s)]
    if unknown:
        return f"no cuts are proved for the stage {json.dumps(unknown[0], ensure_ascii=True)[:120]}"
    if not set(_normalizers(spec.get("normalizer"))) <= {"NFC", "NFKC"}:
        return "the normalizer is neither NFC nor NFKC"
    if _normalizers(spec.get("normalizer")) and any(
        t.normalized for t in reference.artifact.added_tokens
    ):
        return "an added token is matched after normalization"
    if not all(t.plain for t in reference.artifact.added_tokens):
        return "an added token reaches into its surroundings (lstrip, rstrip or single_word)"
    return ""


class SeedEncoder(ReferenceEncoder):
    """The reference engine, with the seed cuts. Build it only where :func:`refusal` is empty."""

    def __init__(self, reference: Reference) -> None:
        super().__init__(reference)
        contents = {t.content.encode() for t in reference.artifact.added_tokens}
        literals = [re.escape(c) for c in sorted(contents, key=lambda c: (-len(c), c))]
        # Lookahead: occurrences may overlap, and each of them forbids cuts inside it.
        self._literals = re.compile(rb"(?=(" + b"|".join(literals) + rb"))") if literals else None

    @property
    def splices(self) -> bool:
        return True

    def _inside_literal(self, text: bytes, position: int) -> bool:
        if self._literals is None:
            return False
        start = max(0, position - self.literal_reach)
        window = text[start : position + self.literal_reach]
        inner = position - start
        # A literal that holds a letter followed by a space: the only kind a seed cut can hit.
        return any(m.start() < inner < m.end(1) for m in self._literals.finditer(window))

    def last_cut(self, text: bytes, low: int, high: int) -> int:
        found = -1
        for m in _CUT.finditer(text, max(low, 1) - 1, min(high, len(text) - 1) + 1):
            if low <= m.start() <= high and not self._inside_literal(text, m.start()):
                found = m.start()
        return found

    def first_cut(self, text: bytes, low: int, high: int) -> int:
        for m in _CUT.finditer(text, max(low, 1) - 1, min(high, len(text) - 1) + 1):
            if low <= m.start() <= high and not self._inside_literal(text, m.start()):
                return m.start()
        return -1
