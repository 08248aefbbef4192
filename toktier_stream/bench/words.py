"""The words and code templates that generated sessions are made of (the files under data/)."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

_DATA = files(__package__) / "data"


def _words(name: str) -> tuple[str, ...]:
    return tuple((_DATA / "words" / f"{name}.txt").read_text("utf-8").split())


def _templates(name: str) -> tuple[str, ...]:
    return (*(_DATA / "code" / f"{name}.txt").read_text("utf-8").splitlines(), "")


# By falling frequency, roughly: they are drawn with weights that fall with the position.
ENGLISH: Final = _words("english")
VERBS: Final = _words("verbs")
NOUNS: Final = _words("nouns")

# Words of other languages, and what stands between them in their script.
SCRIPTS: Final = tuple(
    (_words(name), " ")
    for name in (
        "german", "french", "vietnamese", "russian", "greek", "arabic", "hebrew", "hindi", "korean",
    )
) + tuple((_words(name), "") for name in ("thai", "chinese", "japanese"))  # fmt: skip

# Code by language: templates for str.format, and the indentation. A line that ends in a colon or
# a brace opens a block. {m} {n} {k} {v} are names, capitals their capitalized forms, {t} a type,
# {i} a number, {x} hexadecimal, {s} some words, {S} a sentence.
CODE: Final = {
    "py": (_templates("py"), "    "),
    "go": (_templates("go"), "\t"),
    "ts": (_templates("ts"), "  "),
    "c": (_templates("c"), "\t"),
}
TYPES: Final = ("int", "str", "bytes", "float", "bool", "list[str]", "dict[str, int]", "Path")
SUFFIXES: Final = (*CODE, "rs", "yaml", "json", "md", "sql", "csv")
FOLDERS: Final = (
    "src", "lib", "core", "api", "tests", "internal", "pkg", "cmd", "docs", "scripts", "config",
    "services", "utils", "storage", "transport", "web", "migrations", "examples", "tools",
)  # fmt: skip
EMOJI: Final = (
    "✅", "❌", "⚠️", "🚀", "🔧", "📦", "🐛", "👩‍💻", "🎉", "➡️", "🇩🇪", "👍🏽", "🧪", "…", "→", "•",
)  # fmt: skip
# Text that NFC changes, and a pair of marks in no canonical order.
DECOMPOSED: Final = (
    "e\u0301te\u0301", "A\u030angstro\u0308m", "\u1100\u1161\u11a8", "\u2126", "q\u0307\u0323",
)  # fmt: skip
MARKERS: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "<think>")
