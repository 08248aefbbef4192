"""Small random texts: sentences, names, paths, numbers, code lines, JSON values."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, TypeVar

from toktier_stream.bench import words

T = TypeVar("T")


def _falling(count: int) -> list[float]:
    """Cumulative weights 1/(rank + 8): few words are most of a text, as in any language."""
    return list(itertools.accumulate(1 / (rank + 8) for rank in range(count)))


_ENGLISH: Final = _falling(len(words.ENGLISH))
_NOUNS: Final = _falling(len(words.NOUNS))


class Prose:
    """Draws texts from one random source; the same source gives the same texts."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._word = self._draw(words.ENGLISH, _ENGLISH)
        self._any_noun = self._draw(words.NOUNS, _NOUNS)
        self.turn_to_another_topic()

    def _draw(self, choices: Sequence[str], weights: Sequence[float]) -> Iterator[str]:
        while True:  # in blocks: one call of `choices` for many words is several times faster
            yield from self.rng.choices(choices, cum_weights=weights, k=256)

    def turn_to_another_topic(self) -> None:
        """Texts keep to a few names for a while, as a file or a conversation does."""
        self._nouns = tuple(itertools.islice(self._any_noun, 10))
        self._verbs = tuple(self.rng.choices(words.VERBS, k=8))
        self._id = self.hexadecimal(32)

    def noun(self) -> str:
        return self.pick(self._nouns) if self.chance(0.8) else next(self._any_noun)

    def verb(self) -> str:
        return self.pick(self._verbs)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.random() * len(choices))]

    def number(self, below: int) -> int:
        return int(self.rng.random() * below)

    def phrase(self, count: int) -> str:
        return " ".join(itertools.islice(self._word, count))

    def sentence(self) -> str:
        """One English sentence, now and then with a name in backquotes, a clause or an emoji."""
        text = self.phrase(5 + self.number(14))
        if self.chance(0.3):
            text += f" `{self.verb()}_{self.noun()}()`"
        if self.chance(0.25):
            text += f", {self.phrase(3 + self.number(6))}"
        end = ":" if self.chance(0.08) else "!" if self.chance(0.04) else "."
        if self.chance(0.03):
            end += " " + self.pick(words.EMOJI)
        return text[:1].upper() + text[1:] + end

    def sentences(self, chars: int) -> str:
        """English of at least ``chars`` characters, in paragraphs."""
        parts: list[str] = []
        size = 0
        while size < chars:
            parts.append(self.sentence() + ("\n\n" if self.chance(0.15) else " "))
            size += len(parts[-1])
        return "".join(parts).rstrip()

    def foreign(self) -> str:
        """One sentence in another script."""
        vocabulary, space = self.pick(words.SCRIPTS)
        text = space.join(self.rng.choices(vocabulary, k=6 + self.number(16)))
        if self.chance(0.05):
            text += " " + self.pick(words.DECOMPOSED)
        return text + self.pick((".", "。", "!", ""))

    def path(self, suffix: str = "") -> str:
        """A relative file path."""
        folders = [self.pick(words.FOLDERS) for _ in range(1 + self.number(3))]
        name = f"{self.noun()}_{self.noun()}" if self.chance(0.6) else self.noun()
        return "/".join([*folders, f"{name}.{suffix or self.pick(words.SUFFIXES)}"])

    def hexadecimal(self, digits: int) -> str:
        return f"{self.rng.getrandbits(4 * digits):0{digits}x}"

    def uuid(self) -> str:
        """An identifier: mostly one that was seen before."""
        if self.chance(0.2):
            self._id = self.hexadecimal(32)
        h = self._id
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def blob(self, size: int) -> str:
        return base64.b64encode(self.rng.randbytes(size)).decode()

    def when(self) -> str:
        n = self.number
        return f"2026-07-{1 + n(28):02}T{n(24):02}:{n(60):02}:{n(60):02}.{n(1000):03}Z"

    def code(self, language: str) -> Iterator[str]:
        """Endless lines of code with a plausible indentation."""
        templates, indent = words.CODE[language]
        depth = 0
        while True:
            template = self.pick(templates)
            if template.startswith("}") or template in ("", "else:"):
                depth = max(0, depth - 1)
            yield indent * depth + self._code_line(template) if template else ""
            if template.endswith((":", "{")) and depth < 6:
                depth += 1
            elif self.chance(0.15):
                depth = max(0, depth - 1)

    def _code_line(self, template: str) -> str:
        m, n, k, v = self.noun(), self.noun(), self.noun(), self.verb()
        fill = {
            "m": m, "n": n, "k": k, "v": v,
            "M": m.title(), "N": n.title(), "K": k.title(), "V": v.title(),
            "U": m.upper(), "W": n.upper(),
            "i": self.number(100 if self.chance(0.7) else 4096), "t": self.pick(words.TYPES),
        }  # fmt: skip
        if "{s}" in template or "{S}" in template:
            fill["s"] = self.phrase(3 + self.number(6)).replace("'", "")
            fill["S"] = self.foreign() if self.chance(0.05) else self.sentence()
        if "{x}" in template:
            fill["x"] = self.hexadecimal(8)
        return template.format_map(fill)

    def value(self, depth: int = 0) -> object:
        """A JSON value as APIs return them."""
        kind = self.number(10)
        if depth < 3 and kind < 3:
            names = [f"{self.noun()}_{self.noun()}" for _ in range(2 + self.number(5))]
            return {name: self.value(depth + 1) for name in names}
        if depth < 3 and kind == 3:
            return [self.value(depth + 1) for _ in range(1 + self.number(4))]
        options: tuple[object, ...] = (
            self.number(10**6), round(self.rng.random() * 1000, 3), self.chance(0.5), None,
            self.uuid(), self.when(), self.phrase(1 + self.number(8)), self.path(),
            self.foreign() if kind == 9 else kind,
        )  # fmt: skip
        return self.pick(options)

    def arguments(self, **fields: object) -> str:
        """Tool-call arguments as models write them: compact or spaced JSON."""
        separators = (",", ":") if self.chance(0.5) else (", ", ": ")
        return json.dumps(fields, ensure_ascii=False, separators=separators)
