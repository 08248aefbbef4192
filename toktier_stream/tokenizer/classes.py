"""Character classes, probed from the reference engine: which code points its patterns can tell
apart. Nothing here knows Unicode; every membership is an answer of the reference itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import PreTokenizedString, Regex
from tokenizers import pre_tokenizers as stages

from toktier_stream.tokenizer.pattern import CharSet, Source, Unsupported
from toktier_stream.tokenizer.tables import CODE_POINTS

Members = npt.NDArray[np.bool_]
"""bool[0x110000]: membership by code point; surrogates are never members."""

MAX_CLASSES: Final = 254
_SEPARATOR: Final = "\x01"


class Probe:
    """Asks the reference engine for the members of character sets, each once. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[CharSet, Members] = {}
        self._folded: dict[tuple[str, ...], Members] = {}

    def members(self, sets: Iterable[CharSet]) -> dict[CharSet, Members]:
        """Membership of each set over all Unicode scalar values, about 0.1 s per new set.

        Raises Unsupported if the reference refuses a fragment.
        """
        wanted = list(dict.fromkeys(sets))
        unknown = [s for s in wanted if s not in self._known]
        folded = [s for s in unknown if s.source is Source.REGEX and s.text.startswith("(?i:")]
        if len(folded) > 1:
            self._ask_folded(folded)
        for s in unknown:
            if s not in self._known:
                self._known[s] = self._ask(s)
        return {s: self._known[s] for s in wanted}

    def single_character_for(self, runs: Iterable[str]) -> bool:
        """Whether the reference matches some run of two or more characters under ``(?i:)`` with
        one character, as it does ``st`` with U+FB06."""
        parts = sorted({r[i:j] for r in runs for i in range(len(r)) for j in range(i + 2, i + 4)})
        parts = [p for p in parts if len(p) > 1]
        if not parts:
            return False
        # The members of a longer alternation are one character long only if a fold is.
        text = _SEPARATOR.join(self._text)
        alternation = "|".join(_escaped(p) for p in parts)
        spans = _covered(stages.Split(Regex(f"(?i:{alternation})"), "removed"), text)
        return len(spans) > 0

    def _ask(self, wanted: CharSet) -> Members:
        if wanted.source is Source.LITERAL:
            members = np.zeros(CODE_POINTS, dtype=np.bool_)
            members[ord(wanted.text)] = True
            return members
        if wanted.source is Source.REGEX:
            return self._regex(wanted.text, self._text, self._code_points)
        if wanted.source is Source.NUMERIC:
            return self._contiguous(stages.Digits(individual_digits=False))
        if wanted.source is Source.PUNCTUATION:
            return self._removed(stages.Punctuation(behavior="removed"))
        if wanted.source is Source.WHITESPACE:
            return self._removed(stages.WhitespaceSplit())
        if wanted.source is Source.BERT_PUNCTUATION:
            return self._bert_punctuation()
        if wanted.source is Source.WORD:
            return self._words
        return ~self._removed(stages.Whitespace()) & ~self._words & self._scalar

    def _ask_folded(self, sets: Sequence[CharSet]) -> None:
        """Case-insensitive sets are small and many: ask for their union first, then only within
        it. A union is an alternation of the fragments as they stand."""
        union = "|".join(s.text for s in sets)
        members = self._regex(union, self._text, self._code_points)
        few = np.flatnonzero(members).astype(np.uint32)
        text = _text_of(few)
        for s in sets:
            self._known[s] = self._regex(s.text, text, few)

    def _regex(self, fragment: str, text: str, code_points: npt.NDArray[np.uint32]) -> Members:
        try:
            split = stages.Split(Regex(fragment), "removed")
        except Exception as error:  # the binding raises bare Exception
            raise Unsupported(f"the reference refuses the fragment {fragment!r}") from error
        return _members(_covered(split, text), text, code_points)

    def _removed(self, stage: Any) -> Members:
        return _members(_covered(stage, self._text), self._text, self._code_points)

    def _contiguous(self, stage: Any) -> Members:
        """Members of a set whose stage separates runs of members from runs of others."""
        runs = _pieces(stage, self._text)
        offsets = _byte_offsets(self._text)
        is_member = np.zeros(len(self._text), dtype=np.bool_)
        # Runs alternate; NUL, the first character, is asked on its own beside a known digit.
        flag = len(_pieces(stage, self._text[0] + "1")) == 1
        for start, end in runs:
            first, last = np.searchsorted(offsets, (start, end))
            is_member[first:last] = flag
            flag = not flag
        return _spread(is_member, self._code_points)

    def _bert_punctuation(self) -> Members:
        space = self._removed(stages.WhitespaceSplit())
        stage = stages.BertPreTokenizer()
        # Isolated characters are pieces of one character; so are lone others. Ask those again
        # between letters: what stays in one piece is no punctuation.
        lone = [
            self._text.encode()[s:e].decode() for s, e in _pieces(stage, self._text) if e - s <= 4
        ]
        members = np.zeros(CODE_POINTS, dtype=np.bool_)
        for piece in lone:
            if len(piece) == 1 and not space[ord(piece)]:
                members[ord(piece)] = len(_pieces(stage, f"a{piece}a")) == 3
        return members

    @cached_property
    def _words(self) -> Members:
        r"""What ``\w`` of the Whitespace stage matches: its pieces are all words or all symbols."""
        stage = stages.Whitespace()
        data = self._text.encode()
        offsets = _byte_offsets(self._text)
        is_member = np.zeros(len(self._text), dtype=np.bool_)
        for start, end in _pieces(stage, self._text):
            first, last = np.searchsorted(offsets, (start, end))
            character = data[start : int(offsets[first + 1])].decode()
            is_member[first:last] = len(_pieces(stage, f"a{character}")) == 1
        return _spread(is_member, self._code_points)

    @cached_property
    def _code_points(self) -> npt.NDArray[np.uint32]:
        every = np.arange(CODE_POINTS, dtype=np.uint32)
        return every[(every < 0xD800) | (every >= 0xE000)]

    @cached_property
    def _scalar(self) -> Members:
        return _spread(np.ones(len(self._code_points), dtype=np.bool_), self._code_points)

    @cached_property
    def _text(self) -> str:
        return _text_of(self._code_points)


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Symbols that stand for equivalence classes of characters (or of bytes)."""

    class_of: npt.NDArray[np.uint8]
    """uint8[0x110000] or uint8[256]: the class of each code point or byte."""
    size: int
    """Number of classes."""
    smallest: tuple[int, ...]
    """The smallest member of each class."""

    def mask(self, members: Members) -> int:
        """The classes of a set, as a bit mask."""
        return sum(1 << c for c, m in enumerate(self.smallest) if members[m])


def reduce(rows: Sequence[npt.NDArray[Any]], points: int = CODE_POINTS) -> Alphabet:
    """The coarsest classes on which every row (an array over code points, or bytes) is constant.

    Classes are numbered by their smallest member. Surrogates, which no text holds, are class 0.
    Raises Unsupported if there are more than MAX_CLASSES.
    """
    ids = np.zeros(points, dtype=np.int64)
    for row in rows:
        # A row has few distinct values: counting is much cheaper than sorting a million pairs.
        if row.dtype == np.bool_:
            pairs = ids * 2 + row
        else:
            values, index = np.unique(row, return_inverse=True)
            pairs = ids * len(values) + index.reshape(-1)
        used = np.bincount(pairs) > 0
        ids = (np.cumsum(used) - 1)[pairs]
    ids[0xD800:0xE000] = ids[0]
    _, first, index = np.unique(ids, return_index=True, return_inverse=True)
    if len(first) > MAX_CLASSES:
        raise Unsupported(f"more than {MAX_CLASSES} character classes")
    order = np.empty(len(first), dtype=np.uint8)
    order[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.uint8)
    return Alphabet(order[index.reshape(-1)], len(first), tuple(sorted(first.tolist())))


def describe(alphabet: Alphabet) -> tuple[str, ...]:
    """Each class in words: its ASCII members, else its first code points, and its size."""
    words = []
    for c in range(alphabet.size):
        members = np.flatnonzero(alphabet.class_of == c)
        members = members[(members < 0xD800) | (members >= 0xE000)]
        ascii_members = members[members < 128]
        shown = _ranges(ascii_members) if len(ascii_members) else _ranges(members[:3])
        more = len(members) - (len(ascii_members) if len(ascii_members) else min(3, len(members)))
        words.append(shown + (f" and {more:,} more" if more else ""))
    return tuple(words)


def _ranges(members: npt.NDArray[np.int64]) -> str:
    runs: list[list[int]] = []
    for m in members.tolist():
        if runs and m == runs[-1][1] + 1:
            runs[-1][1] = m
        else:
            runs.append([m, m])
    shown: list[str] = []
    for first, last in runs:
        if last - first < 2:
            shown.extend(_name(m) for m in range(first, last + 1))
        else:
            shown.append(f"{_name(first)}–{_name(last)}")
    return " ".join(shown)


def _name(code_point: int) -> str:
    named = {9: "TAB", 10: "LF", 13: "CR", 32: "SPACE"}
    if 33 <= code_point < 127:
        return chr(code_point)
    return named.get(code_point, f"U+{code_point:04X}")


def _escaped(text: str) -> str:
    return "".join(c if c.isalnum() else f"\\{c}" for c in text)


def _text_of(code_points: npt.NDArray[np.uint32]) -> str:
    return code_points.astype("<u4").tobytes().decode("utf-32-le")


def _pieces(stage: Any, text: str) -> list[tuple[int, int]]:
    """The pieces of ``text`` as byte spans. The raw interface, because it is ten times faster
    than pre_tokenize_str on a text of a million characters."""
    pretokenized = PreTokenizedString(text)
    stage.pre_tokenize(pretokenized)
    spans = pretokenized.get_splits(offset_referential="original", offset_type="byte")
    return [(span[1][0], span[1][1]) for span in spans]


def _covered(stage: Any, text: str) -> list[tuple[int, int]]:
    """The byte spans that a removing stage removed from ``text``."""
    removed = []
    at = 0
    for start, end in _pieces(stage, text):
        if start > at:
            removed.append((at, start))
        at = end
    total = len(text.encode())
    if at < total:
        removed.append((at, total))
    return removed


def _byte_offsets(text: str) -> npt.NDArray[np.int64]:
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate(([0], np.cumsum(widths)))


def _members(
    spans: list[tuple[int, int]], text: str, code_points: npt.NDArray[np.uint32]
) -> Members:
    edges = np.zeros(len(text) + 1, dtype=np.int64)
    if spans:
        bounds = np.searchsorted(_byte_offsets(text), np.array(spans))
        np.add.at(edges, bounds[:, 0], 1)
        np.add.at(edges, bounds[:, 1], -1)
    return _spread(np.cumsum(edges)[:-1] > 0, code_points)


def _spread(is_member: Members, code_points: npt.NDArray[np.uint32]) -> Members:
    members = np.zeros(CODE_POINTS, dtype=np.bool_)
    members[code_points[is_member]] = True
    return members
