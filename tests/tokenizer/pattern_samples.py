"""Pre-tokenizers typed in from public model files, for tests that need no tokenizer file."""

from __future__ import annotations

from typing import Any

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"

CL100K = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
CL100K_POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
QWEN3 = CL100K.replace("{1,3}", "")
QWEN3_5 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL
)
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
KIMI = (
    r"[\p{Han}]+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]*[{_LOWER}&&[^\p{{Han}}]]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]+[{_LOWER}&&[^\p{{Han}}]]*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*""" + _TAIL,
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
BYTES_ONLY = {**BYTE_LEVEL, "use_regex": False}


def split(regex: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    """A Split stage on a regular expression."""
    return {
        "type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert
    }  # fmt: skip


def sequence(*stages: dict[str, Any]) -> dict[str, Any]:
    """Stages one after the other."""
    return {"type": "Sequence", "pretokenizers": list(stages)}


BYTE_LEVEL_FAMILIES: dict[str, dict[str, Any]] = {
    "cl100k": sequence(split(CL100K), BYTES_ONLY),
    "cl100k possessive": sequence(split(CL100K_POSSESSIVE), BYTES_ONLY),
    "cl100k removed": sequence(split(CL100K, "Removed", invert=True), BYTES_ONLY),
    "qwen3": sequence(split(QWEN3), BYTES_ONLY),
    "qwen3.5": sequence(split(QWEN3_5), BYTES_ONLY),
    "o200k": sequence(split(O200K), BYTES_ONLY),
    "tekken": sequence(split(TEKKEN), BYTES_ONLY),
    "kimi": sequence(split(KIMI), BYTES_ONLY),
    "deepseek": sequence(*map(split, DEEPSEEK), BYTES_ONLY),
    "bloom": sequence(split(BLOOM), BYTES_ONLY),
    "starcoder2": sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL),
    "falcon": sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        BYTE_LEVEL,
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ),
    "gpt2": BYTE_LEVEL,
}
OTHERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "bert": {"type": "BertPreTokenizer"},
    "whitespace": {"type": "Whitespace"},
    "whitespace split": {"type": "WhitespaceSplit"},
    "delimiter": {"type": "CharDelimiterSplit", "delimiter": "|"},
    "metaspace": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"},
    "metaspace then digits": sequence(
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
        split("▁|[0-9]+", "MergedWithPrevious"),
    ),
    "gemma": {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
        "invert": False,
    },
    "string": {
        "type": "Split", "pattern": {"String": "aba"}, "behavior": "Isolated", "invert": False
    },
    "whitespace, punctuation, digits": sequence(
        {"type": "Whitespace"},
        {"type": "Punctuation", "behavior": "MergedWithNext"},
        {"type": "Digits", "individual_digits": False},
    ),
}  # fmt: skip
ALL: dict[str, dict[str, Any] | None] = {**BYTE_LEVEL_FAMILIES, **OTHERS}
