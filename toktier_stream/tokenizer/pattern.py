"""Patterns of pre-tokenizers as syntax trees. pattern_parser.py makes them.

Character sets are not interpreted here: a set is kept as the source text of its fragment, and the
reference engine is asked for its members (classes.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Unsupported(Exception):
    """A construct that the exact engine does not admit; the message is the reason, for people."""


class Source(StrEnum):
    """Who decides the members of a character set."""

    REGEX = "regex"
    """The reference's regex engine, asked with the fragment as it stands in the pattern."""
    LITERAL = "literal"
    """The character itself."""
    NUMERIC = "numeric"
    """The reference's Digits stage."""
    PUNCTUATION = "punctuation"
    """The reference's Punctuation stage."""
    WHITESPACE = "whitespace"
    """The reference's WhitespaceSplit stage."""
    BERT_PUNCTUATION = "bert punctuation"
    """The reference's BertPreTokenizer: what it isolates."""
    WORD = "word"
    r"""The reference's Whitespace stage: its ``\w``."""
    SYMBOL = "symbol"
    r"""The reference's Whitespace stage: its ``[^\w\s]``."""


@dataclass(frozen=True, slots=True)
class CharSet:
    """Matches one character of a set."""

    text: str
    source: Source = Source.REGEX


@dataclass(frozen=True, slots=True)
class Concat:
    """Matches its parts one after the other; no parts: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternate:
    """Matches the first option that lets the rest of the pattern match."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Matches its body ``low`` to ``high`` times (None: without limit).

    Greedy prefers more, lazy fewer. A possessive repetition never gives back what it took; its
    body is a single character set.
    """

    body: Node
    low: int
    high: int | None
    greedy: bool = True
    possessive: bool = False


@dataclass(frozen=True, slots=True)
class Ahead:
    """Looks at the next character without taking it.

    Holds iff the next character is in one of ``sets`` (the text's end: iff ``at_end``), or the
    contrary of all that if ``negative``.
    """

    sets: tuple[CharSet, ...]
    at_end: bool
    negative: bool


Node = CharSet | Concat | Alternate | Repeat | Ahead

NEWLINE: Final = CharSet("\n", Source.LITERAL)
END_OF_LINE: Final = Ahead((NEWLINE,), at_end=True, negative=False)
"""``$`` of the dialect: before a line feed or at the end."""
END_OF_TEXT: Final = Ahead((), at_end=True, negative=False)


def case_folded_runs(node: Node) -> set[str]:
    """The character runs under ``(?i:)`` that stand side by side in ``node``, two or more long.

    The reference may match such a run with one character (``st`` with U+FB06), which the automata
    cannot; classes.py asks it whether it does.
    """
    runs: set[str] = set()
    _collect_runs(node, runs)
    return {run for run in runs if len(run) > 1}


def _collect_runs(node: Node, runs: set[str]) -> None:
    if isinstance(node, Concat):
        run = ""
        for part in _flat(node):
            if isinstance(part, CharSet) and part.text.startswith("(?i:") and part.text[4] != "[":
                run += part.text[4:-1]
            else:
                runs.add(run)
                run = ""
                _collect_runs(part, runs)
        runs.add(run)
    elif isinstance(node, Alternate):
        for option in node.options:
            _collect_runs(option, runs)
    elif isinstance(node, Repeat):
        _collect_runs(node.body, runs)


def _flat(node: Concat) -> list[Node]:
    parts: list[Node] = []
    for part in node.parts:
        parts.extend(_flat(part) if isinstance(part, Concat) else [part])
    return parts


def char_sets(node: Node) -> set[CharSet]:
    """All character sets that ``node`` mentions, in look-ahead too."""
    if isinstance(node, CharSet):
        return {node}
    if isinstance(node, Repeat):
        return char_sets(node.body)
    children: tuple[Node, ...]
    if isinstance(node, Concat):
        children = node.parts
    elif isinstance(node, Alternate):
        children = node.options
    else:
        children = node.sets
    return set().union(*(char_sets(child) for child in children))
