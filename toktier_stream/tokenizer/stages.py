"""Reading a tokenizer.json's pre-tokenizer as a list of stages, or saying why it cannot be.

Every stage cuts each piece of the stage before it, seeing that piece alone: its end is the end of
text for the stage's pattern.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from toktier_stream.tokenizer.pattern import (
    Alternate,
    CharSet,
    Node,
    Repeat,
    Source,
    Unsupported,
)
from toktier_stream.tokenizer.pattern_parser import literal, parse
from toktier_stream.tokenizer.tables import Refusal

BYTE_LEVEL_PATTERN: Final = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
"""The pattern built into the reference's ByteLevel stage (GPT-2's)."""


class Behavior(StrEnum):
    """What becomes of the stretches that a stage's pattern matches, as the reference names it."""

    ISOLATED = "Isolated"
    REMOVED = "Removed"
    MERGED_WITH_PREVIOUS = "MergedWithPrevious"
    MERGED_WITH_NEXT = "MergedWithNext"
    CONTIGUOUS = "Contiguous"


class View(StrEnum):
    """What a stage reads."""

    TEXT = "text"
    """The text's characters."""
    MARKED = "marked"
    """The text with spaces written as Metaspace's replacement."""
    BYTES = "bytes"
    """The byte-level alphabet: one symbol per byte (stages behind a ByteLevel stage)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One cut of the pre-tokenizer."""

    words: str
    pattern: Node
    behavior: Behavior
    invert: bool
    view: View


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pre-tokenizer as this engine understands it."""

    stages: tuple[Stage, ...]
    byte_level: bool
    space_marker: str
    """Metaspace's replacement, or empty."""


def read(spec: Mapping[str, Any] | None) -> Pipeline | Refusal:
    """The stages of a ``pre_tokenizer`` entry; None (no pre-tokenizer) has no stages."""
    reader = _Reader()
    reasons = []
    for number, part in enumerate(_flat(spec), start=1):
        try:
            reader.add(part)
        except Unsupported as error:
            reasons.append(f"stage {number} ({part.get('type', 'without type')}): {error}")
    if reasons:
        return Refusal(tuple(reasons))
    return Pipeline(tuple(reader.stages), reader.byte_level, reader.space_marker)


def _flat(spec: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if spec is None:
        return []
    if spec.get("type") == "Sequence":
        return [part for inner in spec.get("pretokenizers", ()) for part in _flat(inner)]
    return [spec]


class _Reader:
    """Turns entries into stages in order; remembers what later ones then read."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.byte_level = False
        self.space_marker = ""

    @property
    def view(self) -> View:
        if self.byte_level:
            return View.BYTES
        return View.MARKED if self.space_marker else View.TEXT

    def add(self, entry: Mapping[str, Any]) -> None:
        """Raises Unsupported."""
        kind = entry.get("type")
        if kind == "Split":
            self.split(entry)
        elif kind == "ByteLevel":
            self.bytes(entry)
        elif kind == "Digits":
            individual = bool(entry.get("individual_digits", False))
            behavior = Behavior.ISOLATED if individual else Behavior.CONTIGUOUS
            self.cut(
                "Digits" + (", each alone" if individual else ""), _one(Source.NUMERIC), behavior
            )
        elif kind == "Punctuation":
            behavior = _behavior(entry.get("behavior", "Isolated"))
            self.cut(f"Punctuation, {behavior}", _one(Source.PUNCTUATION), behavior)
        elif kind == "Whitespace":
            words = Repeat(_one(Source.WORD), 1, None)
            symbols = Repeat(_one(Source.SYMBOL), 1, None)
            self.cut("Whitespace", Alternate((words, symbols)), Behavior.REMOVED, invert=True)
        elif kind == "WhitespaceSplit":
            self.cut("WhitespaceSplit", _one(Source.WHITESPACE), Behavior.REMOVED)
        elif kind == "BertPreTokenizer":
            self.cut("BERT: white space", _one(Source.WHITESPACE), Behavior.REMOVED)
            self.cut("BERT: punctuation", _one(Source.BERT_PUNCTUATION), Behavior.ISOLATED)
        elif kind == "CharDelimiterSplit":
            delimiter = literal(str(entry.get("delimiter", "")))
            self.cut("CharDelimiterSplit", delimiter, Behavior.REMOVED)
        elif kind == "Metaspace":
            self.metaspace(entry)
        else:
            raise Unsupported("this kind of stage is not derived")

    def cut(self, words: str, pattern: Node, behavior: Behavior, invert: bool = False) -> None:
        self.stages.append(Stage(words, pattern, behavior, invert, self.view))

    def split(self, entry: Mapping[str, Any]) -> None:
        source = entry.get("pattern")
        behavior = _behavior(entry.get("behavior"))
        invert = bool(entry.get("invert", False))
        how = f"{behavior}{', inverted' if invert else ''}"
        if isinstance(source, Mapping) and isinstance(source.get("Regex"), str):
            self.cut(f"Split, {how}: {source['Regex']}", parse(source["Regex"]), behavior, invert)
        elif isinstance(source, Mapping) and isinstance(source.get("String"), str):
            text = source["String"]
            self.cut(f"Split, {how}, on the string {text!r}", literal(text), behavior, invert)
        else:
            raise Unsupported("a pattern that is neither a Regex nor a String")

    def bytes(self, entry: Mapping[str, Any]) -> None:
        if entry.get("add_prefix_space", True):
            raise Unsupported("add_prefix_space: the first piece depends on where the text begins")
        if self.byte_level:
            raise Unsupported("a second ByteLevel stage")
        if self.space_marker:
            raise Unsupported("ByteLevel behind Metaspace")
        if entry.get("use_regex", True):
            self.cut(
                f"ByteLevel: {BYTE_LEVEL_PATTERN}", parse(BYTE_LEVEL_PATTERN), Behavior.ISOLATED
            )
        self.byte_level = True

    def metaspace(self, entry: Mapping[str, Any]) -> None:
        scheme = entry.get("prepend_scheme", "always")
        if entry.get("add_prefix_space") is False:
            scheme = "never"
        if scheme != "never":
            raise Unsupported(
                f"prepend_scheme {scheme}: the first piece depends on where the text begins"
            )
        marker = str(entry.get("replacement", ""))
        if len(marker) != 1:
            raise Unsupported("a replacement that is not one character")
        if self.byte_level or self.space_marker:
            raise Unsupported("Metaspace behind another stage that rewrites the text")
        self.space_marker = marker
        if entry.get("split", True):
            self.cut("Metaspace", literal(marker), Behavior.MERGED_WITH_NEXT)


def _one(source: Source) -> CharSet:
    return CharSet("", source)


def _behavior(name: Any) -> Behavior:
    # The reference writes names in CamelCase; its Python interface takes them in snake_case.
    for behavior in Behavior:
        if name == behavior.value:
            return behavior
    raise Unsupported(f"the behavior {name!r}")


def describe(pipeline: Pipeline) -> Sequence[str]:
    """One line per stage, for people."""
    lines = [s.words + (" (on bytes)" if s.view is View.BYTES else "") for s in pipeline.stages]
    if pipeline.byte_level:
        lines.append("pieces in the byte-level alphabet")
    if pipeline.space_marker:
        lines.append(f"spaces written as {pipeline.space_marker}")
    return lines or ["no pre-tokenizer: the whole text is one piece"]
