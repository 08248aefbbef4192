"""Differential campaigns: batches of texts made to find differences, held to another encoder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from toktier_gpu.crossover import sources_text
from toktier_gpu.host import Fallback, GpuEncoder
from toktier_gpu.tables import DeviceTables
from toktier_stream.tokenizer.face import Encoder, Tokens

TRAPS: Final = (
    "  1", "\n     a", "\r\n\r\n", "'ſ 'K don'T I'LL", "\x1c\x85\u2028\u3000x", "A中BBBBc中",
    "ǅʰª½Ⅷ٣", "1234567 12", "👩\u200d👧🏽🇩🇪\ufe0f", "한글\u1112\u1161", "Å Ω ﬁ…①㎏ﷺ　ｱﾞ",
    "\U0010ffff\x00\x7f\u0378", "-=" * 50, "ab" * 70, "中国人民" * 30, " " * 97 + "x", "\n" * 70,
)  # fmt: skip

SIZES: Final = (0, 1, 1, 2, 3, 7, 15, 16, 31, 60, 150, 400, 1500)
"""Snippets in a text: most texts are short, most characters in long ones."""
SHORT_SIZES: Final = (0, 1, 1, 2, 2, 3, 3, 5, 8, 14)
"""The same for many short texts."""


class Samples:
    """Texts over what matters to one tokenizer. The same seed gives the same texts."""

    def __init__(
        self,
        tables: DeviceTables,
        vocabulary: Sequence[str],
        literals: Sequence[str],
        seed: int,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        """``vocabulary``: tokens as text (not in the byte-level alphabet); ``literals``: added
        tokens; ``sizes``: a text has up to one of these snippets."""
        self._sizes = sizes
        self._chooser = random.Random(seed)
        properties = tables.arrays["properties"][tables.arrays["pages"]].reshape(-1)
        properties = np.delete(properties, np.s_[0xD800:0xE000])
        points = np.delete(np.arange(0x110000), np.s_[0xD800:0xE000])
        kinds = properties >> np.uint16(8)
        safe = [points[(properties & 0xFF == c) & (kinds == 0)] for c in range(256)]
        self._classes = [members.tolist() for members in safe if len(members)]
        unstable = frozenset(map(chr, points[kinds > 0].tolist()))
        self._vocabulary = [w for w in vocabulary if unstable.isdisjoint(w)] or ["a"]
        self._traps = [t for t in TRAPS if unstable.isdisjoint(t)]
        # In few texts, because the device leaves those to the CPU.
        self._unstable = [*sorted(unstable), *(t for t in TRAPS if not unstable.isdisjoint(t))]
        self._literals = list(literals)
        make: list[Callable[[], str]] = [self._character] * 8
        make += [self._word] * 6 + [self._ascii, self._ascii, self._run, self._trap, self._space]
        make += [self._literal] if self._literals else []
        self._make = make

    def _character(self) -> str:
        members = self._chooser.choice(self._classes)
        # The first members of a class are the frequent ones.
        few = members[:4] if self._chooser.random() < 0.5 else members
        return chr(self._chooser.choice(few))

    def _word(self) -> str:
        return self._chooser.choice(self._vocabulary)

    def _ascii(self) -> str:
        return "".join(
            chr(self._chooser.randint(32, 126)) for _ in range(self._chooser.randint(1, 12))
        )

    def _run(self) -> str:
        return self._character() * self._chooser.choice((2, 3, 5, 17, 40, 130, 300))

    def _trap(self) -> str:
        return self._chooser.choice(self._traps)

    def _space(self) -> str:
        return " " * self._chooser.randint(1, 6)

    def _literal(self) -> str:
        literal = self._chooser.choice(self._literals)
        cut = self._chooser.random() < 0.2
        return literal[: self._chooser.randint(1, len(literal))] if cut else literal

    def text(self) -> bytes:
        """One text. One in thirty holds characters that a normalizer may change."""
        chooser = self._chooser
        count = chooser.randint(0, chooser.choice(self._sizes))
        parts = [chooser.choice(self._make)() for _ in range(count)]
        if self._unstable and parts and chooser.random() < 1 / 30:
            parts.insert(chooser.randrange(len(parts)), chooser.choice(self._unstable))
        return "".join(parts).encode()

    def batches(self, most_bytes: int, most_texts: int) -> Iterator[list[bytes]]:
        """Batches without end, of up to ``most_bytes`` in all; some fill them exactly."""
        while True:
            batch: list[bytes] = []
            size = 0
            limit = (
                self._chooser.randint(1, most_bytes) if self._chooser.random() < 0.5 else most_bytes
            )
            while size < limit and len(batch) < most_texts:
                text = self.text()
                if size + len(text) > limit:
                    text = text[: limit - size].decode(errors="ignore").encode()
                    text += b"x" * (limit - size - len(text))
                batch.append(text)
                size += len(text)
            yield batch


def first_texts() -> list[bytes]:
    """What a device is held to before it serves: source code in pieces of all sizes, the traps, and
    runs that reach every size class of the merges."""
    code = sources_text(1 << 17)
    texts = [trap.encode() for trap in TRAPS]
    texts += [b"e" * size for size in (31, 33, 127, 129, 700, 5000)]
    at = 0
    while at < len(code):
        for size in (0, 1, 2, 15, 16, 17, 33, 129, 1000, 4096, 16_384, 50_000):
            texts.append(code[at : at + size].decode(errors="ignore").encode())
            at += size
    return texts


@dataclass(slots=True)
class Outcome:
    """How much was compared, and where the first differences are (never any text)."""

    batches: int = 0
    texts: int = 0
    characters: int = 0
    tokens: int = 0
    left_to_cpu: int = 0
    differences: list[str] = field(default_factory=list)


def run(
    encoder: GpuEncoder,
    oracle: Encoder,
    batches: Iterator[list[bytes]],
    characters: int,
    outcome: Outcome | None = None,
) -> Outcome:
    """Compare until ``characters`` are done or ten differences are found."""
    done = outcome or Outcome()
    target = done.characters + characters
    for batch in batches:
        before = encoder.fallbacks
        result = encoder.encode(batch)
        after = encoder.fallbacks
        done.left_to_cpu += sum(after[f] - before[f] for f in Fallback)
        for number, text in enumerate(batch):
            if not _same(result[number], oracle.encode(text)):
                done.differences.append(f"batch {done.batches}, text {number}, {len(text)} bytes")
            done.characters += len(text.decode())
        done.batches += 1
        done.texts += len(batch)
        done.tokens += len(result.ids)
        if done.characters >= target or len(done.differences) >= 10:
            break
    return done


def _same(ours: Tokens, theirs: Tokens) -> bool:
    return np.array_equal(ours.ids, theirs.ids) and np.array_equal(ours.lengths, theirs.lengths)


def words_of(vocabulary: Sequence[str], alphabet: dict[str, int]) -> list[str]:
    """Tokens of a byte-level vocabulary that are whole characters, as text."""
    words = []
    for token in vocabulary:
        if all(c in alphabet for c in token):
            data = bytes(alphabet[c] for c in token)
            text = data.decode(errors="ignore")
            if text and text.encode() == data:
                words.append(text)
    return words
