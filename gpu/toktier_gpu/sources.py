"""The CUDA sources: joined in their order, and the kernels' signatures as the text states them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "kernels"

ORDER: Final = (
    "common.cu",
    "text.cu",
    "literals.cu",
    "compact.cu",
    "match.cu",
    "pieces.cu",
    "merge_short.cu",
    "merge_medium.cu",
    "merge_long.cu",
)

_KERNEL = re.compile(r"^KERNEL (\w+)\(([^)]*)\)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its name and the C type of each argument (``u32``, ``u64`` or a pointer)."""

    name: str
    arguments: tuple[str, ...]


@cache
def joined() -> str:
    """All sources as one translation unit."""
    return "\n".join((FOLDER / name).read_text() for name in ORDER)


def kernels(source: str) -> tuple[Kernel, ...]:
    """The kernels that a translation unit defines."""
    found = []
    for name, arguments in _KERNEL.findall(source):
        types = tuple(_type(argument) for argument in arguments.split(","))
        found.append(Kernel(name, types))
    return tuple(found)


def _type(argument: str) -> str:
    text = " ".join(argument.split())
    return re.sub(r"\w+$", "", text).strip()
