"""Differential campaign on pieces: random texts through the tables and the reference, random cuts.

Checks that the fused tables cut as the reference does, and what the boundary tables promise:
two-sided, that the two sides' pieces are the whole's; one-sided, that the right side's are, and
that the left side's depend on the right side's first character only. It judges with the reference
alone, so that a wrong table cannot confirm itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from toktier_stream.tokenizer.matcher import ReferencePieces, same_pieces, sample_members
from toktier_stream.tokenizer.tables import MatcherTables

SPECIAL: Final = (
    " ", " ", "  ", "\t", "\n", "\n", "\r\n", "\n\n ", "\x0b", "\x1c", "\x85", "\xa0", "\u2028",
    "\u3000", "'", "'", "'s", "'S", "'ſ", "'K", "'re", "'RE", "'ll", "'lL", "’s", "1", "12",
    "123", "1234", "²", "½", "٣", "Ⅷ", "a", "A", "aB", "Ab", "ß", "ǅ", "ʰ", "ª", "é", "e\u0301",
    "\u0301", "\u0300\u0301", "\u093f", "\u0e33", "中", "文字", "ア", "゠", "\u3099", "가",
    "\u1100\u1161", "\u200d", "\ufe0f", "👩\u200d👧", "🇩🇪", "🙂", "\u0378", "\u088f", "\ua7ce",
    "\ua7d2", "\U000e0fff", ".", ",", "!", "?", "…", "/", "//", "_", "-", "(", ")", "[", "]",
    "{", "}", "$", "+", "€", "\x00", "\x7f", "\ufeff", "\U0010ffff",
)  # fmt: skip
"""What patterns treat with care: white space, line ends, apostrophes, digits, marks, title case,
jamo, joiners, emoji, unassigned code points."""


def members_of(tables: MatcherTables) -> list[str]:
    """Some characters of each class, for :class:`RandomText`."""
    return sample_members(tables, each=24)


class RandomText:
    """Random texts that favour what the tables tell apart. The same seed gives the same texts."""

    def __init__(self, classes: list[str], seed: int) -> None:
        """``classes``: some characters of each class that is told apart."""
        self._choose = random.Random(seed)
        self._classes = classes

    @classmethod
    def over(cls, tables: MatcherTables, seed: int) -> RandomText:
        """Random texts over the classes of these tables."""
        return cls(members_of(tables), seed)

    def text(self, most: int) -> str:
        """A text of about 1 to ``most`` characters."""
        choose = self._choose
        length = choose.randint(1, most)
        kind = choose.random()
        if kind < 0.4:
            few = choose.sample(self._classes, min(len(self._classes), choose.randint(1, 5)))
            return "".join(choose.choice(choose.choice(few)) for _ in range(length))
        if kind < 0.6:
            few_special = choose.choices(SPECIAL, k=4)
            return "".join(choose.choice(few_special) for _ in range(length))[:most]
        return "".join(
            choose.choice(SPECIAL)
            if choose.random() < 0.5
            else choose.choice(choose.choice(self._classes))
            for _ in range(length)
        )[:most]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A text on which something promised did not hold."""

    promise: str
    text: str
    cut: int
    """Characters to the left of the cut; -1 where no cut is meant."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a campaign tried and found."""

    texts: int
    characters: int
    two_sided: int
    """Cuts tried at two-sided boundaries."""
    one_sided: int
    """Cuts tried at boundaries that are only one-sided."""
    divergences: tuple[Divergence, ...]
    seconds: float


_Pieces = list[tuple[str, int, int]]


class Campaign:
    """One pre-tokenizer under test."""

    def __init__(
        self,
        spec: Mapping[str, Any] | None,
        tables: MatcherTables,
        seed: int,
        classes: list[str] | None = None,
    ) -> None:
        """``classes``: what :func:`members_of` gave, to save the time of asking."""
        self._tables = tables
        self._reference = ReferencePieces(spec)
        self._texts = RandomText(members_of(tables) if classes is None else classes, seed)
        self._choose = random.Random(seed + 1)

    def run(self, cuts: int, most: int = 24) -> Report:
        """Try texts of up to ``most`` characters until ``cuts`` cuts are checked.

        Stops at 10 divergences, and after 200 texts without a single cut to try.
        """
        begun = time.perf_counter()
        texts = characters = two_sided = one_sided = 0
        found: list[Divergence] = []
        while two_sided + one_sided < cuts and len(found) < 10:
            if texts >= 200 and not two_sided + one_sided:
                break
            text = self._texts.text(most)
            texts += 1
            characters += len(text)
            if not same_pieces(self._tables, self._reference, text):
                found.append(Divergence("the tables cut as the reference does", text, -1))
            whole = self._pieces(text, 0)
            for cut in self._cuts(text):
                x, y = (self._tables.class_of[ord(c)] for c in text[cut - 1 : cut + 1])
                if self._tables.two_sided[x, y]:
                    two_sided += 1
                    broken = self._two_sided(text, cut, whole)
                else:
                    one_sided += 1
                    broken = self._one_sided(text, cut, whole)
                if broken:
                    found.append(Divergence(broken, text, cut))
        return Report(
            texts, characters, two_sided, one_sided, tuple(found), time.perf_counter() - begun
        )

    def _cuts(self, text: str) -> list[int]:
        classes = [int(self._tables.class_of[ord(c)]) for c in text]
        allowed = self._tables.one_sided
        cuts = [i for i in range(1, len(text)) if allowed[classes[i - 1], classes[i]]]
        return cuts if len(cuts) <= 8 else sorted(self._choose.sample(cuts, 8))

    def _pieces(self, text: str, base: int) -> _Pieces:
        """The reference's pieces; spans only where they mean something for every piece."""
        pieces = self._reference(text)
        if self._tables.byte_level:
            return [(piece, 0, 0) for piece, _ in pieces]
        return [(piece, start + base, end + base) for piece, (start, end) in pieces]

    def _two_sided(self, text: str, cut: int, whole: _Pieces) -> str:
        base = len(text[:cut].encode())
        both = self._pieces(text[:cut], 0) + self._pieces(text[cut:], base)
        return "" if both == whole else "the two sides' pieces are the whole's"

    def _one_sided(self, text: str, cut: int, whole: _Pieces) -> str:
        base = len(text[:cut].encode())
        right = self._pieces(text[cut:], base)
        left = whole[: len(whole) - len(right)]
        if whole[len(left) :] != right:
            return "the right side's pieces are the whole's"
        # With one character on the right the left side must already be as it is.
        short = self._pieces(text[: cut + 1], 0)
        if short[: len(left)] != left:
            return "the left side depends on the first character of the right side only"
        return ""
