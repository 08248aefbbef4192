"""Texts of many kinds for these tests: prose, code, CJK, random Unicode, runs, tags."""

from __future__ import annotations

import inspect
import json
import random
import textwrap
from collections.abc import Sequence
from pydoc_data.topics import topics

PROSE = "\n".join(topics[t] for t in sorted(topics))[:200_000]
CODE = "".join(inspect.getsource(m) for m in (json, random, textwrap, inspect))
CJK = "".join(map(chr, range(0x4E00, 0x9FA5, 7))) + "，。！？ひらがなカタカナ한국어"
SPACES = (" ", "  ", "\n", "\n\n", "\t", "\r\n", " \n", "▁", "▁▁")
SINGLES = (" ", "\n", "\t", "▁", "a", "e", "=", "-", "0", "<", "é", "中", "😀")
_RANGES = ((0x20, 0x7F), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000))


def scalar(rng: random.Random) -> str:
    """One Unicode scalar value, each UTF-8 length alike."""
    return chr(rng.randrange(*rng.choice(_RANGES)))


def piece(rng: random.Random, tags: Sequence[str]) -> str:
    """1 to 200 characters of one kind; ``tags`` are literals that may come whole or broken."""
    n = rng.choice((rng.randint(1, 12), rng.randint(1, 200)))
    match rng.randrange(8):
        case 0 | 1 as kind:
            source = (PROSE, CODE)[kind]
            start = rng.randrange(len(source) - n)
            return source[start : start + n]
        case 2:
            return "".join(rng.choices(CJK, k=min(n, 60)))
        case 3:
            return "".join(scalar(rng) for _ in range(min(n, 40)))
        case 4:
            return "".join(rng.choices(SPACES, k=min(n, 40)))[:200]
        case 5:
            return rng.choice(SINGLES) * n
        case 6:
            return "".join(rng.choices(tags, k=rng.randint(1, 3)))[:200]
        case _:
            tag = rng.choice(tags)
            cut = rng.randrange(len(tag) + 1)
            return (tag[:cut] or tag) if rng.random() < 0.6 else (tag[cut:] or tag)
