"""The regular expressions of pre-tokenizers read into syntax trees, in the reference's dialect.

The dialect is Oniguruma's own syntax, which the reference compiles every Split pattern with. Only
what can be turned exactly into automata is read; anything else raises Unsupported with the reason,
and the artifact is served by the reference.
"""

from __future__ import annotations

import re
from typing import Final

from toktier_stream.tokenizer.pattern import (
    END_OF_LINE,
    END_OF_TEXT,
    Ahead,
    Alternate,
    CharSet,
    Concat,
    Node,
    Repeat,
    Source,
    Unsupported,
)

MAX_REPEAT: Final = 64
"""Largest bound of a counted repetition; each count becomes a copy of the body."""
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b"}
_CHARACTER_TYPES: Final = "wWsSdDhH"
_NAMED_CONSTRUCTS: Final = {
    "b": "a word boundary (\\b), which looks to the left",
    "B": "a word boundary (\\B), which looks to the left",
    "A": "an anchor at the beginning (\\A)",
    "G": "an anchor at the search start (\\G)",
    "Z": "the anchor \\Z, which looks two characters ahead",
    "K": "\\K",
    "R": "\\R, which matches more than one character",
    "X": "\\X, which matches more than one character",
    "N": "\\N",
    "O": "\\O",
    "y": "a text segment boundary",
    "Y": "a text segment boundary",
    "k": "a back reference",
    "g": "a subexpression call",
}
_PLAIN_CLASS: Final = re.compile(r"\[[A-Za-z0-9' -]+\]")
_HEX: Final = re.compile(r"[0-9A-Fa-f]+")


def literal(text: str) -> Node:
    """The pattern that matches exactly ``text``. Raises Unsupported if it is empty."""
    if not text:
        raise Unsupported("a split on the empty string")
    sets = tuple(CharSet(c, Source.LITERAL) for c in text)
    return sets[0] if len(sets) == 1 else Concat(sets)


def parse(pattern: str) -> Node:
    """The syntax tree of ``pattern``. Raises Unsupported with the reason."""
    parser = _Parser(pattern)
    node = parser.alternation(ignore_case=False)
    if not parser.done():
        raise Unsupported(f"an unmatched ')' in the pattern at {parser.at}")
    return node


class _Parser:
    """Recursive descent over one pattern; one instance per parse."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0

    def done(self) -> bool:
        return self.at >= len(self.text)

    def peek(self, prefix: str) -> bool:
        return self.text.startswith(prefix, self.at)

    def take(self, prefix: str) -> bool:
        if not self.peek(prefix):
            return False
        self.at += len(prefix)
        return True

    def next(self) -> str:
        if self.done():
            raise Unsupported("a pattern that ends in the middle of a construct")
        self.at += 1
        return self.text[self.at - 1]

    def alternation(self, ignore_case: bool) -> Node:
        options = [self.sequence(ignore_case)]
        while self.take("|"):
            options.append(self.sequence(ignore_case))
        return options[0] if len(options) == 1 else Alternate(tuple(options))

    def sequence(self, ignore_case: bool) -> Node:
        parts: list[Node] = []
        while not self.done() and not self.peek("|") and not self.peek(")"):
            parts.append(self.quantified(ignore_case))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def quantified(self, ignore_case: bool) -> Node:
        node = self.atom(ignore_case)
        while True:
            bounds = self.bounds()
            if bounds is None:
                return node
            low, high, counted, fixed = bounds
            if isinstance(node, Ahead):
                raise Unsupported("a repeated look-ahead")
            # {n}? is "optional {n}" and {n,m}+ is "one or more {n,m}" in this dialect: the sign
            # stays where it is and is read as the next quantifier.
            lazy = not fixed and self.take("?")
            possessive = not lazy and not counted and self.take("+")
            if possessive and not isinstance(node, CharSet):
                raise Unsupported("a possessive repetition of more than one character set")
            node = Repeat(node, low, high, not lazy, possessive)

    def bounds(self) -> tuple[int, int | None, bool, bool] | None:
        """(low, high, written with braces, written as {n}) of the quantifier here, if any."""
        if self.take("*"):
            return 0, None, False, False
        if self.take("+"):
            return 1, None, False, False
        if self.take("?"):
            return 0, 1, False, False
        if not self.peek("{"):
            return None
        found = re.compile(r"\{(\d*)(,?)(\d*)\}").match(self.text, self.at)
        if found is None or (not found[1] and not found[3]) or (not found[1] and not found[2]):
            raise Unsupported("a brace that is not a counted repetition")
        self.at = found.end()
        low = int(found[1] or 0)
        high: int | None
        if not found[2]:
            high = low
        elif found[3]:
            high = int(found[3])
        else:
            high = None
        if high is not None and high < low:
            raise Unsupported("a counted repetition with reversed bounds")
        if max(low, high or 0) > MAX_REPEAT:
            raise Unsupported(f"a counted repetition of more than {MAX_REPEAT}")
        if high == 0:
            raise Unsupported("a repetition of zero times")
        return low, high, True, not found[2]

    def atom(self, ignore_case: bool) -> Node:
        if self.take("("):
            return self.group(ignore_case)
        if self.peek("["):
            return self.character_class(ignore_case)
        c = self.next()
        if c == "\\":
            return self.escape(ignore_case)
        if c == ".":
            return CharSet(".")
        if c == "$":
            return END_OF_LINE
        if c == "^":
            raise Unsupported("an anchor at the beginning of a line (^)")
        if c in "*+?":
            raise Unsupported("a quantifier with nothing to repeat")
        return self.character(c, ignore_case)

    def group(self, ignore_case: bool) -> Node:
        if self.take("?:"):
            inner = ignore_case
        elif self.take("?i:"):
            inner = True
        elif self.take("?-i:"):
            inner = False
        elif self.take("?="):
            return self.look_ahead(negative=False)
        elif self.take("?!"):
            return self.look_ahead(negative=True)
        elif self.peek("?<=") or self.peek("?<!"):
            raise Unsupported("a look-behind")
        elif self.peek("?>"):
            raise Unsupported("an atomic group")
        elif self.peek("?") or self.peek("*"):
            raise Unsupported(f"the group construct '({self.text[self.at : self.at + 3]}'")
        else:
            inner = ignore_case
        node = self.alternation(inner)
        self.close()
        return node

    def close(self) -> None:
        if not self.take(")"):
            raise Unsupported("a group without an end")

    def look_ahead(self, negative: bool) -> Node:
        node = self.alternation(ignore_case=False)
        self.close()
        sets: list[CharSet] = []
        at_end = False
        for option in node.options if isinstance(node, Alternate) else (node,):
            if isinstance(option, CharSet):
                sets.append(option)
            elif isinstance(option, Ahead) and not option.negative:
                sets.extend(option.sets)
                at_end = at_end or option.at_end
            else:
                raise Unsupported("a look-ahead over more than one character")
        return Ahead(tuple(sets), at_end, negative)

    def escape(self, ignore_case: bool) -> Node:
        start = self.at - 1
        c = self.next()
        if c in _CHARACTER_TYPES:
            return self.whole_set(self.text[start : self.at], ignore_case)
        if c in "pP":
            if not self.peek("{"):
                raise Unsupported("\\p without braces")
            end = self.text.find("}", self.at)
            if end < 0:
                raise Unsupported("\\p{ without an end")
            self.at = end + 1
            return self.whole_set(self.text[start : self.at], ignore_case)
        if c == "z":
            return END_OF_TEXT
        if c in _CONTROL:
            return self.character(_CONTROL[c], ignore_case)
        if c in "xu":
            return self.character(self.code_point(c), ignore_case)
        if c in _NAMED_CONSTRUCTS:
            raise Unsupported(_NAMED_CONSTRUCTS[c])
        if c.isascii() and not c.isalnum():
            return self.character(c, ignore_case)
        raise Unsupported(f"the escape '\\{c}'")

    def code_point(self, kind: str) -> str:
        if kind == "x" and self.take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : max(end, self.at)]
            self.at = end + 1
            limit = 0x10FFFF
        else:
            digits = self.text[self.at : self.at + (2 if kind == "x" else 4)]
            self.at += len(digits)
            # \x80 and above are single bytes of UTF-8 in this dialect, not code points.
            limit = 0x7F if kind == "x" else 0xFFFF
            if kind == "x" and len(digits) != 2:
                raise Unsupported("an incomplete \\x escape")
            if kind == "u" and len(digits) != 4:
                raise Unsupported("an incomplete \\u escape")
        if not _HEX.fullmatch(digits) or int(digits, 16) > limit:
            raise Unsupported(f"the escape '\\{kind}' with a value that is no code point")
        value = int(digits, 16)
        if 0xD800 <= value < 0xE000:
            raise Unsupported("a surrogate in the pattern")
        return chr(value)

    def character(self, c: str, ignore_case: bool) -> Node:
        if not ignore_case:
            return CharSet(c, Source.LITERAL)
        if not c.isascii() or not (c.isalnum() or c in "' -_"):
            raise Unsupported(
                "a character outside ASCII letters, digits and apostrophes under (?i:)"
            )
        return CharSet(f"(?i:{c})")

    def whole_set(self, fragment: str, ignore_case: bool) -> Node:
        if ignore_case:
            raise Unsupported("a character type or property under (?i:)")
        return CharSet(fragment)

    def character_class(self, ignore_case: bool) -> Node:
        start = self.at
        self.skip_class()
        fragment = self.text[start : self.at]
        if not ignore_case:
            return CharSet(fragment)
        # Under (?i:) a class can match several characters (ß and ss); plain ASCII ones cannot.
        if not _PLAIN_CLASS.fullmatch(fragment):
            raise Unsupported("a character class of more than ASCII letters and digits under (?i:)")
        return CharSet(f"(?i:{fragment})")

    def skip_class(self) -> None:
        """Move behind the class that starts here, with nested classes and POSIX brackets."""
        self.at += 1
        self.take("^")
        if self.peek("]"):
            raise Unsupported("a character class that begins with ']'")
        while True:
            if self.done():
                raise Unsupported("a character class without an end")
            if self.peek("[:") and (end := self.text.find(":]", self.at)) > 0:
                self.at = end + 2
            elif self.peek("["):
                self.skip_class()
            elif self.next() == "\\":
                self.next()
            elif self.text[self.at - 1] == "]":
                return
